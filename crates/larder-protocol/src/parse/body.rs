//! Parses the values in text stores: their lengths and their bytes.

use crate::parse::parsed::{fault, faulty, request};
use crate::request::{FaultReply, Parsed, Recovery, Request, Store, VALUE_LEN_MAX};
use crate::text::line::BAD_FORMAT;
use crate::text::number::{i32_of, u64_of};

/// Parses the announced length of a value in bytes; `None` if it is malformed or above
/// [`VALUE_LEN_MAX`].
#[inline]
pub(crate) fn value_len(token: &[u8]) -> Option<usize> {
    i32_of(token).and_then(|len| usize::try_from(len).ok()).filter(|&len| len <= VALUE_LEN_MAX)
}

/// Returns the reply to a store with a malformed length. If the length is malformed only because of
/// leading zeros, the parser drops the value, so that it never parses the value's bytes as
/// commands.
#[cold]
pub(crate) fn bad_value_len<'b>(token: &[u8], consumed: usize) -> Parsed<'b> {
    match u64_of(token).filter(|&len| len <= VALUE_LEN_MAX as u64) {
        Some(len) => faulty(FaultReply::Text(BAD_FORMAT), Recovery::Swallow(len + 2), consumed),
        None => fault(BAD_FORMAT, consumed),
    }
}

/// Completes a text store with its value. Returns [`Parsed::StoreHead`] if a part of the value is
/// missing.
#[inline]
pub(crate) fn with_body<'b>(store: Store<'b>, body: &'b [u8], head_len: usize) -> Parsed<'b> {
    let value_len = store.value_len;
    let Some((value, end)) = body.get(..value_len + 2).and_then(|b| b.split_at_checked(value_len))
    else {
        return Parsed::StoreHead { store, head_len, body_len: value_len as u64 + 2 };
    };
    let store = Store { value, terminated: end == b"\r\n", ..store };
    request(Request::Store(store), head_len + value_len + 2)
}
