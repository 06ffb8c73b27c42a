//! What nearly all requests are: a look-up of one key that changes nothing. It has a short way, past
//! [`Request`](crate::Request), from the line to the answer. It takes half the instructions off
//! `mg` (2213, now 1155).

use crate::parser::raw;
use crate::request::{Classic, Get, KEY_LEN_MAX, MetaFlags, Shape};
use crate::tokens::blank;

/// `get KEY`, or `mg KEY` with flags that show what is there, alone on its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoneGet<'b> {
    /// As sent, which is what it means: there is no `b`.
    pub key: &'b [u8],
    /// `mg`'s flags, none twice.
    pub(crate) flags: Option<&'b [u8]>,
}

impl<'b> LoneGet<'b> {
    /// Reads one off the front of `input`; and the line's length. What is unusual about it, such as
    /// a second space, makes it a case for the whole parser.
    #[inline]
    pub(crate) fn parse(input: &'b [u8]) -> Option<(Self, usize)> {
        if let Some(rest) = input.strip_prefix(b"get ") {
            let (key, behind) = split_key(rest)?;
            let is_line = behind.starts_with(b"\r\n");
            return is_line.then_some((Self { key, flags: None }, key.len() + 6));
        }
        let (key, behind) = split_key(input.strip_prefix(b"mg ")?)?;
        let flags = behind.get(..showing(behind)?)?;
        let line_len = key.len() + flags.len() + 5;
        Some((Self { key, flags: Some(flags.get(1..).unwrap_or_default()) }, line_len))
    }

    /// Whether it is `mg`, which shows more of an item than its content.
    #[must_use]
    pub fn is_meta(&self) -> bool {
        self.flags.is_some()
    }

    /// Its letters, in the order in which they are answered.
    #[inline]
    pub(crate) fn letters(&self) -> impl Iterator<Item = u8> + use<'b> {
        self.flags.unwrap_or_default().iter().step_by(2).copied()
    }

    /// The same as any look-up.
    #[must_use]
    pub fn get(&self) -> Get<'b> {
        let get = Get::lone(self.key);
        let Some(flags) = self.flags else { return get };
        let shape = Shape::Meta(MetaFlags { raw: flags, quiet: false });
        Get { value: self.letters().any(|letter| letter == b'v'), shape, ..get }
    }
}

impl<'b> Get<'b> {
    /// `get KEY`.
    #[must_use]
    pub(crate) fn lone(key: &'b [u8]) -> Self {
        Self {
            key: raw(key),
            value: true,
            touch: None,
            vivify: None,
            recache: None,
            compare: None,
            new_cas: None,
            untracked: false,
            shape: Shape::Classic(Classic { noreply: false, with_cas: false, last: true }),
        }
    }
}

#[inline]
fn split_key(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = blank(rest, KEY_LEN_MAX)?;
    if (1..=KEY_LEN_MAX).contains(&end) { rest.split_at_checked(end) } else { None }
}

/// The length of flags that only show something, each behind a space, up to the line's end.
#[inline]
fn showing(behind_key: &[u8]) -> Option<usize> {
    let (mut rest, mut seen) = (behind_key, 0_u32);
    loop {
        match rest {
            [b' ', letter @ (b'c' | b'f' | b'k' | b's' | b't' | b'v'), behind @ ..] => {
                let bit = 1 << (letter - b'a');
                if seen & bit != 0 {
                    return None;
                }
                (rest, seen) = (behind, seen | bit);
            }
            [b'\r', b'\n', ..] => return Some(behind_key.len() - rest.len()),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Parsed, Parser, Request};
    use proptest::prelude::*;

    #[test]
    fn what_only_asks_is_taken() {
        for line in ["get k\r\n", "mg k\r\n", "mg k v\r\n", "mg k v f t\r\n", "mg k s c k\r\n"] {
            let (lone, len) = Parser::TEXT.lone_get(line.as_bytes()).unwrap();
            assert_eq!((lone.key, len), (&b"k"[..], line.len()), "{line}");
        }
    }

    #[test]
    fn what_changes_anything_or_is_unusual_is_not() {
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
            assert_eq!(Parser::TEXT.lone_get(line.as_bytes()), None, "{line:?}");
        }
        let long = format!("mg {} v\r\n", "k".repeat(251));
        assert_eq!(Parser::TEXT.lone_get(long.as_bytes()), None);
    }

    proptest! {
        /// Both ways read the same.
        #[test]
        fn the_short_way_is_no_other_way(
            line in "(get|mg|mg) [a-z\t]{0,3}( [cfkstvqub ]{0,2}){0,4}\r?\n",
        ) {
            let mut parser = Parser::TEXT;
            if let Some((lone, len)) = parser.lone_get(line.as_bytes()) {
                let request = Request::Get(lone.get());
                let whole = Parsed::Request { request, consumed: len };
                prop_assert_eq!(parser.parse(line.as_bytes()), whole);
                prop_assert_eq!(parser, Parser::TEXT);
            }
        }
    }
}
