//! Many threads use a cache at the same time. Values other than numbers contain their key, a
//! version and a checksum, so that the tests detect torn, stale and foreign values.
//!
//! `LARDER_STRESS_THREADS` sets the number of threads, and `LARDER_STRESS_SECS` the duration in
//! seconds.

use super::common::*;
use larder_store::{
    Access, Attributes, Batches, Change, Engine, Expiry, Item, Lease, Lookup, Maintenance, NewCas,
    NewTags, NewValue, Refusal, Seconds, Value, segment,
};
use std::io::Write;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

for_every_engine! {
    one_of_several_concurrent_swaps_wins
    counters_and_kept_items_are_never_lost
}

for_engines!(no_value_is_torn_or_foreign_while_all_is_evicted: moka segment);
for_engines!(no_value_is_torn_or_foreign_while_nothing_is_evicted: dashmap segment);

/// The state that all threads of a test share: the clock, and whether the test is over.
struct Test {
    secs: AtomicU32,
    over: AtomicBool,
    threads: usize,
    /// The number of threads that are still working.
    working: AtomicUsize,
}

impl Test {
    fn new() -> Self {
        let threads = number_from_env("LARDER_STRESS_THREADS", 8).max(1);
        Self {
            secs: AtomicU32::new(START.0),
            over: AtomicBool::new(false),
            threads,
            working: AtomicUsize::new(threads),
        }
    }

    fn now(&self) -> Seconds {
        Seconds(self.secs.load(Ordering::Relaxed))
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Runs `work(thread, engine)` on several threads, while this thread advances the clock and
    /// does maintenance.
    fn run<S: Subject>(&self, cache: &S, work: impl Fn(usize, &mut S::Handle) + Sync) {
        thread::scope(|scope| {
            for i in 0..self.threads {
                let work = &work;
                scope.spawn(move || {
                    // If this thread fails, the other threads end, too.
                    let _end = EndOnDrop(self);
                    work(i, &mut cache.handle());
                });
            }
            self.run_maintenance(cache.handle());
            self.wait_for_threads();
        });
    }

    fn run_maintenance(&self, mut engine: impl Engine) {
        let end =
            Instant::now() + Duration::from_secs(number_from_env("LARDER_STRESS_SECS", 2) as u64);
        while !self.is_over() && Instant::now() < end {
            self.secs.fetch_add(1, Ordering::Relaxed);
            (0..100).for_each(|_| _ = engine.maintain(self.now()));
            thread::sleep(Duration::from_millis(5));
        }
        self.over.store(true, Ordering::Relaxed);
    }

    /// Waits for all threads. Aborts the process after [`PATIENCE`], because a deadlock would make
    /// the test hang.
    #[expect(clippy::explicit_write, reason = "the harness captures the output of `eprintln`")]
    fn wait_for_threads(&self) {
        let end = Instant::now() + PATIENCE;
        while self.working.load(Ordering::Relaxed) > 0 {
            if Instant::now() > end {
                let name = thread::current().name().unwrap_or_default().to_owned();
                let working = self.working.load(Ordering::Relaxed);
                writeln!(std::io::stderr(), "{name}: {working} threads are stuck").unwrap();
                std::process::abort();
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

struct EndOnDrop<'t>(&'t Test);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
        self.0.working.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A time limit: no batch takes this long, however busy the machine.
const PATIENCE: Duration = Duration::from_secs(300);

fn number_from_env(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |value| value.parse().expect("a number"))
}

/// Returns a value: its key, its version, filler that depends on both, and a checksum.
fn value(id: u64, version: u64, len: usize) -> Vec<u8> {
    let mut bytes = [id.to_le_bytes(), version.to_le_bytes()].concat();
    bytes.extend(pattern(id ^ version.rotate_left(32), len));
    bytes.extend(checksum(&bytes).to_le_bytes());
    bytes
}

fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3).rotate_left(5)
    })
}

/// Checks a value of `id`, and returns its version.
#[track_caller]
fn verified(id: u64, bytes: &[u8]) -> u64 {
    let (content, sum) = bytes.split_at(bytes.len().checked_sub(8).expect("a checksum"));
    assert_eq!(checksum(content).to_le_bytes(), sum, "torn: {} B of {id}", bytes.len());
    assert_eq!(content[..8], id.to_le_bytes(), "foreign: not of {id}");
    u64::from_le_bytes(content[8..16].try_into().unwrap())
}

/// A lease that a thread keeps for a while.
struct HeldLease<L> {
    lease: L,
    id: u64,
}

