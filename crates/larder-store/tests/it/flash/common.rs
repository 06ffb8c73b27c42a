//! A client that waits for reads from flash, as a session of the server does.

use larder_device::Memory;
use larder_store::segment::{Cache, Config, Handle, Walk};
use larder_store::{
    Access, Attributes, Batches, Change, Delivery, Expiry, FlashConfig, FlashSettings, HashedKey,
    Item, Lease, Lookup, Lookups, Maintenance, NewCas, NewTags, NewValue, ReadRequest, ReadStart,
    Refusal, Seconds, SizeClasses, SlowStorage, Updates, Value, WalkState, Walks,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

pub(crate) const MIB: usize = 1 << 20;
/// A time limit: no request takes this long, however busy the machine. A read is abandoned after
/// five seconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) fn config(limit_bytes: usize, device: &Memory, settings: FlashSettings) -> Config {
    Config {
        limit_bytes,
        cas: true,
        classes: SizeClasses::new(vec![96, 512, 4096, 1 << 20], 59),
        seed: 0x5eed,
        evict: true,
        item_size_max: limit_bytes / 2,
        threads: 4,
        size_exponent: larder_store::eviction::SIZE_EXPONENT,
        flash: Some(FlashConfig {
            device: Arc::new(device.clone()),
            page_len: 1 << 20,
            threads: 4,
            depth: 64,
            settings,
        }),
    }
}

/// Returns settings that allow items of any size to be demoted.
pub(crate) fn any_size() -> FlashSettings {
    FlashSettings { item_size: 0, ..FlashSettings::default() }
}

/// A handle, and the clock of the test.
pub(crate) struct Client {
    pub(crate) handle: Handle,
    waker: Waker,
    /// Whether a walk was woken.
    woken: Arc<Woken>,
    now: Arc<AtomicU32>,
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

struct Woken {
    is_woken: AtomicBool,
    thread: Thread,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

pub(crate) fn clock() -> Arc<AtomicU32> {
    Arc::new(AtomicU32::new(1_000))
}

impl Client {
    pub(crate) fn new(cache: &Cache, now: &Arc<AtomicU32>) -> Self {
        let thread = std::thread::current();
        let waker = Waker::from(Arc::new(Unpark(thread.clone())));
        let woken = Arc::new(Woken { is_woken: AtomicBool::new(false), thread });
        Self { handle: cache.handle(), waker, woken, now: Arc::clone(now) }
    }

    pub(crate) fn now(&self) -> Seconds {
        Seconds(self.now.load(Ordering::Relaxed))
    }

