//! Decoders for the replies that a server sends. All protocols share one reply type, [`Answer`].
//!
//! Each function decodes the first reply in a buffer. [`crate::response`] finds the end of the
//! reply, and its limits apply. A reply borrows from the buffer; nothing is copied or allocated.
//!
//! ```
//! use larder_protocol::answer::{Answer, Flag, read_text};
//! use larder_protocol::response::Read;
//!
//! let Read::Whole(Answer::Hit { value, returned }, 15) = read_text(b"VA 2 f7 W\r\nhi\r\n") else {
//!     panic!("expected a hit")
//! };
//! assert_eq!((value, returned.client_flags()), (&b"hi"[..], Some(7)));
//! assert!(returned.flags().any(|flag| flag == Flag::Won));
//! assert_eq!(read_text(b"VA 2 f7 W\r\nh"), Read::Incomplete { wanted: 15 });
//! ```

use crate::parse::binary::opcode;
use crate::request::{Key, Status};
use crate::response::{self, Binary, Read, Resp, Text};
use crate::text::number::{u32_of, u64_of};
use crate::text::tokens::Tokens;

/// A reply, or a part of a reply. The reply to a request for several keys consists of several
/// parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'b> {
    /// An item was found: `VALUE`, `VA`, a binary get, or a RESP bulk string. The reply to `ma`
    /// with `v` is also a hit. Its value is the number in decimal digits.
    Hit {
        /// The bytes of the value, without a line end.
        value: &'b [u8],
        /// The other requested fields.
        returned: AnswerFields<'b>,
    },
    /// A meta command succeeded, and the reply has no value: `HD`.
    Done {
        /// The requested fields.
        returned: AnswerFields<'b>,
    },
    /// A value was stored: `STORED`, and success of a binary store.
    Stored {
        /// In binary, the fields of the reply's head, such as the new CAS. In text, no fields.
        returned: AnswerFields<'b>,
    },
    /// An item was removed: `DELETED`, and success of a binary delete.
    Deleted,
    /// An expiry was set: `TOUCHED`, and success of a binary touch.
    Touched,
    /// Another command was executed: `OK`, `RESET`, and success of a binary flush, quit or login.
    /// The reply to a RESP `SET` that stored its value is also `Ok`.
    Ok,
    /// An add found an item, or a replace, append or prepend found none: `NOT_STORED`, `NS`.
    NotStored {
        /// The requested fields. In the reply to an `ms`, the CAS is 0, and the length is the
        /// length of the value that the client sent.
        returned: AnswerFields<'b>,
    },
    /// The CAS differs: `EXISTS`, `EX`. This is also the reply to a binary add that found an item;
    /// in other protocols, this reply is [`NotStored`](Self::NotStored).
    Exists {
        /// The requested fields. In the reply to an `ms`, the CAS is 0, and the length is the
        /// length of the value that the client sent.
        returned: AnswerFields<'b>,
    },
    /// There is no such item: `NOT_FOUND`, `NF`, `EN`, RESP's null. This is also the reply to a
    /// binary replace that found no item; in other protocols, this reply is
    /// [`NotStored`](Self::NotStored). A classic `get` has no reply for a missing key.
    NotFound {
        /// The requested fields. In the reply to an `ms`, the CAS is 0, and the length is the
        /// length of the value that the client sent.
        returned: AnswerFields<'b>,
    },
    /// The result of a classic or binary increment or decrement, or a RESP integer.
    Number(u64),
    /// The end of a reply in several parts: `END`, and the end of binary statistics. This is also
    /// the reply to `mn` and to a binary noop. The server sends it after all earlier replies.
    End,
    /// The server's version, without the word `VERSION`.
    Version(&'b [u8]),
    /// One statistic of a page: a line `STAT`, or a binary packet.
    Stat {
        /// The name of the statistic.
        name: &'b [u8],
        /// The value of the statistic.
        value: &'b [u8],
    },
    /// The head of a RESP array: this many elements follow.
    Array(usize),
    /// Any other line, without its line end: the reply to `me` or an administrative command, a RESP
    /// simple string other than `OK`, or the list of SASL mechanisms.
    Line(&'b [u8]),
    /// The server refused the request or could not execute it.
    Error {
        /// True if the request caused the error, false if the server caused it. The field is true
        /// for `ERROR` and `CLIENT_ERROR`, for some binary statuses such as invalid arguments, and
        /// for the RESP codes `ERR`, `WRONGTYPE`, `NOAUTH` and `NOPERM`.
        client: bool,
        /// The server's error message, without the line's end. In text and RESP, the message
        /// includes the first word, such as `SERVER_ERROR` or `ERR`.
        line: &'b [u8],
    },
}

/// The reason why the server refused a request. Clients can react differently to each reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// The value to increment or decrement is not a number.
    NotANumber,
    /// The item would be larger than the server allows.
    TooLarge,
    /// The engine could not allocate memory for the item, or the leader of the group has used up
    /// its range of CAS values.
    OutOfMemory,
    /// The server could not allocate memory for the reply to a lookup.
    NoRoom,
    /// The group that owns the item currently has no leader, or the leader is another node. The
    /// server has not executed a request for a single item, but it may have executed a part of a
    /// request for several items.
    NoLeader,
    /// Any other reason.
    Otherwise,
}

