//! All operations at the same time, with many threads, little memory, and values that can be
//! checked.
//!
//! A value other than a counter contains its key, a version, its length and a checksum. Versions of
//! a shared key only rise. After a thread has stored a version, no read that starts later may
//! return an older version. All other operations (flushes, removals, evictions, changes of the
//! limit) can only make items disappear.
//!
//! `LARDER_STRESS_SECS` sets the total time.

use super::common::*;
use larder_store::segment::{Cache, ChainLease, Config, Handle, Upload};
use larder_store::{
    Access, Attributes, Batches, Change, Expiry, Item, Lease, Lookup, Lookups, Maintenance, NewCas,
    NewValue, Refusal, Seconds, Updates, Uploads, Value, WalkState, Walks,
};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

const THREADS: usize = 16;
/// Keys that all threads write and read.
const SHARED: usize = 256;
/// Keys that only fill memory.
const FILLERS: usize = 50_000;
const COUNTERS: usize = 16;

/// The first id of the keys that only fill memory.
const FILLER: u64 = 1 << 32;
/// The first id of the counters.
const COUNTER: u64 = 2 << 32;

/// The parameters of a test.
#[derive(Clone, Copy, Debug)]
struct Scenario {
    limit_bytes: usize,
    evict: bool,
    /// Whether all items are flushed from time to time.
    flushes: bool,
    /// The highest value of the memory limit, which changes during the test; `None` if it does not
    /// change.
    limit_bytes_max: Option<usize>,
}

const SCENARIOS: [Scenario; 6] = {
    const PLAIN: Scenario =
        Scenario { limit_bytes: 16 * MIB, evict: true, flushes: false, limit_bytes_max: None };
    [
        Scenario { limit_bytes: MIB, ..PLAIN },
        Scenario { limit_bytes: 4 * MIB, flushes: true, ..PLAIN },
        Scenario { limit_bytes: 64 * MIB, ..PLAIN },
        Scenario { limit_bytes: 8 * MIB, limit_bytes_max: Some(64 * MIB), ..PLAIN },
        Scenario { limit_bytes: 64 * MIB, evict: false, ..PLAIN },
        Scenario { limit_bytes: 2 * MIB, evict: false, flushes: true, ..PLAIN },
    ]
};

/// The state of a key that all threads write.
#[derive(Default)]
struct Shared {
    /// The next version.
    next: AtomicU64,
    /// The highest version that any thread tried to store, set under the key's lock.
    tried: AtomicU64,
    /// The highest version that was stored successfully.
    stored: AtomicU64,
    /// The minimum version that a read may return if it starts now.
    floor: AtomicU64,
}

impl Shared {
    fn note_stored(&self, version: u64) {
        self.stored.fetch_max(version, Ordering::SeqCst);
        self.floor.fetch_max(version, Ordering::SeqCst);
    }

    /// Records that a read that starts now must not return this version or an earlier version.
    fn note_gone(&self, version: u64) {
        self.floor.fetch_max(version + 1, Ordering::SeqCst);
    }
}

struct Test {
    scenario: Scenario,
    cache: Cache,
    secs: AtomicU32,
    over: AtomicBool,
    working: AtomicUsize,
    shared: Vec<Shared>,
    /// The number of times that each counter was raised successfully.
    counted: [AtomicU64; COUNTERS],
    stored: AtomicU64,
    refused: AtomicU64,
}

