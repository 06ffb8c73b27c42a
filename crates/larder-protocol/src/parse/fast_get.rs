//! The fast path of lookups of one key that change nothing, which are the most frequent requests.
//! The fast path creates no [`Request`](crate::Request), which saves half of the instructions of
//! `mg`, and a third of the instructions of a binary `get`.

use crate::meta_flags::FAST;
use crate::parse::binary::{self, HEAD_LEN, Head, MAGIC};
use crate::request::{BinaryHead, Classic, Get, KEY_LEN_MAX, Key, MetaFlags, ReplyFormat};
use crate::text::letters::Letters;
use crate::text::tokens::blank;

/// A lookup of one key: `get KEY`, `mg KEY` with no flags except `c f k s t v`, or a binary `get`
/// in any of its forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastGet<'b> {
    /// The key as sent. It is never base64, because `mg` with the flag `b` takes the slow path.
    pub key: &'b [u8],
    /// The part of the request that identifies its dialect. For `get`, it is `None`. For `mg`, it
    /// is the flags, each at most once. For a binary request, it is the head, which is longer than
    /// any flags. A single field for all three dialects keeps this type small, which saves 3 % of
    /// the instructions of a `get`.
    rest: Option<&'b [u8]>,
}

/// The dialect of a [`FastGet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form<'b> {
    /// `get`.
    Classic,
    /// `mg` with these flags.
    Meta(&'b [u8]),
    /// A binary get with this head.
    Binary(BinaryHead),
}

impl<'b> FastGet<'b> {
    /// Parses a text request at the start of `input`. Returns the request and the length of its
    /// line. Returns `None` for any unusual line, such as a line with two adjacent spaces: the full
    /// parser handles it.
    #[inline]
    pub(crate) fn parse_text(input: &'b [u8]) -> Option<(Self, usize)> {
        if let Some(rest) = input.strip_prefix(b"get ") {
            let (key, behind) = split_key(rest)?;
            let is_line = behind.starts_with(b"\r\n");
            return is_line.then_some((Self { key, rest: None }, key.len() + 6));
        }
        let (key, behind) = split_key(input.strip_prefix(b"mg ")?)?;
        let flags = behind.get(..showing(behind)?)?;
        let line_len = key.len() + flags.len() + 5;
        Some((Self { key, rest: Some(flags.get(1..).unwrap_or_default()) }, line_len))
    }

    /// Parses a binary request at the start of `input`. Returns the request and its length. Returns
    /// `None` unless it is a complete and valid `get`.
    #[inline]
    pub(crate) fn parse_binary(input: &'b [u8]) -> Option<(Self, usize)> {
        use binary::opcode::{GET, GETK, GETKQ, GETQ};
        let head = Head::read(input).filter(|_| input.first() == Some(&MAGIC))?;
        let is_get = matches!(head.opcode, GET | GETQ | GETK | GETKQ)
            && head.extras_len == 0
            && head.body_len == head.key_len
            && (1..=KEY_LEN_MAX).contains(&head.key_len);
        let key = input.get(HEAD_LEN..HEAD_LEN + head.key_len).filter(|_| is_get)?;
        Some((Self { key, rest: input.get(..HEAD_LEN) }, HEAD_LEN + key.len()))
    }

    #[inline]
    pub(crate) fn form(&self) -> Form<'b> {
        match self.rest {
            None => Form::Classic,
            Some(head) if head.len() == HEAD_LEN => {
                Head::read(head).map_or(Form::Classic, |head| Form::Binary(head.binary_head()))
            }
            Some(flags) => Form::Meta(flags),
        }
    }

    /// Returns whether the request is `mg`. [`fast_item`](crate::reply::fast_item) writes the reply
    /// to `mg`, and [`fast_value`](crate::reply::fast_value) the reply to other requests.
    #[inline]
    #[must_use]
    pub fn is_meta(&self) -> bool {
        matches!(self.form(), Form::Meta(_))
    }

    /// Returns the flags of `mg` in the order of the request. Each flag includes the space that
    /// follows it, if there is one. Other requests have no flags.
    #[inline]
    pub(crate) fn flags(&self) -> impl Iterator<Item = &'b [u8]> + use<'b> {
        let flags = if let Form::Meta(flags) = self.form() { flags } else { &[] };
        flags.chunks(2)
    }

    /// Returns whether the request is an `mg` with the flag `v`, which requests the value.
    #[inline]
    pub(crate) fn with_value(&self) -> bool {
        self.flags().any(|flag| flag.first() == Some(&b'v'))
    }

    /// Returns the request that the full parser returns for the same bytes.
    #[must_use]
    pub fn get(&self) -> Get<'b> {
        let get = Get::classic(self.key);
        match self.form() {
            Form::Classic => get,
            Form::Meta(raw) => {
                let letters = self.flags().filter_map(|flag| flag.first().copied());
                let letters = letters.fold(Letters::default(), |all, l| all.with(Letters::of(l)));
                let format = ReplyFormat::Meta(MetaFlags { raw, letters });
                Get { value: self.with_value(), format, ..get }
            }
            Form::Binary(head) => Get { format: ReplyFormat::Binary(head), ..get },
        }
    }
}

impl<'b> Get<'b> {
    /// Returns a classic `get` of one key.
    #[must_use]
    pub(crate) fn classic(key: &'b [u8]) -> Self {
        Self {
            key: Key::raw(key),
            value: true,
            touch: None,
            vivify: None,
            recache: None,
            compare: None,
            new_cas: None,
            untracked: false,
            format: ReplyFormat::Classic(Classic { noreply: false, with_cas: false, last: true }),
        }
    }
}

