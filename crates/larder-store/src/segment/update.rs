//! Writing: an item is put together in this handle's open segment and published by one store to its
//! index word, under the lock of its stripe.
#![expect(clippy::cast_possible_truncation, reason = "classes are few")]

use super::Shared;
use super::alloc::{Kind, Queue};
use super::chain::Upload;
use super::ghost;
use super::handle::{Handle, lend, void};
use super::header::State;
use super::index::{Locked, Place};
use super::record::{Chain, Draft, Record, Witness};
use super::slot::Slot;
use super::sync::{Guard, Ordering, pin};
use super::table::{Sequence, Table};
use super::tally::{Evicted, Tally};
use crate::engine::SPACES;
use crate::{
    Access, Attributes, Change, Eviction, Expiry, HashedKey, Item, Lookup, NUMBER_WIDTH_MAX,
    NewCas, NewValue, Refusal, Seconds, Updated,
};
use std::ops::Range;
use std::sync::Arc;

/// Lifetime classes at most.
pub(super) const CLASSES_MAX: usize = 8;

/// How many lifetime classes: the segments that threads hold open stay under 3 % of all.
pub(super) fn class_count(segments: usize, threads: usize) -> u32 {
    let open = segments * 3 / 100;
    (open / (2 * threads.max(1))).clamp(1, CLASSES_MAX) as u32
}

/// The lifetime class: items that end at about the same time share segments, so that these end
/// whole. Class 0 never ends; the others are log-spaced up to about 50 days.
fn lifetime_class(expiry: Expiry, now: Seconds, classes: u32) -> u8 {
    const SPAN_BITS: u32 = 22;
    let mortal = classes - 1;
    match expiry.left(now) {
        None => 0,
        Some(_) if mortal == 0 => 0,
        Some(left) => 1 + ((left | 1).ilog2() * mortal / SPAN_BITS).min(mortal - 1) as u8,
    }
}

/// A segment that one handle appends to.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) segment: u32,
    sequence: Sequence,
    base: Seconds,
    /// The next item's offset in the region.
    pub(super) at: usize,
    end: usize,
    /// The last expiry that was noted in its entry. Other threads write there whenever an item of it
    /// dies, so it is left alone where it says what it should already.
    noted: Option<Expiry>,
    /// Segments in the chains of its items.
    chained: usize,
}

/// The share of all segments that may hang on one open segment before it is sealed, one in this
/// many: what is open can be evicted by its owner alone.
const CHAINED_SHARE: usize = 64;

/// What an update lacks. It is provided without any lock held, then the update starts over.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// Another open segment.
    Room(Kind),
    /// An index word.
    Slot,
    /// Segments for a value of this length.
    Segments(usize),
    /// A smaller value.
    Less,
}

/// CAS values are drawn in blocks, so that handles do not meet at a counter.
const CAS_BLOCK: u64 = 1 << 16;

/// Numbers that a client chose are followed up to here only, lest nothing higher be left.
const CAS_FOLLOWED_MAX: u64 = 1 << 63;

/// Index words are told to the others in steps of this many.
const SLOTS_STEP: isize = 16;

