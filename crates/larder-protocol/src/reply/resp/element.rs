//! Encoders for the elements of RESP replies.

use crate::text::number::push;

/// The protocol version of a connection, which `HELLO` selects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the protocol's own")]
pub enum Version {
    #[default]
    Resp2,
    Resp3,
}

/// Writes the reply to an executed command without a result.
pub fn ok(out: &mut Vec<u8>) {
    simple("OK", out);
}

/// Writes the reply to `PING` without an argument.
pub fn pong(out: &mut Vec<u8>) {
    simple("PONG", out);
}

/// Writes the reply to a command that is queued for `EXEC`.
pub fn queued(out: &mut Vec<u8>) {
    simple("QUEUED", out);
}

/// Writes the reply to `RESET`.
pub fn reset(out: &mut Vec<u8>) {
    simple("RESET", out);
}

/// Writes the reply to `TYPE`: `string` if the item exists, else `none`.
pub fn item_type(exists: bool, out: &mut Vec<u8>) {
    simple(if exists { "string" } else { "none" }, out);
}

fn simple(word: &str, out: &mut Vec<u8>) {
    out.push(b'+');
    out.extend_from_slice(word.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Writes a RESP integer.
pub fn integer(number: i64, out: &mut Vec<u8>) {
    out.push(b':');
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Writes null. In RESP2, this is a null bulk string.
pub fn null(version: Version, out: &mut Vec<u8>) {
    out.extend_from_slice(match version {
        Version::Resp2 => b"$-1\r\n",
        Version::Resp3 => b"_\r\n",
    });
}

/// Writes the reply to an `EXEC` that was not executed, because a watched key has changed.
pub fn null_array(version: Version, out: &mut Vec<u8>) {
    out.extend_from_slice(match version {
        Version::Resp2 => b"*-1\r\n",
        Version::Resp3 => b"_\r\n",
    });
}

/// Writes a bulk string.
#[inline]
pub fn bulk(bytes: &[u8], out: &mut Vec<u8>) {
    out.reserve(bytes.len() + BULK_ROOM);
    bulk_head(bytes.len(), out);
    out.extend_from_slice(bytes);
    bulk_tail(out);
}

/// The maximum length of an encoded string without its content, in bytes.
const BULK_ROOM: usize = 26;

/// Writes the head of a bulk string with `len` bytes of content.
#[inline]
pub fn bulk_head(len: usize, out: &mut Vec<u8>) {
    length(b'$', len, out);
}

/// Writes the line end after the content of a bulk string.
#[inline]
pub fn bulk_tail(out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\n");
}

/// Writes the head of an array with `len` elements.
pub fn array(len: usize, out: &mut Vec<u8>) {
    length(b'*', len, out);
}

/// Writes the head of a map with `len` keys.
pub(super) fn map(version: Version, len: usize, out: &mut Vec<u8>) {
    match version {
        Version::Resp2 => length(b'*', 2 * len, out),
        Version::Resp3 => length(b'%', len, out),
    }
}

pub(super) fn length(kind: u8, len: usize, out: &mut Vec<u8>) {
    out.push(kind);
    push(len as u64, out);
    out.extend_from_slice(b"\r\n");
}

/// Writes the part of the reply to `SCAN` that precedes the array of keys.
pub fn scan_head(cursor: u64, out: &mut Vec<u8>) {
    array(2, out);
    bulk(itoa::Buffer::new().format(cursor).as_bytes(), out);
}

/// Writes the reply to `TIME`. `millis` is the time in milliseconds since 1970.
pub fn time(millis: u64, out: &mut Vec<u8>) {
    array(2, out);
    bulk((millis / 1000).to_string().as_bytes(), out);
    bulk((millis % 1000 * 1000).to_string().as_bytes(), out);
}

/// Writes lines of text: a bulk string in RESP2, a verbatim string in RESP3.
pub(super) fn text_page(version: Version, page: &[u8], out: &mut Vec<u8>) {
    match version {
        Version::Resp2 => bulk(page, out),
        Version::Resp3 => {
            length(b'=', page.len() + 4, out);
            out.extend_from_slice(b"txt:");
            out.extend_from_slice(page);
            bulk_tail(out);
        }
    }
}