impl Test {
    fn new(scenario: Scenario) -> Self {
        let Scenario { limit_bytes, evict, limit_bytes_max, .. } = scenario;
        let config = Config { evict, threads: THREADS + 1, ..config(limit_bytes) };
        let shared = (0..SHARED).map(|_| Shared { next: AtomicU64::new(1), ..Shared::default() });
        Self {
            scenario,
            cache: Cache::growable(config, limit_bytes_max.unwrap_or(0)).unwrap(),
            secs: AtomicU32::new(START.0),
            over: AtomicBool::new(false),
            working: AtomicUsize::new(THREADS),
            shared: shared.collect(),
            counted: [const { AtomicU64::new(0) }; COUNTERS],
            stored: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    fn now(&self) -> Seconds {
        Seconds(self.secs.load(Ordering::SeqCst))
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn run(&self, time: Duration) {
        thread::scope(|scope| {
            for thread in 0..THREADS as u64 {
                scope.spawn(move || {
                    let _end = EndOnDrop(self);
                    Worker::new(self, thread).run();
                });
            }
            self.run_maintenance(time);
            self.wait_for_threads();
        });
    }

    fn run_maintenance(&self, time: Duration) {
        let (end, mut random) = (Instant::now() + time, Random::new(99));
        let mut engine = self.cache.handle();
        for round in 1_u32.. {
            // On a busy machine the other threads may start late, so the test lasts until they have
            // stored something.
            let has_begun = self.stored.load(Ordering::Relaxed) > 0;
            let is_late = Instant::now() >= end + PATIENCE;
            if self.is_over() || Instant::now() >= end && has_begun || is_late {
                break;
            }
            if round % 20 == 0 {
                self.secs.fetch_add(1, Ordering::SeqCst);
            }
            (0..100).for_each(|_| _ = engine.maintain(self.now()));
            if let Some(max) = self.scenario.limit_bytes_max {
                let mib = 2 + random.below(max / MIB - 1);
                // A low limit may be refused while the index is large.
                let _ = self.cache.set_limit(mib * MIB);
            }
            if self.scenario.flushes && round % 3 == 0 {
                self.flush(&mut engine);
            }
            thread::sleep(Duration::from_millis(2));
        }
        self.over.store(true, Ordering::Relaxed);
    }

    /// Flushes, and records that no read may return a version that was stored before the flush.
    fn flush(&self, engine: &mut Handle) {
        let stored: Vec<u64> =
            self.shared.iter().map(|key| key.stored.load(Ordering::SeqCst)).collect();
        engine.flush(None);
        self.shared.iter().zip(stored).for_each(|(key, stored)| key.note_gone(stored));
    }

    /// Waits for all threads. Aborts the process after [`PATIENCE`], because a deadlock would make
    /// the test hang.
    #[expect(clippy::explicit_write, reason = "the harness captures the output of `eprintln`")]
    fn wait_for_threads(&self) {
        let end = Instant::now() + PATIENCE;
        while self.working.load(Ordering::SeqCst) > 0 {
            if Instant::now() > end {
                let working = self.working.load(Ordering::SeqCst);
                let scenario = self.scenario;
                writeln!(std::io::stderr(), "{working} threads are stuck: {scenario:?}").unwrap();
                std::process::abort();
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Checks the final state, after all threads have ended.
    fn check_final_state(&self) {
        let scenario = self.scenario;
        let (stored, refused) =
            (self.stored.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed));
        assert!(stored > 0, "nothing was stored, {refused} times refused: {scenario:?}");
        let mut engine = self.cache.handle();
        tidy(&mut engine, self.now());
        let gauges = self.cache.gauges();
        assert!(gauges.used_bytes <= gauges.limit_bytes, "{gauges:?}");
        engine.begin_batch(self.now());
        let mut shown = 0;
        let mut walk = engine.walk();
        let mut step = || engine.continue_walk(&mut walk, 1000, Waker::noop(), |_, _| shown += 1);
        while step() == WalkState::More {}
        assert!(shown <= gauges.items, "{shown} items, but {} are counted", gauges.items);
        if !scenario.evict {
            assert_eq!(gauges.evictions, 0, "{scenario:?}");
        }
        if !scenario.evict && !scenario.flushes {
            for (i, counted) in (0..).zip(&self.counted) {
                let kept = get(&mut engine, &(COUNTER + i).to_le_bytes()).map(|v| number(&v));
                assert_eq!(kept.unwrap_or(0), counted.load(Ordering::SeqCst), "counter {i}");
            }
        }
    }
}

struct EndOnDrop<'t>(&'t Test);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.over.store(true, Ordering::Relaxed);
        }
        self.0.working.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Returns a value that consists of key, version, length, filler and checksum.
fn value(id: u64, version: u64, filler: usize) -> Vec<u8> {
    let mut bytes = [id, version, filler as u64].map(u64::to_le_bytes).concat();
    bytes.extend(pattern(id ^ version.rotate_left(32), filler));
    bytes.extend(checksum(&bytes).to_le_bytes());
    bytes
}

fn checksum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    words.fold(0xcbf2_9ce4_8422_2325, |sum, word| {
        (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    })
}

/// Checks a value of `id`, and returns its version.
#[track_caller]
fn verified(id: u64, bytes: &[u8]) -> u64 {
    let (content, sum) = bytes.split_at(bytes.len().checked_sub(8).expect("a checksum"));
    assert_eq!(checksum(content).to_le_bytes(), sum, "torn: {} B of {id:#x}", bytes.len());
    let word = |i: usize| u64::from_le_bytes(content[8 * i..][..8].try_into().unwrap());
    assert_eq!(word(0), id, "the value of another key");
    assert_eq!(word(2), content.len() as u64 - 24, "the length of {id:#x}");
    word(1)
}

fn number(bytes: &[u8]) -> u64 {
    str::from_utf8(bytes).ok().and_then(|text| text.parse().ok()).expect("a number")
}

fn number_value(number: u64) -> NewValue<'static> {
    let text = number.to_string();
    let mut digits = [0; 20];
    digits[..text.len()].copy_from_slice(text.as_bytes());
    NewValue::Number { digits, len: u8::try_from(text.len()).unwrap(), width: text.len() }
}

/// A large value under lease, with its key.
struct HeldLease {
    lease: ChainLease,
    id: u64,
}

/// An upload in progress, with the number of bytes that have arrived.
struct PartialUpload {
    upload: Upload,
    id: u64,
    value: Vec<u8>,
    arrived: usize,
}

struct Worker<'t> {
    test: &'t Test,
    engine: Handle,
    random: Random,
    now: Seconds,
    held: Vec<HeldLease>,
    uploading: Option<PartialUpload>,
    /// The CAS and the value of each counter after this thread's last change.
    counters: [(u64, u64); COUNTERS],
}

impl<'t> Worker<'t> {
    fn new(test: &'t Test, thread: u64) -> Self {
        Self {
            test,
            engine: test.cache.handle(),
            random: Random::new(thread + 1),
            now: test.now(),
            held: Vec::new(),
            uploading: None,
            counters: [(0, 0); COUNTERS],
        }
    }

