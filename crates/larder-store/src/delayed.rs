//! A wrapper around any engine. It simulates a flash tier and replicas: items are on slower storage
//! at random, and changes are acknowledged late. Tests use it to show that requests that wait get
//! the same replies as requests that do not wait.
//!
//! Random numbers decide which operations wait. If no read has delivered an item in the current
//! batch, half of its lookups are `Pending`. Half of the steps of a walk wait. Two thirds of the
//! batches with changes wait for acknowledgements.
//!
//! Reads and acknowledgements end in random order. Either a test calls [`Storage::complete`], or
//! the thread of [`Storage::with_thread`] ends some of them every two milliseconds or sooner.

use crate::cache::CacheControl;
use crate::engine::layer::*;
use crate::engine::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::task::Waker;
use std::time::Duration;

/// The simulated slower storage and replicas: their pending reads and acknowledgements.
#[derive(Debug)]
pub struct Storage {
    waits: Mutex<Waits>,
    random: AtomicU64,
}

#[derive(Debug, Default)]
struct Waits {
    under_way: Vec<Arc<Wait>>,
    /// The wakers of callers that were refused because too many waits were under way.
    refused: Vec<Waker>,
}

#[derive(Debug)]
struct Wait {
    is_done: AtomicBool,
    waker: Waker,
}

/// The maximum number of reads, walk steps and acknowledgements that may be pending together.
const READS_MAX: usize = 256;
/// The thread that completes reads pauses for at most this long between two calls to
/// [`Storage::complete`].
const READ_TIME_MAX: Duration = Duration::from_millis(2);

