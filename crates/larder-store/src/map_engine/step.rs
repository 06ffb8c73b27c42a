//! One update of one key: the item that the caller's closure receives, and the change that the map
//! must make.

use super::cas::CasCounter;
use super::hash::Hasher;
use super::record::{Record, SharedLease};
use super::stats::MapStats;
use super::upload::{Budget, Upload};
use crate::engine::{Liveness, RemovalReason, SPACES};
use crate::{
    Access, Attributes, Change, ChangeObserver, Eviction, EvictionObserver, Gauges, HashedKey,
    Item, ItemChange, KEY_LEN_MAX, Lookup, NewCas, NewValue, Now, Refusal, Seconds, SizeClasses,
    Updated,
};
use bytes::Bytes;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};

/// The state of a cache other than its items.
pub struct Core {
    pub(crate) hasher: Hasher,
    pub(crate) classes: SizeClasses,
    pub(crate) stats: MapStats,
    /// The memory budget for items.
    pub(crate) items: Arc<Budget>,
    /// The memory budget for uploads. In `dashmap`, items use the same budget.
    pub(crate) uploads: Arc<Budget>,
    /// The number of bytes that are charged for each item in addition to its key and value.
    overhead: usize,
    /// The source of CAS values, or `None` if the cache stores no CAS.
    pub(super) cas: Option<CasCounter>,
    /// The number of flushes that took effect. Records with a lower number are flushed.
    flush_generation: AtomicU64,
    /// The second at which the pending flush is due; 0 if none is pending.
    flush_at: AtomicU32,
    /// The time of the most recent batch or maintenance step on any handle.
    now: AtomicU32,
    /// The function that is called for each eviction.
    observer: OnceLock<EvictionObserver>,
    /// The function that is called for each change of an item.
    change_observer: OnceLock<ChangeObserver>,
}

/// The change that a map has to make to a key.
#[derive(Debug)]
pub enum Verdict {
    /// Leave the record as it is.
    Keep,
    /// Remove the record, if there is one.
    Remove,
    /// Store this record. It replaces an existing record.
    Store(Record),
}

/// A verdict, and the result that the update returns to its caller. The verdict of a refused update
/// is [`Verdict::Keep`].
#[derive(Debug)]
pub(crate) struct Step<R> {
    pub(crate) verdict: Verdict,
    pub(crate) updated: Result<Updated<R>, Refusal>,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("items", &self.items).finish_non_exhaustive()
    }
}

impl Core {
    pub(crate) fn new(
        classes: SizeClasses,
        seed: u64,
        cas: bool,
        overhead: usize,
        [items, uploads]: [Arc<Budget>; 2],
    ) -> Self {
        Self {
            hasher: Hasher::new(seed),
            stats: MapStats::new(classes.count()),
            classes,
            items,
            uploads,
            overhead,
            cas: cas.then(CasCounter::default),
            flush_generation: AtomicU64::new(0),
            flush_at: AtomicU32::new(0),
            now: AtomicU32::new(0),
            observer: OnceLock::new(),
            change_observer: OnceLock::new(),
        }
    }

    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Returns the number of bytes that are charged to the budget for an item.
    pub(crate) fn charge(&self, key_len: usize, value_len: usize) -> usize {
        self.overhead + key_len + value_len
    }

    /// Sets the time, and applies a flush that is due.
    pub(crate) fn advance(&self, now: Seconds) {
        if self.now.load(Ordering::Relaxed) != now.0 {
            self.now.store(now.0, Ordering::Relaxed);
        }
        let at = self.flush_at.load(Ordering::Relaxed);
        let due = at != 0 && at <= now.0;
        if due && self.flush_at.compare_exchange(at, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            self.flush_generation.fetch_add(1, Ordering::AcqRel);
            self.report_change(ItemChange::Invalidated);
        }
    }

    pub(crate) fn now(&self) -> Seconds {
        Seconds(self.now.load(Ordering::Relaxed))
    }