    /// Repeats a request until it returns a result. Reads the item from flash between the attempts.
    fn until_done<R>(
        &mut self,
        key: &[u8],
        mut request: impl FnMut(&mut Handle, HashedKey<'_>) -> Option<R>,
    ) -> R {
        let begun = Instant::now();
        let mut fetches = Vec::new();
        loop {
            self.handle.begin_batch(self.now());
            let mut under_way = 0;
            fetches.retain(|fetch| {
                let delivery = self.handle.deliver(fetch);
                under_way += usize::from(delivery == Delivery::InProgress);
                delivery != Delivery::Gone
            });
            let hashed = HashedKey { bytes: key, hash: self.handle.hash(key) };
            let done = request(&mut self.handle, hashed);
            let begins = match done {
                None if under_way == 0 => {
                    let wanted = ReadRequest { hash: hashed.hash, is_read_ahead: false };
                    self.handle.start_read(wanted, &self.waker, &mut fetches)
                }
                _ => ReadStart::Started,
            };
            self.handle.submit();
            self.handle.end_batch();
            if let Some(done) = done {
                return done;
            }
            assert!(begun.elapsed() < PATIENCE, "a request hangs: {begins:?}, {fetches:?}");
            if begins != ReadStart::NotNeeded {
                std::thread::park_timeout(Duration::from_millis(100));
                self.handle.maintain(self.now());
            }
        }
    }

    pub(crate) fn look<R>(
        &mut self,
        key: &[u8],
        mut read: impl FnMut(&Item<'_, <Handle as Lookups>::Lease>) -> R,
    ) -> Lookup<R> {
        self.until_done(key, |handle, hashed| {
            match handle.get(hashed, Access::Tracked, &mut read) {
                Lookup::Pending => None,
                looked => Some(looked),
            }
        })
    }

    /// Starts to read an item from flash, and does not wait for the end of the read.
    pub(crate) fn begin(
        &mut self,
        key: &[u8],
        into: &mut Vec<<Handle as SlowStorage>::PendingRead>,
    ) {
        self.handle.begin_batch(self.now());
        let wanted = ReadRequest { hash: self.handle.hash(key), is_read_ahead: false };
        self.handle.start_read(wanted, &self.waker, into);
        self.handle.submit();
        self.handle.end_batch();
    }

    pub(crate) fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        match self.look(key, |item| copied(&item.value)) {
            Lookup::Hit(value) => Some(value),
            _ => None,
        }
    }

    pub(crate) fn cas_of(&mut self, key: &[u8]) -> Option<u64> {
        match self.look(key, |item| item.cas) {
            Lookup::Hit(cas) => Some(cas),
            _ => None,
        }
    }

    /// Makes an update that depends on the item.
    pub(crate) fn update<'v, R>(
        &mut self,
        key: &[u8],
        mut decide: impl FnMut(Option<&Item<'_, <Handle as Lookups>::Lease>>) -> (Change<'v>, R),
    ) -> Result<R, Refusal> {
        self.until_done(key, |handle, hashed| {
            let updated = handle.update(hashed, &mut None, |found| match found {
                Lookup::Hit(item) => decide(Some(item)),
                _ => decide(None),
            });
            match updated {
                Err(Refusal::Pending) => None,
                done => Some(done.map(|updated| updated.result)),
            }
        })
    }

    pub(crate) fn set(&mut self, key: &[u8], value: &[u8]) {
        self.set_with(key, value, Attributes::default());
    }

    pub(crate) fn set_with(&mut self, key: &[u8], value: &[u8], attributes: Attributes) -> u64 {
        self.until_done(key, |handle, hashed| {
            let put = Change::Put {
                attributes,
                cas: NewCas::Fresh,
                value: NewValue::Bytes(value),
                fetched: false,
                tags: NewTags::None,
            };
            let updated = handle.update_unread(hashed, &mut None, |_| (put, ()));
            Some(updated.expect("a cache that evicts has room").cas)
        })
    }

    pub(crate) fn set_tagged(&mut self, key: &[u8], value: &[u8], tags: NewTags<'_>) {
        self.until_done(key, |handle, hashed| {
            let (attributes, cas, value) =
                (Attributes::default(), NewCas::Fresh, NewValue::Bytes(value));
            let put = Change::Put { attributes, cas, value, fetched: false, tags };
            let updated = handle.update_unread(hashed, &mut None, |_| (put, ()));
            Some(updated.expect("a cache that evicts has room"))
        });
    }

    /// Makes a step of a walk. Calls `visit` with the key and the value of each item.
    pub(crate) fn continue_walk(
        &mut self,
        walk: &mut Walk,
        items: usize,
        mut visit: impl FnMut(&[u8], &[u8]),
    ) -> WalkState {
        self.handle.begin_batch(self.now());
        let waker = Waker::from(Arc::clone(&self.woken));
        let state = self.handle.continue_walk(walk, items, &waker, |key, item| {
            visit(key, &copied(&item.value));
        });
        self.handle.end_batch();
        state
    }

    /// Waits until the waker of a waiting walk is called.
    pub(crate) fn wait_for_walk(&mut self) {
        let begun = Instant::now();
        while !self.woken.is_woken.swap(false, Ordering::Acquire) {
            assert!(begun.elapsed() < PATIENCE, "a walk hangs");
            std::thread::park_timeout(Duration::from_millis(100));
            self.handle.maintain(self.now());
        }
    }

