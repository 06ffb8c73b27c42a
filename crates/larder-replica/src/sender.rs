//! The leader's side of a stream: reads changed keys from the journals and sends the states of
//! their items.
//!
//! Order of changes: a handle first changes an item and then writes the item's key to the handle's
//! journal. The sender first reads the key and then the item. The sent state is therefore at least
//! as new as the change. One thread reads all states for a follower, so the follower never receives
//! an older state of a key after a newer one. A full sync iterates over all items and sends their
//! states in the same stream.
//!
//! Order of flushes: the engine counts flushes, and journals do not contain them. In each step the
//! sender takes keys from the journals, then reads the count of flushes, then reads the items. If
//! the count has risen, the sender sends a `Flush` before the items. If a flush happens after the
//! sender has read the count, a later step sends that flush. The follower then keeps items that
//! were stored after the flush: their keys are still in a journal, and the sender sends these items
//! after the `Flush`.

use crate::frame::{BatchWriter, ChangedKeyQueue, Frame, PART_LEN_MAX, Position, State};
use crate::item_writer::{PartialValue, whole, write_item};
use crate::keys::Keys;
use crate::lineage::Succession;
use crate::slot_set::SlotSet;
use larder_store::journal::{Journals, Overrun, Reader};
use larder_store::{
    Access, Delivery, Engine, HashedKey, Lookup, Now, ReadRequest, ReadStart, WalkState,
};
use std::sync::Arc;
use std::task::Waker;

/// The maximum number of keys that one step takes from the journals and from the follower's queue
/// of changed keys.
const KEYS_MAX: usize = 256;
/// Once a batch has this length in bytes, the sender adds no more changed keys to it. In a full
/// sync, the sender adds further items up to twice this length. The last item may make a batch
/// exceed either limit.
const BATCH_LEN: usize = 256 << 10;
/// One step sends at most this many parts of a large value.
const PARTS_MAX: usize = 4;
/// The approximate number of items that a full sync visits in its first step.
const WALK_ITEMS: usize = 64;
/// The minimum number of items that a full sync visits per step.
const WALK_ITEMS_MIN: usize = 8;
/// The maximum number of items that a full sync visits per step.
const WALK_ITEMS_MAX: usize = 1024;

/// The minimum time between two checkpoints in milliseconds: see `lineage.rs`.
const CHECKPOINT_INTERVAL_MS: u64 = 20;

/// The caller's next action after a step. The caller always sends the output first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Call [`Sender::step`] again.
    More,
    /// Nothing is left to send. Wait until [`Sender::has_more`] returns true.
    Idle,
    /// The engine is reading items from slower storage. Wait until it calls the waker.
    Waiting,
}

/// Counters of a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderCounts {
    /// Sent states, including the states of removed items.
    pub states: u64,
    /// Changes for which no separate state was sent, because one state covered several changes of a
    /// key.
    pub coalesced: u64,
    /// Started full syncs.
    pub full_syncs: u64,
    /// Started delta syncs.
    pub delta_syncs: u64,
    /// Overruns of a journal: its writer overwrote keys that the sender had not read. Each overrun
    /// causes a full sync.
    pub overruns: u64,
    /// Sent flushes.
    pub flushes: u64,
}

/// A sent watermark. A follower that acknowledges `number` has all changes before `offsets`, and
/// has applied the first `generation` flushes of the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentWatermark {
    /// The watermark's sequence number on its connection, which starts at 1.
    pub number: u64,
    /// The offsets in the journals.
    pub offsets: Vec<u64>,
    /// The number of flushes.
    pub generation: u64,
}