impl Storage {
    /// Creates storage whose reads and acknowledgements complete only when a test calls
    /// [`Storage::complete`].
    #[must_use]
    pub fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self { waits: Mutex::default(), random: AtomicU64::new(seed | 1) })
    }

    /// Creates storage with a thread that completes its reads and acknowledgements. The thread runs
    /// while the storage exists.
    ///
    /// # Errors
    /// The system cannot create the thread.
    pub fn with_thread(seed: u64) -> std::io::Result<Arc<Self>> {
        let storage = Self::new(seed);
        let weak = Arc::downgrade(&storage);
        std::thread::Builder::new().name("delayed".to_owned()).spawn(move || run(&weak))?;
        Ok(storage)
    }

    /// Completes up to `waits` randomly chosen reads and acknowledgements, and wakes all callers
    /// that were refused. Returns the number of completed reads and acknowledgements.
    pub fn complete(&self, waits: usize) -> usize {
        let mut all = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        let Waits { under_way, refused } = &mut *all;
        let ended: Vec<_> = (0..waits.min(under_way.len()))
            .map(|_| {
                let chosen = self.draw() % under_way.len() as u64;
                under_way.swap_remove(
                    usize::try_from(chosen).expect("a remainder by a length fits usize"),
                )
            })
            .collect();
        let refused = std::mem::take(refused);
        drop(all);
        for wait in &ended {
            wait.is_done.store(true, Ordering::Release);
            wait.waker.wake_by_ref();
        }
        refused.into_iter().for_each(Waker::wake);
        ended.len()
    }

    fn begin(&self, waker: &Waker) -> Option<Arc<Wait>> {
        let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        if waits.under_way.len() >= READS_MAX {
            waits.refused.push(waker.clone());
            return None;
        }
        let wait = Arc::new(Wait { is_done: AtomicBool::new(false), waker: waker.clone() });
        waits.under_way.push(Arc::clone(&wait));
        Some(wait)
    }

    /// Returns a random number (a Weyl sequence through SplitMix64's finaliser, Steele et al.
    /// 2014).
    fn draw(&self) -> u64 {
        let weyl = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let mixed = (weyl ^ (weyl >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[expect(clippy::disallowed_methods, reason = "it simulates a device, which takes time")]
fn run(storage: &Weak<Storage>) {
    while let Some(storage) = storage.upgrade() {
        let random = storage.draw();
        storage.complete(1 + usize::from(random.to_le_bytes()[0] % 4));
        drop(storage);
        let [.., share] = random.to_le_bytes();
        std::thread::sleep(READ_TIME_MAX * u32::from(share) / u32::from(u8::MAX));
    }
}

/// A wrapper that adds simulated slower storage and replicas to a cache of another engine.
#[derive(Clone, Debug)]
pub struct Cache<C> {
    cache: C,
    storage: Arc<Storage>,
}

impl<C: crate::cache::Cache> Cache<C> {
    /// Wraps `cache`. Randomly chosen lookups and changes wait for `storage`.
    pub fn new(cache: C, storage: Arc<Storage>) -> Self {
        Self { cache, storage }
    }
}

impl<C: crate::cache::Cache> crate::cache::Cache for Cache<C> {
    type Engine = Handle<C::Engine>;

    fn engine(&self) -> Self::Engine {
        Handle::new(self.cache.engine(), Arc::clone(&self.storage))
    }

    fn control(&self) -> &dyn CacheControl {
        self.cache.control()
    }
}

/// One thread's access to a [`Cache`].
#[derive(Debug)]
pub struct Handle<E> {
    engine: E,
    storage: Arc<Storage>,
    /// The hashes of the items that were delivered in this batch.
    delivered: Vec<u64>,
    /// Whether this batch has changed an item.
    has_changed: bool,
}

/// A started read from the simulated slower storage.
#[derive(Debug)]
pub struct PendingRead {
    hash: u64,
    read: Arc<Wait>,
}

/// A walk of the inner engine, and the read that the next step waits for.
#[derive(Debug)]
pub struct Walk<W> {
    walk: W,
    wait: Option<Arc<Wait>>,
}

/// The position of changes that have to be acknowledged. The first call to `ack_state` starts the
/// wait. If `READS_MAX` waits are under way, a later call starts the wait.
#[derive(Debug, Default)]
pub struct Position(OnceLock<Arc<Wait>>);

impl<E: Engine> Handle<E> {
    /// Wraps one handle of the inner engine.
    pub fn new(engine: E, storage: Arc<Storage>) -> Self {
        Self { engine, storage, delivered: Vec::new(), has_changed: false }
    }

    /// Returns the storage behind this handle.
    pub fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    /// If a lookup found an expired or flushed item, treats the item as delivered, so that its
    /// removal does not wait for a read.
    fn note_dead<R>(&mut self, hash: u64, found: &Lookup<R>) {
        if matches!(found, Lookup::Expired | Lookup::Flushed) {
            self.delivered.push(hash);
        }
    }

    fn is_on_slow_storage(&self, hash: u64) -> bool {
        !self.delivered.contains(&hash) && self.storage.draw().is_multiple_of(2)
    }
}

impl<E: Engine> Layer for Handle<E> {
    type Inner = E;

    fn inner(&self) -> &E {
        &self.engine
    }

    fn inner_mut(&mut self) -> &mut E {
        &mut self.engine
    }
}

impl<E: Engine> DelegateUploads for Handle<E> {}
impl<E: Engine> DelegateMaintenance for Handle<E> {}

impl<E: Engine> Batches for Handle<E> {
    fn begin_batch(&mut self, now: impl Into<Now>) {
        self.has_changed = false;
        self.engine.begin_batch(now);
    }

    fn end_batch(&mut self) {
        self.delivered.clear();
        self.engine.end_batch();
    }
}

impl<E: Engine> Lookups for Handle<E> {
    type Lease = E::Lease;

    fn hash(&self, key: &[u8]) -> u64 {
        self.engine.hash(key)
    }

    fn announce(&mut self, hash: u64) {
        self.engine.announce(hash);
    }

    fn prefetch_announced(&mut self) {
        self.engine.prefetch_announced();
    }

    fn get<R>(
        &mut self,
        key: HashedKey<'_>,
        access: Access,
        read: impl FnOnce(&Item<'_, Self::Lease>) -> R,
    ) -> Lookup<R> {
        if self.is_on_slow_storage(key.hash) {
            return Lookup::Pending;
        }
        let found = self.engine.get(key, access, read);
        self.note_dead(key.hash, &found);
        found
    }

    fn get_recorded<R>(
        &mut self,
        key: HashedKey<'_>,
        read: impl FnOnce(&Item<'_, Self::Lease>) -> (Access, R),
    ) -> Lookup<R> {
        if self.is_on_slow_storage(key.hash) {
            return Lookup::Pending;
        }
        let found = self.engine.get_recorded(key, read);
        self.note_dead(key.hash, &found);
        found
    }

    fn content<R>(
        &mut self,
        key: HashedKey<'_>,
        read: impl FnOnce(&Content<'_, Self::Lease>) -> R,
    ) -> Lookup<R> {
        if self.is_on_slow_storage(key.hash) {
            return Lookup::Pending;
        }
        let found = self.engine.content(key, read);
        self.note_dead(key.hash, &found);
        found
    }
}

impl<E: Engine> Updates for Handle<E> {
    fn update<'v, R>(
        &mut self,
        key: HashedKey<'_>,
        upload: &mut Option<Self::Upload>,
        mut decide: impl FnMut(Lookup<&Item<'_, Self::Lease>>) -> (Change<'v>, R),
    ) -> Result<Updated<R>, Refusal> {
        if self.is_on_slow_storage(key.hash) {
            if self.storage.draw().is_multiple_of(2) {
                // Simulates an item that moves to slower storage after the closure has received it.
                let _ = self.engine.update(key, upload, |found| {
                    let shown = matches!(found, Lookup::Hit(_)).then(|| decide(found));
                    drop(shown);
                    (Change::Keep, ())
                });
            }
            return Err(Refusal::Pending);
        }
        let mut changes = false;
        let updated = self.engine.update(key, upload, record_change(decide, &mut changes));
        self.has_changed |= changes && updated.is_ok();
        updated
    }

    fn update_unread<'v, R>(
        &mut self,
        key: HashedKey<'_>,
        upload: &mut Option<Self::Upload>,
        mut decide: impl FnMut(Lookup<&Item<'_, Self::Lease>>) -> (Change<'v>, R),
    ) -> Result<Updated<R>, Refusal> {
        let is_on_slow_storage = self.is_on_slow_storage(key.hash);
        let blind = |found: Lookup<&Item<'_, Self::Lease>>| match found {
            Lookup::Hit(_) if is_on_slow_storage => decide(Lookup::Miss),
            found => decide(found),
        };
        let mut changes = false;
        let updated = self.engine.update_unread(key, upload, record_change(blind, &mut changes));
        self.has_changed |= changes && updated.is_ok();
        updated
    }

    fn tag(&mut self, name: &[u8]) -> Result<Tag, Refusal> {
        self.engine.tag(name)
    }

    fn drop_tag(&mut self, name: &[u8]) -> bool {
        self.engine.drop_tag(name)
    }

    fn has_tags(&self) -> bool {
        self.engine.has_tags()
    }

    fn flush(&mut self, at: Option<Seconds>) {
        self.has_changed = true;
        self.engine.flush(at);
    }

    fn flush_generation(&self) -> u64 {
        self.engine.flush_generation()
    }
}

impl<E: Engine> SlowStorage for Handle<E> {
    type PendingRead = PendingRead;

    fn start_read(
        &mut self,
        wanted: ReadRequest,
        waker: &Waker,
        into: &mut Vec<PendingRead>,
    ) -> ReadStart {
        let ReadRequest { hash, .. } = wanted;
        if self.delivered.contains(&hash) || self.storage.draw().is_multiple_of(8) {
            return ReadStart::NotNeeded;
        }
        match self.storage.begin(waker) {
            Some(read) => {
                into.push(PendingRead { hash, read });
                ReadStart::Started
            }
            None => ReadStart::Busy,
        }
    }

    fn deliver(&mut self, pending: &PendingRead) -> Delivery {
        let is_done = pending.read.is_done.load(Ordering::Acquire);
        if is_done {
            self.delivered.push(pending.hash);
        }
        if is_done { Delivery::Delivered } else { Delivery::InProgress }
    }

    fn submit(&mut self) {
        self.engine.submit();
    }
}

impl<E: Engine> Acknowledge for Handle<E> {
    type Position = Position;

    fn ack_position(&mut self) -> Option<Position> {
        let waits = self.has_changed && !self.storage.draw().is_multiple_of(3);
        waits.then(Position::default)
    }

    fn ack_state(&mut self, position: &Position, waker: &Waker) -> AckState {
        let Some(wait) = position.0.get() else {
            // If too many waits are under way, `complete` calls the waker later.
            if let Some(wait) = self.storage.begin(waker) {
                let _ = position.0.set(wait);
            }
            return AckState::Pending;
        };
        if wait.is_done.load(Ordering::Acquire) {
            AckState::Acknowledged
        } else {
            AckState::Pending
        }
    }
}

impl<E: Engine> Walks for Handle<E> {
    type Walk = Walk<E::Walk>;

    fn walk(&self) -> Self::Walk {
        Walk { walk: self.engine.walk(), wait: None }
    }

    fn walk_from(&self, position: u64) -> Self::Walk {
        Walk { walk: self.engine.walk_from(position), wait: None }
    }

    fn walk_position(&self, walk: &Self::Walk) -> WalkPosition {
        self.engine.walk_position(&walk.walk)
    }

    fn continue_walk(
        &mut self,
        walk: &mut Self::Walk,
        items: usize,
        waker: &Waker,
        visit: impl FnMut(&[u8], &Item<'_, Self::Lease>),
    ) -> WalkState {
        let is_under_way = |wait: &Arc<Wait>| !wait.is_done.load(Ordering::Acquire);
        if walk.wait.as_ref().is_some_and(is_under_way) {
            return WalkState::Waiting;
        }
        walk.wait = None;
        if self.storage.draw().is_multiple_of(2) {
            walk.wait = self.storage.begin(waker);
            return WalkState::Waiting;
        }
        self.engine.continue_walk(&mut walk.walk, items, waker, visit)
    }
}

/// Wraps `decide` in a closure that also stores in `changes` whether the result changes the item.
/// The engine applies the result of the last call.
fn record_change<'v, L: Lease, R>(
    mut decide: impl FnMut(Lookup<&Item<'_, L>>) -> (Change<'v>, R),
    changes: &mut bool,
) -> impl FnMut(Lookup<&Item<'_, L>>) -> (Change<'v>, R) {
    move |found| {
        let (change, result) = decide(found);
        *changes = !matches!(change, Change::Keep | Change::MarkAccessed | Change::CountHit);
        (change, result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    #[derive(Default)]
    struct Calls(AtomicUsize);

    impl Wake for Calls {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn refused_waits_are_woken_and_use_no_slot() {
        let (storage, calls) = (Storage::new(1), Arc::new(Calls::default()));
        let waker = Waker::from(Arc::clone(&calls));
        let begun = (0..READS_MAX + 100).filter(|_| storage.begin(&waker).is_some()).count();
        assert_eq!(begun, READS_MAX);
        assert_eq!(storage.complete(1), 1);
        assert_eq!(
            calls.0.load(Ordering::Relaxed),
            101,
            "the wait that ended, and all refused ones"
        );
        assert!(storage.begin(&waker).is_some(), "a slot is free");
        while storage.complete(1) > 0 {}
        assert!(storage.begin(&waker).is_some());
    }
}
