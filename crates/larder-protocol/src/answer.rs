//! What a server's responses mean, in terms that all protocols share: bytes in, typed answers out.
//!
//! Each function reads the first answer of some bytes, on top of [`crate::response`], whose limits
//! are the limits here. Answers borrow from the bytes; nothing is copied or allocated.
//!
//! ```
//! use larder_protocol::answer::{Answer, Flag, read_text};
//! use larder_protocol::response::Read;
//!
//! let Read::Whole(Answer::Hit { value, returned }, 15) = read_text(b"VA 2 f7 W\r\nhi\r\n") else {
//!     panic!("it is a hit")
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

/// An answer, or a part of one: a request for several keys is answered by several of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'b> {
    /// An item was found: `VALUE`, `VA`, or the value of a key in binary and RESP. Also the number of
    /// `ma` with `v`, as text.
    Hit {
        /// The value.
        value: &'b [u8],
        /// What else was asked for.
        returned: Returned<'b>,
    },
    /// A meta command was carried out, and there is no value: `HD`.
    Done {
        /// What was asked for.
        returned: Returned<'b>,
    },
    /// A value was stored: `STORED`, and success of a binary store.
    Stored {
        /// In binary the new CAS.
        returned: Returned<'b>,
    },
    /// An item was removed: `DELETED`, and success of a binary delete.
    Deleted,
    /// An expiry was set: `TOUCHED`, and success of a binary touch.
    Touched,
    /// Another command was carried out: `OK`, `RESET`.
    Ok,
    /// Something was there that an add must not find, or was not there that a replacement needs:
    /// `NOT_STORED`, `NS`.
    NotStored {
        /// What was asked for and needs no item.
        returned: Returned<'b>,
    },
    /// The CAS differs: `EXISTS`, `EX`. In binary also what is [`NotStored`](Self::NotStored)
    /// elsewhere after an add.
    Exists {
        /// What was asked for and needs no item.
        returned: Returned<'b>,
    },
    /// There is no such item: `NOT_FOUND`, `NF`, `EN`, RESP's null. A classic `get` says nothing of a
    /// key that is not there.
    NotFound {
        /// What was asked for and needs no item.
        returned: Returned<'b>,
    },
    /// The number after classic or binary counting.
    Number(u64),
    /// All that was asked for before it is answered: `END`, `MN`, a binary noop, the last statistic.
    End,
    /// The server's version.
    Version(&'b [u8]),
    /// A statistic.
    Stat {
        /// Its name.
        name: &'b [u8],
        /// Its value.
        value: &'b [u8],
    },
    /// So many answers follow: the head of a RESP array.
    Array(usize),
    /// A line that is none of the others, without its end: what `me` and administrative commands
    /// are answered with, RESP's simple strings other than `OK`, the list of SASL mechanisms.
    Line(&'b [u8]),
    /// The request was refused.
    Error {
        /// The request is at fault: it will be refused again. Otherwise the server is.
        client: bool,
        /// What the server says of it, without the line's end, and in text with its first word.
        line: &'b [u8],
    },
}

/// Why a request was refused, as far as clients act on it. Servers say more than these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// What was to be counted is no number.
    NotANumber,
    /// The item would be larger than the server allows.
    TooLarge,
    /// There is no memory for the item, so it was not stored.
    OutOfMemory,
    /// There is no memory for the answer of a lookup.
    NoRoom,
    /// The server is a node of a cluster in which nobody answers for the item at the moment, or another node does. A
    /// request for one item was not carried out.
    NoLeader,
    /// Anything else.
    Otherwise,
}

impl Refused {
    /// What the line of an [`Answer::Error`] says, in memcached's words, in upper or lower case.
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
        } else if starts_with(b"SERVER_ERROR out of memory") {
            Self::OutOfMemory
        } else {
            Self::Otherwise
        }
    }
}

/// What an answer says beside its outcome and value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returned<'b> {
    /// Nothing: a word of classic text, or RESP.
    Nothing,
    /// Of `VALUE`.
    Classic {
        /// As sent.
        key: &'b [u8],
        /// What the client stored beside the value.
        client_flags: u32,
        /// With `gets` and `gats`.
        cas: Option<u64>,
    },
    /// The flags of a meta answer.
    Meta(Flags<'b>),
    /// Of a binary head.
    Binary {
        /// With `getk` and `gatk`.
        key: Option<&'b [u8]>,
        /// With a value.
        client_flags: Option<u32>,
        /// 0 where there is none.
        cas: u64,
        /// As the request sent it.
        opaque: [u8; 4],
    },
}

impl<'b> Returned<'b> {
    /// The key, if the answer repeats it.
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

    /// The number that the client stored beside the value, if the answer shows it.
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