impl RefusalReason {
    /// Compares the line of an [`Answer::Error`] with the text error messages of memcached and
    /// Larder. Errors in binary and RESP are always [`Otherwise`](Self::Otherwise).
    #[must_use]
    pub fn of(line: &[u8]) -> Self {
        let starts_with = |known: &[u8]| {
            line.get(..known.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(known))
        };
        if line.ends_with(b"cannot increment or decrement non-numeric value") {
            Self::NotANumber
        } else if starts_with(b"SERVER_ERROR object too large") {
            Self::TooLarge
        } else if starts_with(b"SERVER_ERROR out of memory writing get response") {
            Self::NoRoom
        } else if line == b"SERVER_ERROR no leader" {
            Self::NoLeader
        } else if starts_with(b"SERVER_ERROR out of memory")
            || line == b"SERVER_ERROR no CAS values left"
        {
            Self::OutOfMemory
        } else {
            Self::Otherwise
        }
    }
}

/// The fields of a reply other than its outcome and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerFields<'b> {
    /// No fields: a line of classic text, `HD` or `EN` without flags, or RESP.
    Nothing,
    /// The fields of `VALUE`.
    Classic {
        /// The key as sent.
        key: &'b [u8],
        /// The client flags.
        client_flags: u32,
        /// The CAS, in replies to `gets` and `gats`.
        cas: Option<u64>,
    },
    /// The flags of a meta reply.
    Meta(Flags<'b>),
    /// The fields of a binary head.
    Binary {
        /// The key, in replies to `getk` and `gatk`.
        key: Option<&'b [u8]>,
        /// The client flags; `None` if the reply has no extras.
        client_flags: Option<u32>,
        /// The CAS; 0 if there is none.
        cas: u64,
        /// The opaque of the request.
        opaque: [u8; 4],
    },
}

impl<'b> AnswerFields<'b> {
    /// Returns the key, if the reply has it.
    #[must_use]
    pub fn key(&self) -> Option<Key<'b>> {
        match *self {
            Self::Nothing => None,
            Self::Classic { key, .. } => Some(Key::raw(key)),
            Self::Binary { key, .. } => key.map(Key::raw),
            Self::Meta(mut flags) => {
                let base64 = self.flags().any(|flag| flag == Flag::Base64);
                flags.find_map(|flag| match flag {
                    Flag::Key(wire) => Some(Key { wire, base64 }),
                    _ => None,
                })
            }
        }
    }

    /// Returns the client flags, if the reply has them.
    #[must_use]
    pub fn client_flags(&self) -> Option<u32> {
        match *self {
            Self::Nothing => None,
            Self::Classic { client_flags, .. } => Some(client_flags),
            Self::Binary { client_flags, .. } => client_flags,
            Self::Meta(mut flags) => flags.find_map(|flag| match flag {
                Flag::ClientFlags(number) => Some(number),
                _ => None,
            }),
        }
    }

    /// Returns the item's CAS, if the reply has it. Returns `Some(0)` if an `ms` requested the CAS
    /// but stored nothing.
    #[must_use]
    pub fn cas(&self) -> Option<u64> {
        match *self {
            Self::Nothing => None,
            Self::Classic { cas, .. } => cas,
            Self::Binary { cas, .. } => (cas != 0).then_some(cas),
            Self::Meta(mut flags) => flags.find_map(|flag| match flag {
                Flag::Cas(number) => Some(number),
                _ => None,
            }),
        }
    }

    /// Returns the flags of a meta reply. Replies in other protocols have none.
    #[must_use]
    pub fn flags(&self) -> Flags<'b> {
        if let Self::Meta(flags) = *self { flags } else { Flags(Tokens(&[])) }
    }
}

