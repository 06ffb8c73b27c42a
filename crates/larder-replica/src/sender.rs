//! The leader's side of a stream: reads keys from the journals and sends the states of their items.
//!
//! A key is in a journal after its change, and the sender looks the item up after it has read the key, so the state
//! that it sends is at least as new as the change. One thread reads all states that go to a follower, so what
//! the follower is told of a key never goes back. A copy of everything is a walk in the same stream.
//!
//! Flushes are no changes of items. The sender looks how many there were after it has taken keys from the journals
//! and before it looks their items up. What was stored after a flush has its key behind those that were taken before
//! the flush was seen, so it is sent after the flush.

use crate::frame::{
    BatchWriter, Frame, ItemState, NamedKeys, PART_LEN_MAX, Position, State, TimeLeft, ValueState,
};
use crate::keys::Keys;
use crate::lineage::Succession;
use crate::slots::SlotSet;
use larder_store::journal::{Journals, Overrun, Reader};
use larder_store::{
    Access, Begun, Delivery, Engine, Expiry, HashedKey, Item, Lease, Lookup, Now, Value, WalkState,
    Wanted,
};
use std::sync::Arc;
use std::task::Waker;

/// Keys that are taken from the journals at a time.
const KEYS_MAX: usize = 256;
/// A batch ends when it has this many bytes.
const BATCH_LEN: usize = 256 << 10;
/// Values up to this length are sent within a batch.
const WHOLE_LEN_MAX: usize = 64 << 10;
/// The parts of a large value that are sent in one step.
const PARTS_MAX: usize = 4;
/// Items that a step of a copy goes through, at first, and at least and at most.
const WALK_ITEMS: usize = 64;
const WALK_ITEMS_MIN: usize = 8;
const WALK_ITEMS_MAX: usize = 1024;

/// The shortest time between two marks, in milliseconds: see `lineage.rs`.
const MARK_MILLIS: u64 = 20;

/// What is to be done after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send what was written, and do another step.
    More,
    /// Send what was written. There is nothing more to send before the bell rings.
    Idle,
    /// Send what was written. The waker will be called when items were read from slower storage.
    Waiting,
}

/// What a sender has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderCounts {
    /// States of items that were sent, also of those that are gone.
    pub states: u64,
    /// Changes that were not sent by themselves, because a later state of the item was.
    pub coalesced: u64,
    /// Copies that were begun.
    pub copies: u64,
    /// Followers that were sent what they did not have after this leader had succeeded another one.
    pub repairs: u64,
    /// Times that changes were written faster than they were sent.
    pub overruns: u64,
    /// Flushes that were sent.
    pub flushes: u64,
}

/// What a follower has when it has acknowledged a reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reached {
    /// The number of the reach.
    pub number: u64,
    /// Everything up to these offsets of the journals.
    pub offsets: Vec<u64>,
    /// So many flushes.
    pub generation: u64,
}

/// Sends changes to one follower.
#[derive(Debug)]
pub struct Sender<E: Engine> {
    engine: E,
    journals: Arc<Journals>,
    readers: Vec<Reader>,
    /// How often keys were taken from them.
    next: usize,
    /// The follower has begun a copy, or has one.
    has_begun: bool,
    /// The number of the last flush that the follower was told of.
    generation: u64,
    /// The walk of the copy that is under way.
    walk: Option<E::Walk>,
    walk_items: usize,
    /// The repair that is under way.
    repair: Option<Repair>,
    keys: Keys,
    /// Only items of these slots are sent.
    slots: Option<SlotSet>,
    /// When the oldest of `keys` was changed, in milliseconds.
    oldest: u64,
    large: Option<Large<E::Lease>>,
    fetches: Vec<E::Fetch>,
    batch: u64,
    /// The offsets that the follower was told; `None` before its copy is complete.
    told: Option<Vec<u64>>,
    /// The number and the flushes of the last reach of this connection; 0 before the first.
    reach: u64,
    reach_generation: u64,
    /// Those that nobody was told of yet.
    reached: Vec<Reached>,
    /// The batches that were under way when the mark was made that is not complete, if there is one.
    mark: Option<Vec<u64>>,
    /// The last batch before the last mark, and when that was made.
    marked: Option<(u64, u64)>,
    counts: SenderCounts,
}

/// What a follower that followed another leader before is told, and what it names.
#[derive(Debug)]
struct Repair {
    /// How this process began to lead, until the follower is told.
    untold: Option<Position>,
    named: NamedKeys,
    has_named_all: bool,
}

/// A large value that is on its way.
#[derive(Debug)]
struct Large<L> {
    value: LargeValue<L>,
    sent: usize,
}

