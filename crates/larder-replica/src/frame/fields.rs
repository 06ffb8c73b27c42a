//! The header and the fields of a frame.

use larder_store::KEY_LEN_MAX;

/// The maximum number of journals in a position.
pub const JOURNALS_MAX: usize = 4096;

const HEADER_LEN: usize = 8;
const NUMBER_LEN: usize = size_of::<u64>();

/// A random number that one side of a connection generates for that connection only.
pub type Nonce = [u8; 32];

/// The position of a follower in its leader's journals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The incarnation of the leader's process. Offsets of different processes are not comparable.
    pub incarnation: u64,
    /// The number of the leader's flushes that the follower has applied.
    pub generation: u64,
    /// One offset for each journal. The follower has all changes before these offsets.
    pub offsets: Vec<u64>,
}

/// A fault in received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// An invalid length in a header: 0, or more than the maximum.
    #[error("invalid frame length of {0} bytes")]
    TooLong(usize),
    /// A frame whose contents do not match its checksum.
    #[error("corrupt frame: the checksum does not match")]
    Checksum,
    /// A frame of an unknown type, or with invalid fields. The value is the frame's type.
    #[error("malformed frame of type {0}")]
    Malformed(u8),
}

/// Appends a frame of type `kind`. `fields` appends its fields.
pub(super) fn write(out: &mut Vec<u8>, kind: u8, fields: impl FnOnce(&mut Vec<u8>)) {
    let from = out.len();
    start(out, kind);
    fields(out);
    seal(out, from);
}

/// Fills in the header of the frame that starts at `start` in `out` and ends where `out` ends.
#[expect(clippy::cast_possible_truncation, reason = "frames are short")]
pub(super) fn seal(out: &mut [u8], start: usize) {
    let Some((head, body)) =
        out.get_mut(start..).and_then(|frame| frame.split_at_mut_checked(HEADER_LEN))
    else {
        return;
    };
    let (len, crc) = (body.len() as u32, crc32fast::hash(body));
    head.copy_from_slice(&(u64::from(len) | u64::from(crc) << 32).to_le_bytes());
}

#[expect(clippy::cast_possible_truncation, reason = "the text is truncated to 255 bytes")]
pub(super) fn write_text(out: &mut Vec<u8>, text: &str) {
    let text = text.get(..text.floor_char_boundary(255)).unwrap_or(text).as_bytes();
    out.push(text.len() as u8);
    out.extend_from_slice(text);
}

pub(super) fn write_position(out: &mut Vec<u8>, position: &Position) {
    out.extend_from_slice(&position.incarnation.to_le_bytes());
    out.extend_from_slice(&position.generation.to_le_bytes());
    write_offsets(out, &position.offsets);
}

#[expect(clippy::cast_possible_truncation, reason = "there are few journals")]
pub(super) fn write_offsets(out: &mut Vec<u8>, offsets: &[u64]) {
    out.extend_from_slice(&(offsets.len() as u16).to_le_bytes());
    offsets.iter().for_each(|offset| out.extend_from_slice(&offset.to_le_bytes()));
}

/// Appends a zeroed header and the type. The caller appends the fields, and then calls [`seal`].
pub(super) fn start(out: &mut Vec<u8>, kind: u8) {
    out.extend_from_slice(&[0; HEADER_LEN]);
    out.push(kind);
}

/// Returns the encoded length of the frame whose header is at the start of `bytes`, or `None` if
/// the header is incomplete.
pub(super) fn encoded_len(bytes: &[u8]) -> Option<usize> {
    let [l0, l1, l2, l3, ..] = *bytes.first_chunk::<HEADER_LEN>()?;
    Some(HEADER_LEN + u32::from_le_bytes([l0, l1, l2, l3]) as usize)
}

/// Validates the first frame of `bytes`. Returns its type, its fields and its encoded length in
/// bytes, or `None` if the frame is incomplete.
pub(super) fn open(
    bytes: &[u8],
    len_max: usize,
) -> Result<Option<(u8, Fields<'_>, usize)>, FrameError> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEADER_LEN>() else { return Ok(None) };
    let [l0, l1, l2, l3, c0, c1, c2, c3] = *head;
    let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    let crc = u32::from_le_bytes([c0, c1, c2, c3]);
    if len > len_max || len == 0 {
        return Err(FrameError::TooLong(len));
    }
    let Some(body) = rest.get(..len) else { return Ok(None) };
    if crc32fast::hash(body) != crc {
        return Err(FrameError::Checksum);
    }
    let (kind, fields) = body.split_first().unwrap_or((&0, &[]));
    Ok(Some((*kind, Fields(fields), HEADER_LEN + len)))
}

/// A cursor over the fields of a frame. Its methods return `None` for a missing or invalid field.
#[derive(Clone, Copy)]
pub(super) struct Fields<'b>(&'b [u8]);

impl<'b> Fields<'b> {
    pub(super) fn new(bytes: &'b [u8]) -> Self {
        Self(bytes)
    }

    /// Returns the number of unread bytes.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Decodes the remaining fields with `read`, one value at a time. The iterator ends after the
    /// first error.
    pub(super) fn all<T>(
        mut self,
        kind: u8,
        read: impl Fn(&mut Self) -> Option<T>,
    ) -> impl Iterator<Item = Result<T, FrameError>> {
        std::iter::from_fn(move || {
            if self.0.is_empty() {
                return None;
            }
            let one = read(&mut self).ok_or(FrameError::Malformed(kind));
            if one.is_err() {
                self.0 = &[];
            }
            Some(one)
        })
    }

    pub(super) fn take(&mut self, len: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn rest(&mut self) -> &'b [u8] {
        std::mem::take(&mut self.0)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn flag(&mut self) -> Option<bool> {
        let [flag] = self.array()?;
        Some(flag != 0)
    }

    pub(super) fn text(&mut self) -> Option<&'b str> {
        let [len] = self.array()?;
        std::str::from_utf8(self.take(len.into())?).ok()
    }

    pub(super) fn position(&mut self) -> Option<Position> {
        let (incarnation, generation) = (self.number()?, self.number()?);
        Some(Position { incarnation, generation, offsets: self.offsets()? })
    }

    pub(super) fn key(&mut self) -> Option<&'b [u8]> {
        let len = usize::from(u16::from_le_bytes(self.array()?));
        if len == 0 || len > KEY_LEN_MAX { None } else { self.take(len) }
    }

    pub(super) fn offsets(&mut self) -> Option<Vec<u64>> {
        let count = usize::from(u16::from_le_bytes(self.array()?));
        if count > JOURNALS_MAX || count * NUMBER_LEN > self.0.len() {
            return None;
        }
        (0..count).map(|_| self.number()).collect()
    }
}
