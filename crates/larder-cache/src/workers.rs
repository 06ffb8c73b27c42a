//! Engine handles, and their assignment to threads.
//!
//! Only one thread at a time may use a handle. The cache has an array of slots, and the first use
//! of a slot creates its handle. A call uses the slot that its thread used last. If another thread,
//! or a call further up the same thread's stack, is using that slot, the call uses another free
//! slot, or creates a temporary handle. A call never waits for a slot. A cache therefore keeps at
//! most [`SLOTS`] handles until it is dropped, and keeps no state for threads that have exited. If
//! a program has only one cache, its number of handles never exceeds the maximum number of
//! concurrent calls so far.

use crate::insert::{InsertError, KEY_LEN_MAX, TAG_LEN_MAX, TAGS_MAX};
use atomic_refcell::{AtomicRefCell, AtomicRefMut};
use larder_operations::{
    Counters, Limits, OpContext, Remove, RemoveOutcome, Set, Store, StoreOutcome, Tags,
};
use larder_store::segment::{self, ChainLease, Handle, Upload};
use larder_store::{
    Batches, Expiry, HashedKey, Lease, Lookup, Lookups, Maintenance, Refusal, Seconds, Tag,
    Uploads, Value,
};
use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

/// The number of slots. Each further concurrent call gets a temporary handle.
const SLOTS: usize = 64;
/// The number of size classes in the statistics: all items belong to one class.
const CLASSES: usize = 1;

thread_local! {
    /// The index of the slot that this thread used last, in any cache.
    static LAST_SLOT: Cell<usize> = const { Cell::new(0) };
}

pub(crate) struct Workers {
    store: segment::Cache,
    limits: Limits,
    slots: Box<[Slot]>,
    /// The counts of dropped temporary handles.
    temporary_counters: Mutex<Counters>,
}

#[repr(align(128))]
struct Slot {
    handle: AtomicRefCell<Option<Handle>>,
    counters: Counters,
}

impl Workers {
    pub(crate) fn new(store: segment::Cache, limits: Limits) -> Self {
        let slot = || Slot { handle: AtomicRefCell::new(None), counters: Counters::new(CLASSES) };
        let slots = (0..SLOTS).map(|_| slot()).collect();
        Self { store, limits, slots, temporary_counters: Mutex::new(Counters::new(CLASSES)) }
    }

    /// Claims a handle for one batch of operations, which starts at `now`.
    #[inline]
    pub(crate) fn claim(&self, now: Seconds) -> Claim<'_> {
        let last = self.slots.get(LAST_SLOT.get()).and_then(|slot| self.claim_slot(slot));
        let worker = last.unwrap_or_else(|| self.claim_any());
        let mut claim = Claim { workers: self, worker, now };
        claim.worker.handle().begin_batch(now);
        claim
    }

    #[inline]
    fn claim_slot<'w>(&'w self, slot: &'w Slot) -> Option<Worker<'w>> {
        let mut handle = slot.handle.try_borrow_mut().ok()?;
        if handle.is_none() {
            *handle = Some(self.store.handle());
        }
        let handle = AtomicRefMut::filter_map(handle, Option::as_mut)?;
        Some(Worker::InSlot(handle, &slot.counters))
    }

    #[cold]
    fn claim_any(&self) -> Worker<'_> {
        let claim = |(number, slot)| Some((number, self.claim_slot(slot)?));
        match self.slots.iter().enumerate().find_map(claim) {
            Some((number, worker)) => {
                LAST_SLOT.set(number);
                worker
            }
            None => Worker::Temporary(Box::new((self.store.handle(), Counters::new(CLASSES)))),
        }
    }

    /// Runs one step of maintenance with the handle of each free slot. Returns whether work is
    /// left.
    pub(crate) fn maintain(&self, now: Seconds) -> bool {
        self.slots.iter().fold(false, |more, slot| {
            let handle = slot.handle.try_borrow_mut().ok();
            let handle = handle.and_then(|handle| AtomicRefMut::filter_map(handle, Option::as_mut));
            handle.is_some_and(|mut handle| handle.maintain(now)) || more
        })
    }

    /// Returns the counters, summed over all slots and all dropped temporary handles.
    pub(crate) fn counters(&self) -> Counters {
        let temporary_counters =
            self.temporary_counters.lock().unwrap_or_else(PoisonError::into_inner);
        let slots = self.slots.iter().map(|slot| &slot.counters);
        Counters::sum(CLASSES, slots.chain([&*temporary_counters]))
    }
}