impl<L: Lease> HeldLease<L> {
    fn verify(&self) {
        verified(self.id, &read_lease(&self.lease));
    }
}

// The high bits of an id choose one of these kinds of keys.
/// Keys that all threads use all the time.
const HOT: u64 = 0;
/// Many keys that all threads use.
const WIDE: u64 = 1 << 32;
/// Lists that all threads extend at both ends.
const LISTS: u64 = 2 << 32;
/// Keys that only one thread uses, so that the thread knows their expected state.
const OWN: u64 = 3 << 32;
/// Numbers that all threads raise.
const COUNTERS: u64 = 4 << 32;

const HOT_COUNT: usize = 64;
const LIST_COUNT: usize = 16;
const OWN_COUNT: usize = 500;
const COUNTER_COUNT: usize = 16;

/// A thread that works on a shared cache.
struct Worker<'t, E: Engine> {
    test: &'t Test,
    engine: &'t mut E,
    random: Random,
    now: Seconds,
    thread: u64,
    wide_count: usize,
    /// Whether the cache evicts.
    evicts: bool,
    /// The version of each own key; `None` if the key must not exist.
    own: Vec<Option<u64>>,
    versions: u64,
    held: Option<HeldLease<E::Lease>>,
}

impl<'t, E: Engine> Worker<'t, E> {
    fn new(test: &'t Test, engine: &'t mut E, thread: usize, evicts: bool) -> Self {
        let (own, wide_count) = (vec![None; OWN_COUNT], if evicts { 200_000 } else { 20_000 });
        let (random, now) = (Random::new(thread as u64 + 1), test.now());
        let thread = thread as u64;
        Self {
            test,
            engine,
            random,
            now,
            thread,
            wide_count,
            evicts,
            own,
            versions: thread << 48,
            held: None,
        }
    }

    /// Repeats `step`, in batches, until the test ends.
    fn run(&mut self, mut step: impl FnMut(&mut Self)) {
        while !self.test.is_over() {
            self.now = self.test.now();
            self.engine.begin_batch(self.now);
            (0..self.random.below(32)).for_each(|_| step(self));
            self.engine.end_batch();
        }
    }

    fn mixed_step(&mut self) {
        let hot = HOT + self.random.below(HOT_COUNT) as u64;
        let wide = WIDE + self.random.below(self.wide_count) as u64;
        match self.random.below(20) {
            0..=3 => self.get(hot),
            4..=5 => self.get(wide),
            6..=7 => self.store_somehow(hot),
            8..=10 => self.store_somehow(wide),
            11 => self.amend(hot),
            12 => remove(self.engine, &hot.to_le_bytes()),
            13 => self.swap(hot),
            14 => self.extend_list(),
            15 => self.hold(hot),
            _ => self.own_step(),
        }
    }

    fn check_expiry(&self, expiry: Expiry) {
        assert!(!expiry.is_past(self.now), "the item has expired: {expiry:?} at {:?}", self.now);
    }

    fn get(&mut self, id: u64) {
        if let Lookup::Hit(seen) = see(self.engine, &id.to_le_bytes(), Access::Tracked) {
            verified(id, &seen.value);
            self.check_expiry(seen.attributes.expiry);
        }
    }

    /// Returns the next value of a key. Most values are small. A few values of hot keys are large.
    fn next_value(&mut self, id: u64) -> Vec<u8> {
        self.versions += 1;
        let len = match self.random.below(400) {
            0 if id < WIDE => 70_000 + self.random.below(100_000),
            1..20 => self.random.below(4_000),
            _ => self.random.below(300),
        };
        value(id, self.versions, len)
    }

    fn attributes(&mut self) -> Attributes {
        let client_flags = if self.random.below(4) == 0 { 77 } else { 0 };
        let expiry = match self.random.below(4) {
            0 => Expiry::At(Seconds(self.now.0 + 1 + self.random.next_u32() % 30)),
            _ => Expiry::Never,
        };
        Attributes { client_flags, expiry, ..Attributes::default() }
    }