/// The flags of a meta reply, in the order of the request. The flags `W`, `X` and `Z` follow the
/// requested flags.
#[derive(Clone, Copy, Debug)]
pub struct Flags<'b>(Tokens<'b>);

impl PartialEq for Flags<'_> {
    fn eq(&self, other: &Self) -> bool {
        Iterator::eq(*self, *other)
    }
}

impl Eq for Flags<'_> {}

impl<'b> Iterator for Flags<'b> {
    type Item = Flag<'b>;

    #[inline]
    fn next(&mut self) -> Option<Flag<'b>> {
        self.0.next().map(Flag::read)
    }
}

/// A flag of a meta reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flag<'b> {
    /// `W`: this client has won the right to recache the item.
    Won,
    /// `X`: the item is stale.
    Stale,
    /// `Z`: another client has already won the right to recache the item.
    WinTaken,
    /// `c`: the CAS.
    Cas(u64),
    /// `f`: the client flags.
    ClientFlags(u32),
    /// `t`: the seconds until the item expires; `None` if the item never expires.
    Ttl(Option<u32>),
    /// `s`: the length of the whole value in bytes.
    ValueLen(u64),
    /// `k`: the key as sent; base64 if the reply also has the flag [`Base64`](Self::Base64).
    Key(&'b [u8]),
    /// `b`: the key is base64.
    Base64,
    /// `O`: the opaque of the request.
    Opaque(&'b [u8]),
    /// `h`: whether the item had been read before the request.
    HitBefore(bool),
    /// `l`: the seconds since the previous access.
    IdleSecs(u32),
    /// A flag with another letter, or with a malformed number.
    Other(&'b [u8]),
}

impl<'b> Flag<'b> {
    #[inline]
    fn read(token: &'b [u8]) -> Self {
        let known = match token {
            b"W" => Some(Self::Won),
            b"X" => Some(Self::Stale),
            b"Z" => Some(Self::WinTaken),
            b"b" => Some(Self::Base64),
            b"t-1" => Some(Self::Ttl(None)),
            b"h0" => Some(Self::HitBefore(false)),
            b"h1" => Some(Self::HitBefore(true)),
            [b'c', digits @ ..] => u64_of(digits).map(Self::Cas),
            [b'f', digits @ ..] => u32_of(digits).map(Self::ClientFlags),
            [b't', digits @ ..] => u32_of(digits).map(|secs| Self::Ttl(Some(secs))),
            [b's', digits @ ..] => u64_of(digits).map(Self::ValueLen),
            [b'l', digits @ ..] => u32_of(digits).map(Self::IdleSecs),
            [b'k', key @ ..] => Some(Self::Key(key)),
            [b'O', opaque @ ..] => Some(Self::Opaque(opaque)),
            _ => None,
        };
        known.unwrap_or(Self::Other(token))
    }
}

/// Reads a reply in classic or meta text.
#[inline]
#[must_use]
pub fn read_text(bytes: &[u8]) -> Read<Answer<'_>> {
    match response::read_text(bytes) {
        Read::Whole(text, len) => Read::Whole(of_text(text), len),
        Read::Incomplete { wanted } => Read::Incomplete { wanted },
        Read::Malformed => Read::Malformed,
    }
}

#[inline]
fn of_text(text: Text<'_>) -> Answer<'_> {
    match text {
        Text::Value { key, client_flags, cas, value } => {
            Answer::Hit { value, returned: AnswerFields::Classic { key, client_flags, cas } }
        }
        Text::MetaValue { flags, value } => {
            Answer::Hit { value, returned: AnswerFields::Meta(Flags(Tokens(flags))) }
        }
        Text::End => Answer::End,
        // Fast path: the replies to most stores and to lookups that miss.
        Text::Line(b"STORED") => Answer::Stored { returned: AnswerFields::Nothing },
        Text::Line(b"HD") => Answer::Done { returned: AnswerFields::Nothing },
        Text::Line(b"EN") => Answer::NotFound { returned: AnswerFields::Nothing },
        Text::Line(line) => of_line(line),
    }
}

#[inline(never)]
fn of_line(line: &[u8]) -> Answer<'_> {
    let returned = AnswerFields::Nothing;
    match line {
        b"NOT_FOUND" => return Answer::NotFound { returned },
        b"NOT_STORED" => return Answer::NotStored { returned },
        b"EXISTS" => return Answer::Exists { returned },
        b"DELETED" => return Answer::Deleted,
        b"TOUCHED" => return Answer::Touched,
        b"OK" | b"RESET" => return Answer::Ok,
        b"MN" => return Answer::End,
        _ => (),
    }
    of_meta_line(line).or_else(|| of_words(line)).unwrap_or(Answer::Line(line))
}

/// Reads a meta reply without a value: two letters, then flags.
fn of_meta_line(line: &[u8]) -> Option<Answer<'_>> {
    let (code, flags) = line.split_first_chunk()?;
    if !flags.is_empty() && !flags.starts_with(b" ") {
        return None;
    }
    let returned = AnswerFields::Meta(Flags(Tokens(flags)));
    match code {
        b"HD" => Some(Answer::Done { returned }),
        b"NS" => Some(Answer::NotStored { returned }),
        b"EX" => Some(Answer::Exists { returned }),
        b"NF" | b"EN" => Some(Answer::NotFound { returned }),
        _ => None,
    }
}

