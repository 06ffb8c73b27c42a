//! Constructors of parse results, for all parsers.

use crate::request::{Fault, FaultReply, Parsed, Recovery, Request};

/// Returns a complete request of `consumed` bytes.
pub(crate) fn request<'b>(request: Request<'b>, consumed: usize) -> Parsed<'b> {
    Parsed::Request { request, consumed }
}

/// Returns a fault with the reply `reply`.
pub(crate) fn faulty<'b>(reply: FaultReply, then: Recovery, consumed: usize) -> Parsed<'b> {
    Parsed::Request { request: Request::Fault(Fault { reply, then }), consumed }
}

/// Returns a fault with an error line. Parsing continues with the next request.
pub(crate) fn fault<'b>(line: &'static str, consumed: usize) -> Parsed<'b> {
    faulty(FaultReply::Text(line), Recovery::Continue, consumed)
}

/// Returns a fault with the reply `reply`. Parsing continues after the LF of the current line,
/// which may not have arrived yet.
pub(crate) fn fault_line<'b>(reply: FaultReply, input: &[u8]) -> Parsed<'b> {
    match memchr::memchr(b'\n', input) {
        Some(end) => faulty(reply, Recovery::Continue, end + 1),
        None => faulty(reply, Recovery::SwallowLine, input.len()),
    }
}

/// Returns a fault that closes the connection without a reply.
pub(crate) fn hang_up<'b>(input: &[u8]) -> Parsed<'b> {
    faulty(FaultReply::Silent, Recovery::Close, input.len())
}