/// Splits off a key. The rest starts with the byte after the key. Returns `None` if the key is
/// empty, too long or incomplete.
#[inline]
pub(crate) fn split_key(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = blank(rest, KEY_LEN_MAX)?;
    if (1..=KEY_LEN_MAX).contains(&end) { rest.split_at_checked(end) } else { None }
}

/// Returns the length of the flags in bytes. The flags end at the line's end. Returns `None` if a
/// flag is repeated or not in [`FAST`], or if the line is incomplete or unusual.
#[inline]
fn showing(behind_key: &[u8]) -> Option<usize> {
    let (mut rest, mut unseen) = (behind_key, FAST);
    loop {
        match rest {
            [b'\r', b'\n', ..] => return Some(behind_key.len() - rest.len()),
            [b' ', letter, behind @ ..] if unseen.has(Letters::of(*letter)) => {
                (rest, unseen) = (behind, unseen.without(Letters::of(*letter)));
            }
            _ => return None,
        }
    }
}

// A binary head is always longer than flags, so the length of `rest` identifies its dialect.
const _: () = assert!(2 * (FAST.count() as usize) < HEAD_LEN);

#[cfg(test)]
mod tests {
    use crate::{Parsed, Parser, Request};
    use proptest::prelude::*;

    #[test]
    fn lookups_that_change_nothing_take_the_fast_path() {
        for line in ["get k\r\n", "mg k\r\n", "mg k v\r\n", "mg k v f t\r\n", "mg k s c k\r\n"] {
            let (get, len) = Parser::TEXT.fast_get(line.as_bytes()).unwrap();
            assert_eq!((get.key, len), (&b"k"[..], line.len()), "{line}");
        }
    }

    #[test]
    fn changing_or_unusual_lines_do_not_take_the_fast_path() {
        for line in [
            "get k",
            "get k\r",
            "get k\n",
            "get k a\r\n",
            "get  k\r\n",
            "get \r\n",
            "mg k v",
            "mg k\n",
            "mg k  v\r\n",
            "mg k v \r\n",
            "mg k v v\r\n",
            "mg k q\r\n",
            "mg k T30\r\n",
            "mg k vx\r\n",
            "mg k b\r\n",
            "mg k u\r\n",
            "mg k E\r\n",
            "mg \r\n",
            "mn\r\n",
        ] {
            assert_eq!(Parser::TEXT.fast_get(line.as_bytes()), None, "{line:?}");
        }
        let long = format!("mg {} v\r\n", "k".repeat(251));
        assert_eq!(Parser::TEXT.fast_get(long.as_bytes()), None);
    }

    #[test]
    fn only_binary_gets_take_the_fast_path() {
        let packet = |opcode, key_len: u8, extras_len, body_len| {
            let mut packet = vec![0x80, opcode, 0, key_len, extras_len, 0, 0, 0, 0, 0, 0, body_len];
            packet.extend([0; 12]);
            packet.extend(vec![b'k'; body_len.into()]);
            packet
        };
        for opcode in [0x00, 0x09, 0x0c, 0x0d] {
            let whole = packet(opcode, 3, 0, 3);
            let (get, len) = Parser::BINARY.fast_get(&whole).unwrap();
            assert_eq!((get.key, len), (&b"kkk"[..], 27));
            assert_eq!(Parser::BINARY.fast_get(&whole[..26]), None);
            assert_eq!(Parser::TEXT.fast_get(&whole), None);
            for bad in [packet(opcode, 0, 0, 0), packet(opcode, 3, 1, 4), packet(opcode, 3, 0, 4)] {
                assert_eq!(Parser::BINARY.fast_get(&bad), None);
            }
            assert_eq!(Parser::BINARY.fast_get(&packet(opcode, 251, 0, 251)), None);
        }
        for opcode in [0x01, 0x04, 0x0a, 0x1c, 0x1d] {
            assert_eq!(Parser::BINARY.fast_get(&packet(opcode, 3, 0, 3)), None);
        }
    }

    proptest! {
        #[test]
        fn the_fast_path_parses_binary_like_the_full_parser(
            magic in prop_oneof![9 => Just(0x80_u8), 1 => any::<u8>()],
            opcode in 0..0x25_u8,
            key_len in 0..4_u8,
            extras_len in prop_oneof![9 => Just(0_u8), 1 => 0..9_u8],
            more in prop_oneof![9 => Just(0_u8), 1 => 0..9_u8],
            rest in prop::collection::vec(any::<u8>(), 12..40),
        ) {
            let body_len = key_len + extras_len + more;
            let head = [magic, opcode, 0, key_len, extras_len, 0, 0, 0, 0, 0, 0, body_len];
            let input = [&head[..], &rest].concat();
            let mut parser = Parser::BINARY;
            if let Some((get, len)) = parser.fast_get(&input) {
                let whole = Parsed::Request { request: Request::Get(get.get()), consumed: len };
                prop_assert_eq!(parser.parse(&input), whole);
                prop_assert_eq!(parser, Parser::BINARY);
            }
        }

        #[test]
        fn the_fast_path_parses_text_like_the_full_parser(
            line in "(get|mg|mg) [a-z\t]{0,3}( [cfkstvqub ]{0,2}){0,4}\r?\n",
        ) {
            let mut parser = Parser::TEXT;
            if let Some((get, len)) = parser.fast_get(line.as_bytes()) {
                let request = Request::Get(get.get());
                let whole = Parsed::Request { request, consumed: len };
                prop_assert_eq!(parser.parse(line.as_bytes()), whole);
                prop_assert_eq!(parser, Parser::TEXT);
            }
        }
    }
}
