//! Answers to logins.

use super::encode::{binary, binary_error, text};
use crate::request::{ReplyFormat, Status};

/// "Go on" of SASL: no failure, and no success yet.
const AUTH_CONTINUE: u16 = 0x21;

/// The credentials are right.
pub fn admitted(format: &ReplyFormat<'_>, out: &mut Vec<u8>) {
    match format {
        ReplyFormat::Binary(_) => binary_text(format, "Authenticated", out),
        ReplyFormat::Classic(_) | ReplyFormat::Meta(_) => text("STORED", out),
    }
}

/// They are not.
pub fn not_admitted(format: &ReplyFormat<'_>, out: &mut Vec<u8>) {
    match format {
        ReplyFormat::Binary(head) => binary_error(head, Status::AuthFailure, out),
        ReplyFormat::Classic(_) | ReplyFormat::Meta(_) => {
            text("CLIENT_ERROR authentication failure", out)
        }
    }
}

/// SASL: the mechanism is there, its message is to follow.
pub fn login_begun(format: &ReplyFormat<'_>, out: &mut Vec<u8>) {
    if let ReplyFormat::Binary(head) = format {
        binary(head, AUTH_CONTINUE, &[], &[], 0, 0, out);
    }
}

/// SASL: the mechanisms that there are.
pub fn mechanisms(format: &ReplyFormat<'_>, out: &mut Vec<u8>) {
    binary_text(format, "PLAIN", out);
}

fn binary_text(format: &ReplyFormat<'_>, body: &str, out: &mut Vec<u8>) {
    if let ReplyFormat::Binary(head) = format {
        binary(head, 0, &[], &[], body.len(), 0, out);
        out.extend_from_slice(body.as_bytes());
    }
}
