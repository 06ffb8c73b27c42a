//! The keys of changed items. A leader sends them to nodes whose clients have near caches.

use super::fields::{Fields, FrameError, write};

/// The type number of an `Invalidated` frame.
const INVALIDATED: u8 = 30;

/// The keys of items that may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalidated<'b> {
    /// The encoded keys. An empty slice means that every item may have changed.
    pub(super) keys: &'b [u8],
}

impl<'b> Invalidated<'b> {
    /// Every item may have changed.
    pub const ALL: Invalidated<'static> = Invalidated { keys: &[] };

    /// Returns whether every item may have changed.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.keys.is_empty()
    }

    /// Decodes the keys.
    ///
    /// # Errors
    /// A malformed key yields [`FrameError::Malformed`], and the iterator ends.
    pub fn keys(&self) -> impl Iterator<Item = Result<&'b [u8], FrameError>> + use<'b> {
        Fields::new(self.keys).all(INVALIDATED, Fields::key)
    }

    /// Appends a frame with these keys to `out`. There must be at least one key, and at most 1 MiB
    /// of keys.
    #[expect(clippy::cast_possible_truncation, reason = "keys are short")]
    pub fn write_keys<'k>(keys: impl Iterator<Item = &'k [u8]>, out: &mut Vec<u8>) {
        write(out, INVALIDATED, |out| {
            for key in keys {
                out.extend_from_slice(&(key.len() as u16).to_le_bytes());
                out.extend_from_slice(key);
            }
        });
    }

    /// Appends the frame to `out`.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        write(out, INVALIDATED, |out| out.extend_from_slice(self.keys));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{FRAME_LEN_MAX, Frame};

    #[test]
    fn keys_round_trip() {
        let keys: Vec<Vec<u8>> = (1..=1000).map(|len| vec![b'k'; len]).collect();
        let mut out = Vec::new();
        Invalidated::write_keys(keys.iter().map(Vec::as_slice), &mut out);
        let (frame, _) = Frame::read(&out, FRAME_LEN_MAX).unwrap().unwrap();
        let Frame::Invalidated(read) = frame else { panic!("{frame:?}") };
        assert_eq!(read.keys().map(|key| key.unwrap().to_vec()).collect::<Vec<_>>(), keys);
        assert!(!read.is_all() && Invalidated::ALL.is_all());
        let truncated = Invalidated { keys: b"\x05\0a" };
        assert_eq!(truncated.keys().collect::<Vec<_>>(), [Err(FrameError::Malformed(INVALIDATED))]);
    }
}
