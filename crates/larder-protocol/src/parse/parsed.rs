//! The results that the parsers of all dialects return.

use crate::request::{Fault, FaultReply, Parsed, Recovery, Request};

/// A whole request of `consumed` bytes.
pub(crate) fn request<'b>(request: Request<'b>, consumed: usize) -> Parsed<'b> {
    Parsed::Request { request, consumed }
}

/// A fault, which is answered with `reply`.
pub(crate) fn faulty<'b>(reply: FaultReply, then: Recovery, consumed: usize) -> Parsed<'b> {
    Parsed::Request { request: Request::Fault(Fault { reply, then }), consumed }
}

/// An error line, and on with the next request.
pub(crate) fn fault<'b>(line: &'static str, consumed: usize) -> Parsed<'b> {
    faulty(FaultReply::Text(line), Recovery::Continue, consumed)
}

/// An error line, and on behind this line's LF, wherever that is.
pub(crate) fn fault_line<'b>(reply: FaultReply, input: &[u8]) -> Parsed<'b> {
    match memchr::memchr(b'\n', input) {
        Some(end) => faulty(reply, Recovery::Continue, end + 1),
        None => faulty(reply, Recovery::SwallowLine, input.len()),
    }
}

/// A fault that closes the connection without an answer.
pub(crate) fn hang_up<'b>(input: &[u8]) -> Parsed<'b> {
    faulty(FaultReply::Silent, Recovery::Close, input.len())
}
