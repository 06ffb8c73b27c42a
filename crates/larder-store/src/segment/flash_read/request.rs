//! Reads on behalf of requests. A request starts a read if an index word of its key refers to
//! flash, and uses the item until its batch ends.

use super::device_read::Read;
use super::large_read::LargeValue;
use crate::segment::cache::shared::Shared;
use crate::segment::flash::format::Origin;
use crate::segment::flash::pending_read::{ItemRead, ReadState};
use crate::segment::flash::tier::Flash;
use crate::segment::handle::batch_reads::PendingRead;
use crate::segment::handle::state::Handle;
use crate::segment::index::word::{IndexWord, LARGE_SPAN};
use crate::segment::large_value::upload::Upload;
use crate::segment::sync::{Ordering, fence};
use crate::{Delivery, ReadRequest, ReadStart, Seconds};
use std::sync::Arc;
use std::task::Waker;

/// The outcome of an attempt to read.
pub(crate) enum ReadAttempt {
    Started(Arc<dyn ItemRead>),
    /// The item is not on flash any more, its whole page was flushed or has expired, or flash is
    /// off.
    Gone,
    Busy,
}

/// The purpose of a read.
#[derive(Clone, Copy)]
pub(crate) struct Purpose {
    /// Whether the read is a read-ahead; see [`ReadRequest::is_read_ahead`]. Its request can wait
    /// for other reads.
    pub(crate) is_read_ahead: bool,
    /// Whether the read is for a walk. A request may take the buffer of such a read immediately.
    pub(crate) is_walk: bool,
}

impl Handle {
    /// Starts reads of up to four items on flash whose index words match this hash.
    pub(crate) fn fetch_item(
        &mut self,
        ReadRequest { hash, is_read_ahead }: ReadRequest,
        waker: &Waker,
        into: &mut Vec<PendingRead>,
    ) -> ReadStart {
        let mut wanted: [Option<IndexWord>; 4] = [None; 4];
        self.pinned(|shared, _, now| {
            let Some(flash) = &shared.flash else { return };
            let mut free_entries = wanted.iter_mut();
            shared.index.lookup_in_any_tier(hash, |_, word| -> Option<()> {
                if word.is_on_flash() && flash.readable(shared.table(), word, now.secs).is_some() {
                    // Four are enough: the word of another key matches only if it agrees in all
                    // hash bits that words store.
                    if let Some(free) = free_entries.next() {
                        *free = Some(word);
                    }
                }
                None
            });
        });
        let mut begun = ReadStart::NotNeeded;
        for word in wanted.into_iter().flatten() {
            if self.batch_reads.find(word).is_some() {
                continue;
            }
            match self.begin_read((hash, word), Purpose { is_read_ahead, is_walk: false }, waker) {
                ReadAttempt::Started(read) => {
                    into.push(PendingRead(read));
                    begun = ReadStart::Started;
                }
                ReadAttempt::Gone => (),
                ReadAttempt::Busy => return ReadStart::Busy,
            }
        }
        begun
    }

