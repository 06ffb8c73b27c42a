//! The fast path of stores: an unconditional `set` with its complete value, which is the most
//! frequent store. The fast path creates no [`Request`](crate::Request).

use crate::parse::binary::{self, HEAD_LEN, Head, MAGIC};
use crate::parse::fast_get::split_key;
use crate::request::{
    Classic, Exptime, KEY_LEN_MAX, Key, MetaFlags, ReplyFormat, Store, StoreMode,
};
use crate::text::letters::Letters;

/// An unconditional store whose complete value has arrived: `set` without `noreply`, `ms` with no
/// flags except `T` and `F`, or a binary set without a CAS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastSet<'b> {
    /// The key as sent. It is never base64.
    pub key: &'b [u8],
    /// The value, without the CRLF after it.
    pub value: &'b [u8],
    /// Client flags, which the server does not interpret.
    pub client_flags: u32,
    exptime: u32,
    /// The part of the request that identifies its dialect. For `set`, it is `None`. For `ms`, it
    /// is the flags. For a binary request, it is the head, which is longer than any flags.
    rest: Option<&'b [u8]>,
}

/// The maximum number of digits of a number on the fast path. Such a number is below 2^31, so the
/// full parser does not wrap it.
const DIGITS_MAX: usize = 9;

impl<'b> FastSet<'b> {
    /// Parses a text request at the start of `input`. Returns the request and its length. Returns
    /// `None` for any unusual request, such as a request with two adjacent spaces: the full parser
    /// handles it.
    #[inline]
    pub(crate) fn parse_text(input: &'b [u8]) -> Option<(Self, usize)> {
        if let Some(rest) = input.strip_prefix(b"set ") {
            return Self::parse_classic(input, rest);
        }
        Self::parse_meta(input, input.strip_prefix(b"ms ")?)
    }

    #[inline]
    fn parse_classic(input: &'b [u8], rest: &'b [u8]) -> Option<(Self, usize)> {
        let (key, rest) = key_of(rest)?;
        let (client_flags, rest) = number_of(rest)?;
        let (exptime, rest) = number_of(rest.strip_prefix(b" ")?)?;
        let (value_len, rest) = number_of(rest.strip_prefix(b" ")?)?;
        let (value, behind) = value_of(rest.strip_prefix(b"\r\n")?, value_len)?;
        let set = Self { key, value, client_flags, exptime, rest: None };
        Some((set, input.len() - behind.len()))
    }

    #[inline]
    fn parse_meta(input: &'b [u8], rest: &'b [u8]) -> Option<(Self, usize)> {
        let (key, rest) = key_of(rest)?;
        let (value_len, flags) = number_of(rest)?;
        let (mut client_flags, mut exptime, mut rest) = (None, None, flags);
        while let [b' ', letter, number @ ..] = rest {
            let field = match letter {
                b'F' => &mut client_flags,
                b'T' => &mut exptime,
                _ => return None,
            };
            let (number, behind) = number_of(number)?;
            // A repeated flag is an error, which the full parser reports.
            if field.replace(number).is_some() {
                return None;
            }
            rest = behind;
        }
        let raw = flags.get(..flags.len() - rest.len())?;
        let (value, behind) = value_of(rest.strip_prefix(b"\r\n")?, value_len)?;
        let set = Self {
            key,
            value,
            client_flags: client_flags.unwrap_or_default(),
            exptime: exptime.unwrap_or_default(),
            rest: Some(raw.get(1..).unwrap_or_default()),
        };
        Some((set, input.len() - behind.len()))
    }

