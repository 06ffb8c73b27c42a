//! The keys that a follower sends at the start of a delta sync: see `lineage.rs`.

use super::fields::{Fields, FrameError, write};
use std::collections::VecDeque;

/// The maximum total length of the keys in a delta sync, in bytes. A follower whose changed keys
/// exceed this length needs a full sync.
pub const CHANGED_KEYS_LEN_MAX: usize = 4 << 20;
/// Once the encoded keys in a frame have this length in bytes, the writer starts another frame.
const CHANGED_KEYS_FRAME_LEN: usize = 16 << 10;

/// The type number of a `ChangedKeys` frame.
const CHANGED_KEYS: u8 = 20;

/// The encoded keys in one `ChangedKeys` frame. [`ChangedKeys::keys`] decodes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangedKeys<'b> {
    /// Whether this is the last frame of keys in the delta sync.
    pub is_last: bool,
    pub(super) keys: &'b [u8],
}

impl<'b> ChangedKeys<'b> {
    /// Validates the keys and returns them in encoded form, for
    /// [`Sender::push_changed_keys`](crate::Sender).
    ///
    /// # Errors
    /// [`FrameError::Malformed`] if a key is malformed.
    pub fn bytes(&self) -> Result<&'b [u8], FrameError> {
        self.keys().try_for_each(|key| key.map(drop)).map(|()| self.keys)
    }

    /// Decodes the keys.
    ///
    /// # Errors
    /// A malformed key yields [`FrameError::Malformed`], and the iterator ends.
    pub fn keys(&self) -> impl Iterator<Item = Result<&'b [u8], FrameError>> + use<'b> {
        Fields::new(self.keys).all(CHANGED_KEYS, Fields::key)
    }

    /// Reads the fields of a frame. Returns `None` if they are malformed. Does not validate the
    /// keys.
    pub(super) fn read(fields: &mut Fields<'b>) -> Option<Self> {
        Some(Self { is_last: fields.flag()?, keys: fields.rest() })
    }

    /// Appends the frame to `out`.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        write(out, CHANGED_KEYS, |out| {
            out.push(self.is_last.into());
            out.extend_from_slice(self.keys);
        });
    }

    /// Splits these keys into frames and appends the frames to `out`. Marks the last frame with
    /// `is_last`.
    #[expect(clippy::cast_possible_truncation, reason = "keys are short")]
    pub(crate) fn write_all<'k>(keys: impl Iterator<Item = &'k [u8]>, out: &mut Vec<u8>) {
        let mut bytes = Vec::new();
        for key in keys {
            bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
            bytes.extend_from_slice(key);
            if bytes.len() >= CHANGED_KEYS_FRAME_LEN {
                ChangedKeys { is_last: false, keys: &bytes }.write(out);
                bytes.clear();
            }
        }
        ChangedKeys { is_last: true, keys: &bytes }.write(out);
    }
}

/// Encoded keys in order of arrival. The sender has not sent their item states yet.
#[derive(Debug, Default)]
pub(crate) struct ChangedKeyQueue {
    frames: VecDeque<Vec<u8>>,
    /// The offset of the next key in the first frame.
    offset: usize,
}

impl ChangedKeyQueue {
    pub(crate) fn push(&mut self, frame: Vec<u8>) {
        self.frames.push_back(frame);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Removes up to `count` keys and passes them to `each`.
    pub(crate) fn take(&mut self, count: usize, mut each: impl FnMut(&[u8])) {
        for _ in 0..count {
            let Some(frame) = self.frames.front() else { return };
            let mut fields = Fields::new(frame.get(self.offset..).unwrap_or_default());
            if let Some(key) = fields.key() {
                each(key);
            }
            self.offset = frame.len() - fields.len();
            if fields.len() == 0 {
                self.frames.pop_front();
                self.offset = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Frame, HANDSHAKE_FRAME_LEN_MAX};

    #[test]
    fn keys_round_trip() {
        let keys: Vec<Vec<u8>> = (1..=1000).map(|len| vec![b'k'; len]).collect();
        let (mut out, mut read, mut is_last) = (Vec::new(), Vec::new(), false);
        ChangedKeys::write_all(keys.iter().map(Vec::as_slice), &mut out);
        let mut rest = &out[..];
        while let Some((frame, len)) = Frame::read(rest, HANDSHAKE_FRAME_LEN_MAX).unwrap() {
            let Frame::ChangedKeys(named) = frame else { panic!("{frame:?}") };
            assert!(!is_last);
            is_last = named.is_last;
            read.extend(named.keys().map(|key| key.unwrap().to_vec()));
            rest = &rest[len..];
        }
        assert_eq!((read, is_last), (keys, true));
        let truncated = ChangedKeys { is_last: true, keys: b"\x05\0a" };
        let malformed = vec![Err(FrameError::Malformed(20))];
        assert_eq!(truncated.keys().collect::<Vec<_>>(), malformed);
    }

    #[test]
    fn a_queue_returns_keys_across_frame_boundaries() {
        let mut named = ChangedKeyQueue::default();
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