    fn run(&mut self) {
        while !self.test.is_over() {
            self.now = self.test.now();
            self.engine.begin_batch(self.now);
            (0..1 + self.random.below(32)).for_each(|_| self.step());
            self.engine.end_batch();
            if self.random.below(200) == 0 {
                self.engine = self.test.cache.handle();
            }
        }
        self.held.drain(..).for_each(|held| _ = verified(held.id, &read_lease(&held.lease)));
    }

    fn step(&mut self) {
        let shared = self.random.below(SHARED);
        let filler = FILLER + self.random.below(FILLERS) as u64;
        match self.random.below(100) {
            0..30 => self.read(shared),
            30..50 => self.write(shared),
            50..55 => self.remove(shared),
            55..60 => self.swap(shared),
            60..64 => self.amend(shared),
            64..84 => self.fill(filler),
            84..90 => self.count(),
            90..94 => self.hold(filler),
            94..98 => self.upload_a_piece(filler),
            98 => self.walk(),
            _ => _ = self.engine.maintain(self.now),
        }
    }

    /// Counts the result of a write. Returns whether it succeeded.
    fn note<R>(&self, stored: &Result<R, Refusal>) -> bool {
        match stored {
            Ok(_) => self.test.stored.fetch_add(1, Ordering::Relaxed),
            Err(Refusal::OutOfMemory) => self.test.refused.fetch_add(1, Ordering::Relaxed),
            Err(other) => panic!("refused as {other:?}"),
        };
        stored.is_ok()
    }

    #[track_caller]
    fn check_version(id: usize, version: u64, floor: u64) {
        assert!(version >= floor, "key {id}: version {version}, but {floor} was stored before");
    }

    fn read(&mut self, shared: usize) {
        let id = shared as u64;
        let (key, floor) =
            (id.to_le_bytes(), self.test.shared[shared].floor.load(Ordering::SeqCst));
        let see = |item: &Item<'_, ChainLease>| (verified_item(id, item), item.attributes.expiry);
        let key = hashed(&self.engine, &key);
        if let Lookup::Hit((Some(version), expiry)) = self.engine.get(key, Access::Tracked, see) {
            Self::check_version(shared, version, floor);
            assert!(!expiry.is_past(self.now), "{expiry:?} at {:?}", self.now);
        }
    }

