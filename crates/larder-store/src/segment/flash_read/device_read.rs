//! A read of an item from flash.

use super::large_read::{LargeValue, PartOutcome};
use crate::Seconds;
use crate::segment::cache::shared::Shared;
use crate::segment::flash::format::{CHECKSUM_LEN, Origin};
use crate::segment::flash::pages::Page;
use crate::segment::flash::pending_read::{ItemRead, ReadState};
use crate::segment::index::word::IndexWord;
use crate::segment::item::header::{Header, State, access_code};
use crate::segment::item::record::Record;
use crate::segment::item::witness::Witness;
use crate::segment::memory::read_buffers::Buffer;
use crate::segment::sync::Ordering;
use larder_device::{ReadParameters, Reader, Target};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// The maximum duration of a read, in seconds. A read that takes longer fails.
const SECONDS_MAX: u32 = 5;
/// A read of a large value may take one second longer per this many bytes of the value.
const LEN_PER_SECOND: usize = 16 << 20;

/// A read of one item, shared by all requests that wait for it.
pub(crate) struct Read {
    shared: Arc<Shared>,
    /// The hash for which the read was started.
    hash: u64,
    /// The index word for which the read was started.
    word: IndexWord,
    origin: Origin,
    /// The second at which the item's page was opened.
    base: Seconds,
    begun: Seconds,
    buffer: Buffer,
    /// The offset on the device from which the buffer is filled.
    start: u64,
    /// The number of bytes to read into the buffer.
    len: usize,
    /// The value of a large item, of which only the head is read into the buffer. `None` for a
    /// small item.
    large: Option<LargeValue>,
    progress: Mutex<Progress>,
    /// Whether the buffer and the page were released.
    is_released: AtomicBool,
}

/// The progress of a read.
enum Progress {
    /// The read is under way, or a request must continue it. These wakers are called when the read
    /// ends. They are also called when a piece was read and a request must start the next one. The
    /// device may write to the buffer.
    Pending(Vec<Waker>),
    /// The read took too long: its waiters were woken without the item. The device may still write
    /// to the buffer.
    GivenUp,
    /// The item was read. `users` batches use it.
    Whole { users: usize },
    /// The item could not be read.
    Failed,
    /// The read was aborted while no batch used the item. Its requests did not continue in time,
    /// another read needed its memory, or its page was to be emptied.
    Aborted,
}

impl fmt::Debug for Read {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Read").field("word", &self.word).finish_non_exhaustive()
    }
}

