//! Reading large items: the head into a buffer like any other item, and the value into segments of its own,
//! which become the chain of the item.

use crate::segment::cache::shared::Shared;
use crate::segment::flash::format::add_piece;
use crate::segment::large_value::upload::Upload;
use crate::segment::memory::table::Table;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The value of a large item that is read.
pub(crate) struct LargeValue {
    /// Its first byte on the device, and how many are read.
    start: u64,
    len: usize,
    state: Mutex<State>,
}

struct State {
    /// The segments. `None` if there was no memory for them, or if the index has an item with them now.
    upload: Option<Upload>,
    /// They are a chain that look-ups may have found.
    is_linked: bool,
    /// Reads of the head and of pieces that were begun, and that have ended.
    begun: usize,
    ended: usize,
    has_failed: bool,
}

/// What follows from the end of one read of a large item.
pub(crate) enum PartOutcome {
    /// Others are under way.
    UnderWay,
    /// Others have to be begun.
    GoOn,
    /// It was the last; whether all have succeeded.
    Last(bool),
}

impl LargeValue {
    /// The value of `len` bytes at most, from `start` on, for which there are enough segments in `upload`;
    /// without them only the head is read. One read has begun, that of the head.
    pub(crate) fn new((start, len): (u64, usize), upload: Option<Upload>) -> Self {
        let state = State { upload, is_linked: false, begun: 1, ended: 0, has_failed: false };
        Self { start, len, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock, so a poisoned lock still protects consistent data.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether there are segments for the value, or were until the index has taken them.
    pub(crate) fn has_memory(&self) -> bool {
        let state = self.state();
        state.upload.is_some() || state.is_linked
    }

    /// The next piece that is to be read, if there is one: where it is on the device, the offset in the region
    /// that it goes to, and how long it is.
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

    /// Whether pieces are to be read, and no read is under way whose end would have others begun.
    pub(crate) fn is_stalled(&self) -> bool {
        let state = self.state();
        let pieces = state.upload.as_ref().map_or(0, |upload| upload.segments.len());
        state.ended == state.begun && state.begun < 1 + pieces && !state.has_failed
    }

    /// Has no more pieces be read, if no read is under way and not all were read; false if it is not so.
    pub(crate) fn stop(&self) -> bool {
        let mut state = self.state();
        let pieces = state.upload.as_ref().map_or(0, |upload| upload.segments.len());
        let is_stalled = state.ended == state.begun && state.begun < 1 + pieces;
        state.has_failed |= is_stalled;
        is_stalled
    }

    /// A read of a piece ends, or that of the head.
    pub(crate) fn end_one(&self, has_failed: bool) -> PartOutcome {
        let mut state = self.state();
        state.ended += 1;
        state.has_failed |= has_failed;
        let all = 1 + state.upload.as_ref().map_or(0, |upload| upload.segments.len());
        if state.ended < state.begun {
            PartOutcome::UnderWay
        } else if state.has_failed || state.begun == all {
            PartOutcome::Last(!state.has_failed)
        } else {
            PartOutcome::GoOn
        }
    }

    /// The checksum of a value of `len` bytes that was read completely; `None` if it can't have that length.
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

    /// Makes the segments a chain, and returns the first; `None` if there are none.
    pub(crate) fn link(&self) -> Option<u32> {
        let mut state = self.state();
        let first = state.upload.as_ref()?.link_all();
        state.is_linked = true;
        first
    }

    /// The index has an item with the chain now.
    pub(crate) fn give_away(&self) {
        if let Some(upload) = self.state().upload.take() {
            upload.release_all();
        }
    }

    /// Frees the segments, unless the index has them: those of a chain when no reader can see it any more.
    pub(crate) fn free(&self, shared: &Shared) {
        let (upload, is_linked) = {
            let mut state = self.state();
            (state.upload.take(), state.is_linked)
        };
        if is_linked && let Some(upload) = upload {
            let first = upload.segments[0];
            shared.retire(first, upload.release_all());
        }
    }
}