enum Worker<'w> {
    InSlot(AtomicRefMut<'w, Handle>, &'w Counters),
    Temporary(Box<(Handle, Counters)>),
}

impl Worker<'_> {
    #[inline]
    fn handle(&mut self) -> &mut Handle {
        match self {
            Self::InSlot(handle, _) => handle,
            Self::Temporary(temporary) => &mut temporary.0,
        }
    }
}

/// Exclusive use of a handle during one batch of operations. Dropping the claim ends the batch.
pub(crate) struct Claim<'w> {
    workers: &'w Workers,
    worker: Worker<'w>,
    now: Seconds,
}

/// The result of [`Claim::read`].
pub(crate) enum Read<R, F> {
    /// The result of the closure.
    Shown(R),
    /// The value is not contiguous in the cache. Contains the closure, which was not called, and a
    /// copy of the value.
    Copied(F, Vec<u8>),
}

impl Claim<'_> {
    #[inline]
    pub(crate) fn hashed<'k>(&mut self, key: &'k [u8]) -> HashedKey<'k> {
        HashedKey { bytes: key, hash: self.worker.handle().hash(key) }
    }

    #[inline]
    pub(crate) fn context(&mut self) -> OpContext<'_, Handle> {
        let (engine, counters) = match &mut self.worker {
            Worker::InSlot(handle, counters) => (&mut **handle, *counters),
            Worker::Temporary(temporary) => (&mut temporary.0, &temporary.1),
        };
        OpContext::new(engine, counters, &self.workers.limits, self.now)
    }

    /// Looks up a key, and calls `f` with the value if it is contiguous. Returns `None` if there is
    /// no value.
    #[inline]
    pub(crate) fn read<R, F: FnOnce(&[u8]) -> R>(
        &mut self,
        key: &[u8],
        f: F,
    ) -> Option<Read<R, F>> {
        let key = self.hashed(key);
        let lookup = self.context().content(key, |content| {
            Some(match &content.value {
                Value::Whole(bytes) => Read::Shown(f(bytes)),
                Value::Large(lease) => Read::Copied(f, copy_of(lease)),
            })
        });
        if let Lookup::Hit(result) = lookup { result } else { None }
    }

    /// Returns a copy of a value, or `None` if there is no value. The lookup changes neither the
    /// counters nor the item's access history.
    pub(crate) fn peek(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        let key = self.hashed(key);
        let lookup = self.context().describe(key, |item| copy_of_value(&item.value));
        if let Lookup::Hit(copy) = lookup { Some(copy) } else { None }
    }

    pub(crate) fn contains(&mut self, key: &[u8]) -> bool {
        let key = self.hashed(key);
        matches!(self.context().describe(key, |_| ()), Lookup::Hit(()))
    }

    /// Checks the length of a key, and resolves the names of tags.
    pub(crate) fn resolve(&mut self, key: &[u8], tags: &[Box<[u8]>]) -> Result<Tags, InsertError> {
        if key.is_empty() || key.len() > KEY_LEN_MAX {
            return Err(InsertError::KeyLength);
        }
        if tags.len() > TAGS_MAX {
            return Err(InsertError::TooManyTags);
        }
        if !tags.iter().all(|tag| (1..=TAG_LEN_MAX).contains(&tag.len())) {
            return Err(InsertError::TagLength);
        }
        let tags = self.context().tags(tags.iter().map(|tag| &**tag));
        tags.map_err(|_| InsertError::OutOfMemory)
    }

    pub(crate) fn insert(
        &mut self,
        key: &[u8],
        value: &[u8],
        expiry: Expiry,
        tags: &[Box<[u8]>],
    ) -> Result<(), InsertError> {
        let tags = match self.resolve(key, tags) {
            Ok(tags) => tags,
            Err(InsertError::KeyLength) => return Err(InsertError::KeyLength),
            Err(error) => {
                self.remove(key);
                return Err(error);
            }
        };
        let key = self.hashed(key);
        let is_short = value.len() < self.worker.handle().upload_len_min();
        let stored = if is_short && !tags.is_empty() {
            let op = Store {
                value,
                value_len: value.len(),
                expiry,
                tags: &tags,
                refusal_removes: true,
                ..Store::default()
            };
            self.context().store(key, &op, &mut None)
        } else if is_short {
            let op =
                Set { value, client_flags: 0, expiry, binary_key: false, refusal_removes: true };
            self.context().set(key, &op)
        } else {
            self.insert_large(key, value, expiry, &tags)
        };
        match stored {
            StoreOutcome::Stored { .. } => Ok(()),
            StoreOutcome::TooLarge => Err(InsertError::TooLarge),
            _ => Err(InsertError::OutOfMemory),
        }
    }

    fn insert_large(
        &mut self,
        key: HashedKey<'_>,
        value: &[u8],
        expiry: Expiry,
        tags: &[Tag],
    ) -> StoreOutcome {
        let value_len = value.len();
        let op = Store { value_len, expiry, tags, refusal_removes: true, ..Store::default() };
        let size = self.workers.limits.footprint(key.bytes.len(), value.len(), 0);
        if size > self.workers.limits.item_size_max {
            return self.context().refuse(key, &op, StoreOutcome::TooLarge);
        }
        self.store_uploaded(key, &op, value)
    }

    /// Stores a value. Uploads it first if its length requires an upload.
    pub(crate) fn store_uploaded(
        &mut self,
        key: HashedKey<'_>,
        op: &Store<'_>,
        value: &[u8],
    ) -> StoreOutcome {
        match self.upload(value) {
            Ok(mut upload) => self.context().store(key, op, &mut upload),
            Err(Refusal::TooLarge) => self.context().refuse(key, op, StoreOutcome::TooLarge),
            Err(_) => self.context().refuse(key, op, StoreOutcome::OutOfMemory),
        }
    }

    /// Uploads a value. Returns `None` if its length requires no upload.
    pub(crate) fn upload(&mut self, value: &[u8]) -> Result<Option<Upload>, Refusal> {
        let handle = self.worker.handle();
        if value.len() < handle.upload_len_min() {
            return Ok(None);
        }
        let mut upload = handle.upload(value.len())?;
        handle.extend(&mut upload, value)?;
        Ok(Some(upload))
    }

    pub(crate) fn remove(&mut self, key: &[u8]) -> bool {
        let key = self.hashed(key);
        self.context().remove(key, &Remove::default()) == RemoveOutcome::Removed
    }

    pub(crate) fn drop_tag(&mut self, name: &[u8]) -> bool {
        self.context().drop_tag(name)
    }

    /// Removes all items. No lookup finds them any more, and maintenance frees their memory later.
    pub(crate) fn clear(&mut self) {
        self.context().flush(Expiry::Never);
        self.worker.handle().crawl_soon();
    }

    /// Prefetches the items under `keys`. The next lookups should read the keys in this order.
    pub(crate) fn prefetch<K: AsRef<[u8]>>(&mut self, keys: &[K]) {
        let handle = self.worker.handle();
        for key in keys {
            let hash = handle.hash(key.as_ref());
            handle.announce(hash);
        }
        handle.prefetch_announced();
    }
}

impl Drop for Claim<'_> {
    #[inline]
    fn drop(&mut self) {
        self.worker.handle().end_batch();
        if let Worker::Temporary(temporary) = &self.worker {
            let mut temporary_counters =
                self.workers.temporary_counters.lock().unwrap_or_else(PoisonError::into_inner);
            let sum = Counters::sum(CLASSES, [&*temporary_counters, &temporary.1]);
            *temporary_counters = sum;
        }
    }
}

/// Returns a contiguous copy of a value.
pub(crate) fn copy_of_value(value: &Value<'_, ChainLease>) -> Vec<u8> {
    match value {
        Value::Whole(bytes) => bytes.to_vec(),
        Value::Large(lease) => copy_of(lease),
    }
}

/// Returns a contiguous copy of a large value.
#[cold]
pub(crate) fn copy_of(lease: &ChainLease) -> Vec<u8> {
    let mut copy = Vec::with_capacity(lease.len());
    while copy.len() < lease.len() {
        copy.extend_from_slice(lease.piece(copy.len()));
    }
    copy
}