#[derive(Debug)]
enum LargeValue<L> {
    Leased(L),
    Copied(Vec<u8>),
}

impl<L: Lease> LargeValue<L> {
    fn of(value: &Value<'_, L>) -> Self {
        match value {
            Value::Whole(bytes) => Self::Copied(bytes.to_vec()),
            Value::Large(lease) if lease.may_be_kept() => Self::Leased(lease.clone()),
            Value::Large(lease) => {
                let mut bytes = Vec::with_capacity(lease.len());
                while bytes.len() < lease.len() {
                    bytes.extend_from_slice(lease.piece(bytes.len()));
                }
                Self::Copied(bytes)
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Leased(lease) => lease.len(),
            Self::Copied(bytes) => bytes.len(),
        }
    }

    fn piece(&self, offset: usize) -> &[u8] {
        match self {
            Self::Leased(lease) => lease.piece(offset),
            Self::Copied(bytes) => bytes.get(offset..).unwrap_or_default(),
        }
    }
}

impl<E: Engine> Sender<E> {
    /// A sender to a follower that is at `position`. If it can't go on from there, it begins with a copy.
    /// `boot` is the number of this process, and `succession` how it began to lead.
    pub fn new(
        engine: E,
        journals: Arc<Journals>,
        boot: u64,
        position: Option<&Position>,
        succession: Option<&Succession>,
    ) -> Self {
        let mut sender = Self {
            engine,
            journals,
            readers: Vec::new(),
            next: 0,
            has_begun: false,
            generation: 0,
            walk: None,
            walk_items: WALK_ITEMS,
            repair: None,
            keys: Keys::default(),
            slots: None,
            oldest: 0,
            large: None,
            fetches: Vec::new(),
            batch: 0,
            told: None,
            reach: 0,
            reach_generation: 0,
            reached: Vec::new(),
            mark: None,
            marked: None,
            counts: SenderCounts::default(),
        };
        match (position, succession) {
            (Some(position), _) if position.boot == boot => sender.go_on(position),
            (Some(position), Some(succession)) => sender.begin_repair(position, succession),
            _ => (),
        }
        sender
    }

    /// A sender of all items of some slots, to a group that is to have them.
    pub fn of_slots(engine: E, journals: Arc<Journals>, slots: SlotSet) -> Self {
        Self { slots: Some(slots), ..Self::new(engine, journals, 0, None, None) }
    }

    /// Whether everything was sent that was changed before these offsets of the journals.
    #[must_use]
    pub fn has_sent(&self, ends: &[u64]) -> bool {
        let has_read = |(at, end): (usize, &u64)| {
            *end == 0 || self.readers.get(at).is_some_and(|reader| reader.offset() >= *end)
        };
        let is_under_way = self.walk.is_some() || self.large.is_some() || !self.keys.is_done();
        self.has_begun && !is_under_way && ends.iter().enumerate().all(has_read)
    }

    fn go_on(&mut self, position: &Position) {
        let Ok(readers) = self.journals.readers_at(&position.offsets) else { return };
        (self.readers, self.has_begun) = (readers, true);
        self.generation = position.generation;
        self.told = Some(position.offsets.clone());
    }

    fn begin_repair(&mut self, position: &Position, succession: &Succession) {
        let Some(since) = succession.since(position) else { return };
        let Ok(readers) = self.journals.readers_at(&since) else { return };
        (self.readers, self.has_begun) = (readers, true);
        self.generation = succession.generation();
        self.counts.repairs += 1;
        let untold = Some(succession.before().clone());
        self.repair = Some(Repair { untold, named: NamedKeys::default(), has_named_all: false });
    }

    /// The follower has named these keys ([`Named::bytes`](crate::Named::bytes)), and what is under them is to be sent.
    pub fn take_named(&mut self, keys: Vec<u8>) {
        if let Some(repair) = &mut self.repair {
            repair.named.push(keys);
        }
    }

    /// The follower has named all keys.
    pub fn note_named_all(&mut self) {
        if let Some(repair) = &mut self.repair {
            repair.has_named_all = true;
        }
    }

    /// Whether a repair is under way.
    #[must_use]
    pub fn is_repairing(&self) -> bool {
        self.repair.is_some()
    }

    /// Whether the follower has to be sent everything first.
    #[must_use]
    pub fn begins_with_copy(&self) -> bool {
        !self.has_begun
    }

    /// What was done so far.
    #[must_use]
    pub fn counts(&self) -> SenderCounts {
        self.counts
    }

    /// The number of the last batch.
    #[must_use]
    pub fn batch(&self) -> u64 {
        self.batch
    }