fn of_words(line: &[u8]) -> Option<Answer<'_>> {
    let (word, rest) = match memchr::memchr(b' ', line) {
        Some(space) => (line.get(..space)?, line.get(space + 1..)?),
        None => (line, &[][..]),
    };
    match word {
        b"ERROR" | b"CLIENT_ERROR" => Some(Answer::Error { client: true, line }),
        b"SERVER_ERROR" => Some(Answer::Error { client: false, line }),
        b"VERSION" => Some(Answer::Version(rest)),
        b"STAT" => {
            let space = memchr::memchr(b' ', rest).unwrap_or(rest.len());
            let (name, value) = rest.split_at_checked(space)?;
            Some(Answer::Stat { name, value: value.get(1..).unwrap_or_default() })
        }
        number if rest.is_empty() => u64_of(number).map(Answer::Number),
        _ => None,
    }
}

/// Reads a reply in the binary protocol.
#[inline]
#[must_use]
pub fn read_binary(bytes: &[u8]) -> Read<Answer<'_>> {
    match response::read_binary(bytes) {
        Read::Whole(response, len) => {
            of_binary(&response).map_or(Read::Malformed, |answer| Read::Whole(answer, len))
        }
        Read::Incomplete { wanted } => Read::Incomplete { wanted },
        Read::Malformed => Read::Malformed,
    }
}

#[inline]
fn of_binary<'b>(response: &Binary<'b>) -> Option<Answer<'b>> {
    let Binary { value, cas, opaque, .. } = *response;
    let client_flags = response.extras.first_chunk().map(|flags| u32::from_be_bytes(*flags));
    let key = if response.key.is_empty() { None } else { Some(response.key) };
    let returned = AnswerFields::Binary { key, client_flags, cas, opaque };
    if response.status != 0 {
        return Some(refused(response.status, value, returned));
    }
    use opcode::*;
    Some(match response.opcode {
        GET | GETQ | GETK | GETKQ | GAT | GATQ | GATK | GATKQ => Answer::Hit { value, returned },
        SET..=REPLACE | SETQ..=REPLACEQ | APPEND | PREPEND | APPENDQ | PREPENDQ => {
            Answer::Stored { returned }
        }
        NOOP => Answer::End,
        DELETE | DELETEQ => Answer::Deleted,
        TOUCH => Answer::Touched,
        INCREMENT | DECREMENT | INCREMENTQ | DECREMENTQ => {
            Answer::Number(u64::from_be_bytes(value.try_into().ok()?))
        }
        VERSION => Answer::Version(value),
        STAT if response.key.is_empty() => Answer::End,
        STAT => Answer::Stat { name: response.key, value },
        SASL_LIST => Answer::Line(value),
        QUIT | QUITQ | FLUSH | FLUSHQ | SASL_AUTH | SASL_STEP => Answer::Ok,
        _ => return None,
    })
}