impl Handle {
    pub(super) fn update_item<'v, R>(
        &mut self,
        key: HashedKey<'_>,
        upload: &mut Option<Upload>,
        mut decide: impl FnMut(Lookup<&Item<'_, super::ChainLease>>) -> (Change<'v>, R),
    ) -> Result<Updated<R>, Refusal> {
        self.drain_before_write();
        let mut crowded = 0;
        loop {
            let (shared, mut writer) = self.writer();
            match writer.attempt(shared, key, upload, &mut decide) {
                Ok(updated) => {
                    self.spare = None;
                    self.drain_after_write();
                    self.tell_slots();
                    return Ok(updated);
                }
                Err(want) => {
                    crowded += u32::from(want == Want::Slot);
                    self.provide(want, key.hash, crowded)?;
                }
            }
        }
    }

    /// The parts of a handle that write while a stripe, borrowed from the rest, is locked.
    pub(super) fn writer(&mut self) -> (&Arc<Shared>, Writer<'_>) {
        let writer = Writer {
            open: &mut self.open,
            cas: &mut self.cas,
            slots: &mut self.slots,
            spare: &mut self.spare,
            tally: &self.tally,
            guard: self.guard.as_ref(),
            now: self.now,
        };
        (&self.shared, writer)
    }

    fn provide(&mut self, want: Want, hash: u64, crowded: u32) -> Result<(), Refusal> {
        let provided = match want {
            Want::Room(kind) => self.open_segment(kind),
            Want::Slot => self.make_slot(hash, crowded),
            Want::Segments(len) => self.fetch_segments(len),
            Want::Less => Err(Refusal::TooLarge),
        };
        provided.inspect_err(|_| {
            self.spare = None;
            self.tally.refuse(0);
        })
    }

    fn open_segment(&mut self, kind: Kind) -> Result<(), Refusal> {
        let segment = self.take_segment()?;
        let (shared, mut writer) = self.writer();
        writer.open(shared, kind, segment);
        Ok(())
    }

    fn fetch_segments(&mut self, len: usize) -> Result<(), Refusal> {
        let mut upload = Upload::new(&self.shared, len);
        while upload.segments.len() < upload.segments_wanted() {
            self.extend_segments(&mut upload)?;
        }
        self.spare = Some(upload);
        Ok(())
    }

    fn tell_slots(&mut self) {
        if self.slots.abs() >= SLOTS_STEP {
            let slots = std::mem::take(&mut self.slots);
            let used = self.shared.slots_used.fetch_add(slots.cast_unsigned(), Ordering::Relaxed);
            self.grow_if_full(used.wrapping_add_signed(slots));
        }
    }

    /// Seals every open segment.
    pub(super) fn seal_all(&mut self) {
        self.seal_if(|_| true);
    }

    /// Seals open segments in which something has ended: the crawler looks at sealed ones alone.
    pub(super) fn seal_expired(&mut self) {
        let (now, shared) = (self.now, Arc::clone(&self.shared));
        let first_expiry = |segment| shared.table().entry(segment).first_expiry();
        self.seal_if(|open| first_expiry(open.segment).load(Ordering::Relaxed) <= now.0);
    }

    fn seal_if(&mut self, wanted: impl Fn(&Open) -> bool) {
        let (shared, writer) = self.writer();
        let places = writer.open.iter_mut().flatten();
        for open in places.filter_map(|place| place.take_if(|open| wanted(open))) {
            seal(shared, &open);
        }
    }
}

fn seal(shared: &Shared, open: &Open) {
    let table = shared.table();
    let entry = table.entry(open.segment);
    let written = open.at - table.layout.start(open.segment);
    entry.written().store(u32::try_from(written).expect("segments are small"), Ordering::Relaxed);
    entry.sealed().store(1, Ordering::Release);
    shared.alloc().enqueue(entry.kind(), open.segment);
}

/// See [`Handle::writer`].
pub(super) struct Writer<'h> {
    pub(super) open: &'h mut [[Option<Open>; CLASSES_MAX]; 2],
    cas: &'h mut Range<u64>,
    slots: &'h mut isize,
    spare: &'h mut Option<Upload>,
    pub(super) tally: &'h Tally,
    guard: Option<&'h Guard>,
    pub(super) now: Seconds,
}

type Stripe<'i> = Locked<'i, Table>;

/// The item that an update found, live or void.
struct Found<'i> {
    place: Place<'i>,
    record: Record<'i>,
}