    pub(crate) fn flush_generation(&self) -> u64 {
        self.flush_generation.load(Ordering::Acquire)
    }

    /// Returns the liveness of a record at `now`.
    pub(crate) fn liveness(&self, record: &Record, now: impl Into<Now>) -> Liveness {
        record.liveness(now.into(), self.flush_generation())
    }

    /// Invalidates all items that exist when the flush takes effect: immediately, or, with `at`, in
    /// the first [`Core::advance`] to that second or later. Cancels a pending flush, as in
    /// memcached.
    pub(crate) fn flush(&self, at: Option<Seconds>) {
        self.flush_at.store(at.map_or(0, |at| at.0.max(1)), Ordering::Release);
        if at.is_none() {
            self.flush_generation.fetch_add(1, Ordering::AcqRel);
            self.report_change(ItemChange::Invalidated);
        }
    }

    /// Subtracts a record from the counts, after it has left the map.
    pub(crate) fn forget(&self, key_len: usize, record: &Record) {
        self.items.give(self.charge(key_len, record.value.len()));
        let (class, footprint) = self.class_and_footprint(key_len, record);
        self.stats.remove_item(class, footprint);
    }

    /// Counts an item that is removed because it has expired or was flushed, unless it was counted
    /// before. `crawled` is true if maintenance found the item.
    pub(crate) fn count_reclaimed(&self, key: &[u8], record: &Record, crawled: bool) {
        if record.count_once() {
            let reason = match self.liveness(record, self.now()) {
                Liveness::Flushed => RemovalReason::Flushed,
                Liveness::Expired | Liveness::Live => RemovalReason::Expired,
            };
            let class = self.class_and_footprint(key.len(), record).0;
            self.stats.reclaim(class, reason, record.fetched(), crawled);
            if reason == RemovalReason::Expired {
                self.report_change(ItemChange::Expired(key));
            }
        }
    }

    /// Counts an evicted item, and calls the observer.
    pub(crate) fn count_evicted(&self, key: &[u8], record: &Record) {
        let (class, now) = (self.class_and_footprint(key.len(), record).0, self.now());
        self.stats.evict(class, record, now);
        if let Some(observer) = self.observer.get() {
            let (attributes, value_len) = (record.attributes, record.value.len());
            let (fetched, accessed) = (record.fetched(), record.accessed());
            let flash_bucket = None;
            let at = Eviction { key, attributes, fetched, accessed, value_len, now, flash_bucket };
            observer(&at);
        }
    }

    /// Registers an observer: from now on, the cache calls it for every eviction. Only the first
    /// call has an effect.
    pub(crate) fn observe_evictions(&self, observer: EvictionObserver) {
        // Has no effect if there is an observer already.
        let _ = self.observer.set(observer);
    }

    /// Registers an observer: from now on, the cache calls it for every change of an item. Only the
    /// first call has an effect.
    pub(crate) fn observe_changes(&self, observer: ChangeObserver) {
        let _ = self.change_observer.set(observer);
        // Either an update sees the observer, or later lookups see the update: see `report_change`.
        fence(Ordering::SeqCst);
    }

    /// Calls the observer of changes, if there is one. The caller has already made the change
    /// visible to lookups.
    pub(crate) fn report_change(&self, change: ItemChange<'_>) {
        fence(Ordering::SeqCst);
        if let Some(observer) = self.change_observer.get() {
            observer(change);
        }
    }

    /// Returns an item's statistics class, and the number of bytes it adds to the statistics.
    fn class_and_footprint(&self, key_len: usize, record: &Record) -> (usize, usize) {
        let (value_len, flags) = (record.value.len(), record.attributes.client_flags);
        let footprint = self.classes.footprint(key_len, value_len, flags);
        (self.classes.class_of(footprint), footprint)
    }