/// Interprets a binary status other than 0.
#[inline]
fn refused<'b>(status: u16, line: &'b [u8], returned: AnswerFields<'b>) -> Answer<'b> {
    /// The statuses of errors that the request caused. The status 0x21 means that the SASL
    /// mechanism requires another step.
    const OF_CLIENT: [u16; 6] = [
        Status::InvalidArguments as u16,
        Status::NonNumeric as u16,
        Status::AuthFailure as u16,
        0x21,
        Status::UnknownCommand as u16,
        Status::NotSupported as u16,
    ];
    match status {
        s if s == Status::NotFound as u16 => Answer::NotFound { returned },
        s if s == Status::Exists as u16 => Answer::Exists { returned },
        s if s == Status::NotStored as u16 => Answer::NotStored { returned },
        s => Answer::Error { client: OF_CLIENT.contains(&s), line },
    }
}

/// Reads a RESP2 reply or array element. Treats a negative integer as malformed, because replies to
/// `GET`, `MGET` and `SET` never contain one. To read the replies to commands that
/// [`encode::resp::command`](crate::encode::resp::command) writes, use [`response::read_resp`].
#[inline]
#[must_use]
pub fn read_resp(bytes: &[u8]) -> Read<Answer<'_>> {
    match response::read_resp(bytes) {
        Read::Whole(response, len) => {
            of_resp(response).map_or(Read::Malformed, |answer| Read::Whole(answer, len))
        }
        Read::Incomplete { wanted } => Read::Incomplete { wanted },
        Read::Malformed => Read::Malformed,
    }
}