impl Writer<'_> {
    fn attempt<'v, R>(
        &mut self,
        shared: &Arc<Shared>,
        key: HashedKey<'_>,
        upload: &mut Option<Upload>,
        decide: &mut impl FnMut(Lookup<&Item<'_, super::ChainLease>>) -> (Change<'v>, R),
    ) -> Result<Updated<R>, Want> {
        let stripe = &shared.index.lock(key.hash);
        let witness = Witness::locked(stripe);
        let is_key = |slot| shared.record(slot, witness).key() == key.bytes;
        let found = stripe.find(is_key).map(|place| {
            let record = shared.record(place.slot, witness);
            Found { place, record }
        });
        let gone = found.as_ref().and_then(|found| void(shared, &found.record, self.now));
        let (change, result) = match (&found, gone) {
            (None, _) => decide(Lookup::Miss),
            (Some(_), Some(gone)) => decide(gone),
            (Some(found), None) => decide(Lookup::Hit(&lend(shared, &found.record))),
        };
        let unused = self.cas.clone();
        let mut update = Update { shared, stripe, key, witness, found, writer: self };
        let applied = update.apply(change, upload);
        if applied.is_err() && *self.cas != unused {
            // Nobody saw it: it can be used again.
            self.cas.start -= 1;
        }
        applied.map(|cas| Updated { result, cas })
    }

    /// A CAS that no item has had, higher than `old`.
    fn fresh_cas(&mut self, shared: &Shared, old: u64) -> u64 {
        let old = if old < CAS_FOLLOWED_MAX { old } else { 0 };
        if self.cas.start <= old || self.cas.is_empty() {
            let mut start = shared.cas_block.fetch_add(CAS_BLOCK, Ordering::Relaxed);
            if start <= old {
                // A client chose a CAS ahead of ours: go on behind it.
                start = shared.cas_block.fetch_max(old + 1, Ordering::Relaxed).max(old + 1);
                shared.cas_block.fetch_max(start + CAS_BLOCK, Ordering::Relaxed);
            }
            *self.cas = start..start + CAS_BLOCK;
        }
        self.cas.start += 1;
        self.cas.start - 1
    }

    /// Makes `segment` the open one of `kind` in place of what was.
    pub(super) fn open(&mut self, shared: &Shared, kind: Kind, segment: u32) {
        let sequence = shared.sequence.fetch_add(1, Ordering::AcqRel);
        let table = shared.table();
        let entry = table.entry(segment);
        entry.open(kind, sequence, self.now);
        let at = table.layout.start(segment);
        let end = at + table.layout.segment_len;
        let open = Open { segment, sequence, base: entry.base(), at, end, noted: None, chained: 0 };
        let before = self.open[kind.queue as usize][usize::from(kind.class)].replace(open);
        if let Some(before) = before {
            seal(shared, &before);
        }
    }

    pub(super) fn kind(&self, shared: &Shared, queue: Queue, expiry: Expiry) -> Kind {
        Kind {
            queue,
            class: lifetime_class(expiry, self.now, shared.classes.load(Ordering::Relaxed)),
        }
    }

    /// The open segment of `kind`, unless a flush has made it void.
    fn open_of(&mut self, shared: &Shared, kind: Kind) -> Option<&mut Open> {
        let open = self.open[kind.queue as usize][usize::from(kind.class)].as_mut();
        open.filter(|open| open.sequence >= shared.flush_floor.load(Ordering::Acquire))
    }

    pub(super) fn has_room(&mut self, shared: &Shared, kind: Kind, len: usize) -> bool {
        self.open_of(shared, kind).is_some_and(|open| open.at + len <= open.end)
    }

    /// Writes an item where nobody sees it yet; its offset. [`Writer::unwrite`] takes it back.
    pub(super) fn write(
        &mut self,
        shared: &Shared,
        kind: Kind,
        draft: &Draft<'_>,
    ) -> Option<usize> {
        let cas = shared.config.cas;
        let open = self.open_of(shared, kind)?;
        let len = draft.len(open.base, cas);
        if open.at + len > open.end {
            return None;
        }
        let (offset, table) = (open.at, shared.table());
        let expiry = draft.attributes.expiry;
        if open.noted.replace(expiry) != Some(expiry) {
            table.entry(open.segment).note_expiry(expiry);
        }
        // SAFETY: the place is in this handle's own open segment, behind all that was published.
        unsafe { draft.write(&table.region, offset, open.base, cas) };
        open.at += len;
        Some(offset)
    }

    /// Counts a chain whose item was just written to the open segment of `kind`.
    pub(super) fn count_chain(&mut self, shared: &Shared, kind: Kind, segments: usize) {
        shared.alloc().count_chain(kind.queue, segments, true);
        let place = &mut self.open[kind.queue as usize][usize::from(kind.class)];
        let full = place.as_mut().is_some_and(|open| {
            open.chained += segments;
            open.chained >= shared.limit_segments() / CHAINED_SHARE
        });
        if let Some(open) = place.take_if(|_| full) {
            seal(shared, &open);
        }
    }

    fn unwrite(&mut self, shared: &Shared, kind: Kind, offset: usize) {
        if let Some(open) = self.open_of(shared, kind) {
            open.at = offset;
        }
    }

    fn with_guard(&self, f: impl FnOnce(&Guard)) {
        match self.guard {
            Some(guard) => f(guard),
            None => f(&pin()),
        }
    }

    /// Forgets an item that its index word no longer refers to.
    pub(super) fn bury(&self, shared: &Arc<Shared>, record: &Record<'_>) {
        let (class, footprint) = shared.class_of(record);
        self.tally.remove_item(class, footprint);
        if let Some(chain) = record.chain() {
            let segments = shared.chain_segments(chain.first).count();
            shared.alloc().count_chain(record.entry().kind().queue, segments, false);
            self.with_guard(|guard| shared.retire_chain(chain.first, guard));
        }
        record.bury();
    }

    /// Takes an item out of the index and forgets it.
    pub(super) fn remove(
        &mut self,
        shared: &Arc<Shared>,
        stripe: &Stripe<'_>,
        place: &Place<'_>,
        record: &Record<'_>,
    ) {
        stripe.remove(place);
        *self.slots -= 1;
        self.bury(shared, record);
    }

    /// Counts an item that is dropped for room, and tells who observes it.
    pub(super) fn count_evicted(&self, shared: &Shared, record: &Record<'_>) {
        let (attributes, accessed) = (record.attributes(), record.accessed());
        let fetched = record.header.has(State::Fetched);
        let idle_secs = self.now.0.saturating_sub(accessed.0);
        let mortal = attributes.expiry != Expiry::Never;
        let (class, _) = shared.class_of(record);
        self.tally.evict(class, Evicted { fetched, mortal, idle_secs });
        if let Some(observer) = shared.observer.get() {
            let (key, value_len, now) = (record.key(), record.value_len(), self.now);
            observer(&Eviction { key, attributes, fetched, accessed, value_len, now });
        }
    }

    /// Counts an expired or flushed item that gave its place up.
    pub(super) fn count_reclaimed(&self, shared: &Shared, record: &Record<'_>, crawled: bool) {
        let (class, _) = shared.class_of(record);
        self.tally.reclaim(class, record.header.has(State::Fetched), crawled);
    }
}

