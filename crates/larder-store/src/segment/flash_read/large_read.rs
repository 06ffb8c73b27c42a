//! Reading large items. The head is read into a buffer, like any other item. The value is read into
//! segments of its own, which become the chain of the item.

use crate::segment::cache::shared::Shared;
use crate::segment::flash::format::add_piece;
use crate::segment::large_value::upload::Upload;
use crate::segment::memory::table::Table;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The value of a large item that is being read.
pub(crate) struct LargeValue {
    /// The offset of the value on the device.
    start: u64,
    /// The number of bytes to read. The value may be shorter.
    len: usize,
    state: Mutex<State>,
}

struct State {
    /// The segments for the value. `None` if too few segments were free, or if a record in memory
    /// owns them now.
    upload: Option<Upload>,
    /// Whether the segments were linked as a chain. If so, lookups may have found the chain.
    is_linked: bool,
    /// The number of reads that have started, for the head and pieces together.
    begun: usize,
    /// The number of reads that have ended.
    ended: usize,
    has_failed: bool,
}

impl State {
    fn is_stalled(&self) -> bool {
        let pieces = self.upload.as_ref().map_or(0, |upload| upload.segments.len());
        self.ended == self.begun && self.begun < 1 + pieces && !self.has_failed
    }
}

/// The state of a large item's read after one of its parts has ended.
pub(crate) enum PartOutcome {
    /// Other reads are under way.
    InProgress,
    /// Other reads must be started.
    GoOn,
    /// The last read has ended. Contains true if all reads have succeeded.
    Last(bool),
}

impl LargeValue {
    /// Returns a value of at most `len` bytes. Its pieces are read from the device offset `start`
    /// on into the segments of `upload`. Without segments, only the head is read. The read of the
    /// head counts as started.
    pub(crate) fn new((start, len): (u64, usize), upload: Option<Upload>) -> Self {
        let state = State { upload, is_linked: false, begun: 1, ended: 0, has_failed: false };
        Self { start, len, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds this lock, so the lock is never poisoned.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the value has segments, or had them until a record in memory took them over.
    pub(crate) fn has_memory(&self) -> bool {
        let state = self.state();
        state.upload.is_some() || state.is_linked
    }

    /// Starts the next piece. Returns its offset on the device, the offset in the region to read it
    /// to, and its length in bytes. Returns `None` if no piece is left, or if a read has failed.
    pub(crate) fn begin_next(&self, table: &Table) -> Option<(u64, usize, usize)> {
        let mut state = self.state();
        let number = state.begun - 1;
        let segment = *state.upload.as_ref()?.segments.get(number)?;
        if state.has_failed {
            return None;
        }
        state.begun += 1;
        let at = number * table.layout.segment_len;
        let len = (self.len - at).min(table.layout.segment_len);
        Some((self.start + at as u64, table.layout.start(segment), len))
    }

    /// Returns whether pieces remain to be read although no read is under way. In this state, no
    /// end of a read will start these pieces.
    pub(crate) fn is_stalled(&self) -> bool {
        self.state().is_stalled()
    }

    /// Cancels the remaining pieces if no read is under way. Returns false if a read is under way,
    /// if all pieces were read, or if the remaining pieces were cancelled before.
    pub(crate) fn stop(&self) -> bool {
        let mut state = self.state();
        let is_stalled = state.is_stalled();
        state.has_failed |= is_stalled;
        is_stalled
    }

    /// Records that the read of a piece or the head has ended.
    pub(crate) fn end_one(&self, has_failed: bool) -> PartOutcome {
        let mut state = self.state();
        state.ended += 1;
        state.has_failed |= has_failed;
        let all = 1 + state.upload.as_ref().map_or(0, |upload| upload.segments.len());
        if state.ended < state.begun {
            PartOutcome::InProgress
        } else if state.has_failed || state.begun == all {
            PartOutcome::Last(!state.has_failed)
        } else {
            PartOutcome::GoOn
        }
    }

    /// Trims the segments to a value of `len` bytes, and returns its checksum. Returns `None` if
    /// there are no segments, or if the value can't have that length.
    pub(crate) fn checksum(&self, len: usize) -> Option<u64> {
        let mut state = self.state();
        let upload = state.upload.as_mut()?;
        if len > self.len || len == 0 {
            return None;
        }
        upload.fill_with(len);
        let pieces = (0..upload.segments.len()).map(|i| upload.piece(i));
        Some(pieces.fold(0, add_piece))
    }

    /// Links the segments as a chain. Returns the first segment, or `None` if there are no
    /// segments.
    pub(crate) fn link(&self) -> Option<u32> {
        let mut state = self.state();
        let first = state.upload.as_ref()?.link_all();
        state.is_linked = true;
        first
    }

    /// Transfers the segments to the record in memory that now has the chain.
    pub(crate) fn give_away(&self) {
        if let Some(upload) = self.state().upload.take() {
            upload.release_all();
        }
    }

    /// Returns whether a record in memory has, or had, the segments.
    pub(crate) fn is_given_away(&self) -> bool {
        let state = self.state();
        state.is_linked && state.upload.is_none()
    }

    /// Frees the segments, unless a record in memory has them. Segments of a chain are freed when
    /// no reader can see the chain any more.
    pub(crate) fn free(&self, shared: &Shared) {
        let (upload, is_linked) = {
            let mut state = self.state();
            (state.upload.take(), state.is_linked)
        };
        if is_linked && let Some(upload) = upload {
            let first = upload.segments[0];
            strict_assert!(
                shared.table().entry(first).owner().is_none(),
                "a record in memory has the chain"
            );
            shared.retire(first, upload.release_all());
        }
    }
}
