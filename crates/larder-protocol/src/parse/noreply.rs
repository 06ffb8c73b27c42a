//! The word `noreply` at the end of a classic line, which suppresses the reply.

use crate::parse::parsed::faulty;
use crate::request::{Classic, FaultReply, Parsed, Recovery, ReplyFormat};
use crate::text::tokens::trim_end_spaces;

fn is_noreply(rest: &[u8]) -> bool {
    // Fast path: most lines end with another byte.
    rest.ends_with(b"y") && rest.ends_with(b" noreply")
        || rest.ends_with(b" ") && trim_end_spaces(rest).ends_with(b" noreply")
}

/// Returns the reply format of a classic line.
pub(crate) fn format<'b>(rest: &[u8]) -> ReplyFormat<'b> {
    ReplyFormat::Classic(Classic { noreply: is_noreply(rest), ..Classic::default() })
}

/// Returns a fault with an error line, or without a reply if the line ends in `noreply`.
pub(crate) fn refuse<'b>(
    error: &'static str,
    rest: &[u8],
    then: Recovery,
    consumed: usize,
) -> Parsed<'b> {
    let reply = if is_noreply(rest) { FaultReply::Silent } else { FaultReply::Text(error) };
    faulty(reply, then, consumed)
}