impl Read {
    /// Returns a read of the item that `word` refers to. It reads `len` bytes of the device, from
    /// `start` on, into the buffer. The caller has already included the read in the page's count of
    /// reads.
    pub(crate) fn new(
        shared: &Arc<Shared>,
        (hash, word): (u64, IndexWord),
        origin: Origin,
        (start, len): (u64, usize),
        (buffer, large): (Buffer, Option<LargeValue>),
        (base, begun): (Seconds, Seconds),
        waker: &Waker,
    ) -> Self {
        let progress = Mutex::new(Progress::Pending(vec![waker.clone()]));
        if let (Some(flash), Some(_)) =
            (&shared.flash, large.as_ref().filter(|large| large.has_memory()))
        {
            flash.counts.values_read.add(1);
        }
        let shared = Arc::clone(shared);
        let is_released = AtomicBool::new(false);
        Self {
            shared,
            hash,
            word,
            origin,
            base,
            begun,
            buffer,
            start,
            len,
            large,
            progress,
            is_released,
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        // No code panics while it holds this lock, so the lock is never poisoned.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record_offset(&self) -> usize {
        let skipped = usize::try_from(self.origin.offset - self.start)
            .expect("a read is shorter than a segment");
        self.buffer.offset + skipped
    }

    /// Returns whether the buffer contains the item that was written at `origin`. If so, adapts its
    /// header to the segment of the buffer, and links the chain of a large item.
    fn is_whole(&self) -> bool {
        let Some(flash) = &self.shared.flash else { return false };
        let (table, at) = (self.shared.table(), self.record_offset());
        let header = Header(table.region.word(at).load(Relaxed));
        let checked_len = header.record_len(self.shared.config.cas)
            + self.large.as_ref().map_or(0, |_| CHECKSUM_LEN);
        let end = checked_len + CHECKSUM_LEN;
        if header.key_len() == 0
            || header.has(State::Link) != self.large.is_some()
            || end > flash.format.read_len(self.word)
            || at + end > self.buffer.offset + self.len
        {
            return false;
        }
        // SAFETY: the range is inside the buffer, which belongs to this read, and the device no
        // longer writes to it.
        let rest = unsafe { table.region.bytes(at + 8, checked_len - 8) };
        let sum = table.region.word(at + checked_len).load(Relaxed);
        if sum != flash.format.checksum(header, rest, self.origin) {
            return false;
        }
        if self.large.as_ref().is_some_and(|large| !self.has_whole_value(large)) {
            return false;
        }
        // An access time is stored relative to the base of its segment, and the item comes from
        // another segment. So it gets a new access time: the second at which its page was opened.
        let entry = table.entry(table.layout.segment_of(at));
        let header = header
            .with_access_code(access_code(entry.base(), self.base))
            .with(State::Dead, false)
            .with(State::Fetched, header.has(State::Fetched) || self.word.freq() > 0);
        table.region.word(at).store(header.0, Ordering::Release);
        true
    }

    /// Returns true if the large value that was read belongs to the head. Also returns true if no
    /// value was read because no segments were free for it. If a value was read, links its segments
    /// as the item's chain.
    fn has_whole_value(&self, large: &LargeValue) -> bool {
        let (table, at) = (self.shared.table(), self.record_offset());
        let record = Record::at(table, at, self.shared.config.cas, Witness::buffered(&self.buffer));
        if !large.has_memory() {
            return true;
        }
        let sum = table.region.word(at + record.len()).load(Relaxed);
        if record.inline_len() > 0 || large.checksum(record.value_len()) != Some(sum) {
            return false;
        }
        let first = large.link();
        first.inspect(|first| record.set_chain(*first)).is_some()
    }

    /// Records that the device has finished one part of the read: the part in the buffer, or a
    /// piece of a large value. The part has `len` bytes.
    fn end_part(self: &Arc<Self>, result: io::Result<()>, len: usize) {
        let Some(flash) = &self.shared.flash else { return };
        let counts = &flash.counts;
        counts.reading.take_off(1);
        if result.is_ok() {
            counts.bytes_read.add(len as u64);
        }
        let has_failed = match &self.large {
            None => result.is_err(),
            Some(large) => match large.end_one(result.is_err()) {
                PartOutcome::Last(is_there) => !is_there,
                PartOutcome::InProgress => return flash.wake_waiters(),
                // A waiting request starts the other reads.
                PartOutcome::GoOn => {
                    let is_wanted = match &*self.progress() {
                        Progress::Pending(wakers) => {
                            wakers.iter().for_each(Waker::wake_by_ref);
                            true
                        }
                        _ => false,
                    };
                    if is_wanted || !large.stop() {
                        return flash.wake_waiters();
                    }
                    true
                }
            },
        };
        let is_whole = !has_failed && self.is_whole();
        if !is_whole {
            counts.bad_checksums.add((!has_failed).into());
            let table = self.shared.table();
            let page = Page::new(table, flash.format.page_of(self.word));
            flash.note_failed_read(table, page);
        }
        let mut is_usable = is_whole;
        let wakers = {
            let mut progress = self.progress();
            let wakers = match &mut *progress {
                Progress::Pending(wakers) => std::mem::take(wakers),
                // No request waits for the item any more, and its index word may have been removed.
                _ => {
                    is_usable = false;
                    Vec::new()
                }
            };
            *progress = if is_usable { Progress::Whole { users: 0 } } else { Progress::Failed };
            wakers
        };
        if !is_usable {
            // Release now: a waiting request may never continue, if its peer does not read replies.
            self.release();
        }
        wakers.into_iter().for_each(Waker::wake);
        flash.wake_waiters();
    }

    /// Releases the buffer and the page. Only the first call has an effect. The caller ensures that
    /// no read is under way and no batch uses the item.
    fn release(&self) {
        if self.is_released.swap(true, Relaxed) {
            return;
        }
        let has_value = self.large.as_ref().is_some_and(LargeValue::has_memory);
        if let Some(large) = &self.large {
            large.free(&self.shared);
        }
        if let Some(flash) = &self.shared.flash {
            flash.counts.values_read.take_off(has_value.into());
            flash.end_read(self.shared.table(), self.word, self.buffer);
        }
    }
}

impl ItemRead for Read {
    fn word(&self) -> IndexWord {
        self.word
    }

    fn hash(&self) -> u64 {
        self.hash
    }

    fn origin(&self) -> Origin {
        self.origin
    }

    fn begun(&self) -> Seconds {
        self.begun
    }

    fn is_late(&self, now: Seconds) -> bool {
        let len = self.large.as_ref().map_or(0, LargeValue::len);
        let patience = SECONDS_MAX + u32::try_from(len / LEN_PER_SECOND).unwrap_or(u32::MAX);
        now.0.saturating_sub(self.begun.0) > patience
    }

    fn has_value(&self) -> bool {
        self.large.as_ref().is_none_or(LargeValue::has_memory)
    }

    fn give_value_away(&self) {
        if let Some(large) = &self.large {
            large.give_away();
        }
    }

    fn has_given_value_away(&self) -> bool {
        self.large.as_ref().is_some_and(LargeValue::is_given_away)
    }

