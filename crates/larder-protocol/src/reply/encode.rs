//! Parts of replies that several kinds of requests share.

use crate::meta_flags::number;
use crate::request::{BinaryHead, Classic, ReplyFormat, Status};

/// The first byte of a binary reply.
const BINARY_MAGIC: u8 = 0x81;

/// Writes the line `VALUE` up to and including the space before the length of the value.
#[expect(clippy::inline_always, reason = "a call costs `get` 2 % of its instructions")]
#[inline(always)]
pub(super) fn value_line(key: &[u8], client_flags: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    if client_flags == 0 {
        out.extend_from_slice(b" 0 ");
    } else {
        number(b" ", client_flags.into(), out);
        out.push(b' ');
    }
}

/// Writes a binary hit without its value.
#[expect(clippy::inline_always, reason = "a call costs a binary `get` 4 % of its instructions")]
#[inline(always)]
pub(super) fn binary_hit(
    head: &BinaryHead,
    key: &[u8],
    client_flags: u32,
    cas: u64,
    value_len: usize,
    out: &mut Vec<u8>,
) {
    let key = if head.with_key { key } else { &[] };
    let extras = client_flags.to_be_bytes();
    binary(head, 0, &extras, key, value_len, cas, out);
    out.extend_from_slice(&extras);
    out.extend_from_slice(key);
}

/// The output space in bytes to reserve for a hit, in addition to its key, flags and value.
pub(super) const HIT_ROOM: usize = 96;

/// Returns the output space in bytes to reserve for a value: 0 for a large value, which the session
/// sends in pieces.
pub(super) fn value_room(value_len: usize) -> usize {
    if value_len <= VALUE_ROOM_MAX { value_len } else { 0 }
}

const VALUE_ROOM_MAX: usize = 64 << 10;

/// Writes a line in text, or a reply with status 0 in binary. Writes nothing if `noreply`
/// or a quiet opcode suppresses it.
pub(super) fn success(format: &ReplyFormat<'_>, word: &str, out: &mut Vec<u8>) {
    match format {
        ReplyFormat::Classic(classic) => line(classic, word, out),
        ReplyFormat::Meta(_) => text(word, out),
        ReplyFormat::Binary(head) => binary_success(head, &[], 0, out),
    }
}

/// Writes an out-of-memory error, even if the request had `noreply` or was quiet. `line` is the
/// message in text.
pub(super) fn out_of_memory(format: &ReplyFormat<'_>, line: &str, out: &mut Vec<u8>) {
    match format {
        ReplyFormat::Binary(head) => binary_error(head, Status::OutOfMemory, out),
        ReplyFormat::Classic(_) | ReplyFormat::Meta(_) => text(line, out),
    }
}

/// Writes a classic line, unless the request had `noreply`.
pub(super) fn line(classic: &Classic, word: &str, out: &mut Vec<u8>) {
    if !classic.noreply {
        text(word, out);
    }
}

/// Writes a line of text.
#[inline]
pub(super) fn text(line: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(line.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Writes the flag `k` with a key as sent.
pub(super) fn meta_key(wire: &[u8], base64: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(b" k");
    out.extend_from_slice(wire);
    if base64 {
        out.extend_from_slice(b" b");
    }
}

/// Writes a binary reply of status 0, unless the request was quiet.
pub(super) fn binary_success(head: &BinaryHead, body: &[u8], cas: u64, out: &mut Vec<u8>) {
    if !head.quiet {
        binary(head, 0, &[], &[], body.len(), cas, out);
        out.extend_from_slice(body);
    }
}

/// Writes a binary error, even if the request was quiet.
pub(super) fn binary_error(head: &BinaryHead, status: Status, out: &mut Vec<u8>) {
    let body = status.text();
    binary(head, status as u16, &[], &[], body.len(), 0, out);
    out.extend_from_slice(body.as_bytes());
}

/// Writes the head of a binary reply.
#[expect(
    clippy::cast_possible_truncation,
    reason = "keys have at most KEY_LEN_MAX bytes, extras a few, values less than 2 GiB"
)]
#[inline]
pub(super) fn binary(
    head: &BinaryHead,
    status: u16,
    extras: &[u8],
    key: &[u8],
    value_len: usize,
    cas: u64,
    out: &mut Vec<u8>,
) {
    let body_len = (extras.len() + key.len() + value_len) as u32;
    let key_len = (key.len() as u16).to_be_bytes();
    let extras_len = extras.len() as u8;
    let mut bytes = [0; 24];
    bytes[0] = BINARY_MAGIC;
    bytes[1] = head.opcode;
    bytes[2..4].copy_from_slice(&key_len);
    bytes[4] = extras_len;
    bytes[6..8].copy_from_slice(&status.to_be_bytes());
    bytes[8..12].copy_from_slice(&body_len.to_be_bytes());
    bytes[12..16].copy_from_slice(&head.opaque);
    bytes[16..].copy_from_slice(&cas.to_be_bytes());
    out.extend_from_slice(&bytes);
}
