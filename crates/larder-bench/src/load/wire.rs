//! Encodes requests and decodes responses in each protocol.

use super::keys::{KeyNames, append};
use super::values::Value;
use larder_protocol::response::{Read, Resp, Text, read_binary, read_resp, read_text};
use larder_target::Protocol;

/// A decoded response, in terms that all protocols share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply<'b> {
    /// A key was found. `key` is its name, where the protocol repeats it.
    Hit { key: Option<&'b [u8]>, value: &'b [u8] },
    /// A key was not found, or a set was not stored.
    Miss,
    /// The header of an array, whose elements follow as responses.
    More,
    /// The end of the answers to a get.
    End,
    /// A value was stored.
    Stored,
    /// An error, with the server's message.
    Error(&'b [u8]),
}

/// Encoder and decoder of a protocol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wire {
    pub(crate) protocol: Protocol,
    /// Whether gets ask for keys to be returned with the values, so that values can be checked.
    pub(crate) with_keys: bool,
}

mod opcode {
    pub(super) const GET: u8 = 0x00;
    pub(super) const SET: u8 = 0x01;
    pub(super) const NOOP: u8 = 0x0a;
    pub(super) const GETKQ: u8 = 0x0d;
}

impl Wire {
    /// Appends a get of one key or several.
    #[expect(clippy::inline_always, reason = "part of the loop that fills a pipeline")]
    #[inline(always)]
    pub(crate) fn write_get(self, names: &KeyNames, keys: &[u64], out: &mut Vec<u8>) {
        match self.protocol {
            Protocol::Text => {
                out.extend_from_slice(b"get");
                for key in keys {
                    out.push(b' ');
                    names.write(*key, out);
                }
                out.extend_from_slice(b"\r\n");
            }
            Protocol::Meta => self.write_meta_get(names, keys, out),
            Protocol::Binary => {
                let quiet = keys.len() > 1;
                for key in keys {
                    let opcode = if quiet { opcode::GETKQ } else { opcode::GET };
                    write_binary_head(opcode, names.len(*key), 0, 0, out);
                    names.write(*key, out);
                }
                if quiet {
                    write_binary_head(opcode::NOOP, 0, 0, 0, out);
                }
            }
            Protocol::Resp => {
                let name = if keys.len() > 1 { "MGET" } else { "GET" };
                append(out, format_args!("*{}\r\n${}\r\n{name}\r\n", keys.len() + 1, name.len()));
                keys.iter().for_each(|key| write_bulk_key(names, *key, out));
            }
        }
    }

    fn write_meta_get(self, names: &KeyNames, keys: &[u64], out: &mut Vec<u8>) {
        let flags: &[u8] = match (keys.len() > 1, self.with_keys) {
            (false, _) => b" v f t\r\n",
            (true, false) => b" v f t q\r\n",
            (true, true) => b" k v f t q\r\n",
        };
        for key in keys {
            out.extend_from_slice(b"mg ");
            names.write(*key, out);
            out.extend_from_slice(flags);
        }
        if keys.len() > 1 {
            out.extend_from_slice(b"mn\r\n");
        }
    }

    /// Appends a set. An `expiry` of 0 is none.
    #[expect(clippy::inline_always, reason = "part of the loop that fills a pipeline")]
    #[inline(always)]
    pub(crate) fn write_set(
        self,
        names: &KeyNames,
        key: u64,
        expiry: u32,
        value: Value<'_>,
        out: &mut Vec<u8>,
    ) {
        let mut number = itoa::Buffer::new();
        match self.protocol {
            Protocol::Text => {
                out.extend_from_slice(b"set ");
                names.write(key, out);
                out.extend_from_slice(b" 0 ");
                out.extend_from_slice(number.format(expiry).as_bytes());
                out.push(b' ');
                out.extend_from_slice(number.format(value.len()).as_bytes());
            }
            Protocol::Meta => {
                out.extend_from_slice(b"ms ");
                names.write(key, out);
                out.push(b' ');
                out.extend_from_slice(number.format(value.len()).as_bytes());
                if expiry > 0 {
                    append(out, format_args!(" T{expiry}"));
                }
            }
            Protocol::Binary => {
                write_binary_head(opcode::SET, names.len(key), 8, value.len(), out);
                out.extend_from_slice(&[0; 4]);
                out.extend_from_slice(&expiry.to_be_bytes());
                names.write(key, out);
                value.write(out);
                return;
            }
            Protocol::Resp => {
                let words = if expiry > 0 { 5 } else { 3 };
                append(out, format_args!("*{words}\r\n$3\r\nSET\r\n"));
                write_bulk_key(names, key, out);
                append(out, format_args!("${}\r\n", value.len()));
                value.write(out);
                if expiry > 0 {
                    let digits = number.format(expiry);
                    append(out, format_args!("\r\n$2\r\nEX\r\n${}\r\n{digits}", digits.len()));
                }
                out.extend_from_slice(b"\r\n");
                return;
            }
        }
        out.extend_from_slice(b"\r\n");
        value.write(out);
        out.extend_from_slice(b"\r\n");
    }