    fn filler_len(&mut self) -> usize {
        match self.random.below(50) {
            0 => self.random.below(4000),
            _ => self.random.below(300),
        }
    }

    fn attributes(&mut self) -> Attributes {
        let client_flags = if self.random.below(4) == 0 { 77 } else { 0 };
        let expiry = match self.random.below(4) {
            0 => {
                Expiry::At(Seconds(self.now.0 + 1 + u32::try_from(self.random.below(20)).unwrap()))
            }
            _ => Expiry::Never,
        };
        Attributes { client_flags, expiry, ..Attributes::default() }
    }

    /// Stores the next version, unless another thread has already stored a later version.
    fn write(&mut self, shared: usize) {
        let id = shared as u64;
        let known = &self.test.shared[shared];
        let version = known.next.fetch_add(1, Ordering::SeqCst);
        let value = value(id, version, self.filler_len());
        let (attributes, floor) = (self.attributes(), known.floor.load(Ordering::SeqCst));
        let bytes = id.to_le_bytes();
        let key = hashed(&self.engine, &bytes);
        let written = self.engine.update(key, &mut None, |found| {
            if let Lookup::Hit(item) = found {
                let seen = verified_item(id, item).expect("the value is short");
                Self::check_version(shared, seen, floor);
            }
            if known.tried.fetch_max(version, Ordering::SeqCst) > version {
                return (Change::Keep, false);
            }
            (store(NewValue::Bytes(&value), attributes, NewCas::Fresh), true)
        });
        if self.note(&written) && written.is_ok_and(|written| written.result) {
            known.note_stored(version);
        }
    }

    fn remove(&mut self, shared: usize) {
        let id = shared as u64;
        let bytes = id.to_le_bytes();
        let key = hashed(&self.engine, &bytes);
        let removed = self.engine.update(key, &mut None, |found| match found {
            Lookup::Hit(item) => (Change::Remove, verified_item(id, item)),
            _ => (Change::Remove, None),
        });
        if let Ok(Some(version)) = removed.map(|removed| removed.result) {
            self.test.shared[shared].note_gone(version);
        }
    }

    /// Reads an item, and replaces it only if its CAS is unchanged. In this case, the version must
    /// be unchanged, too.
    fn swap(&mut self, shared: usize) {
        let id = shared as u64;
        let known = &self.test.shared[shared];
        let bytes = id.to_le_bytes();
        let key = hashed(&self.engine, &bytes);
        let see = |item: &Item<'_, ChainLease>| (verified_item(id, item), item.cas);
        let Lookup::Hit((seen, cas)) = self.engine.get(key, Access::Untracked, see) else { return };
        let version = known.next.fetch_add(1, Ordering::SeqCst);
        let value = value(id, version, self.filler_len());
        let swapped = self.engine.update(key, &mut None, |found| match found {
            Lookup::Hit(item) if item.cas == cas => {
                assert_eq!(verified_item(id, item), seen, "the value has changed, but not its CAS");
                if known.tried.fetch_max(version, Ordering::SeqCst) > version {
                    return (Change::Keep, false);
                }
                (store(NewValue::Bytes(&value), Attributes::default(), NewCas::Fresh), true)
            }
            _ => (Change::Keep, false),
        });
        if self.note(&swapped)
            && let Ok(swapped) = swapped
            && swapped.result
        {
            assert!(swapped.cas > cas, "{} after {cas}", swapped.cas);
            known.note_stored(version);
        }
    }

    fn amend(&mut self, shared: usize) {
        let (attributes, id) = (self.attributes(), shared as u64);
        let amend =
            || Change::SetAttributes { attributes, cas: NewCas::Fresh, access: Access::Tracked };
        let amended = change(&mut self.engine, &id.to_le_bytes(), amend);
        self.note(&amended);
    }

    fn fill(&mut self, id: u64) {
        let (value, attributes) = (value(id, 0, self.filler_len()), self.attributes());
        let stored =
            set_with(&mut self.engine, &id.to_le_bytes(), &value, attributes, NewCas::Fresh);
        self.note(&stored);
    }

