//! Replies to logins.

use super::encode::{binary, binary_error, text};
use crate::request::{ReplyFormat, Status};

/// The SASL status that requires another step.
const AUTH_CONTINUE: u16 = 0x21;

/// Writes the reply to a successful login.
pub fn admitted(format: &ReplyFormat<'_>, out: &mut Vec<u8>) {
    match format {
        ReplyFormat::Binary(_) => binary_text(format, "Authenticated", out),
        ReplyFormat::Classic(_) | ReplyFormat::Meta(_) => text("STORED", out),
    }
}

/// Writes the reply to a failed login.
pub fn not_admitted(format: &ReplyFormat<'_>, out: &mut Vec<u8>) {
    match format {
        ReplyFormat::Binary(head) => binary_error(head, Status::AuthFailure, out),
        ReplyFormat::Classic(_) | ReplyFormat::Meta(_) => {
            text("CLIENT_ERROR authentication failure", out)
        }
    }
}

/// Writes the SASL reply that accepts the mechanism and requests its message.
pub fn login_started(format: &ReplyFormat<'_>, out: &mut Vec<u8>) {
    if let ReplyFormat::Binary(head) = format {
        binary(head, AUTH_CONTINUE, &[], &[], 0, 0, out);
    }
}

/// Writes the list of supported SASL mechanisms.
pub fn mechanisms(format: &ReplyFormat<'_>, out: &mut Vec<u8>) {
    binary_text(format, "PLAIN", out);
}

fn binary_text(format: &ReplyFormat<'_>, body: &str, out: &mut Vec<u8>) {
    if let ReplyFormat::Binary(head) = format {
        binary(head, 0, &[], &[], body.len(), 0, out);
        out.extend_from_slice(body.as_bytes());
    }
}