/// The stream to one follower.
#[derive(Debug)]
pub struct Sender<E: Engine> {
    engine: E,
    journals: Arc<Journals>,
    readers: Vec<Reader>,
    /// The number of rounds in which the sender has taken keys from the readers. It determines the
    /// reader with which the next round starts.
    round: usize,
    /// Whether the stream has started, at a resumed position, with a delta sync or with a full
    /// sync. False also after an overrun: the next step starts a full sync.
    has_started: bool,
    /// The number of leader flushes that the stream has covered.
    generation: u64,
    /// The iteration over all items, if a full sync is under way.
    walk: Option<E::Walk>,
    walk_items: usize,
    /// The delta sync under way.
    delta_sync: Option<DeltaSync>,
    keys: Keys,
    /// The slots of an export: the sender sends only their items. `None` outside of exports, where
    /// the sender sends all items.
    slots: Option<SlotSet>,
    /// The time of the oldest unsent change, in milliseconds. The sender updates this time when it
    /// takes keys from the journals.
    oldest: u64,
    large: Option<PartialValue<E::Lease>>,
    pending_reads: Vec<E::PendingRead>,
    batch: u64,
    /// The offsets in the last watermark, or in the resumed position. `None` before the first
    /// watermark, and from the start of a sync to its end.
    sent_offsets: Option<Vec<u64>>,
    /// The number of the last watermark on this connection; 0 before the first.
    watermark: u64,
    /// The flush count in the last watermark on this connection; 0 before the first.
    watermark_generation: u64,
    /// The watermarks since the last [`Sender::take_watermarks`].
    sent_watermarks: Vec<SentWatermark>,
    /// The state of `Journals::batches_have_ended` for a checkpoint that is not settled yet: the
    /// batch counters of the journals at the first call after the start of the checkpoint.
    open_checkpoint: Option<Vec<u64>>,
    /// The number of the last batch before the last checkpoint, and the time of that checkpoint in
    /// milliseconds. `None` before the first checkpoint since the last full sync.
    last_checkpoint: Option<(u64, u64)>,
    counts: SenderCounts,
}

/// The state of a delta sync.
#[derive(Debug)]
struct DeltaSync {
    /// The position for the `DeltaSyncStart` frame; `None` once the frame is sent.
    unsent_start: Option<Position>,
    /// Keys from the follower whose item states are not sent yet.
    changed_keys: ChangedKeyQueue,
    /// Whether the follower has sent all its keys.
    has_all_keys: bool,
}

impl<E: Engine> Sender<E> {
    /// Creates the stream to a follower at `position`. `incarnation` identifies this process.
    /// `succession` is the state at the start of its leadership.
    ///
    /// If `position` is in the journals of this process, and they still have all later keys, the
    /// stream resumes there. If `position` is in the journals of the previous leader, and
    /// `succession` and the journals reach back far enough, the stream starts with a delta sync.
    /// Otherwise it starts with a full sync.
    pub fn new(
        engine: E,
        journals: Arc<Journals>,
        incarnation: u64,
        position: Option<&Position>,
        succession: Option<&Succession>,
    ) -> Self {
        let mut sender = Self {
            engine,
            journals,
            readers: Vec::new(),
            round: 0,
            has_started: false,
            generation: 0,
            walk: None,
            walk_items: WALK_ITEMS,
            delta_sync: None,
            keys: Keys::default(),
            slots: None,
            oldest: 0,
            large: None,
            pending_reads: Vec::new(),
            batch: 0,
            sent_offsets: None,
            watermark: 0,
            watermark_generation: 0,
            sent_watermarks: Vec::new(),
            open_checkpoint: None,
            last_checkpoint: None,
            counts: SenderCounts::default(),
        };
        match (position, succession) {
            (Some(position), _) if position.incarnation == incarnation => sender.resume(position),
            (Some(position), Some(succession)) => sender.start_delta_sync(position, succession),
            _ => (),
        }
        sender
    }

    /// Creates the stream of an export. The stream contains all items of these slots, and their
    /// changes.
    pub fn for_export(engine: E, journals: Arc<Journals>, slots: SlotSet) -> Self {
        Self { slots: Some(slots), ..Self::new(engine, journals, 0, None, None) }
    }

    /// Returns whether all changes before the journal offsets `ends` are sent.
    #[must_use]
    pub fn has_sent(&self, ends: &[u64]) -> bool {
        let has_read = |(index, end): (usize, &u64)| {
            *end == 0 || self.readers.get(index).is_some_and(|reader| reader.offset() >= *end)
        };
        let is_under_way = self.walk.is_some() || self.large.is_some() || !self.keys.is_done();
        self.has_started && !is_under_way && ends.iter().enumerate().all(has_read)
    }

    fn resume(&mut self, position: &Position) {
        let Ok(readers) = self.journals.readers_at(&position.offsets) else { return };
        (self.readers, self.has_started) = (readers, true);
        self.generation = position.generation;
        self.sent_offsets = Some(position.offsets.clone());
    }

    fn start_delta_sync(&mut self, position: &Position, succession: &Succession) {
        let Some(since) = succession.since(position) else { return };
        let Ok(readers) = self.journals.readers_at(&since) else { return };
        (self.readers, self.has_started) = (readers, true);
        self.generation = succession.generation();
        self.counts.delta_syncs += 1;
        let unsent_start = Some(succession.previous().clone());
        self.delta_sync = Some(DeltaSync {
            unsent_start,
            changed_keys: ChangedKeyQueue::default(),
            has_all_keys: false,
        });
    }