    fn begin_more(self: Arc<Self>, reader: &mut Reader) {
        let (Some(flash), Some(large)) = (&self.shared.flash, &self.large) else { return };
        let room_events = flash.room_events();
        while reader.under_way() < flash.depth
            && let Some(extent) = large.begin_next(self.shared.table())
        {
            flash.counts.reading.add(1);
            let started = reader.start(Arc::new(Piece { read: Arc::clone(&self), extent }));
            assert!(started.is_ok(), "`has_room` was checked before");
        }
        if large.is_stalled()
            && let Progress::Pending(wakers) = &*self.progress()
        {
            wakers.iter().for_each(|waker| flash.wait_for_reads(waker, room_events));
        }
    }

    fn item(&self) -> (usize, &Buffer) {
        (self.record_offset(), &self.buffer)
    }

    fn join(&self, waker: &Waker) -> bool {
        match &mut *self.progress() {
            Progress::Pending(wakers) => {
                if !wakers.iter().any(|other| other.will_wake(waker)) {
                    wakers.push(waker.clone());
                }
                true
            }
            Progress::Whole { .. } if !self.has_given_value_away() => {
                waker.wake_by_ref();
                true
            }
            Progress::Whole { .. } | Progress::GivenUp | Progress::Failed | Progress::Aborted => {
                false
            }
        }
    }

    fn can_be_joined(&self) -> bool {
        matches!(*self.progress(), Progress::Pending(_) | Progress::Whole { .. })
            && !self.has_given_value_away()
    }

    fn ask(&self) -> ReadState {
        match &mut *self.progress() {
            Progress::Pending(_) => ReadState::InProgress,
            Progress::Whole { .. } if self.has_given_value_away() => ReadState::Aborted,
            Progress::Whole { users } => {
                *users += 1;
                ReadState::Whole
            }
            Progress::GivenUp | Progress::Failed => ReadState::Failed,
            Progress::Aborted => ReadState::Aborted,
        }
    }

    fn leave(&self) {
        let mut progress = self.progress();
        let Progress::Whole { users } = &mut *progress else { return };
        *users -= 1;
        if *users == 0 && self.has_given_value_away() {
            // No request uses this read again, and another read may have replaced it, so `abort`
            // would not find it.
            *progress = Progress::Aborted;
            drop(progress);
            self.release();
        }
    }

    fn abort(&self) -> bool {
        let mut progress = self.progress();
        let wakers = match &mut *progress {
            Progress::Whole { users: 0 } => Vec::new(),
            // The requests that wait must not start the remaining reads.
            Progress::Pending(wakers) if self.large.as_ref().is_some_and(LargeValue::stop) => {
                std::mem::take(wakers)
            }
            _ => return false,
        };
        *progress = Progress::Aborted;
        drop(progress);
        self.release();
        if let Some(flash) = &self.shared.flash {
            flash.counts.aborted.add(1);
        }
        wakers.into_iter().for_each(Waker::wake);
        true
    }

    fn give_up(&self) {
        if self.abort() {
            return;
        }
        let mut progress = self.progress();
        if let Progress::Pending(wakers) = &mut *progress {
            let wakers = std::mem::take(wakers);
            *progress = Progress::GivenUp;
            drop(progress);
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}

// SAFETY: the buffer belongs only to this read until `release`. `release` is called only when no
// read is under way: at the end of the last read, by `leave` and `abort` when all started reads
// have ended, or when this value is dropped. The reader prevents the drop until it has called
// `finish`.
unsafe impl Target for Read {
    fn parameters(&self) -> ReadParameters {
        let into = self.shared.table().region.pointer_to(self.buffer.offset, self.len);
        ReadParameters { offset: self.start, into, len: self.len }
    }

    fn finish(self: Arc<Self>, result: io::Result<()>) {
        self.end_part(result, self.len);
    }
}

/// A read of one piece of a large value. The extent contains the piece's offset on the device, the
/// offset in the region that it is read to, and its length, all in bytes.
struct Piece {
    read: Arc<Read>,
    extent: (u64, usize, usize),
}

// SAFETY: the segment belongs to the value of the read, which owns it until all of its parts have
// ended. This piece keeps the read alive.
unsafe impl Target for Piece {
    fn parameters(&self) -> ReadParameters {
        let (offset, at, len) = self.extent;
        ReadParameters { offset, into: self.read.shared.table().region.pointer_to(at, len), len }
    }

    fn finish(self: Arc<Self>, result: io::Result<()>) {
        self.read.end_part(result, self.extent.2);
    }
}

impl Drop for Read {
    fn drop(&mut self) {
        if let Some(flash) = &self.shared.flash {
            flash.forget(self.word, std::ptr::from_ref(self).cast());
        }
        self.release();
    }
}