    /// Deletes an item. Returns whether it existed.
    pub(crate) fn delete(&mut self, key: &[u8]) -> bool {
        let removed = self.update(key, |found| match found {
            Some(_) => (Change::Remove, true),
            None => (Change::Keep, false),
        });
        removed.expect("a removal takes no memory")
    }

    pub(crate) fn append(&mut self, key: &[u8], more: &[u8]) -> bool {
        let appended = self.update(key, |found| match found {
            Some(item) => {
                let value = NewValue::Append(more);
                let attributes = item.attributes;
                let fetched = item.fetched;
                (
                    Change::Put {
                        attributes,
                        cas: NewCas::Fresh,
                        value,
                        fetched,
                        tags: NewTags::None,
                    },
                    true,
                )
            }
            None => (Change::Keep, false),
        });
        appended.unwrap_or(false)
    }

    pub(crate) fn touch(&mut self, key: &[u8], expiry: Expiry) -> bool {
        let touched = self.update(key, |found| match found {
            Some(item) => {
                let attributes = Attributes { expiry, ..item.attributes };
                let access = Access::Tracked;
                (Change::SetAttributes { attributes, cas: NewCas::Same, access }, true)
            }
            None => (Change::Keep, false),
        });
        touched.unwrap_or(false)
    }
}

pub(crate) fn copied<L: Lease>(value: &Value<'_, L>) -> Vec<u8> {
    match value {
        Value::Whole(bytes) => bytes.to_vec(),
        Value::Large(lease) => {
            let mut bytes = Vec::new();
            while bytes.len() < lease.len() {
                bytes.extend_from_slice(lease.piece(bytes.len()));
            }
            bytes
        }
    }
}

pub(crate) fn key(i: usize) -> Vec<u8> {
    format!("key-{i}").into_bytes()
}

/// Returns a value that contains its key and a version. Its length depends on both.
pub(crate) fn value(i: usize, version: u64, len_max: usize) -> Vec<u8> {
    let seed = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ version.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let len = 24 + usize::try_from(seed >> 33).unwrap() % len_max;
    let mut bytes = format!("{i}:{version}:").into_bytes();
    let mut word = seed | 1;
    while bytes.len() < len {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        // Eight letters from `a` to `p`.
        bytes.extend_from_slice(
            &((word & 0x0f0f_0f0f_0f0f_0f0f) + 0x6161_6161_6161_6161).to_le_bytes(),
        );
    }
    bytes.truncate(len);
    bytes
}

/// Returns the version of a value. Checks that the value is complete.
pub(crate) fn version(i: usize, bytes: &[u8], len_max: usize) -> u64 {
    let text = String::from_utf8_lossy(bytes);
    let mut parts = text.split(':');
    let (key, version) = (parts.next(), parts.next());
    let version = version.and_then(|version| version.parse().ok());
    let Some(version) = version.filter(|_| key == Some(&i.to_string())) else {
        panic!("not a value of {i}: {}", &text[..text.len().min(60)]);
    };
    assert_eq!(
        bytes,
        value(i, version, len_max),
        "the value of {i}, version {version}, must be whole"
    );
    version
}

/// Waits until `holds` returns true.
pub(crate) fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Sets values of this version, no faster than the device writes them.
pub(crate) fn fill(
    cache: &Cache,
    client: &mut Client,
    items: std::ops::Range<usize>,
    version: u64,
) {
    for i in items {
        client.set(&key(i), &value(i, version, 1000));
        pace(cache, i);
    }
    settle(cache);
}

/// For every 16th item, waits for the device if it is behind, so that there are write buffers for
/// all items.
pub(crate) fn pace(cache: &Cache, i: usize) {
    if i.is_multiple_of(16) && cache.flash_gauges().unwrap().io_queue > 1 {
        settle(cache);
    }
}

/// Waits until all reads and writes have ended.
pub(crate) fn settle(cache: &Cache) {
    wait_for("all is written", || cache.flash_gauges().unwrap().io_queue == 0);
}