    /// Repeats `attempt` until it finds memory. Another thread that is preempted within a batch or
    /// holds a lease keeps memory from being reused for a while. This thread itself has no open
    /// batch and no lease while it waits.
    fn until_there_is_room<T>(
        &mut self,
        mut attempt: impl FnMut(&mut Self) -> Result<T, Refusal>,
    ) -> T {
        let begun = Instant::now();
        loop {
            match attempt(self) {
                Ok(done) => return done,
                Err(Refusal::OutOfMemory) if self.evicts && begun.elapsed() < PATIENCE => (),
                Err(refusal) => panic!("{refusal:?} after {:?}", begun.elapsed()),
            }
            self.held.take().into_iter().for_each(|held| held.verify());
            self.engine.end_batch();
            thread::sleep(Duration::from_millis(1));
            self.now = self.test.now();
            self.engine.begin_batch(self.now);
        }
    }

    fn store_somehow(&mut self, id: u64) {
        let value = self.next_value(id);
        self.until_there_is_room(|worker| {
            let attributes = worker.attributes();
            if value.len() >= worker.engine.upload_len_min() {
                worker.store_upload(id, &value, attributes)
            } else {
                set_with(worker.engine, &id.to_le_bytes(), &value, attributes).map(drop)
            }
        });
    }

    fn store_upload(
        &mut self,
        id: u64,
        value: &[u8],
        attributes: Attributes,
    ) -> Result<(), Refusal> {
        let mut upload = self.engine.upload(value.len())?;
        for piece in value.chunks(16_384) {
            self.engine.extend(&mut upload, piece)?;
        }
        let key = id.to_le_bytes();
        let key = hashed(self.engine, &key);
        let put = || Change::Put {
            attributes,
            cas: NewCas::Fresh,
            value: NewValue::Uploaded,
            fetched: false,
            tags: NewTags::None,
        };
        self.engine.update(key, &mut Some(upload), |_| (put(), ())).map(drop)
    }

    fn amend(&mut self, id: u64) {
        let attributes = self.attributes();
        amend(self.engine, &id.to_le_bytes(), attributes, NewCas::Fresh);
    }

    /// Reads an item, and replaces it only if its CAS is unchanged. In this case, the value must be
    /// unchanged, too.
    fn swap(&mut self, id: u64) {
        let Lookup::Hit(before) = see(self.engine, &id.to_le_bytes(), Access::Tracked) else {
            return;
        };
        let value = self.next_value(id);
        let swapped = self.until_there_is_room(|worker| {
            let attributes = worker.attributes();
            let key = id.to_le_bytes();
            let key = hashed(worker.engine, &key);
            worker.engine.update(key, &mut None, |found| match found {
                Lookup::Hit(item) if item.cas == before.cas => {
                    let bytes = copied(item);
                    assert!(bytes == before.value, "{id} changed but not its CAS");
                    let (cas, value) = (NewCas::Fresh, NewValue::Bytes(&value));
                    let tags = NewTags::None;
                    (Change::Put { attributes, cas, value, fetched: false, tags }, true)
                }
                _ => (Change::Keep, false),
            })
        });
        assert!(!swapped.result || swapped.cas > before.cas);
    }

    /// Appends or prepends a link to a list, or replaces a list of 20,000 bytes or more with the
    /// link. A link has 24 bytes: the id of the list, a version and a checksum.
    fn extend_list(&mut self) {
        let id = LISTS + self.random.below(LIST_COUNT) as u64;
        self.versions += 1;
        let link = value(id, self.versions, 0);
        let at_end = self.random.below(2) == 0;
        let key = id.to_le_bytes();
        self.until_there_is_room(|worker| {
            let key = hashed(worker.engine, &key);
            worker.engine.update(key, &mut None, |found| {
                let list = match found {
                    Lookup::Hit(item) => copied(item),
                    _ => Vec::new(),
                };
                assert!(list.len().is_multiple_of(link.len()), "a link is torn: {} B", list.len());
                list.chunks(link.len()).for_each(|link| _ = verified(id, link));
                let value = match list.len() {
                    20_000.. => NewValue::Bytes(&link),
                    _ if at_end => NewValue::Append(&link),
                    _ => NewValue::Prepend(&link),
                };
                let (attributes, cas) = (Attributes::default(), NewCas::Fresh);
                (Change::Put { attributes, cas, value, fetched: false, tags: NewTags::None }, ())
            })
        });
    }