    /// Adds encoded keys from the follower ([`ChangedKeys::bytes`](crate::ChangedKeys::bytes)). The
    /// stream will contain the item states of these keys.
    pub fn push_changed_keys(&mut self, keys: Vec<u8>) {
        if let Some(delta_sync) = &mut self.delta_sync {
            delta_sync.changed_keys.push(keys);
        }
    }

    /// Records that the follower has sent its last changed keys.
    pub fn end_changed_keys(&mut self) {
        if let Some(delta_sync) = &mut self.delta_sync {
            delta_sync.has_all_keys = true;
        }
    }

    /// Returns whether a delta sync is under way.
    #[must_use]
    pub fn is_delta_syncing(&self) -> bool {
        self.delta_sync.is_some()
    }

    /// Returns whether the next step will start a full sync. True before the first step of a stream
    /// that cannot resume or start a delta sync, and after an overrun.
    #[must_use]
    pub fn starts_with_full_sync(&self) -> bool {
        !self.has_started
    }

    /// Returns the counters.
    #[must_use]
    pub fn counts(&self) -> SenderCounts {
        self.counts
    }

    /// Returns the number of the last batch, or 0 before the first.
    #[must_use]
    pub fn batch(&self) -> u64 {
        self.batch
    }

    /// Returns the watermarks sent since the last call.
    pub fn take_watermarks(&mut self) -> Vec<SentWatermark> {
        std::mem::take(&mut self.sent_watermarks)
    }

    /// Returns whether a full sync is under way.
    #[must_use]
    pub fn is_full_syncing(&self) -> bool {
        self.walk.is_some()
    }

    /// Returns the number of bytes in the journals that this sender has not read yet.
    #[must_use]
    pub fn lag_bytes(&self) -> u64 {
        self.readers.iter().map(Reader::lag_bytes).sum()
    }

    /// Returns the number of changes that are not sent yet.
    #[must_use]
    pub fn lag_keys(&self) -> u64 {
        let in_journals: u64 = self.readers.iter().map(Reader::lag_entries).sum();
        in_journals + self.keys.unsent().count() as u64
    }

    /// Returns the age of the oldest unsent change, in milliseconds, or 0 if there is none.
    #[must_use]
    pub fn lag_ms(&self, now: Now) -> u64 {
        if self.keys.is_done() && self.large.is_none() && self.lag_bytes() == 0 {
            return 0;
        }
        now.in_millis().saturating_sub(self.oldest)
    }

    /// Returns whether there are unread keys in a journal or from the follower, or an unsent flush.
    #[must_use]
    pub fn has_more(&self) -> bool {
        self.readers.iter().any(|reader| reader.lag_bytes() > 0)
            || self
                .delta_sync
                .as_ref()
                .is_some_and(|delta_sync| !delta_sync.changed_keys.is_empty())
            || self.engine.flush_generation() != self.generation
    }

    /// Appends the next frames to `out`, usually a few hundred KiB at most. After
    /// [`Step::Waiting`], the engine calls `waker` when a read has ended.
    pub fn step(&mut self, now: Now, waker: &Waker, out: &mut Vec<u8>) -> Step {
        if self.large.is_some() {
            self.send_parts(out);
            return Step::More;
        }
        self.engine.begin_batch(now);
        let engine = &mut self.engine;
        self.pending_reads.retain(|read| engine.deliver(read) == Delivery::InProgress);
        let step = self.step_in_batch(now, waker, out);
        self.engine.submit();
        self.engine.end_batch();
        step
    }

