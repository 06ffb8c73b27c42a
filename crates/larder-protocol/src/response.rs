//! Response readers for clients: memcached's text (classic and meta), its binary protocol, and
//! RESP2.
//!
//! Each reader takes the bytes received so far. The reader returns the first response with its
//! length, reports that more bytes are required, or reports that the bytes violate the protocol.
//! The readers copy nothing, and the responses do not depend on how the stream is split.
//! [`crate::answer`] interprets the responses.

use crate::request::VALUE_LEN_MAX;
use crate::text::number::u64_of;
use memchr::memchr;

/// The maximum length, in bytes, of a line in a text or RESP response, without its LF. A value is
/// not part of a line. Lines of statistics and of `me` are much shorter.
pub const RESPONSE_LINE_LEN_MAX: usize = 8 << 10;

/// The length of a binary response's head, in bytes.
const BINARY_HEAD_LEN: usize = 24;

/// The result of reading the first response in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read<T> {
    /// A complete response, and its length in bytes.
    Whole(T, usize),
    /// The response is incomplete.
    Incomplete {
        /// A lower bound of the response's length in bytes, which is more than the buffer contains
        /// now. If the length of a value has arrived, the bound is the exact length of the
        /// response, so a caller can allocate a buffer once. The number comes from the server, so
        /// the caller has to check it against a limit before it allocates memory.
        wanted: usize,
    },
    /// The bytes violate the protocol.
    Malformed,
}

/// A response in memcached's text protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Text<'b> {
    /// The line `VALUE key flags len [cas]`, with the block after it.
    Value {
        /// The key as sent.
        key: &'b [u8],
        /// The client flags.
        client_flags: u32,
        /// The CAS, in replies to `gets` and `gats`.
        cas: Option<u64>,
        /// The block, without its line end.
        value: &'b [u8],
    },
    /// The line `VA len flags*`, with the block after it.
    MetaValue {
        /// The bytes after the length.
        flags: &'b [u8],
        /// The block, without its line end.
        value: &'b [u8],
    },
    /// `END`.
    End,
    /// Any other line, including errors, without its line end.
    Line(&'b [u8]),
}

/// Reads a text response.
#[must_use]
pub fn read_text(bytes: &[u8]) -> Read<Text<'_>> {
    let (line, line_len) = match line(bytes) {
        Read::Whole(line, len) => (line, len),
        Read::Incomplete { wanted } => return Read::Incomplete { wanted },
        Read::Malformed => return Read::Malformed,
    };
    if let Some(rest) = line.strip_prefix(b"VALUE ") {
        let mut words = words(rest);
        let (Some(key), Some(flags), Some(len)) =
            (words.next(), words.next().and_then(u64_of), words.next().and_then(u64_of))
        else {
            return Read::Malformed;
        };
        let Ok(client_flags) = u32::try_from(flags) else { return Read::Malformed };
        let cas = words.next().and_then(u64_of);
        return block(bytes, line_len, len, |value| Text::Value { key, client_flags, cas, value });
    }
    if let Some(rest) = line.strip_prefix(b"VA ") {
        let (len, flags) = match memchr(b' ', rest) {
            Some(space) => rest.split_at(space),
            None => (rest, &[][..]),
        };
        let Some(len) = u64_of(len) else { return Read::Malformed };
        return block(bytes, line_len, len, |value| Text::MetaValue { flags, value });
    }
    Read::Whole(if line == b"END" { Text::End } else { Text::Line(line) }, line_len)
}

/// A binary response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binary<'b> {
    /// The opcode of the request.
    pub opcode: u8,
    /// The status; 0 is success.
    pub status: u16,
    /// The opaque of the request.
    pub opaque: [u8; 4],
    /// The CAS; 0 if there is none.
    pub cas: u64,
    /// The extras: the client flags, in the reply to a get.
    pub extras: &'b [u8],
    /// The key, in the reply to `getk` or `gatk`, or the name of a statistic; otherwise empty.
    pub key: &'b [u8],
    /// The value, or an error message.
    pub value: &'b [u8],
}