    pub(crate) fn begin_read(
        &mut self,
        (hash, word): (u64, IndexWord),
        purpose: Purpose,
        waker: &Waker,
    ) -> ReadAttempt {
        let Purpose { is_read_ahead, is_walk } = purpose;
        let shared = Arc::clone(&self.shared);
        let Some(flash) = &shared.flash else { return ReadAttempt::Gone };
        if let Some(read) = flash.known_read(word)
            && read.join(waker)
        {
            return ReadAttempt::Started(read);
        }
        let Some((page, sequence)) = flash.readable(shared.table(), word, self.now.secs) else {
            return ReadAttempt::Gone;
        };
        let room_events = flash.room_events();
        // A read-ahead must not take resources that waiting requests need first.
        let is_refused = is_read_ahead && flash.has_waiters() || !self.batch_reads.has_room(flash);
        let extent = flash.format.extent(word, flash.device.align());
        let len = usize::try_from(extent.1 - extent.0).expect("an item fits a segment");
        let large = (word.span() == LARGE_SPAN && !is_refused)
            .then(|| self.begin_value(&shared, flash, word, (is_read_ahead, room_events)));
        let is_refused = is_refused || large.as_ref().is_some_and(Option::is_none);
        let take = || flash.take_buffer(shared.table(), len, self.now.secs, is_read_ahead);
        let buffer = if is_refused { None } else { take() };
        let Some(buffer) = buffer else {
            flash.counts.without_buffer.add((!is_walk).into());
            if !is_read_ahead {
                flash.wait_for_reads(waker, room_events);
            }
            return ReadAttempt::Busy;
        };
        // Count the read before looking at the index word again. Then either this thread sees that
        // the index word has changed, or the thread that empties the page sees the read.
        page.reads().fetch_add(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        let is_there = self.pinned(|shared, _, _| {
            let same = |_, other: IndexWord| other.is_same_item(word).then_some(());
            shared.index.lookup_in_any_tier(hash, same).is_some()
        });
        let origin = Origin { offset: flash.format.offset_of(word), sequence };
        if !is_there || page.sequence() != sequence {
            flash.end_read(shared.table(), word, buffer);
            return ReadAttempt::Gone;
        }
        // A request may take a walk's buffer as soon as the item was read, so a walk's read counts
        // as started a second earlier.
        let begun = Seconds(self.now.secs.0.saturating_sub(is_walk.into()));
        let (times, extent) = ((page.base(), begun), (extent.0, len));
        let parts = (buffer, large.flatten());
        let read = Arc::new(Read::new(&shared, (hash, word), origin, extent, parts, times, waker));
        // If another thread has started the same read at the same time, join that read.
        let own: Arc<dyn ItemRead> = Arc::clone(&read) as Arc<dyn ItemRead>;
        if let Some(other) = flash.register_or_join(&own) {
            if other.join(waker) {
                return ReadAttempt::Started(other);
            }
            flash.wait_for_reads(waker, room_events);
            return ReadAttempt::Busy;
        }
        flash.counts.reading.add(1);
        flash.counts.reads.add(1);
        flash.counts.reads_before.add(is_walk.into());
        let reader = self.batch_reads.reader(flash);
        let started = reader.start(read);
        assert!(started.is_ok(), "`has_room` was checked before");
        Arc::clone(&own).begin_more(reader);
        ReadAttempt::Started(own)
    }

    /// Allocates segments for a large value. Returns `None` for a read-ahead, or if the read must
    /// wait for other reads or for writes to finish. If there is nothing to wait for, evicts items
    /// as for a store. If that frees too little, only the head is read. `room_events` is
    /// [`Flash::room_events`] as of the start of this attempt.
    fn begin_value(
        &mut self,
        shared: &Arc<Shared>,
        flash: &Flash,
        word: IndexWord,
        (is_read_ahead, room_events): (bool, u64),
    ) -> Option<LargeValue> {
        let (start, len) = flash.format.value_extent(word);
        if is_read_ahead {
            // A read-ahead must not evict items that other requests use.
            return None;
        }
        let mut upload = self.segments_for_read(len, false);
        if upload.is_err() && flash.abort_reads(self.now.secs, None) {
            // The aborted reads have released the memory of values whose clients do not read their
            // replies.
            upload = self.segments_for_read(len, false);
        }
        // If a read or a write has ended since `room_events`, the request tries again immediately.
        let has_others = || {
            let writes = flash.queue.len() > 0 && flash.is_writing();
            writes || flash.counts.values_read.get() > 0 || flash.room_events() != room_events
        };
        if upload.is_err() && !has_others() {
            // Other threads may hold memory only briefly, so this attempt waits for it.
            upload = self.segments_for_read(len, true);
        }
        let waits = upload.is_err() && has_others();
        if upload.is_err() && !waits {
            upload = self.with_all_segments(Upload::for_flash_read(shared, len));
        }
        self.flush_slot_delta();
        if !self.pin.is_in_batch() {
            self.end_writing();
        }
        self.pin.resume(&shared.epoch);
        if waits {
            return None;
        }
        Some(LargeValue::new((start, len), upload.ok()))
    }

    /// Makes lookups find the item of a finished read until the batch ends. Removes the index word
    /// of an item that could not be read. If the read is in progress, starts further reads of its
    /// large value.
    pub(crate) fn deliver_item(&mut self, read: &PendingRead) -> Delivery {
        let read = &read.0;
        match read.ask() {
            ReadState::InProgress => {
                if let Some(flash) = &self.shared.flash {
                    Arc::clone(read).begin_more(self.batch_reads.reader(flash));
                }
                return Delivery::InProgress;
            }
            ReadState::Whole if self.batch_reads.find(read.word()).is_some() => read.leave(),
            ReadState::Whole => self.batch_reads.delivered.push(Arc::clone(read)),
            // The caller repeats the request, which reads the item again.
            ReadState::Aborted => return Delivery::Gone,
            ReadState::Failed => {
                self.remove_lost(&**read);
                return Delivery::Gone;
            }
        }
        Delivery::Delivered
    }

    /// Removes the index word of an item that could not be read.
    pub(crate) fn remove_lost(&mut self, read: &dyn ItemRead) {
        let shared = Arc::clone(&self.shared);
        let (_, mut writer) = self.writer();
        if writer.remove_word(&shared, read.hash(), read.word())
            && let Some(flash) = &shared.flash
        {
            flash.counts.missed.add(1);
        }
        if !self.pin.is_in_batch() {
            self.end_writing();
        }
    }
}
