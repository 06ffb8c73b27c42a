//! Assembling large values: from the bytes of a request that sets a value, or from an old value and
//! the bytes that are appended or prepended. An update copies these bytes before it locks the
//! stripe, so that no other thread waits for the copy. It stores the result only if the old value
//! has not changed. If the value has changed several times, the update copies under the lock.

use super::upload::Upload;
use crate::NewValue;
use crate::segment::cache::shared::Shared;
use crate::segment::item::record::Record;
use crate::segment::item::witness::Witness;
use crate::segment::memory::table::{SegmentState, Sequence};
use crate::segment::sync::Ordering;
use std::ops::Range;

/// The parts of an assembled value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The length of the assembled value in bytes.
    pub(crate) len: usize,
    /// The number of added bytes at the front that are not part of the assembled value.
    pub(crate) skipped: usize,
    /// Whether the assembled value will follow the old value's chain, which does not change. The
    /// assembled value then contains only the tail of the old value.
    pub(crate) is_suffix: bool,
}

/// A large value before it is stored.
#[derive(Debug)]
pub(crate) struct ValueBuilder {
    pub(crate) plan: Plan,
    pub(crate) upload: Upload,
    /// The identity of the old record; `None` if there was none.
    based_on: Option<Identity>,
    /// The number of attempts to copy the value.
    pub(crate) rounds: u32,
}

/// The identity of a record, which can be compared even if the record no longer exists. It consists
/// of the segment's sequence, the number of dead records that were overwritten in the segment, and
/// the record's offset. While the first two are unchanged, the offset refers to the same record.
type Identity = (Sequence, u64, usize);

fn identity(record: &Record<'_>) -> Identity {
    let entry = record.entry();
    (entry.sequence().load(Ordering::Acquire), entry.taken_dead(), record.offset)
}

impl ValueBuilder {
    /// If an update has copied a value more often than this, it makes the next copy while the
    /// stripe is locked, so that the value can't change. The earlier copies were made without the
    /// lock, and the old value changed before the update could store them.
    pub(crate) const ROUNDS_MAX: u32 = 4;

    pub(crate) fn filled(plan: Plan, upload: Upload, old: Option<&Record<'_>>) -> Self {
        Self { plan, upload, based_on: old.map(identity), rounds: 0 }
    }

    pub(crate) fn is_based_on(&self, old: Option<&Record<'_>>) -> bool {
        self.upload.filled == self.plan.len && self.based_on == old.map(identity)
    }

    /// Copies all pieces into the segments of the upload. Copies nothing if the old value does not
    /// have the planned length.
    pub(crate) fn fill(
        &mut self,
        shared: &Shared,
        old: Option<&Record<'_>>,
        witness: Witness<'_>,
        value: NewValue<'_>,
        upload: Option<&Upload>,
    ) {
        self.rounds += 1;
        self.based_on = old.map(identity);
        self.upload.filled = 0;
        let added = added_len(value, upload);
        let Plan { len, skipped, is_suffix } = self.plan;
        let replaces = matches!(value, NewValue::Bytes(_) | NewValue::Uploaded);
        let old_len = match old {
            Some(old) if is_suffix => old.inline_value().len(),
            Some(old) if !replaces => old.value_len(),
            _ => 0,
        };
        if old_len + added - skipped != len {
            return;
        }
        let built = &mut self.upload;
        let copy_old = |built: &mut Upload| match old {
            _ if old_len == 0 => (),
            Some(old) if is_suffix => built.fill_all(old.inline_value()),
            Some(old) => shared.for_each_piece(old, witness, |piece| built.fill_all(piece)),
            None => (),
        };
        let old_first = matches!(value, NewValue::Append(_) | NewValue::AppendUploaded);
        if old_first {
            copy_old(built);
        }
        for_added(value, upload, skipped..added, &mut |piece| built.fill_all(piece));
        if !old_first {
            copy_old(built);
        }
    }
}

/// Returns the added bytes, or `None` if they were uploaded.
fn bytes_of(value: NewValue<'_>) -> Option<&[u8]> {
    match value {
        NewValue::Bytes(bytes) | NewValue::Append(bytes) | NewValue::Prepend(bytes) => Some(bytes),
        _ => None,
    }
}

fn added_len(value: NewValue<'_>, upload: Option<&Upload>) -> usize {
    match bytes_of(value) {
        Some(bytes) => bytes.len(),
        None => upload.map_or(0, |upload| upload.len),
    }
}

/// Calls `f` with each piece of a range of the added bytes.
pub(crate) fn for_added(
    value: NewValue<'_>,
    upload: Option<&Upload>,
    range: Range<usize>,
    f: &mut dyn FnMut(&[u8]),
) {
    let mut at = 0;
    let mut piece = |bytes: &[u8]| {
        let clip = |offset: usize| offset.clamp(at, at + bytes.len()) - at;
        let part = clip(range.start)..clip(range.end);
        at += bytes.len();
        if !part.is_empty() {
            f(&bytes[part]);
        }
    };
    match (bytes_of(value), upload) {
        (Some(bytes), _) => piece(bytes),
        (None, Some(upload)) => (0..upload.segments.len()).for_each(|i| piece(upload.piece(i))),
        (None, None) => (),
    }
}

impl Shared {
    /// Calls `piece` with the pieces of an item's value, in order.
    pub(crate) fn for_each_piece(
        &self,
        record: &Record<'_>,
        _: Witness<'_>,
        mut piece: impl FnMut(&[u8]),
    ) {
        let tail = record.inline_value();
        if let Some(chain) = record.chain() {
            let mut left = chain.value_len as usize - tail.len();
            for segment in self.chain_segments(chain.first) {
                strict_assert!(self.table().entry(segment).is(SegmentState::Chain), "{segment}");
                let len = left.min(self.segment_len());
                let start = self.table().layout.start(segment);
                // SAFETY: the witness keeps the record from being recycled, and the record keeps
                // its chain from being recycled.
                piece(unsafe { self.table().region.bytes(start, len) });
                left -= len;
                if left == 0 {
                    break;
                }
            }
        }
        piece(tail);
    }

    /// Returns the number of segments in an item's chain.
    pub(crate) fn chain_segments_of(&self, record: &Record<'_>) -> usize {
        record.chain_segments(self.segment_len())
    }

    /// Returns the last segment of an item's chain.
    pub(crate) fn last_of_chain(&self, record: &Record<'_>) -> u32 {
        let segments = self.chain_segments_of(record);
        let first = record.chain().map_or(0, |chain| chain.first);
        self.chain_segments(first).nth(segments.saturating_sub(1)).unwrap_or(first)
    }
}