/// Reads a binary response.
#[must_use]
pub fn read_binary(bytes: &[u8]) -> Read<Binary<'_>> {
    let Some((head, rest)) = bytes.split_first_chunk::<BINARY_HEAD_LEN>() else {
        return Read::Incomplete { wanted: BINARY_HEAD_LEN };
    };
    let [0x81, opcode, k0, k1, extras_len, _, s0, s1, b0, b1, b2, b3, o0, o1, o2, o3, cas @ ..] =
        *head
    else {
        return Read::Malformed;
    };
    let body_len = u32::from_be_bytes([b0, b1, b2, b3]) as usize;
    if body_len > VALUE_LEN_MAX {
        return Read::Malformed;
    }
    let Some(body) = rest.get(..body_len) else {
        return Read::Incomplete { wanted: BINARY_HEAD_LEN + body_len };
    };
    let Some((extras, body)) = body.split_at_checked(usize::from(extras_len)) else {
        return Read::Malformed;
    };
    let key_len = usize::from(u16::from_be_bytes([k0, k1]));
    let Some((key, value)) = body.split_at_checked(key_len) else { return Read::Malformed };
    let response = Binary {
        opcode,
        status: u16::from_be_bytes([s0, s1]),
        opaque: [o0, o1, o2, o3],
        cas: u64::from_be_bytes(cas),
        extras,
        key,
        value,
    };
    Read::Whole(response, BINARY_HEAD_LEN + body_len)
}

/// A response, or an element of an array, in RESP2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resp<'b> {
    /// A simple string (`+`).
    Simple(&'b [u8]),
    /// An error (`-`).
    Error(&'b [u8]),
    /// An integer (`:`).
    Integer(i64),
    /// A bulk string (`$`).
    Bulk(&'b [u8]),
    /// Null (`$-1`, `*-1`).
    Null,
    /// The head of an array (`*`): this many elements follow.
    Array(usize),
}

/// Reads a RESP2 response. Reads only the head of an array.
#[must_use]
pub fn read_resp(bytes: &[u8]) -> Read<Resp<'_>> {
    let (line, line_len) = match line(bytes) {
        Read::Whole(line, len) => (line, len),
        Read::Incomplete { wanted } => return Read::Incomplete { wanted },
        Read::Malformed => return Read::Malformed,
    };
    let Some((kind, rest)) = line.split_first() else { return Read::Malformed };
    let whole = |response| Read::Whole(response, line_len);
    match (kind, rest) {
        (b'+', text) => whole(Resp::Simple(text)),
        (b'-', text) => whole(Resp::Error(text)),
        (b':', text) => signed(text).map_or(Read::Malformed, |n| whole(Resp::Integer(n))),
        (b'$' | b'*', b"-1") => whole(Resp::Null),
        (b'$', text) => match u64_of(text) {
            Some(len) => block(bytes, line_len, len, Resp::Bulk),
            None => Read::Malformed,
        },
        (b'*', text) => match u64_of(text).map(usize::try_from) {
            Some(Ok(len)) => whole(Resp::Array(len)),
            _ => Read::Malformed,
        },
        _ => Read::Malformed,
    }
}

/// Reads the first line, and removes its line end. A line that is too long is malformed, whether
/// its end has arrived or not.
#[inline]
fn line(bytes: &[u8]) -> Read<&[u8]> {
    let window = bytes.get(..=RESPONSE_LINE_LEN_MAX).unwrap_or(bytes);
    match memchr(b'\n', window) {
        Some(end) => {
            let line = window.get(..end).unwrap_or_default();
            Read::Whole(line.strip_suffix(b"\r").unwrap_or(line), end + 1)
        }
        None if window.len() > RESPONSE_LINE_LEN_MAX => Read::Malformed,
        None => Read::Incomplete { wanted: bytes.len() + 1 },
    }
}

/// Reads the block of `len` bytes at `start`, and its line end.
#[inline]
fn block<'b, T>(
    bytes: &'b [u8],
    start: usize,
    len: u64,
    response: impl FnOnce(&'b [u8]) -> T,
) -> Read<T> {
    let Some(len) = usize::try_from(len).ok().filter(|&len| len <= VALUE_LEN_MAX) else {
        return Read::Malformed;
    };
    let end = start + len;
    match bytes.get(end..).and_then(|rest| rest.first_chunk()) {
        Some(b"\r\n") => Read::Whole(response(bytes.get(start..end).unwrap_or_default()), end + 2),
        Some(_) => Read::Malformed,
        None => Read::Incomplete { wanted: end + 2 },
    }
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| *byte == b' ').filter(|word| !word.is_empty())
}