    /// Decodes the response at the start of `bytes`.
    #[inline]
    pub(crate) fn read(self, bytes: &[u8]) -> Read<Reply<'_>> {
        match self.protocol {
            Protocol::Text | Protocol::Meta => map(read_text(bytes), text_reply),
            Protocol::Binary => map(read_binary(bytes), |response| match response {
                r if r.status == 0 && r.opcode == opcode::SET => Reply::Stored,
                r if r.status == 0 && r.opcode == opcode::NOOP => Reply::End,
                r if r.status == 0 => {
                    let key = if r.key.is_empty() { None } else { Some(r.key) };
                    Reply::Hit { key, value: r.value }
                }
                r if r.status == 1 => Reply::Miss,
                r => Reply::Error(r.value),
            }),
            Protocol::Resp => map(read_resp(bytes), |response| match response {
                Resp::Simple(_) => Reply::Stored,
                Resp::Error(text) => Reply::Error(text),
                Resp::Bulk(value) => Reply::Hit { key: None, value },
                Resp::Null => Reply::Miss,
                Resp::Array(_) => Reply::More,
                Resp::Integer(_) => Reply::Error(b"unexpected integer reply"),
            }),
        }
    }
}

fn map<'b, T>(read: Read<T>, convert: impl FnOnce(T) -> Reply<'b>) -> Read<Reply<'b>> {
    match read {
        Read::Whole(response, len) => Read::Whole(convert(response), len),
        Read::Incomplete { wanted } => Read::Incomplete { wanted },
        Read::Malformed => Read::Malformed,
    }
}

fn text_reply(response: Text<'_>) -> Reply<'_> {
    match response {
        Text::Value { key, value, .. } => Reply::Hit { key: Some(key), value },
        Text::MetaValue { flags, value } => {
            let key = flags.split(|byte| *byte == b' ').find_map(|flag| flag.strip_prefix(b"k"));
            Reply::Hit { key, value }
        }
        Text::End | Text::Line(b"MN") => Reply::End,
        Text::Line(b"STORED" | b"HD") => Reply::Stored,
        Text::Line(b"EN" | b"NF" | b"NOT_FOUND" | b"NS" | b"NOT_STORED") => Reply::Miss,
        Text::Line(other) => Reply::Error(other),
    }
}

pub(crate) fn write_binary_head(
    opcode: u8,
    key_len: usize,
    extras_len: u8,
    value_len: usize,
    out: &mut Vec<u8>,
) {
    let key = u16::try_from(key_len).unwrap_or(u16::MAX).to_be_bytes();
    let body = u32::try_from(key_len + usize::from(extras_len) + value_len).unwrap_or(u32::MAX);
    let [b0, b1, b2, b3] = body.to_be_bytes();
    out.extend_from_slice(&[0x80, opcode, key[0], key[1], extras_len, 0, 0, 0, b0, b1, b2, b3]);
    out.extend_from_slice(&[0; 12]);
}

fn write_bulk_key(names: &KeyNames, key: u64, out: &mut Vec<u8>) {
    append(out, format_args!("${}\r\n", names.len(key)));
    names.write(key, out);
    out.extend_from_slice(b"\r\n");
}