    /// Parses a binary request at the start of `input`. Returns the request and its length. Returns
    /// `None` unless it is a complete and valid set without a CAS.
    #[inline]
    pub(crate) fn parse_binary(input: &'b [u8]) -> Option<(Self, usize)> {
        use binary::opcode::{SET, SETQ};
        const EXTRAS_LEN: usize = 8;
        let head = Head::read(input).filter(|_| input.first() == Some(&MAGIC))?;
        let is_set = matches!(head.opcode, SET | SETQ)
            && head.extras_len == EXTRAS_LEN
            && (1..=KEY_LEN_MAX).contains(&head.key_len)
            && head.body_len <= binary::BODY_LEN_MAX
            && head.compare().is_none();
        let len = HEAD_LEN + head.body_len;
        let body = input.get(HEAD_LEN..len).filter(|_| is_set)?;
        let (&[f0, f1, f2, f3, e0, e1, e2, e3], body) = body.split_first_chunk::<EXTRAS_LEN>()?;
        let (key, value) = body.split_at_checked(head.key_len)?;
        let set = Self {
            key,
            value,
            client_flags: u32::from_be_bytes([f0, f1, f2, f3]),
            exptime: u32::from_be_bytes([e0, e1, e2, e3]),
            rest: input.get(..HEAD_LEN),
        };
        Some((set, len))
    }

    /// Returns the expiry of the item.
    #[inline]
    #[must_use]
    pub fn expiry(&self) -> Exptime {
        Exptime(self.exptime.into())
    }

    /// Returns the reply format that the full parser returns for the same bytes.
    #[inline]
    #[must_use]
    pub fn format(&self) -> ReplyFormat<'b> {
        match self.rest {
            None => ReplyFormat::Classic(Classic::default()),
            Some(head) if head.len() == HEAD_LEN => Head::read(head)
                .map_or(ReplyFormat::Classic(Classic::default()), |head| {
                    ReplyFormat::Binary(head.binary_head())
                }),
            Some(raw) => {
                let letters = raw.split(|byte| *byte == b' ').filter_map(|flag| flag.first());
                let letters = letters.fold(Letters::default(), |all, l| all.with(Letters::of(*l)));
                ReplyFormat::Meta(MetaFlags { raw, letters })
            }
        }
    }

    /// Returns the dialect of the reply on success.
    #[inline]
    pub(crate) fn success(&self) -> Success<'b> {
        match self.rest {
            None => Success::Classic,
            Some(head) if head.len() == HEAD_LEN => Success::Binary(head),
            Some(_) => Success::Meta,
        }
    }

    /// Returns the request that the full parser returns for the same bytes.
    #[must_use]
    pub fn store(&self) -> Store<'b> {
        Store {
            key: Key::raw(self.key),
            mode: StoreMode::Set,
            client_flags: self.client_flags,
            expiry: self.expiry(),
            value_len: self.value.len(),
            value: self.value,
            terminated: true,
            compare: None,
            new_cas: None,
            invalidate: false,
            vivify: None,
            format: self.format(),
        }
    }
}

/// The dialect of the reply to a stored set.
pub(crate) enum Success<'b> {
    Classic,
    Meta,
    /// The head of the request.
    Binary(&'b [u8]),
}

/// Splits off a key. The rest starts after the single space that follows the key.
#[inline]
fn key_of(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let (key, behind) = split_key(rest)?;
    Some((key, behind.strip_prefix(b" ")?))
}

/// Splits off a number of one to [`DIGITS_MAX`] digits.
#[inline]
fn number_of(rest: &[u8]) -> Option<(u32, &[u8])> {
    let mut number = 0;
    for (at, byte) in rest.iter().take(DIGITS_MAX + 1).enumerate() {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return if at > 0 { Some((number, rest.get(at..)?)) } else { None };
        }
        number = number.wrapping_mul(10).wrapping_add(digit.into());
    }
    None
}

/// Splits off a value of this length. The rest starts after its CRLF.
#[inline]
fn value_of(rest: &[u8], len: u32) -> Option<(&[u8], &[u8])> {
    let (value, behind) = rest.split_at_checked(len as usize)?;
    Some((value, behind.strip_prefix(b"\r\n")?))
}

// A binary head is always longer than flags, so the length of `rest` identifies its dialect. The
// longest flags are `F` and `T` with their numbers and one space between them.
const _: () = assert!(2 * (2 + DIGITS_MAX) - 1 < HEAD_LEN);