    fn step_in_batch(&mut self, now: Now, waker: &Waker, out: &mut Vec<u8>) -> Step {
        if !self.has_started {
            self.start_full_sync(out);
        }
        if let Some(before) =
            self.delta_sync.as_mut().and_then(|delta_sync| delta_sync.unsent_start.take())
        {
            Frame::DeltaSyncStart { before, generation: self.generation }.write(out);
        }
        if self.keys.is_done() && self.take_keys(now).is_err() {
            // The next step starts a full sync, unless the caller closes the connection first.
            self.counts.overruns += 1;
            self.has_started = false;
            return Step::More;
        }
        // Read the count after taking keys and before reading items: see the top of this file.
        let generation = self.engine.flush_generation();
        if generation != self.generation {
            self.generation = generation;
            self.counts.flushes += 1;
            Frame::Flush { generation }.write(out);
        }
        let mut batch = BatchWriter::start(out, self.batch + 1);
        self.send_keys(now, &mut batch, waker, out);
        let mut walk = WalkState::More;
        if self.walk.is_some() && self.large.is_none() {
            walk = self.send_walk(now, &mut batch, waker, out);
        }
        let has_sent = batch.states() > 0;
        if has_sent {
            self.batch += 1;
            self.counts.states += batch.states() as u64;
            batch.finish(out);
        } else {
            batch.cancel(out);
        }
        if walk == WalkState::End {
            self.walk = None;
        }
        let is_waiting = !self.keys.is_done() || walk == WalkState::Waiting;
        self.send_watermark(out);
        self.send_checkpoints(now, out);
        if has_sent || !is_waiting && (self.walk.is_some() || self.has_more()) {
            Step::More
        } else if is_waiting {
            Step::Waiting
        } else {
            Step::Idle
        }
    }

    /// Starts a full sync. Moves the readers to the ends of the journals before the walk over all
    /// items starts. So each change is in the journals or in the walk.
    fn start_full_sync(&mut self, out: &mut Vec<u8>) {
        self.counts.full_syncs += 1;
        self.readers = self.journals.from(0).iter().map(Reader::at_end).collect();
        self.keys.clear();
        (self.large, self.delta_sync, self.open_checkpoint, self.last_checkpoint) =
            (None, None, None, None);
        (self.sent_offsets, self.has_started) = (None, true);
        self.generation = self.engine.flush_generation();
        self.walk = Some(self.engine.walk());
        Frame::FullSyncStart { generation: self.generation }.write(out);
    }

    /// Takes the next keys from the delta sync and the journals.
    ///
    /// # Errors
    /// A journal has overwritten unread keys: the follower needs a full sync.
    fn take_keys(&mut self, now: Now) -> Result<(), Overrun> {
        let Self { engine, journals, readers, round, delta_sync, keys, slots, counts, .. } = self;
        keys.clear();
        if let Some(DeltaSync { changed_keys, has_all_keys, .. }) = delta_sync {
            // Reserve half of `KEYS_MAX` for keys from the journals. Otherwise the journals could
            // overrun during a long delta sync.
            changed_keys.take(KEYS_MAX / 2, |key| {
                keys.push(key, engine.hash(key));
            });
            if *has_all_keys && changed_keys.is_empty() {
                *delta_sync = None;
            }
        }
        let known = readers.len();
        readers.extend(journals.from(known).iter().map(Reader::at_start));
        let mut oldest = 0;
        // Start each round with another journal. A journal that is always full must not starve the
        // others.
        *round += 1;
        let first = *round % readers.len().max(1);
        let (before, from_first) = readers.split_at_mut(first);
        for reader in from_first.iter_mut().chain(before) {
            while keys.len() < KEYS_MAX
                && let Some(entry) = reader.take()?
            {
                if slots.as_ref().is_some_and(|slots| !slots.has_key(entry.key)) {
                    continue;
                }
                oldest = oldest.max(entry.age(now.in_millis()));
                let hash = engine.hash(entry.key);
                if !keys.push(entry.key, hash) {
                    counts.coalesced += 1;
                }
            }
        }
        let waiting = readers.iter().filter_map(|reader| reader.next_age(now.in_millis())).max();
        self.oldest = now.in_millis().saturating_sub(oldest.max(waiting.unwrap_or_default()));
        Ok(())
    }

    /// Looks up the unsent keys, and writes the states of their items to the batch.
    fn send_keys(&mut self, now: Now, batch: &mut BatchWriter, waker: &Waker, out: &mut Vec<u8>) {
        let Self { engine, keys, large, pending_reads, .. } = self;
        let unsent: Vec<(usize, u64)> = keys.unsent().collect();
        unsent.iter().for_each(|(_, hash)| engine.announce(*hash));
        engine.prefetch_announced();
        for (position, hash) in unsent {
            if large.is_some() || batch.len(out) >= BATCH_LEN {
                break;
            }
            let bytes = keys.key(position);
            let found = engine.get(HashedKey { bytes, hash }, Access::Untracked, |item| {
                *large = write_item(bytes, item, now, batch, out);
            });
            match found {
                Lookup::Hit(()) => (),
                Lookup::Miss | Lookup::Expired | Lookup::Flushed => {
                    batch.push(out, &State { key: bytes, item: None });
                }
                Lookup::Pending => {
                    let wanted = ReadRequest { hash, is_read_ahead: false };
                    if engine.start_read(wanted, waker, pending_reads) == ReadStart::NotNeeded {
                        // No read from slower storage is needed. The next step looks the key up
                        // again.
                        waker.wake_by_ref();
                    }
                    continue;
                }
            }
            keys.mark_sent(position);
        }
    }