/// One update of one key, under the lock of its stripe.
struct Update<'u, 'h> {
    shared: &'u Arc<Shared>,
    stripe: &'u Stripe<'u>,
    key: HashedKey<'u>,
    witness: Witness<'u>,
    found: Option<Found<'u>>,
    writer: &'u mut Writer<'h>,
}

impl<'u> Update<'u, '_> {
    /// The item, unless it is void.
    fn live(&self) -> Option<&Found<'u>> {
        let found = self.found.as_ref()?;
        void::<()>(self.shared, &found.record, self.writer.now).is_none().then_some(found)
    }

    /// Does what was decided; the item's CAS afterwards.
    fn apply(&mut self, change: Change<'_>, upload: &mut Option<Upload>) -> Result<u64, Want> {
        match change {
            Change::Keep => Ok(self.live().map_or(0, |found| found.record.cas())),
            Change::Touch => {
                self.touch();
                Ok(self.live().map_or(0, |found| found.record.cas()))
            }
            Change::Promote => {
                let live = self.live();
                if let Some(found) = live {
                    self.stripe.count_hit(&found.place);
                }
                Ok(live.map_or(0, |found| found.record.cas()))
            }
            Change::Remove => {
                self.remove();
                Ok(0)
            }
            Change::Amend { attributes, cas, access } => self.amend(attributes, cas, access),
            Change::Put { attributes, cas, value, fetched } => {
                self.put(attributes, cas, value, fetched, upload)
            }
        }
    }

    fn touch(&self) {
        if let Some(found) = self.live() {
            self.stripe.count_hit(&found.place);
            found.record.note_access(self.writer.now);
        }
    }

    fn remove(&mut self) {
        let void = self.live().is_none();
        if let Some(found) = self.found.take() {
            if void {
                self.writer.count_reclaimed(self.shared, &found.record, false);
            }
            self.writer.remove(self.shared, self.stripe, &found.place, &found.record);
        }
    }

    fn choose_cas(&mut self, cas: NewCas) -> u64 {
        let old = self.live().map_or(0, |found| found.record.cas());
        match cas {
            _ if !self.shared.config.cas => 0,
            NewCas::Fresh => self.writer.fresh_cas(self.shared, old),
            NewCas::Same => old,
            NewCas::Exactly(cas) => cas,
        }
    }

    fn amend(&mut self, attributes: Attributes, cas: NewCas, access: Access) -> Result<u64, Want> {
        let Some(&Found { record, .. }) = self.live() else { return Ok(0) };
        // Before it changes: it may be past its time afterwards.
        let cas = self.choose_cas(cas);
        let (class, footprint) = self.shared.class_of(&record);
        if record.amend(&attributes) {
            record.set_cas(cas);
            // Client flags count, but not when they are 0.
            self.writer.tally.remove_item(class, footprint);
            let (class, footprint) = self.shared.class_of(&record);
            self.writer.tally.add_item(class, footprint);
            if access == Access::Tracked {
                self.touch();
            }
            return Ok(cas);
        }
        // It needs other bytes than it has: write it again.
        let read = access == Access::Tracked;
        let draft = Draft {
            attributes,
            cas,
            fetched: read || record.header.has(State::Fetched),
            accessed: if read { self.writer.now } else { record.accessed() },
            key: self.key.bytes,
            value: [record.inline_value(), &[], &[]],
            chain: None,
        };
        self.publish(&draft)?;
        Ok(draft.cas)
    }

    fn put(
        &mut self,
        attributes: Attributes,
        cas: NewCas,
        value: NewValue<'_>,
        fetched: bool,
        upload: &mut Option<Upload>,
    ) -> Result<u64, Want> {
        let old = self.live().map(|found| found.record);
        if let NewValue::Number { digits, len, width } = value {
            let digits = digits.split_at(len.into()).0;
            return self.put_number(attributes, cas, digits, width, fetched);
        }
        let (before, new, after) = match value {
            NewValue::Bytes(bytes) => (None, Some(bytes), None),
            NewValue::Append(bytes) => (old, Some(bytes), None),
            NewValue::Prepend(bytes) => (None, Some(bytes), old),
            NewValue::Uploaded | NewValue::Number { .. } => (None, None, None),
            NewValue::AppendUploaded => (old, None, None),
            NewValue::PrependUploaded => (None, None, old),
        };
        let uploaded =
            if new.is_none() { upload.as_ref().map_or(0, |upload| upload.len) } else { 0 };
        let olds = before.iter().chain(&after).map(Record::value_len).sum::<usize>();
        let len = olds + uploaded + new.map_or(0, <[u8]>::len);
        if len > self.shared.config.item_size_max {
            return Err(Want::Less);
        }
        let whole =
            |record: Option<Record<'u>>| record.map_or(&[][..], |record| record.inline_value());
        let cas = self.choose_cas(cas);
        let draft = Draft {
            attributes,
            cas,
            fetched,
            accessed: self.writer.now,
            key: self.key.bytes,
            value: [&[]; 3],
            chain: None,
        };
        if uploaded == len && new.is_none() {
            self.publish_upload(draft, upload)?;
        } else if len <= self.shared.table().layout.inline_max() {
            let new =
                new.or_else(|| upload.as_ref().map(|upload| upload.piece(0))).unwrap_or_default();
            self.publish(&Draft { value: [whole(before), new, whole(after)], ..draft })?;
        } else {
            self.gather(len, before, new, upload.as_ref(), after)?;
            let mut spare = self.writer.spare.take();
            let published = self.publish_upload(draft, &mut spare);
            *self.writer.spare = spare;
            published?;
        }
        if new.is_none() {
            *upload = None;
        }
        Ok(cas)
    }

    fn put_number(
        &mut self,
        attributes: Attributes,
        cas: NewCas,
        digits: &[u8],
        width: usize,
        fetched: bool,
    ) -> Result<u64, Want> {
        let spaces = SPACES.split_at(width.min(NUMBER_WIDTH_MAX).saturating_sub(digits.len())).0;
        let draft = Draft {
            attributes,
            cas: self.choose_cas(cas),
            fetched,
            accessed: self.writer.now,
            key: self.key.bytes,
            value: [digits, spaces, &[]],
            chain: None,
        };
        self.publish(&draft)?;
        Ok(draft.cas)
    }

    /// Puts a large value together from pieces, in segments fetched beforehand.
    fn gather(
        &mut self,
        len: usize,
        before: Option<Record<'u>>,
        new: Option<&[u8]>,
        upload: Option<&Upload>,
        after: Option<Record<'u>>,
    ) -> Result<(), Want> {
        let Some(spare) = self.writer.spare.as_mut().filter(|spare| spare.len == len) else {
            return Err(Want::Segments(len));
        };
        spare.filled = 0;
        let shared = self.shared;
        let copy_old = |spare: &mut Upload, record: Record<'u>| {
            for_each_piece(shared, &record, self.witness, |piece| spare.fill_all(piece));
        };
        before.into_iter().for_each(|record| copy_old(spare, record));
        match (new, upload) {
            (Some(bytes), _) => spare.fill_all(bytes),
            (None, Some(upload)) => {
                (0..upload.segments.len()).for_each(|i| spare.fill_all(upload.piece(i)));
            }
            (None, None) => (),
        }
        after.into_iter().for_each(|record| copy_old(spare, record));
        Ok(())
    }

    /// Publishes an item whose value is `upload`, and takes over what of it stays a chain.
    fn publish_upload(
        &mut self,
        draft: Draft<'_>,
        upload: &mut Option<Upload>,
    ) -> Result<(), Want> {
        let Some(uploaded) = upload.as_ref() else { return self.publish(&draft).map(drop) };
        let value_len = u32::try_from(uploaded.len).map_err(|_| Want::Less)?;
        let chain = uploaded.link_chain().map(|first| Chain { first, value_len });
        let kind = self.publish(&Draft { chain, value: [uploaded.tail(), &[], &[]], ..draft })?;
        if let Some(upload) = upload.take() {
            let segments = upload.release_chain();
            if segments > 0 {
                self.writer.count_chain(self.shared, kind, segments);
            }
        }
        Ok(())
    }

    /// Writes an item, makes its index word refer to it, and forgets the one before. What it was
    /// stored as.
    fn publish(&mut self, draft: &Draft<'_>) -> Result<Kind, Want> {
        let (shared, hash) = (self.shared, self.key.hash);
        let ghosts = shared.table().ghosts(self.stripe.bucket());
        let live = self.live().map(|found| (found.record.entry().kind().queue, found.place.freq()));
        let (queue, freq) = match live {
            Some(kept) => kept,
            None if ghost::holds(ghosts, hash) => (Queue::Main, 0),
            None => (Queue::Small, 0),
        };
        let kind = self.writer.kind(shared, queue, draft.attributes.expiry);
        let offset = self.writer.write(shared, kind, draft).ok_or(Want::Room(kind))?;
        let slot = Slot::new(hash, offset, freq);
        match &self.found {
            Some(found) => self.stripe.replace(&found.place, slot),
            None => {
                let witness = self.witness;
                let rehash = |slot| shared.hash(shared.record(slot, witness).key());
                if self.stripe.insert(slot, rehash).is_err() {
                    self.writer.unwrite(shared, kind, offset);
                    return Err(Want::Slot);
                }
                *self.writer.slots += 1;
            }
        }
        if live.is_none() {
            ghost::forget(ghosts, hash);
        }
        self.account(draft, live.is_none());
        Ok(kind)
    }

    /// Counts a published item in, and the one it replaced out.
    fn account(&mut self, draft: &Draft<'_>, void: bool) {
        let (shared, attributes) = (self.shared, &draft.attributes);
        let inline_len = draft.value.iter().map(|piece| piece.len()).sum();
        let value_len = draft.chain.map_or(inline_len, |chain| chain.value_len as usize);
        let (class, footprint) =
            shared.class_of_parts(draft.key.len(), value_len, attributes.client_flags);
        self.writer.tally.store();
        self.writer.tally.add_item(class, footprint);
        if let Some(found) = &self.found {
            if void {
                self.writer.count_reclaimed(shared, &found.record, false);
            }
            self.writer.bury(shared, &found.record);
        }
    }
}

/// The whole value of an item, in order.
fn for_each_piece<'p>(
    shared: &'p Shared,
    record: &Record<'p>,
    _: Witness<'p>,
    mut piece: impl FnMut(&[u8]),
) {
    let tail = record.inline_value();
    if let Some(chain) = record.chain() {
        let mut left = chain.value_len as usize - tail.len();
        for segment in shared.chain_segments(chain.first) {
            let len = left.min(shared.segment_len());
            let start = shared.table().layout.start(segment);
            // SAFETY: the witness keeps the item, and so its chain, from being recycled.
            piece(unsafe { shared.table().region.bytes(start, len) });
            left -= len;
        }
    }
    piece(tail);
}