    /// What the follower has when it has acknowledged the reaches that were written since the last call.
    pub fn take_reached(&mut self) -> Vec<Reached> {
        std::mem::take(&mut self.reached)
    }

    /// Whether a copy is under way.
    #[must_use]
    pub fn is_copying(&self) -> bool {
        self.walk.is_some()
    }

    /// Bytes of the journals that were not read yet.
    #[must_use]
    pub fn lag_bytes(&self) -> u64 {
        self.readers.iter().map(Reader::lag_bytes).sum()
    }

    /// Changes that were not sent yet, as far as they are known.
    #[must_use]
    pub fn lag_keys(&self) -> u64 {
        let in_journals: u64 = self.readers.iter().map(Reader::lag_entries).sum();
        in_journals + self.keys.unsent().count() as u64
    }

    /// How long ago, in milliseconds, the oldest change was made that was not sent yet.
    #[must_use]
    pub fn behind_millis(&self, now: Now) -> u64 {
        if self.keys.is_done() && self.large.is_none() && self.lag_bytes() == 0 {
            return 0;
        }
        now.in_millis().saturating_sub(self.oldest)
    }

    /// Whether there is something to send, or to look up.
    #[must_use]
    pub fn has_more(&self) -> bool {
        self.readers.iter().any(|reader| reader.lag_bytes() > 0)
            || self.repair.as_ref().is_some_and(|repair| !repair.named.is_empty())
            || self.engine.flush_generation() != self.generation
    }

    /// Appends the next frames to `out`: a few hundred KiB at most. `waker` is called after [`Step::Waiting`].
    pub fn step(&mut self, now: Now, waker: &Waker, out: &mut Vec<u8>) -> Step {
        if self.large.is_some() {
            self.send_parts(out);
            return Step::More;
        }
        self.engine.begin_batch(now);
        let engine = &mut self.engine;
        self.fetches.retain(|fetch| engine.deliver(fetch) == Delivery::UnderWay);
        let step = self.step_in_batch(now, waker, out);
        self.engine.submit();
        self.engine.end_batch();
        step
    }

    fn step_in_batch(&mut self, now: Now, waker: &Waker, out: &mut Vec<u8>) -> Step {
        if !self.has_begun {
            self.begin_copy(out);
        }
        if let Some(before) = self.repair.as_mut().and_then(|repair| repair.untold.take()) {
            Frame::RepairBegins { before, generation: self.generation }.write(out);
        }
        if self.keys.is_done() && self.take_keys(now).is_err() {
            self.counts.overruns += 1;
            self.begin_copy(out);
        }
        // Read after the keys were taken: what was stored after a flush that is not counted here has its key still
        // in a journal, and is sent again after the flush.
        let generation = self.engine.flush_generation();
        if generation != self.generation {
            self.generation = generation;
            self.counts.flushes += 1;
            Frame::Flush { generation }.write(out);
        }
        let mut batch = BatchWriter::begin(out, self.batch + 1);
        self.send_keys(now, &mut batch, waker, out);
        let mut walk = WalkState::More;
        if self.walk.is_some() && self.large.is_none() {
            walk = self.send_walk(now, &mut batch, waker, out);
        }
        let has_sent = batch.states() > 0;
        if has_sent {
            self.batch += 1;
            self.counts.states += batch.states() as u64;
            batch.end(out);
        } else {
            batch.cancel(out);
        }
        if walk == WalkState::End {
            self.walk = None;
        }
        let is_waiting = !self.keys.is_done() || walk == WalkState::Waiting;
        self.tell_reach(out);
        self.keep_marks(now, out);
        if has_sent || !is_waiting && (self.walk.is_some() || self.has_more()) {
            Step::More
        } else if is_waiting {
            Step::Waiting
        } else {
            Step::Idle
        }
    }

    /// Begins a copy: what is changed from here on is in the journals, and what was there before is in the walk.
    fn begin_copy(&mut self, out: &mut Vec<u8>) {
        self.counts.copies += 1;
        self.readers = self.journals.from(0).iter().map(Reader::at_end).collect();
        self.keys.clear();
        (self.large, self.repair, self.mark, self.marked) = (None, None, None, None);
        (self.told, self.has_begun) = (None, true);
        self.generation = self.engine.flush_generation();
        self.walk = Some(self.engine.walk());
        Frame::CopyBegins { generation: self.generation }.write(out);
    }