#[cfg(test)]
mod tests {
    use crate::{Parsed, Parser, Request};
    use proptest::prelude::*;

    #[test]
    fn complete_ordinary_sets_take_the_fast_path() {
        for line in [
            "set k 0 0 2\r\nab\r\n",
            "set k 123456789 5 0\r\n\r\n",
            "ms k 2\r\nab\r\n",
            "ms k 2 T5\r\nab\r\n",
            "ms k 2 F1 T999999999\r\nab\r\n",
        ] {
            let (set, len) = Parser::TEXT.fast_set(line.as_bytes()).unwrap();
            assert_eq!((set.key, len), (&b"k"[..], line.len()), "{line}");
        }
    }

    #[test]
    fn unusual_or_incomplete_sets_do_not_take_the_fast_path() {
        for line in [
            "set k 0 0 2\r\nab\r",
            "set k 0 0 2\r\nabc\r\n",
            "set k 0 0 2\nab\r\n",
            "set k  0 0 2\r\nab\r\n",
            "set k 0 0 2 noreply\r\nab\r\n",
            "set k 0 -1 2\r\nab\r\n",
            "set k 0 1234567890 2\r\nab\r\n",
            "set k 0 0 \r\nab\r\n",
            "add k 0 0 2\r\nab\r\n",
            "ms k 2 T1 T1\r\nab\r\n",
            "ms k 2 q\r\nab\r\n",
            "ms k 2 C1\r\nab\r\n",
            "ms k 2 \r\nab\r\n",
            "ms k S2\r\nab\r\n",
        ] {
            assert_eq!(Parser::TEXT.fast_set(line.as_bytes()), None, "{line:?}");
        }
        let long = format!("set {} 0 0 1\r\na\r\n", "k".repeat(251));
        assert_eq!(Parser::TEXT.fast_set(long.as_bytes()), None);
    }

    proptest! {
        #[test]
        fn the_fast_path_parses_text_like_the_full_parser(
            line in "(set [a-z\t]{0,3} [0-9]{0,11} -?[0-9]{0,11} 0?[0-4]|ms [a-z\t]{0,3} [0-4]( [TFqkO][0-9]{0,11}){0,3})( noreply)?\r?\n[a\r]{0,4}\r\n",
        ) {
            let mut parser = Parser::TEXT;
            if let Some((set, len)) = parser.fast_set(line.as_bytes()) {
                let request = Request::Store(set.store());
                let whole = Parsed::Request { request, consumed: len };
                prop_assert_eq!(parser.parse(line.as_bytes()), whole);
                prop_assert_eq!(parser, Parser::TEXT);
            }
        }

        #[test]
        fn the_fast_path_parses_binary_like_the_full_parser(
            magic in prop_oneof![9 => Just(0x80_u8), 1 => any::<u8>()],
            opcode in prop_oneof![Just(0x01_u8), Just(0x11_u8), 0..0x25_u8],
            key_len in 0..4_u8,
            extras_len in prop_oneof![9 => Just(8_u8), 1 => 0..9_u8],
            value_len in 0..9_u8,
            cas in prop_oneof![9 => Just(0_u8), 1 => any::<u8>()],
            rest in prop::collection::vec(any::<u8>(), 8..40),
        ) {
            let body_len = key_len + extras_len + value_len;
            let mut head = vec![magic, opcode, 0, key_len, extras_len, 0, 0, 0, 0, 0, 0, body_len];
            head.extend([1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, cas]);
            let input = [&head[..], &rest].concat();
            let mut parser = Parser::BINARY;
            if let Some((set, len)) = parser.fast_set(&input) {
                let whole = Parsed::Request { request: Request::Store(set.store()), consumed: len };
                prop_assert_eq!(parser.parse(&input), whole);
                prop_assert_eq!(parser, Parser::BINARY);
            }
        }
    }
}
