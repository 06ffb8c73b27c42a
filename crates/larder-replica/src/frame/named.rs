//! The keys that a follower names after another leader has begun to send: see `lineage.rs`.

use super::fields::{Fields, FrameError, write};
use std::collections::VecDeque;

/// The most bytes of keys that a member names after another one has begun to lead. Above, it copies everything.
pub const NAMED_LEN_MAX: usize = 4 << 20;
/// A frame of named keys ends when it has this many bytes.
const NAMED_LEN: usize = 16 << 10;

/// The type of a frame of named keys.
const NAMED: u8 = 20;

/// Keys: see [`Named::keys`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named<'b> {
    /// No more follow.
    pub is_last: bool,
    pub(super) keys: &'b [u8],
}

impl<'b> Named<'b> {
    /// The keys as they are written, if all of them can be read: see [`NamedKeys`].
    ///
    /// # Errors
    /// [`FrameError::Malformed`].
    pub fn bytes(&self) -> Result<&'b [u8], FrameError> {
        self.keys().try_for_each(|key| key.map(drop)).map(|()| self.keys)
    }

    /// The keys.
    ///
    /// # Errors
    /// [`FrameError::Malformed`]: so is all that follows.
    pub fn keys(&self) -> impl Iterator<Item = Result<&'b [u8], FrameError>> + use<'b> {
        Fields::new(self.keys).all(NAMED, Fields::key)
    }

    /// Reads the fields of a frame.
    pub(super) fn read(fields: &mut Fields<'b>) -> Option<Self> {
        Some(Self { is_last: fields.flag()?, keys: fields.rest() })
    }

    /// Appends the frame to `out`.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        write(out, NAMED, |out| {
            out.push(self.is_last.into());
            out.extend_from_slice(self.keys);
        });
    }

    /// Writes frames of these keys, of which the last one says so.
    #[expect(clippy::cast_possible_truncation, reason = "keys are short")]
    pub(crate) fn write_all<'k>(keys: impl Iterator<Item = &'k [u8]>, out: &mut Vec<u8>) {
        let mut bytes = Vec::new();
        for key in keys {
            bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
            bytes.extend_from_slice(key);
            if bytes.len() >= NAMED_LEN {
                Named { is_last: false, keys: &bytes }.write(out);
                bytes.clear();
            }
        }
        Named { is_last: true, keys: &bytes }.write(out);
    }
}

/// Keys that were named and are still to be looked up, as they came.
#[derive(Debug, Default)]
pub(crate) struct NamedKeys {
    frames: VecDeque<Vec<u8>>,
    /// What was read of the first of them.
    at: usize,
}

impl NamedKeys {
    pub(crate) fn push(&mut self, frame: Vec<u8>) {
        self.frames.push_back(frame);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Takes up to so many keys.
    pub(crate) fn take(&mut self, count: usize, mut each: impl FnMut(&[u8])) {
        for _ in 0..count {
            let Some(frame) = self.frames.front() else { return };
            let mut fields = Fields::new(frame.get(self.at..).unwrap_or_default());
            if let Some(key) = fields.key() {
                each(key);
            }
            self.at = frame.len() - fields.len();
            if fields.len() == 0 {
                self.frames.pop_front();
                self.at = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Frame, GREETING_LEN_MAX};

    #[test]
    fn named_keys_are_read_as_they_were_written() {
        let keys: Vec<Vec<u8>> = (1..=1000).map(|len| vec![b'k'; len]).collect();
        let (mut out, mut read, mut is_last) = (Vec::new(), Vec::new(), false);
        Named::write_all(keys.iter().map(Vec::as_slice), &mut out);
        let mut rest = &out[..];
        while let Some((frame, len)) = Frame::read(rest, GREETING_LEN_MAX).unwrap() {
            let Frame::Named(named) = frame else { panic!("{frame:?}") };
            assert!(!is_last);
            is_last = named.is_last;
            read.extend(named.keys().map(|key| key.unwrap().to_vec()));
            rest = &rest[len..];
        }
        assert_eq!((read, is_last), (keys, true));
        let nonsense = Named { is_last: true, keys: b"\x05\0a" };
        let malformed = vec![Err(FrameError::Malformed(20))];
        assert_eq!(nonsense.keys().collect::<Vec<_>>(), malformed);
    }

    #[test]
    fn named_keys_are_taken_in_pieces() {
        let mut named = NamedKeys::default();
        for frame in [&b"\x01\0a\x02\0bc"[..], b"", b"\x01\0d"] {
            named.push(frame.to_vec());
        }
        let mut taken = Vec::new();
        while !named.is_empty() {
            named.take(1, |key| taken.push(key.to_vec()));
        }
        assert_eq!(taken, [&b"a"[..], b"bc", b"d"]);
    }
}