    /// Takes the next keys that the follower has named, and those from the journals.
    fn take_keys(&mut self, now: Now) -> Result<(), Overrun> {
        let Self { engine, journals, readers, next, repair, keys, slots, counts, .. } = self;
        keys.clear();
        if let Some(Repair { named, has_named_all, .. }) = repair {
            // The journals go on meanwhile.
            named.take(KEYS_MAX / 2, |key| {
                keys.push(key, engine.hash(key));
            });
            if *has_named_all && named.is_empty() {
                *repair = None;
            }
        }
        let known = readers.len();
        readers.extend(journals.from(known).iter().map(Reader::at_start));
        let mut oldest = 0;
        // Each of them has its turn to be the first, so that none waits behind one that is always full.
        *next += 1;
        let first = *next % readers.len().max(1);
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

    /// Looks up the keys that are not sent yet, and writes their states.
    fn send_keys(&mut self, now: Now, batch: &mut BatchWriter, waker: &Waker, out: &mut Vec<u8>) {
        let Self { engine, keys, large, fetches, .. } = self;
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
                    let wanted = Wanted { hash, is_ahead: false };
                    if engine.fetch(wanted, waker, fetches) == Begun::Nothing {
                        // It can be looked up again at once.
                        waker.wake_by_ref();
                    }
                    continue;
                }
            }
            keys.note_sent(position);
        }
    }

    /// Writes the states of the next items of the walk.
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
        let state = engine.walk_on(walk, *walk_items, waker, |key, item| {
            if slots.as_ref().is_some_and(|slots| !slots.has_key(key)) {
                return;
            }
            if whole(&item.value).is_none() || batch.len(out) > 2 * BATCH_LEN {
                // It is looked up later, by itself.
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
                self.tell_reach(out);
            }
        }
    }

    /// Tells the follower where it is, if all that was taken from the journals was sent.
    fn tell_reach(&mut self, out: &mut Vec<u8>) {
        let is_under_way = self.walk.is_some() || self.repair.is_some() || self.large.is_some();
        if is_under_way || !self.keys.is_done() {
            return;
        }
        let offsets: Vec<u64> = self.readers.iter().map(Reader::offset).collect();
        let generation = self.generation;
        let is_new = self.told.as_ref() != Some(&offsets) || self.reach_generation != generation;
        if !is_new && self.reach > 0 {
            return;
        }
        if self.told.is_none() {
            Frame::CopyEnds.write(out);
        }
        self.reach += 1;
        self.reach_generation = generation;
        let number = self.reach;
        Frame::Reach { number, offsets: offsets.clone() }.write(out);
        self.reached.push(Reached { number, offsets: offsets.clone(), generation });
        self.told = Some(offsets);
    }

    /// Lets the follower note, from time to time, how new what it has stored can be at most.
    fn keep_marks(&mut self, now: Now, out: &mut Vec<u8>) {
        if self.large.is_some() {
            // Its parts come next.
            return;
        }
        let now = now.in_millis();
        let is_due = |(batch, at): (u64, u64)| batch != self.batch && now >= at + MARK_MILLIS;
        if self.mark.is_none() && self.told.is_some() && self.marked.is_none_or(is_due) {
            Frame::Mark.write(out);
            (self.mark, self.marked) = (Some(Vec::new()), Some((self.batch, now)));
        }
        if let Some(batches) = &mut self.mark
            && self.journals.settle(batches)
        {
            Frame::Settled { ends: self.journals.ends() }.write(out);
            self.mark = None;
        }
    }
}

/// The value, if it is sent within a batch.
fn whole<'v, L>(value: &Value<'v, L>) -> Option<&'v [u8]> {
    match value {
        Value::Whole(bytes) if bytes.len() <= WHOLE_LEN_MAX => Some(bytes),
        _ => None,
    }
}

/// Writes an item's state; the value is returned if it is to follow in parts.
fn write_item<L: Lease>(
    key: &[u8],
    item: &Item<'_, L>,
    now: Now,
    batch: &mut BatchWriter,
    out: &mut Vec<u8>,
) -> Option<Large<L>> {
    let attributes = &item.attributes;
    let left = match attributes.expiry {
        Expiry::Never => TimeLeft::Forever,
        Expiry::At(second) => TimeLeft::Seconds(second.0.saturating_sub(now.secs.0)),
        Expiry::Before(..) => {
            TimeLeft::Millis(attributes.expiry.left_millis(now).unwrap_or_default())
        }
    };
    let (value, large) = match whole(&item.value) {
        Some(bytes) => (ValueState::Whole(bytes), None),
        None => {
            let value = LargeValue::of(&item.value);
            (ValueState::InParts(value.len() as u64), Some(Large { value, sent: 0 }))
        }
    };
    let item = ItemState {
        client_flags: attributes.client_flags,
        left,
        stale: attributes.stale,
        won: attributes.won,
        binary_key: attributes.binary_key,
        fetched: item.fetched,
        cas: item.cas,
        value,
    };
    batch.push(out, &State { key, item: Some(item) });
    large
}
