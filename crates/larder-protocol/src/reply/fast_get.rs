//! Replies to [`FastGet`] requests.

use super::encode::{HIT_ROOM, binary_hit, meta_key, value_line};
use crate::meta_flags::{Command, ShownItem, show};
use crate::parse::fast_get::{FastGet, Form};
use crate::text::number::push_len;

/// Writes the reply to a hit of a [`FastGet`] other than `mg`, with the whole value.
#[inline]
pub fn fast_value(get: &FastGet<'_>, client_flags: u32, cas: u64, value: &[u8], out: &mut Vec<u8>) {
    out.reserve(HIT_ROOM + get.key.len() + value.len());
    if let Form::Binary(head) = get.form() {
        binary_hit(&head, get.key, client_flags, cas, value.len(), out);
        out.extend_from_slice(value);
    } else {
        value_line(get.key, client_flags, out);
        push_len(value.len(), b"\r\n", out);
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\nEND\r\n");
    }
}

/// Writes the reply to a hit of `mg`. The item must have a text key, must not be stale, and no
/// client may have won the right to recache it. The function reads no field of `item` that depends
/// on earlier accesses.
#[inline]
pub fn fast_item(get: &FastGet<'_>, item: &ShownItem, value: &[u8], out: &mut Vec<u8>) {
    let value = get.with_value().then_some(value);
    out.reserve(HIT_ROOM + get.key.len() + value.map_or(0, <[u8]>::len));
    match value {
        Some(value) => {
            out.extend_from_slice(b"VA ");
            push_len(value.len(), b"", out);
        }
        None => out.extend_from_slice(b"HD"),
    }
    show(Command::Mg, get.flags(), item, |out| meta_key(get.key, false, out), out);
    out.extend_from_slice(b"\r\n");
    if let Some(value) = value {
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
}