fn signed(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that only the complete response is read, and that all prefixes are incomplete.
    fn whole<T: PartialEq + std::fmt::Debug>(
        bytes: &'static [u8],
        read: impl Fn(&'static [u8]) -> Read<T>,
    ) -> T {
        for len in 0..bytes.len() {
            let Read::Incomplete { wanted } = read(&bytes[..len]) else { panic!("{len} bytes") };
            assert!((len + 1..=bytes.len()).contains(&wanted), "{len} bytes: {wanted}");
        }
        match read(bytes) {
            Read::Whole(response, len) if len == bytes.len() => response,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn text_responses_are_read() {
        let value = whole(b"VALUE key 7 3 99\r\na\nb\r\n", read_text);
        let (key, value_bytes) = (&b"key"[..], &b"a\nb"[..]);
        let expected = Text::Value { key, client_flags: 7, cas: Some(99), value: value_bytes };
        assert_eq!(value, expected);
        let meta = whole(b"VA 2 f7 t-1\r\nhi\r\n", read_text);
        assert_eq!(meta, Text::MetaValue { flags: b" f7 t-1", value: b"hi" });
        assert_eq!(whole(b"VA 0\r\n\r\n", read_text), Text::MetaValue { flags: b"", value: b"" });
        assert_eq!(whole(b"END\r\n", read_text), Text::End);
        assert_eq!(whole(b"STORED\r\n", read_text), Text::Line(b"STORED"));
        assert_eq!(read_text(b"VALUE a 0 1\r\nxyz\r\n"), Read::Malformed);
        assert_eq!(read_text(b"VALUE a 0 18446744073709551615\r\n"), Read::Malformed);
        assert_eq!(read_text(&[b'x'; RESPONSE_LINE_LEN_MAX + 1]), Read::Malformed);
    }

    #[test]
    fn the_length_of_a_whole_value_is_reported() {
        fn wanted<T>(len: usize) -> Read<T> {
            Read::Incomplete { wanted: len }
        }
        assert_eq!(read_text(b"VALUE k 0 1000000\r\nx"), wanted(19 + 1_000_000 + 2));
        assert_eq!(read_text(b"VA 1000000 k\r\n"), wanted(14 + 1_000_000 + 2));
        assert_eq!(read_resp(b"$1000000\r\n"), wanted(10 + 1_000_000 + 2));
        let mut head = [0; 24];
        (head[0], head[9]) = (0x81, 1);
        assert_eq!(read_binary(&head[..3]), wanted(24));
        assert_eq!(read_binary(&head), wanted(24 + (1 << 16)));
        head[8] = 0xff;
        assert_eq!(read_binary(&head), Read::Malformed);
    }

    #[test]
    fn a_long_line_is_malformed_with_and_without_its_end() {
        let line = [&[b'x'; RESPONSE_LINE_LEN_MAX + 1][..], b"\r\n"].concat();
        for len in RESPONSE_LINE_LEN_MAX + 1..=line.len() {
            assert_eq!(read_text(&line[..len]), Read::Malformed, "{len} bytes");
        }
    }

    #[test]
    fn binary_responses_are_read() {
        let bytes = b"\x81\0\0\x01\x04\0\0\0\0\0\0\x07abcd\0\0\0\0\0\0\0\x09\0\0\0\x05kvv";
        let expected = Binary {
            opcode: 0,
            status: 0,
            opaque: *b"abcd",
            cas: 9,
            extras: &[0, 0, 0, 5],
            key: b"k",
            value: b"vv",
        };
        assert_eq!(whole(bytes, read_binary), expected);
        assert_eq!(read_binary(&[b'E'; 24]), Read::Malformed);
    }

    #[test]
    fn resp_responses_are_read() {
        assert_eq!(whole(b"+OK\r\n", read_resp), Resp::Simple(b"OK"));
        assert_eq!(whole(b"-ERR no\r\n", read_resp), Resp::Error(b"ERR no"));
        assert_eq!(whole(b":-12\r\n", read_resp), Resp::Integer(-12));
        assert_eq!(whole(b"$3\r\na\r\n\r\n", read_resp), Resp::Bulk(b"a\r\n"));
        assert_eq!(whole(b"$-1\r\n", read_resp), Resp::Null);
        assert_eq!(whole(b"*2\r\n", read_resp), Resp::Array(2));
        assert_eq!(read_resp(b"VALUE\r\n"), Read::Malformed);
    }
}
