//! The word `noreply` at the end of a classic line: the server does not answer such a command.

use crate::parse::parsed::faulty;
use crate::request::{Classic, FaultReply, Parsed, Recovery, ReplyFormat};
use crate::text::tokens::trim_end_spaces;

fn is_noreply(rest: &[u8]) -> bool {
    // Most lines end in a digit or a letter other than this one.
    rest.ends_with(b"y") && rest.ends_with(b" noreply")
        || rest.ends_with(b" ") && trim_end_spaces(rest).ends_with(b" noreply")
}

/// How the command of a line is answered.
pub(crate) fn format<'b>(rest: &[u8]) -> ReplyFormat<'b> {
    ReplyFormat::Classic(Classic { noreply: is_noreply(rest), ..Classic::default() })
}

/// An error line that `noreply` suppresses.
pub(crate) fn refuse<'b>(
    error: &'static str,
    rest: &[u8],
    then: Recovery,
    consumed: usize,
) -> Parsed<'b> {
    let reply = if is_noreply(rest) { FaultReply::Silent } else { FaultReply::Text(error) };
    faulty(reply, then, consumed)
}
