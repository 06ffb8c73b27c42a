//! Keys that are checked before they are sent.

use crate::parse::base64;
use crate::request::KEY_LEN_MAX;
use crate::text::number::u64_of;
use crate::text::tokens::has_blank_or_control;
use arrayvec::ArrayVec;
use std::fmt;

/// The maximum length, in bytes, of a key that the meta protocol can send in base64. A key of this
/// length has an encoding of 248 bytes.
pub const BASE64_KEY_LEN_MAX: usize = KEY_LEN_MAX / 4 * 3;

/// A key that every protocol can send unencoded: 1 to [`KEY_LEN_MAX`] bytes without blanks and
/// control characters, which would end the key or the line in text. All bytes from 0x80 to 0xff are
/// allowed, which includes UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireKey<'k>(&'k [u8]);

impl<'k> WireKey<'k> {
    /// Checks a key.
    ///
    /// # Errors
    /// The key is empty, too long, or has a blank or control character.
    #[inline]
    pub fn new(key: &'k [u8]) -> Result<Self, InvalidKey> {
        if key.is_empty() || key.len() > KEY_LEN_MAX || has_blank_or_control(key) {
            return Err(InvalidKey::of(key));
        }
        Ok(Self(key))
    }

    /// Returns the bytes of the key.
    #[inline]
    #[must_use]
    pub fn bytes(self) -> &'k [u8] {
        self.0
    }

    #[inline]
    pub(super) fn push(self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.0);
    }
}

/// A generator of keys that consist of a prefix and a decimal number. The generator checks the
/// prefix once. Making a key then needs neither a check nor an allocation. Each new key overwrites
/// the previous key.
///
/// ```
/// use larder_protocol::encode::NumberedKeys;
///
/// let mut keys = NumberedKeys::new(b"user:")?;
/// assert_eq!(keys.key(17).bytes(), b"user:17");
/// # Ok::<(), larder_protocol::encode::InvalidKey>(())
/// ```
#[derive(Clone, Debug)]
pub struct NumberedKeys {
    /// The prefix, followed by the number of the last key.
    key: ArrayVec<u8, KEY_LEN_MAX>,
    prefix_len: usize,
}

impl NumberedKeys {
    /// The maximum length of a prefix, in bytes. The rest of a key has room for every 64-bit
    /// number.
    pub const PREFIX_LEN_MAX: usize = KEY_LEN_MAX - 20;

    /// Checks a prefix, which may be empty.
    ///
    /// # Errors
    /// The prefix is longer than [`PREFIX_LEN_MAX`](Self::PREFIX_LEN_MAX), or has a blank or
    /// control character.
    pub fn new(prefix: &[u8]) -> Result<Self, InvalidKey> {
        let (len, len_max) = (prefix.len(), Self::PREFIX_LEN_MAX);
        if len > len_max {
            return Err(InvalidKey::TooLong { len, len_max });
        }
        if has_blank_or_control(prefix) {
            return Err(InvalidKey::BlankOrControl);
        }
        Ok(Self { key: prefix.iter().copied().collect(), prefix_len: len })
    }

    /// Returns the prefix.
    #[must_use]
    pub fn prefix(&self) -> &[u8] {
        self.key.get(..self.prefix_len).unwrap_or_default()
    }

    /// Returns the number of a key, or `None` if the key does not consist of the prefix and a
    /// number.
    #[must_use]
    pub fn number(&self, key: &[u8]) -> Option<u64> {
        u64_of(key.strip_prefix(self.prefix())?)
    }

    /// Makes the key for a number.
    #[inline]
    pub fn key(&mut self, number: u64) -> WireKey<'_> {
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(number).as_bytes();
        self.key.truncate(self.prefix_len);
        let fits = self.key.try_extend_from_slice(digits);
        debug_assert!(fits.is_ok(), "PREFIX_LEN_MAX leaves room for every 64-bit number");
        WireKey(&self.key)
    }
}

/// A key for the meta protocol. A key that is not a valid [`WireKey`] is sent in base64, with the
/// flag `b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaKey<'k> {
    bytes: &'k [u8],
    base64: bool,
}