    /// Raises a number by one. If the CAS has not changed since this thread's last change, the
    /// number must not have changed, either.
    fn count(&mut self) {
        let counter = self.random.below(COUNTERS);
        let (cas, left) = self.counters[counter];
        let bytes = (COUNTER + counter as u64).to_le_bytes();
        let key = hashed(&self.engine, &bytes);
        let counted = self.engine.update(key, &mut None, |found| {
            let before = match found {
                Lookup::Hit(item) => {
                    let before = number(&copied(item));
                    assert!(item.cas != cas || before == left, "{before}, not {left}");
                    before
                }
                _ => 0,
            };
            (store(number_value(before + 1), Attributes::default(), NewCas::Fresh), before + 1)
        });
        if self.note(&counted)
            && let Ok(counted) = counted
        {
            self.test.counted[counter].fetch_add(1, Ordering::SeqCst);
            self.counters[counter] = (counted.cas, counted.result);
        }
    }

    /// Keeps a lease on a large value for a while.
    fn hold(&mut self, id: u64) {
        if self.held.len() == 2 {
            let held = self.held.remove(0);
            verified(held.id, &read_lease(&held.lease));
        }
        // Only these keys can have large values.
        let id = FILLER + id % 64;
        let bytes = id.to_le_bytes();
        let key = hashed(&self.engine, &bytes);
        let take = |item: &Item<'_, ChainLease>| match &item.value {
            Value::Large(lease) => lease.may_be_kept().then(|| lease.clone()),
            Value::Whole(_) => None,
        };
        if let Lookup::Hit(Some(lease)) = self.engine.get(key, Access::Tracked, take) {
            self.held.push(HeldLease { lease, id });
        }
    }

    /// Continues the current upload, or starts one. An upload may outlive its batch and its handle.
    fn upload_a_piece(&mut self, id: u64) {
        let Some(PartialUpload { mut upload, id, value, arrived }) = self.uploading.take() else {
            let len = self.engine.upload_len_min() + self.random.below(40_000);
            let value = value(FILLER + id % 64, 0, len);
            let upload =
                self.engine.upload(value.len()).expect("the value fits into a small cache");
            self.uploading =
                Some(PartialUpload { upload, id: FILLER + id % 64, value, arrived: 0 });
            return;
        };
        let next = value.len().min(arrived + 10_000);
        let extended = self.engine.extend(&mut upload, &value[arrived..next]);
        if !self.note(&extended) || self.random.below(30) == 0 {
            return;
        }
        if next < value.len() {
            self.uploading = Some(PartialUpload { upload, id, value, arrived: next });
            return;
        }
        let bytes = id.to_le_bytes();
        let key = hashed(&self.engine, &bytes);
        let put = || store(NewValue::Uploaded, Attributes::default(), NewCas::Fresh);
        let stored = self.engine.update(key, &mut Some(upload), |_| (put(), ()));
        self.note(&stored);
    }

    fn walk(&mut self) {
        let floors: Vec<u64> =
            self.test.shared.iter().map(|key| key.floor.load(Ordering::SeqCst)).collect();
        let mut walk = self.engine.walk();
        for _ in 0..1 + self.random.below(20) {
            let state = self.engine.continue_walk(&mut walk, 100, Waker::noop(), |key, item| {
                let id = u64::from_le_bytes(key.try_into().expect("a key of this test"));
                if id >= COUNTER {
                    number(&copied(item));
                } else if let Some(version) = verified_item(id, item)
                    && id < FILLER
                {
                    let shared = usize::try_from(id).unwrap();
                    Self::check_version(shared, version, floors[shared]);
                }
            });
            if state == WalkState::End {
                break;
            }
        }
    }
}

/// Checks the value of an item, and returns its version, which is always `Some`.
#[track_caller]
fn verified_item(id: u64, item: &Item<'_, ChainLease>) -> Option<u64> {
    match &item.value {
        Value::Whole(bytes) => Some(verified(id, bytes)),
        Value::Large(lease) => Some(verified(id, &read_lease(lease))),
    }
}

#[test]
fn no_value_is_torn_stale_or_lost_under_concurrent_operations() {
    let secs = std::env::var("LARDER_STRESS_SECS").map_or(3.0, |secs| secs.parse().unwrap());
    for scenario in SCENARIOS {
        let test = Test::new(scenario);
        test.run(Duration::from_secs_f64(secs) / u32::try_from(SCENARIOS.len()).unwrap());
        test.check_final_state();
    }
}
