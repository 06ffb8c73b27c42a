//! Keys, checked before they are sent.

use crate::base64;
use crate::request::KEY_LEN_MAX;
use crate::tokens::has_blank_or_control;
use std::fmt;

/// The longest key in bytes that meta can send in base64, which then takes 248 bytes.
pub const BASE64_KEY_LEN_MAX: usize = KEY_LEN_MAX / 4 * 3;

/// A key that every protocol sends as it is: 1 to [`KEY_LEN_MAX`] bytes without blanks and control
/// characters, which would end the key or the line in text. Bytes from 0x80 on are allowed, and with
/// them UTF-8.
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

    /// The key.
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

/// A key for the meta protocol, which sends any bytes: those that no [`WireKey`] can have are sent
/// in base64, with the flag `b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaKey<'k> {
    bytes: &'k [u8],
    base64: bool,
}

impl<'k> MetaKey<'k> {
    /// Checks a key, and chooses how to send it.
    ///
    /// # Errors
    /// The key is empty or too long: at most [`KEY_LEN_MAX`] bytes, or [`BASE64_KEY_LEN_MAX`] if it
    /// has a blank or control character.
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

    /// The key itself, not encoded.
    #[inline]
    #[must_use]
    pub fn bytes(self) -> &'k [u8] {
        self.bytes
    }

    /// Whether it is sent in base64.
    #[inline]
    #[must_use]
    pub fn is_base64(self) -> bool {
        self.base64
    }

    /// Writes the key as it is sent.
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

/// Why a key cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidKey {
    /// It has no bytes.
    Empty,
    /// It is longer than this protocol can send.
    TooLong {
        /// Its length in bytes.
        len: usize,
        /// The longest that can be sent, in bytes.
        len_max: usize,
    },
    /// It has a space, a line end or another control character, and the protocol has no encoding
    /// for it.
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
    fn a_key_is_plain_or_base64_or_refused() {
        let too_long = |len, len_max| Some(InvalidKey::TooLong { len, len_max });
        // The key, its error as a plain key, and as a meta key.
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
    fn each_blank_and_control_character_is_found_wherever_it_is() {
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