impl<'k> MetaKey<'k> {
    /// Checks a key, and chooses its encoding.
    ///
    /// # Errors
    /// The key is empty or too long. The maximum is [`KEY_LEN_MAX`] bytes, or
    /// [`BASE64_KEY_LEN_MAX`] bytes if the key has a blank or control character.
    #[inline]
    pub fn new(bytes: &'k [u8]) -> Result<Self, InvalidKey> {
        match WireKey::new(bytes) {
            Ok(key) => Ok(key.into()),
            Err(InvalidKey::BlankOrControl) if bytes.len() <= BASE64_KEY_LEN_MAX => {
                Ok(Self { bytes, base64: true })
            }
            Err(InvalidKey::BlankOrControl) => {
                Err(InvalidKey::TooLong { len: bytes.len(), len_max: BASE64_KEY_LEN_MAX })
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the unencoded key.
    #[inline]
    #[must_use]
    pub fn bytes(self) -> &'k [u8] {
        self.bytes
    }

    /// Returns whether the key is sent in base64.
    #[inline]
    #[must_use]
    pub fn is_base64(self) -> bool {
        self.base64
    }

    /// Writes the encoded key.
    #[inline]
    pub(super) fn push(self, out: &mut Vec<u8>) {
        if self.base64 {
            base64::encode(self.bytes, out);
        } else {
            out.extend_from_slice(self.bytes);
        }
    }
}

impl<'k> From<WireKey<'k>> for MetaKey<'k> {
    #[inline]
    fn from(key: WireKey<'k>) -> Self {
        Self { bytes: key.0, base64: false }
    }
}

/// The reason why a key cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidKey {
    /// The key is empty.
    Empty,
    /// The key, or the prefix of [`NumberedKeys`], is too long.
    TooLong {
        /// The length of the refused key or prefix, in bytes.
        len: usize,
        /// The largest allowed length in bytes.
        len_max: usize,
    },
    /// The key has a space, a line end or another control character, and the protocol cannot encode
    /// it.
    BlankOrControl,
}

impl InvalidKey {
    #[cold]
    fn of(key: &[u8]) -> Self {
        match key.len() {
            0 => Self::Empty,
            len if len > KEY_LEN_MAX => Self::TooLong { len, len_max: KEY_LEN_MAX },
            _ => Self::BlankOrControl,
        }
    }
}

impl fmt::Display for InvalidKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the key is empty"),
            Self::TooLong { len, len_max } => {
                write!(f, "the key has {len} bytes; at most {len_max} can be sent")
            }
            Self::BlankOrControl => f.write_str("the key has a blank or control character"),
        }
    }
}

impl std::error::Error for InvalidKey {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_sent_plain_or_in_base64_or_refused() {
        let too_long = |len, len_max| Some(InvalidKey::TooLong { len, len_max });
        // Each case has a key, its error as a plain key, and its error as a meta key.
        let cases = [
            (vec![], Some(InvalidKey::Empty), Some(InvalidKey::Empty)),
            (vec![b'k'; 250], None, None),
            (vec![b'k'; 251], too_long(251, 250), too_long(251, 250)),
            (vec![b' '; 186], Some(InvalidKey::BlankOrControl), None),
            (vec![b' '; 187], Some(InvalidKey::BlankOrControl), too_long(187, 186)),
            (vec![b'\n'; 251], too_long(251, 250), too_long(251, 250)),
            ("é".into(), None, None),
        ];
        for (key, plain, meta) in cases {
            assert_eq!(WireKey::new(&key).err(), plain, "{}", key.escape_ascii());
            assert_eq!(MetaKey::new(&key).err(), meta, "{}", key.escape_ascii());
        }
    }

    #[test]
    fn every_number_fits_behind_a_valid_prefix() {
        for prefix in ["", "k-", &"k".repeat(230)] {
            let mut keys = NumberedKeys::new(prefix.as_bytes()).unwrap();
            for number in [0, u64::MAX, 7] {
                let expected = format!("{prefix}{number}");
                assert_eq!(keys.key(number).bytes(), expected.as_bytes());
                assert!(WireKey::new(expected.as_bytes()).is_ok());
                assert_eq!(keys.number(expected.as_bytes()), Some(number));
            }
            assert_eq!(keys.prefix(), prefix.as_bytes());
        }
        let too_long = InvalidKey::TooLong { len: 231, len_max: 230 };
        assert_eq!(NumberedKeys::new(&[b'k'; 231]).err(), Some(too_long));
        assert_eq!(NumberedKeys::new(b"a b").err(), Some(InvalidKey::BlankOrControl));
        let keys = NumberedKeys::new(b"k-").unwrap();
        assert_eq!(["k-", "k", "l-1", "k-1x"].map(|key| keys.number(key.as_bytes())), [None; 4]);
    }

    #[test]
    fn blanks_and_control_characters_are_found_at_every_position() {
        for len in 1..=20 {
            for at in 0..len {
                for byte in 0..=u8::MAX {
                    let mut key = vec![b'k'; len];
                    key[at] = byte;
                    let valid = byte > b' ' && byte != 0x7f;
                    assert_eq!(WireKey::new(&key).is_ok(), valid, "{byte:#x} at {at} of {len}");
                }
            }
        }
    }
}