    /// The item's CAS, if the answer shows it.
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

    /// The flags of a meta answer; those of other protocols are none.
    #[must_use]
    pub fn flags(&self) -> Flags<'b> {
        if let Self::Meta(flags) = *self { flags } else { Flags(Tokens(&[])) }
    }
}

/// The flags of a meta answer, in the order in which the request asked for them; what the server has
/// to say of a stale item is behind them.
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

/// A flag of a meta answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flag<'b> {
    /// `W`: this client has won the right to recache the item.
    Won,
    /// `X`: the item is stale.
    Stale,
    /// `Z`: another client has won that right before.
    WinTaken,
    /// `c`.
    Cas(u64),
    /// `f`.
    ClientFlags(u32),
    /// `t`: the seconds that the item has left; `None` is for ever.
    Ttl(Option<u32>),
    /// `s`: the length of the whole value in bytes.
    ValueLen(u64),
    /// `k`: the key as sent, see [`Base64`](Self::Base64).
    Key(&'b [u8]),
    /// `b`: the key is base64.
    Base64,
    /// `O`: what the request sent as its opaque.
    Opaque(&'b [u8]),
    /// `h`: whether the item was read before.
    HitBefore(bool),
    /// `l`: the seconds since the access before this one.
    IdleSecs(u32),
    /// A flag with another letter, or one whose number is none.
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

/// Reads an answer in classic or meta text.
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
            Answer::Hit { value, returned: Returned::Classic { key, client_flags, cas } }
        }
        Text::MetaValue { flags, value } => {
            Answer::Hit { value, returned: Returned::Meta(Flags(Tokens(flags))) }
        }
        Text::End => Answer::End,
        // What most stores and misses are answered with: other lines take longer.
        Text::Line(b"STORED") => Answer::Stored { returned: Returned::Nothing },
        Text::Line(b"HD") => Answer::Done { returned: Returned::Nothing },
        Text::Line(b"EN") => Answer::NotFound { returned: Returned::Nothing },
        Text::Line(line) => of_line(line),
    }
}

#[inline(never)]
fn of_line(line: &[u8]) -> Answer<'_> {
    let returned = Returned::Nothing;
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

/// A meta answer without a value: two letters, and flags.
fn of_meta_line(line: &[u8]) -> Option<Answer<'_>> {
    let (code, flags) = line.split_first_chunk()?;
    if !flags.is_empty() && !flags.starts_with(b" ") {
        return None;
    }
    let returned = Returned::Meta(Flags(Tokens(flags)));
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

/// Reads an answer in the binary protocol.
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
    let returned = Returned::Binary { key, client_flags, cas, opaque };
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

/// A binary status other than 0.
#[inline]
fn refused<'b>(status: u16, line: &'b [u8], returned: Returned<'b>) -> Answer<'b> {
    /// Statuses that put the blame on the request, beside those of [`Status`]: a mechanism that
    /// wants a further step.
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

/// Reads an answer, or an element of an array, in RESP2. A negative integer is malformed: of the
/// requests of [`encode::resp`](crate::encode::resp) only a command of the caller's own can be
/// answered by one, which [`response::read_resp`] reads.
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
    let returned = Returned::Nothing;
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
    fn refusals_are_told_apart_by_their_words() {
        for (line, expected) in [
            ("CLIENT_ERROR cannot increment or decrement non-numeric value", Refused::NotANumber),
            ("SERVER_ERROR object too large for cache", Refused::TooLarge),
            ("SERVER_ERROR out of memory storing object", Refused::OutOfMemory),
            ("SERVER_ERROR Out of memory allocating new item", Refused::OutOfMemory),
            ("SERVER_ERROR out of memory writing get response", Refused::NoRoom),
            ("SERVER_ERROR no leader", Refused::NoLeader),
            ("SERVER_ERROR no leaders", Refused::Otherwise),
            ("SERVER_ERROR", Refused::Otherwise),
            ("", Refused::Otherwise),
        ] {
            assert_eq!(Refused::of(line.as_bytes()), expected, "{line}");
        }
    }

    const NOTHING: Returned<'_> = Returned::Nothing;

    fn meta(flags: &str) -> Returned<'_> {
        Returned::Meta(Flags(Tokens(flags.as_bytes())))
    }

    #[test]
    fn each_line_of_text_has_its_meaning() {
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
    fn a_hit_shows_what_was_asked_for() {
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
    fn each_flag_has_its_meaning() {
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
    fn each_binary_answer_has_its_meaning() {
        let of =
            |key, client_flags| Returned::Binary { key, client_flags, cas: 9, opaque: *b"abcd" };
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
    fn each_resp_answer_has_its_meaning() {
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