    fn hold(&mut self, id: u64) {
        if let Some(held) = self.held.take() {
            held.verify();
        }
        let key = id.to_le_bytes();
        let key = hashed(self.engine, &key);
        let take = |item: &Item<'_, E::Lease>| match &item.value {
            Value::Large(lease) => lease.may_be_kept().then(|| lease.clone()),
            Value::Whole(_) => None,
        };
        if let Lookup::Hit(Some(lease)) = self.engine.get(key, Access::Untracked, take) {
            self.held = Some(HeldLease { lease, id });
        }
    }

    /// Checks keys that no other thread writes: a removed item stays removed, a replaced item never
    /// returns, and no item is missing unless it was evicted.
    fn own_step(&mut self) {
        let index = self.random.below(OWN_COUNT);
        let id = OWN + self.thread * OWN_COUNT as u64 + index as u64;
        let key = id.to_le_bytes();
        let expected = self.own[index];
        match see(self.engine, &key, Access::Tracked) {
            Lookup::Hit(seen) => {
                assert_eq!(Some(verified(id, &seen.value)), expected, "own key {id}");
            }
            _ => assert!(self.evicts || expected.is_none(), "own key {id} is missing"),
        }
        if self.random.below(3) == 0 {
            remove(self.engine, &key);
            self.own[index] = None;
        } else {
            let value = self.next_value(id);
            self.until_there_is_room(|worker| set(worker.engine, &key, &value).map(drop));
            self.own[index] = Some(self.versions);
        }
    }

    /// Raises a number by one, or stores 1 if the counter does not exist. Returns the counter.
    fn count(&mut self) -> usize {
        let counter = self.random.below(COUNTER_COUNT);
        let key = (COUNTERS + counter as u64).to_le_bytes();
        let key = hashed(self.engine, &key);
        let counted = self.engine.update(key, &mut None, |found| {
            let number = match found {
                Lookup::Hit(item) => parsed(&copied(item)) + 1,
                _ => 1,
            };
            let (attributes, cas, value) = (Attributes::default(), NewCas::Fresh, numeric(number));
            (Change::Put { attributes, cas, value, fetched: false, tags: NewTags::None }, ())
        });
        assert!(counted.is_ok(), "{counted:?}");
        counter
    }
}

fn numeric(number: u64) -> NewValue<'static> {
    let text = number.to_string();
    let mut digits = [0; 20];
    digits[..text.len()].copy_from_slice(text.as_bytes());
    NewValue::Number { digits, len: u8::try_from(text.len()).unwrap(), width: text.len() }
}

fn parsed(bytes: &[u8]) -> u64 {
    str::from_utf8(bytes).ok().and_then(|text| text.trim_end().parse().ok()).expect("a number")
}

fn no_value_is_torn_or_foreign_while_all_is_evicted<S: Subject>() {
    let test = Test::new();
    let setup = Setup { limit_bytes: 16 << 20, threads: test.threads + 1, ..Setup::default() };
    let cache = S::new(&setup);
    fill(&mut cache.handle(), setup.limit_bytes);
    test.run(&cache, |thread, engine| {
        Worker::new(&test, engine, thread, true).run(Worker::mixed_step);
    });
    let gauges = cache.handle().gauges();
    assert!(gauges.evictions > 0, "the test has evicted items: {gauges:?}");
    tidy(&mut cache.handle(), test.now());
    let used = cache.handle().gauges().used_bytes;

    // An engine may count freed memory late, so a little more than the limit is allowed.
    assert!(used <= setup.limit_bytes as u64 * 33 / 32, "{used} B in {} B", setup.limit_bytes);
}

/// One of the threads raises and lowers the limit while the other threads work.
#[test]
fn no_value_is_torn_or_foreign_while_the_limit_changes() {
    const MIB: usize = 1 << 20;
    let test = Test::new();
    let setup = Setup { limit_bytes: 16 * MIB, threads: test.threads + 1, ..Setup::default() };
    let cache = segment::Cache::growable(setup.segments(), 64 * MIB).unwrap();
    fill(&mut cache.handle(), setup.limit_bytes);
    test.run(&cache, |thread, engine| {
        if thread > 0 {
            return Worker::new(&test, engine, thread, true).run(Worker::mixed_step);
        }
        for mib in [64, 24, 16, 40, 12].into_iter().cycle().take_while(|_| !test.is_over()) {
            cache.set_limit(mib * MIB).unwrap();
            thread::sleep(Duration::from_millis(50));
        }
    });
    cache.set_limit(16 * MIB).unwrap();
    let mut engine = cache.handle();
    (0..10_000).for_each(|_| _ = engine.maintain(test.now()));
    let used = cache.gauges().used_bytes;
    assert!(used <= 16 * MIB as u64, "{used} B");
}

/// Stores more items than fit.
fn fill(engine: &mut impl Engine, limit_bytes: usize) {
    for i in 0..limit_bytes as u64 / 800 {
        let id = WIDE + i;
        set(engine, &id.to_le_bytes(), &value(id, 0, 1000)).unwrap();
    }
}