    /// Writes the states of the next items in the full sync to the batch.
    fn send_walk(
        &mut self,
        now: Now,
        batch: &mut BatchWriter,
        waker: &Waker,
        out: &mut Vec<u8>,
    ) -> WalkState {
        let Self { engine, keys, slots, walk, walk_items, .. } = self;
        let Some(walk) = walk else { return WalkState::End };
        let before = batch.len(out);
        let mut later: Vec<Vec<u8>> = Vec::new();
        let state = engine.continue_walk(walk, *walk_items, waker, |key, item| {
            if slots.as_ref().is_some_and(|slots| !slots.has_key(key)) {
                return;
            }
            if whole(&item.value).is_none() || batch.len(out) > 2 * BATCH_LEN {
                // A later step looks the key up.
                later.push(key.to_vec());
            } else {
                write_item(key, item, now, batch, out);
            }
        });
        for key in later {
            let hash = engine.hash(&key);
            keys.push(&key, hash);
        }
        let written = batch.len(out) - before;
        if written > BATCH_LEN {
            *walk_items = (*walk_items / 2).max(WALK_ITEMS_MIN);
        } else if written < BATCH_LEN / 4 {
            *walk_items = (*walk_items * 2).min(WALK_ITEMS_MAX);
        }
        state
    }

    /// Sends the next parts of the large value.
    fn send_parts(&mut self, out: &mut Vec<u8>) {
        for _ in 0..PARTS_MAX {
            let Some(large) = &mut self.large else { return };
            let piece = large.value.piece(large.sent);
            let piece = piece.get(..PART_LEN_MAX).unwrap_or(piece);
            Frame::Part(piece).write(out);
            large.sent += piece.len();
            if large.sent >= large.value.len() {
                self.large = None;
                self.send_watermark(out);
            }
        }
    }

    /// Sends a watermark if no sync is under way and all keys taken from the journals are sent.
    /// Skips a watermark that would equal the last one of the connection. Sends `SyncEnd` before
    /// the first watermark after a sync.
    fn send_watermark(&mut self, out: &mut Vec<u8>) {
        let is_under_way = self.walk.is_some() || self.delta_sync.is_some() || self.large.is_some();
        if is_under_way || !self.keys.is_done() {
            return;
        }
        let offsets: Vec<u64> = self.readers.iter().map(Reader::offset).collect();
        let generation = self.generation;
        let is_new =
            self.sent_offsets.as_ref() != Some(&offsets) || self.watermark_generation != generation;
        if !is_new && self.watermark > 0 {
            return;
        }
        if self.sent_offsets.is_none() {
            Frame::SyncEnd.write(out);
        }
        self.watermark += 1;
        self.watermark_generation = generation;
        let number = self.watermark;
        Frame::Watermark { number, offsets: offsets.clone() }.write(out);
        self.sent_watermarks.push(SentWatermark { number, offsets: offsets.clone(), generation });
        self.sent_offsets = Some(offsets);
    }

    /// Starts a checkpoint if one is due. Settles it once all batches that were under way have
    /// ended.
    fn send_checkpoints(&mut self, now: Now, out: &mut Vec<u8>) {
        if self.large.is_some() {
            // Only parts and heartbeats may follow a batch that ends with a large value.
            return;
        }
        let now = now.in_millis();
        let is_due =
            |(batch, at): (u64, u64)| batch != self.batch && now >= at + CHECKPOINT_INTERVAL_MS;
        if self.open_checkpoint.is_none()
            && self.sent_offsets.is_some()
            && self.last_checkpoint.is_none_or(is_due)
        {
            Frame::Checkpoint.write(out);
            (self.open_checkpoint, self.last_checkpoint) =
                (Some(Vec::new()), Some((self.batch, now)));
        }
        if let Some(batches) = &mut self.open_checkpoint
            && self.journals.batches_have_ended(batches)
        {
            Frame::CheckpointSettled { ends: self.journals.ends() }.write(out);
            self.open_checkpoint = None;
        }
    }
}