    /// Updates one key: calls `decide`, and determines the change that the map has to make.
    pub(crate) fn step<'v, R>(
        &self,
        now: Now,
        key: HashedKey<'_>,
        found: Option<&Record>,
        upload: &mut Option<Upload>,
        mut decide: impl FnMut(Lookup<&Item<'_, SharedLease>>) -> (Change<'v>, R),
    ) -> Step<R> {
        let flush_generation = self.flush_generation();
        let (change, result) = match found {
            None => decide(Lookup::Miss),
            Some(record) => {
                let item = record.lend();
                decide(record.liveness(now, flush_generation).lookup(|| &item))
            }
        };
        let live = found.filter(|record| record.liveness(now, flush_generation).is_live());
        let update = Update { core: self, now, flush_generation, key, found, live };
        let verdict = match update.apply(change, upload) {
            Ok(verdict) => verdict,
            Err(refusal) => return Step { verdict: Verdict::Keep, updated: Err(refusal) },
        };
        let cas = match &verdict {
            Verdict::Keep => live.map_or(0, |record| record.cas),
            Verdict::Remove => 0,
            Verdict::Store(record) => record.cas,
        };
        Step { verdict, updated: Ok(Updated { result, cas }) }
    }
}

/// One update of one key, while no other thread writes the key.
struct Update<'u> {
    core: &'u Core,
    now: Now,
    /// The number of flushes when the update started. A flush during the update invalidates the
    /// item that the update stores.
    flush_generation: u64,
    key: HashedKey<'u>,
    found: Option<&'u Record>,
    /// The found record, if it is live.
    live: Option<&'u Record>,
}