fn no_value_is_torn_or_foreign_while_nothing_is_evicted<S: Subject>() {
    let test = Test::new();
    let threads = test.threads + 1;
    let setup = Setup { limit_bytes: 256 << 20, evict: false, threads, ..Setup::default() };
    let cache = S::new(&setup);
    test.run(&cache, |thread, engine| {
        Worker::new(&test, engine, thread, false).run(Worker::mixed_step);
    });
    assert_eq!(cache.handle().gauges().evictions, 0);
}

/// The threads raise counters and also store, change and remove items. The cache has room for all
/// items.
fn counters_and_kept_items_are_never_lost<S: Subject>() {
    let test = Test::new();
    let setup = Setup { limit_bytes: 256 << 20, threads: test.threads + 1, ..Setup::default() };
    let cache = S::new(&setup);
    let counts = [const { AtomicU64::new(0) }; COUNTER_COUNT];
    test.run(&cache, |thread, engine| {
        Worker::new(&test, engine, thread, false).run(|worker| {
            let counter = worker.count();
            counts[counter].fetch_add(1, Ordering::Relaxed);
            worker.mixed_step();
        });
    });
    let mut engine = cache.handle();
    engine.begin_batch(test.now());
    assert_eq!(engine.gauges().evictions, 0, "the cache had room for all items");
    for (i, count) in counts.iter().enumerate() {
        let kept = get(&mut engine, &(COUNTERS + i as u64).to_le_bytes()).map(|v| parsed(&v));
        assert_eq!(kept.unwrap_or(0), count.load(Ordering::Relaxed), "counter {i}");
    }
}

/// In each round, all threads read the same CAS, and then all of them try to replace the item that
/// has this CAS.
fn one_of_several_concurrent_swaps_wins<S: Subject>() {
    const KEYS: usize = 16;
    let test = Test::new();
    let setup = Setup { threads: test.threads + 1, ..Setup::default() };
    let cache = S::new(&setup);
    let wins = [const { AtomicU32::new(0) }; KEYS];
    let (barrier, stop) = (Barrier::new(test.threads), AtomicBool::new(false));
    for id in 0..KEYS as u64 {
        set(&mut cache.handle(), &id.to_le_bytes(), b"0").unwrap();
    }
    let round = |worker: &mut Worker<'_, S::Handle>, number: u64| {
        let seen: Vec<u64> = (0..KEYS as u64).map(|id| cas_of(worker.engine, id)).collect();
        barrier.wait();
        for (id, &seen) in (0..).zip(&seen) {
            if swap_if(worker.engine, id, seen, number) {
                wins[usize::try_from(id).unwrap()].fetch_add(1, Ordering::Relaxed);
            }
        }
        if barrier.wait().is_leader() {
            // A wrong count is reported only after all threads have left the loop. A panic here
            // would leave the other threads at the barrier.
            let wrong = wins.iter().any(|wins| u64::from(wins.load(Ordering::Relaxed)) != number);
            stop.store(wrong || test.is_over(), Ordering::Relaxed);
        }
        barrier.wait();
    };
    test.run(&cache, |thread, engine| {
        let mut worker = Worker::new(&test, engine, thread, false);
        let mut number = 0;
        while !stop.load(Ordering::Relaxed) {
            number += 1;
            round(&mut worker, number);
        }
        let number = u32::try_from(number).unwrap();
        for wins in &wins {
            assert_eq!(wins.load(Ordering::Relaxed), number, "winners in {number} rounds");
        }
    });
}

fn cas_of(engine: &mut impl Engine, id: u64) -> u64 {
    match see(engine, &id.to_le_bytes(), Access::Untracked) {
        Lookup::Hit(seen) => seen.cas,
        gone => panic!("no thread removes {id}: {gone:?}"),
    }
}

fn swap_if(engine: &mut impl Engine, id: u64, seen: u64, number: u64) -> bool {
    let key = id.to_le_bytes();
    let key = hashed(engine, &key);
    let swapped = engine.update(key, &mut None, |found| {
        let (attributes, cas, value) = (Attributes::default(), NewCas::Fresh, numeric(number));
        match found {
            Lookup::Hit(item) if item.cas == seen => {
                (Change::Put { attributes, cas, value, fetched: false, tags: NewTags::None }, true)
            }
            _ => (Change::Keep, false),
        }
    });
    swapped.expect("the cache has room").result
}
