//! Answers to [`FastGet`]s.

use super::{HIT_ROOM, binary_hit, meta_ttl, number, value_line};
use crate::fast_get::{FastGet, Form};
use crate::number::push_line;

/// The answer to a [`FastGet`] other than `mg` that found `value`, whole.
#[inline]
pub fn fast_value(get: &FastGet<'_>, client_flags: u32, cas: u64, value: &[u8], out: &mut Vec<u8>) {
    out.reserve(HIT_ROOM + get.key.len() + value.len());
    if let Form::Binary(head) = get.form() {
        binary_hit(&head, get.key, client_flags, cas, value.len(), out);
        out.extend_from_slice(value);
    } else {
        value_line(get.key, client_flags, out);
        push_line(value.len() as u64, out);
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\nEND\r\n");
    }
}

/// What a [`FastGet`] that is `mg` can show.
#[derive(Clone, Copy, Debug)]
pub struct Glance<'v> {
    /// Opaque to the server.
    pub client_flags: u32,
    /// 0 under `-C`.
    pub cas: u64,
    /// Seconds left; `None` is for ever.
    pub ttl: Option<u32>,
    /// The whole of it.
    pub value: &'v [u8],
}

/// The answer to an `mg` that found an item, neither stale nor won, with a text key.
#[inline]
pub fn fast_item(get: &FastGet<'_>, item: &Glance<'_>, out: &mut Vec<u8>) {
    let value = get.letters().any(|letter| letter == b'v').then_some(item.value);
    out.reserve(HIT_ROOM + get.key.len() + value.map_or(0, <[u8]>::len));
    match value {
        Some(value) => number(b"VA ", value.len() as u64, out),
        None => out.extend_from_slice(b"HD"),
    }
    for letter in get.letters() {
        match letter {
            b't' => meta_ttl(item.ttl, out),
            b'c' => number(b" c", item.cas, out),
            b'f' => number(b" f", item.client_flags.into(), out),
            b's' => number(b" s", item.value.len() as u64, out),
            b'k' => {
                out.extend_from_slice(b" k");
                out.extend_from_slice(get.key);
            }
            _ => (),
        }
    }
    out.extend_from_slice(b"\r\n");
    if let Some(value) = value {
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
}