impl Update<'_> {
    fn apply(&self, change: Change<'_>, upload: &mut Option<Upload>) -> Result<Verdict, Refusal> {
        match (change, self.live) {
            (Change::Put { attributes, cas, value, fetched, tags: _ }, _) => {
                if !(1..=KEY_LEN_MAX).contains(&self.key.bytes.len()) {
                    return Err(Refusal::TooLarge);
                }
                self.put(attributes, cas, value, fetched, upload)
            }
            (Change::Remove, Some(_)) => Ok(Verdict::Remove),
            (Change::SetAttributes { attributes, cas, access }, Some(live)) => {
                self.set_attributes(live, attributes, cas, access)
            }
            (Change::MarkAccessed, Some(live)) => {
                live.note_access(self.now.secs);
                Ok(Verdict::Keep)
            }
            // Nothing is left to record: a map that evicts has recorded the access when it looked
            // the key up.
            (Change::Keep | Change::CountHit, Some(_)) => Ok(Verdict::Keep),
            (_, None) => Ok(self.remove_expired()),
        }
    }

    /// Removes the found record, which is not live, and counts it as reclaimed. If no record was
    /// found, does not change the map.
    fn remove_expired(&self) -> Verdict {
        let Some(dead) = self.found else { return Verdict::Keep };
        self.core.count_reclaimed(self.key.bytes, dead, false);
        Verdict::Remove
    }

    fn set_attributes(
        &self,
        live: &Record,
        attributes: Attributes,
        cas: NewCas,
        access: Access,
    ) -> Result<Verdict, Refusal> {
        let record = live.with_attributes(attributes, self.cas(cas)?);
        if access == Access::Tracked {
            record.note_access(self.now.secs);
        }
        self.core.items.take_anyway(self.charge(record.value.len()));
        self.count_in(&record);
        Ok(Verdict::Store(record))
    }

    fn put(
        &self,
        attributes: Attributes,
        cas: NewCas,
        value: NewValue<'_>,
        fetched: bool,
        upload: &mut Option<Upload>,
    ) -> Result<Verdict, Refusal> {
        let uploaded = upload.as_ref().map_or(&[][..], Upload::bytes);
        let old = self.live.map_or(&[][..], |live| &live.value);
        let is_new = value.makes_item(|| self.live.map(|live| live.value.len()));
        let pieces = pieces(&value, old, uploaded);
        // Draw the CAS before anything changes, because the draw may fail.
        let cas = self.cas(cas)?;
        self.take_room(pieces.iter().map(|piece| piece.len()).sum(), &value, upload.as_ref())?;
        let bytes = match value {
            NewValue::Uploaded => upload.take().map(Upload::into_bytes).unwrap_or_default(),
            _ => Bytes::from(pieces.concat()),
        };
        if is_uploaded(&value) {
            *upload = None;
        }
        let record =
            Record::new(bytes, attributes, cas, self.flush_generation, self.now.secs, fetched);
        if is_new {
            self.core.stats.store();
        }
        self.count_in(&record);
        if let (Some(dead), None) = (self.found, self.live) {
            self.core.count_reclaimed(self.key.bytes, dead, false);
        }
        Ok(Verdict::Store(record))
    }

    /// Charges the budget of items for a new value of `len` bytes. The memory of the found record
    /// and of the uploaded value is returned after the store, so it does not count towards the
    /// limit. If the budget refuses, counts a refused store.
    fn take_room(
        &self,
        len: usize,
        value: &NewValue<'_>,
        upload: Option<&Upload>,
    ) -> Result<(), Refusal> {
        let replaced = self.found.map_or(0, |found| self.charge(found.value.len()));
        let uploaded = if is_uploaded(value) { upload.map_or(0, Upload::charged) } else { 0 };
        let refused = self.core.items.take(self.charge(len), replaced + uploaded);
        refused.inspect_err(|_| {
            let footprint = self.core.classes.footprint(self.key.bytes.len(), len, 0);
            self.core.stats.refuse(self.core.classes.class_of(footprint));
        })
    }

    fn charge(&self, value_len: usize) -> usize {
        self.core.charge(self.key.bytes.len(), value_len)
    }

    fn count_in(&self, record: &Record) {
        let (class, footprint) = self.core.class_and_footprint(self.key.bytes.len(), record);
        self.core.stats.add_item(class, footprint);
    }

    fn cas(&self, cas: NewCas) -> Result<u64, Refusal> {
        let Some(counter) = &self.core.cas else { return Ok(0) };
        let old = self.live.map_or(0, |live| live.cas);
        match cas {
            NewCas::Fresh => counter.draw(old),
            NewCas::Same => Ok(old),
            NewCas::Exactly(cas) => Ok(cas),
        }
    }
}

/// Returns the pieces of a new value, in order.
fn pieces<'b>(value: &'b NewValue<'_>, old: &'b [u8], uploaded: &'b [u8]) -> [&'b [u8]; 2] {
    match value {
        NewValue::Bytes(bytes) => [bytes, &[]],
        NewValue::Number { digits, len, width } => {
            let digits = digits.get(..usize::from(*len)).unwrap_or(digits);
            let spaces = width.saturating_sub(digits.len());
            [digits, SPACES.get(..spaces).unwrap_or(&SPACES)]
        }
        NewValue::Append(bytes) => [old, bytes],
        NewValue::Prepend(bytes) => [bytes, old],
        NewValue::Uploaded => [uploaded, &[]],
        NewValue::AppendUploaded => [old, uploaded],
        NewValue::PrependUploaded => [uploaded, old],
    }
}

fn is_uploaded(value: &NewValue<'_>) -> bool {
    matches!(value, NewValue::Uploaded | NewValue::AppendUploaded | NewValue::PrependUploaded)
}

impl Core {
    /// Returns the totals. They do not include the memory of the map's table.
    pub(crate) fn gauges(&self, limit_bytes: usize) -> Gauges {
        let is_separate = !Arc::ptr_eq(&self.items, &self.uploads);
        let used = self.items.used() + if is_separate { self.uploads.used() } else { 0 };
        Gauges { limit_bytes: limit_bytes as u64, used_bytes: used as u64, ..self.stats.gauges() }
    }
}
