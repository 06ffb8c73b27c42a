//! Answers to logins.

use super::{binary, binary_error, text};
use crate::request::{Shape, Status};

/// "Go on" of SASL: no failure, and no success yet.
const AUTH_CONTINUE: u16 = 0x21;

/// The credentials are right.
pub fn admitted(shape: &Shape<'_>, out: &mut Vec<u8>) {
    match shape {
        Shape::Binary(_) => binary_text(shape, "Authenticated", out),
        Shape::Classic(_) | Shape::Meta(_) => text("STORED", out),
    }
}

/// They are not.
pub fn not_admitted(shape: &Shape<'_>, out: &mut Vec<u8>) {
    match shape {
        Shape::Binary(head) => binary_error(head, Status::AuthFailure, out),
        Shape::Classic(_) | Shape::Meta(_) => text("CLIENT_ERROR authentication failure", out),
    }
}

/// SASL: the mechanism is there, its message is to follow.
pub fn login_begun(shape: &Shape<'_>, out: &mut Vec<u8>) {
    if let Shape::Binary(head) = shape {
        binary(head, AUTH_CONTINUE, &[], &[], 0, 0, out);
    }
}

/// SASL: the mechanisms that there are.
pub fn mechanisms(shape: &Shape<'_>, out: &mut Vec<u8>) {
    binary_text(shape, "PLAIN", out);
}

fn binary_text(shape: &Shape<'_>, body: &str, out: &mut Vec<u8>) {
    if let Shape::Binary(head) = shape {
        binary(head, 0, &[], &[], body.len(), 0, out);
        out.extend_from_slice(body.as_bytes());
    }
}
