//! The extension: a word after the CAS, for fields that do not fit the header.
//!
//! ```text
//! 63           48 47                  38 37         36    34 33       0
//! ┌──────────────┬──────────────────────┬────────────┬────────┬────────┐
//! │ key length   │ expiry is early, ms  │ binary key │ tags   │ zero   │
//! └──────────────┴──────────────────────┴────────────┴────────┴────────┘
//! ```
//! The header's key length is the length of the key, but at most [`SHORT_KEY_MAX`]. The header's
//! inline length includes the rest of the key and the tags. The tags are before the key.

use super::header::{Header, SHORT_KEY_MAX};
use crate::{KEY_LEN_MAX, SubsecondMillis};
use std::num::NonZeroU64;

const KEY_LEN_SHIFT: u32 = 48;
const EARLY_SHIFT: u32 = 38;
const EARLY_MASK: u64 = (1 << 10) - 1;
const BINARY_KEY: u64 = 1 << 37;
const TAGS_SHIFT: u32 = 34;
const TAGS_MASK: u64 = 7;

/// The length of a tag in bytes.
const TAG_LEN: usize = 8;

/// The content of an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extension(NonZeroU64);

impl Extension {
    /// Returns the extension of an item with these fields, or `None` if the item needs no
    /// extension. Lengths are in bytes.
    #[inline]
    pub(crate) fn of(
        key_len: usize,
        early_millis: u16,
        binary_key: bool,
        tags_len: usize,
    ) -> Option<Self> {
        if key_len <= SHORT_KEY_MAX && early_millis == 0 && !binary_key && tags_len == 0 {
            return None;
        }
        let tags = tags_len / TAG_LEN;
        strict_assert!(key_len <= KEY_LEN_MAX && tags as u64 <= TAGS_MASK);
        let binary_key = if binary_key { BINARY_KEY } else { 0 };
        let early = u64::from(early_millis) << EARLY_SHIFT;
        let lens = (key_len as u64) << KEY_LEN_SHIFT | (tags as u64) << TAGS_SHIFT;
        Self::from_word(lens | early | binary_key)
    }

    /// Returns the extension in a word, or `None` for 0, which is not a valid extension.
    #[inline]
    pub(crate) fn from_word(word: u64) -> Option<Self> {
        NonZeroU64::new(word).map(Self)
    }

    #[inline]
    pub(crate) fn word(self) -> u64 {
        self.0.get()
    }

    /// Returns the length of the key in bytes.
    #[inline]
    pub(crate) fn key_len(self) -> usize {
        (self.word() >> KEY_LEN_SHIFT) as usize
    }

    /// Returns the number of milliseconds by which the item expires before its expiry second, or
    /// `None` if this is 0.
    pub(crate) fn early(self) -> Option<SubsecondMillis> {
        SubsecondMillis::new((self.word() >> EARLY_SHIFT & EARLY_MASK) as u16)
    }

    pub(crate) fn binary_key(self) -> bool {
        self.word() & BINARY_KEY != 0
    }

    /// Returns the length of all tags in bytes.
    #[inline]
    pub(crate) fn tags_len(self) -> usize {
        TAG_LEN * (self.word() >> TAGS_SHIFT & TAGS_MASK) as usize
    }

    /// Returns the length of the inline value in bytes, for an item with this header.
    #[inline]
    pub(crate) fn inline_len(self, header: Header) -> usize {
        header.key_len() + header.inline_len() - self.key_len() - self.tags_len()
    }

    /// Returns whether an item with this header can have the extension.
    pub(crate) fn fits(self, header: Header) -> bool {
        let len = header.key_len() + header.inline_len();
        (1..=KEY_LEN_MAX).contains(&self.key_len()) && self.key_len() + self.tags_len() <= len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extension_returns_its_fields() {
        let extension = Extension::of(KEY_LEN_MAX, 999, true, 56).unwrap();
        assert_eq!((extension.key_len(), extension.tags_len()), (KEY_LEN_MAX, 56));
        assert_eq!(extension.early(), SubsecondMillis::new(999));
        assert!(extension.binary_key());
        let header = Header::new(SHORT_KEY_MAX, KEY_LEN_MAX - SHORT_KEY_MAX + 56 + 10);
        assert_eq!(extension.inline_len(header), 10);
        assert!(extension.fits(header) && !extension.fits(Header::new(SHORT_KEY_MAX, 800)));
        let other = Extension::of(3, 1, false, 0).unwrap();
        assert_eq!((other.key_len(), other.tags_len(), other.binary_key()), (3, 0, false));
        assert_eq!(Extension::of(SHORT_KEY_MAX, 0, false, 0), None);
    }
}