#[inline]
fn of_resp(response: Resp<'_>) -> Option<Answer<'_>> {
    let returned = AnswerFields::Nothing;
    Some(match response {
        Resp::Bulk(value) => Answer::Hit { value, returned },
        Resp::Null => Answer::NotFound { returned },
        Resp::Simple(b"OK") => Answer::Ok,
        Resp::Simple(line) => Answer::Line(line),
        Resp::Integer(number) => Answer::Number(u64::try_from(number).ok()?),
        Resp::Array(len) => Answer::Array(len),
        Resp::Error(line) => {
            const OF_CLIENT: [&[u8]; 4] = [b"ERR ", b"WRONGTYPE ", b"NOAUTH ", b"NOPERM "];
            Answer::Error { client: OF_CLIENT.iter().any(|word| line.starts_with(word)), line }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_classified_by_their_message() {
        for (line, expected) in [
            (
                "CLIENT_ERROR cannot increment or decrement non-numeric value",
                RefusalReason::NotANumber,
            ),
            ("SERVER_ERROR object too large for cache", RefusalReason::TooLarge),
            ("SERVER_ERROR out of memory storing object", RefusalReason::OutOfMemory),
            ("SERVER_ERROR Out of memory allocating new item", RefusalReason::OutOfMemory),
            ("SERVER_ERROR out of memory writing get response", RefusalReason::NoRoom),
            ("SERVER_ERROR no leader", RefusalReason::NoLeader),
            ("SERVER_ERROR no CAS values left", RefusalReason::OutOfMemory),
            ("SERVER_ERROR no leaders", RefusalReason::Otherwise),
            ("SERVER_ERROR", RefusalReason::Otherwise),
            ("", RefusalReason::Otherwise),
        ] {
            assert_eq!(RefusalReason::of(line.as_bytes()), expected, "{line}");
        }
    }

    const NOTHING: AnswerFields<'_> = AnswerFields::Nothing;

    fn meta(flags: &str) -> AnswerFields<'_> {
        AnswerFields::Meta(Flags(Tokens(flags.as_bytes())))
    }

    #[test]
    fn each_line_of_text_is_read_as_an_answer() {
        let error = |client, line: &'static str| Answer::Error { client, line: line.as_bytes() };
        let cases = [
            ("STORED", Answer::Stored { returned: NOTHING }),
            ("NOT_STORED", Answer::NotStored { returned: NOTHING }),
            ("EXISTS", Answer::Exists { returned: NOTHING }),
            ("NOT_FOUND", Answer::NotFound { returned: NOTHING }),
            ("DELETED", Answer::Deleted),
            ("TOUCHED", Answer::Touched),
            ("OK", Answer::Ok),
            ("RESET", Answer::Ok),
            ("END", Answer::End),
            ("MN", Answer::End),
            ("EN", Answer::NotFound { returned: NOTHING }),
            ("HD", Answer::Done { returned: NOTHING }),
            ("HD c12 O7", Answer::Done { returned: meta("c12 O7") }),
            ("NS", Answer::NotStored { returned: meta("") }),
            ("EX Oab", Answer::Exists { returned: meta("Oab") }),
            ("NF kkey", Answer::NotFound { returned: meta("kkey") }),
            ("EN ka2V5 b", Answer::NotFound { returned: meta("ka2V5 b") }),
            ("0", Answer::Number(0)),
            ("18446744073709551615", Answer::Number(u64::MAX)),
            ("18446744073709551616", Answer::Line(b"18446744073709551616")),
            ("VERSION 1.6.40", Answer::Version(b"1.6.40")),
            ("STAT a b c", Answer::Stat { name: b"a", value: b"b c" }),
            ("STAT a", Answer::Stat { name: b"a", value: b"" }),
            ("ERROR", error(true, "ERROR")),
            ("ERROR Too many open connections", error(true, "ERROR Too many open connections")),
            ("CLIENT_ERROR no", error(true, "CLIENT_ERROR no")),
            ("SERVER_ERROR no", error(false, "SERVER_ERROR no")),
            ("ME key size=1", Answer::Line(b"ME key size=1")),
            ("ERRORS", Answer::Line(b"ERRORS")),
            ("HDx", Answer::Line(b"HDx")),
            ("", Answer::Line(b"")),
        ];
        for (line, answer) in cases {
            let bytes = format!("{line}\r\n");
            assert_eq!(read_text(bytes.as_bytes()), Read::Whole(answer, bytes.len()), "{line:?}");
        }
    }

    #[test]
    fn a_hit_has_the_requested_fields() {
        let shown = |bytes: &'static [u8]| match read_text(bytes) {
            Read::Whole(Answer::Hit { value: b"hi", returned }, _) => {
                (returned.key(), returned.client_flags(), returned.cas())
            }
            other => panic!("{other:?}"),
        };
        let key = |base64| Some(Key { wire: b"a2V5", base64 });
        assert_eq!(shown(b"VALUE a2V5 7 2\r\nhi\r\n"), (key(false), Some(7), None));
        assert_eq!(shown(b"VALUE a2V5 7 2 9\r\nhi\r\n"), (key(false), Some(7), Some(9)));
        assert_eq!(shown(b"VA 2\r\nhi\r\n"), (None, None, None));
        assert_eq!(shown(b"VA 2 c9 f7 ka2V5\r\nhi\r\n"), (key(false), Some(7), Some(9)));
        assert_eq!(shown(b"VA 2 ka2V5 b\r\nhi\r\n"), (key(true), None, None));
    }

    #[test]
    fn each_flag_is_decoded() {
        let flags = meta("W X Z c9 f7 t-1 t30 s5 kkey b O7 h0 h1 l3 t-2 fx y W1").flags();
        let expected = [
            Flag::Won,
            Flag::Stale,
            Flag::WinTaken,
            Flag::Cas(9),
            Flag::ClientFlags(7),
            Flag::Ttl(None),
            Flag::Ttl(Some(30)),
            Flag::ValueLen(5),
            Flag::Key(b"key"),
            Flag::Base64,
            Flag::Opaque(b"7"),
            Flag::HitBefore(false),
            Flag::HitBefore(true),
            Flag::IdleSecs(3),
            Flag::Other(b"t-2"),
            Flag::Other(b"fx"),
            Flag::Other(b"y"),
            Flag::Other(b"W1"),
        ];
        assert!(flags.eq(expected), "{:?}", flags.collect::<Vec<_>>());
        assert_eq!(NOTHING.flags().next(), None);
    }

    fn binary(opcode: u8, status: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
        let lens = [key.len(), extras.len(), extras.len() + key.len() + value.len()];
        let [key_len, extras_len, body_len] = lens.map(|len| u8::try_from(len).unwrap());
        let head = [0x81, opcode, 0, key_len, extras_len, 0, 0, status, 0, 0, 0, body_len];
        [&head[..], b"abcd", &9_u64.to_be_bytes(), extras, key, value].concat()
    }

    #[test]
    fn each_binary_response_is_read_as_an_answer() {
        let of = |key, client_flags| AnswerFields::Binary {
            key,
            client_flags,
            cas: 9,
            opaque: *b"abcd",
        };
        let returned = of(None, None);
        let hit = Answer::Hit { value: b"hi", returned: of(Some(b"k"), Some(7)) };
        let error = |client| Answer::Error { client, line: b"no" };
        let cases = [
            (binary(opcode::GETK, 0, &[0, 0, 0, 7], b"k", b"hi"), hit),
            (binary(opcode::SET, 0, b"", b"", b""), Answer::Stored { returned }),
            (binary(opcode::DELETE, 0, b"", b"", b""), Answer::Deleted),
            (binary(opcode::TOUCH, 0, b"", b"", b""), Answer::Touched),
            (
                binary(opcode::INCREMENT, 0, b"", b"", &[0, 0, 0, 0, 0, 0, 1, 0]),
                Answer::Number(256),
            ),
            (binary(opcode::NOOP, 0, b"", b"", b""), Answer::End),
            (binary(opcode::VERSION, 0, b"", b"", b"1.6"), Answer::Version(b"1.6")),
            (
                binary(opcode::STAT, 0, b"", b"pid", b"1"),
                Answer::Stat { name: b"pid", value: b"1" },
            ),
            (binary(opcode::STAT, 0, b"", b"", b""), Answer::End),
            (binary(opcode::FLUSH, 0, b"", b"", b""), Answer::Ok),
            (binary(opcode::SASL_LIST, 0, b"", b"", b"PLAIN"), Answer::Line(b"PLAIN")),
            (binary(opcode::GET, 1, b"", b"", b"no"), Answer::NotFound { returned }),
            (binary(opcode::SET, 2, b"", b"", b"no"), Answer::Exists { returned }),
            (binary(opcode::APPEND, 5, b"", b"", b"no"), Answer::NotStored { returned }),
            (binary(opcode::SET, 3, b"", b"", b"no"), error(false)),
            (binary(opcode::INCREMENT, 6, b"", b"", b"no"), error(true)),
            (binary(opcode::GET, 0x20, b"", b"", b"no"), error(true)),
            (binary(opcode::SET, 0x82, b"", b"", b"no"), error(false)),
        ];
        for (bytes, answer) in &cases {
            assert_eq!(read_binary(bytes), Read::Whole(*answer, bytes.len()), "{bytes:x?}");
        }
        let short_number = binary(opcode::INCREMENT, 0, b"", b"", b"1");
        assert_eq!(read_binary(&short_number), Read::Malformed);
        assert_eq!(read_binary(&binary(0x7f, 0, b"", b"", b"")), Read::Malformed);
    }

    #[test]
    fn each_resp_response_is_read_as_an_answer() {
        let error = |client, line: &'static str| Answer::Error { client, line: line.as_bytes() };
        let cases = [
            ("+OK", Answer::Ok),
            ("+PONG", Answer::Line(b"PONG")),
            ("$2\r\nhi", Answer::Hit { value: b"hi", returned: NOTHING }),
            ("$-1", Answer::NotFound { returned: NOTHING }),
            (":12", Answer::Number(12)),
            ("*3", Answer::Array(3)),
            ("-ERR no", error(true, "ERR no")),
            ("-OOM no", error(false, "OOM no")),
        ];
        for (text, answer) in cases {
            let bytes = format!("{text}\r\n");
            assert_eq!(read_resp(bytes.as_bytes()), Read::Whole(answer, bytes.len()), "{text}");
        }
        assert_eq!(read_resp(b":-1\r\n"), Read::Malformed);
    }
}
