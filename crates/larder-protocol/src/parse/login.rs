//! Parsing of text logins: a `set` with the value `user password`.
//!
//! ```text
//! set <anything> <anything> <anything> <length>\r\n
//! <user> <password>\r\n
//! ```
//!
//! Until a login succeeds, all other lines receive the same error reply. Two kinds of lines close
//! the connection instead: a line without LF among its first [`LINE_LEN_MAX`] bytes, and a line
//! shorter than [`LINE_LEN_MIN`].

use crate::parse::parsed::{fault, hang_up};
use crate::request::{Claim, Classic, Credentials, Login, Parsed, Password, ReplyFormat, Request};
use crate::text::line::{LINE_LEN_MAX, without_cr};
use crate::text::number::u32_of;
use crate::text::tokens::Tokens;

/// The maximum length of a login message in bytes, as in memcached.
pub(crate) const MESSAGE_LEN_MAX: usize = 16384;

/// The minimum length of an accepted line in bytes, with its CR but without its LF. Like memcached,
/// the server closes the connection after a shorter line.
const LINE_LEN_MIN: usize = 6;

const UNAUTHENTICATED: &str = "CLIENT_ERROR unauthenticated";
const TOO_LONG: &str = "CLIENT_ERROR auth token too long";
const BAD_TERMINATION: &str = "CLIENT_ERROR bad command line termination";
const BAD_TOKEN: &str = "CLIENT_ERROR bad authentication token format";

/// Parses the start of a text stream before its login.
pub(crate) fn parse(input: &[u8]) -> Parsed<'_> {
    let window = input.get(..LINE_LEN_MAX).unwrap_or(input);
    let Some(end) = memchr::memchr(b'\n', window) else {
        return if window.len() < LINE_LEN_MAX { Parsed::Incomplete } else { hang_up(input) };
    };
    if end < LINE_LEN_MIN {
        return hang_up(input);
    }
    let (line, body) = input.split_at_checked(end + 1).unwrap_or_default();
    let Some(len) = announced(line.get(..end).unwrap_or_default()) else {
        return fault(UNAUTHENTICATED, line.len());
    };
    if len > MESSAGE_LEN_MAX {
        return fault(TOO_LONG, line.len());
    }
    match body.get(..len + 2) {
        Some(message) => parse_message(message, line.len() + len + 2),
        None => Parsed::Incomplete,
    }
}

/// Returns the announced length of the message, or `None` if the line does not look like a `set`.
/// Key, flags and expiry have to be present, but are not checked.
fn announced(line: &[u8]) -> Option<usize> {
    let tokens = || Tokens(without_cr(line));
    let len = tokens().nth(4).and_then(u32_of)?;
    line.starts_with(b"set").then_some(len as usize)
}

/// Parses `user password` and its CRLF. The first space ends the user name. The password may
/// contain spaces.
fn parse_message(message: &[u8], consumed: usize) -> Parsed<'_> {
    let Some(message) = message.strip_suffix(b"\r\n") else {
        return fault(BAD_TERMINATION, consumed);
    };
    let Some(end) = memchr::memchr(b' ', message) else { return fault(BAD_TOKEN, consumed) };
    let (user, rest) = message.split_at_checked(end).unwrap_or_default();
    let password = Password(rest.get(1..).unwrap_or_default());
    let claim = Claim::Credentials(Credentials { user, password });
    // As in memcached, `noreply` does not suppress the reply.
    let login = Login { claim, format: ReplyFormat::Classic(Classic::default()) };
    Parsed::Request { request: Request::Login(login), consumed }
}
