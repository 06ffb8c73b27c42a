//! Compares the throughput of two threads with the throughput of one thread, and measures whether
//! many threads on few cores block each other. It uses the segment engine alone, without sessions
//! or sockets.
//!
//! Usage: `scaling SET_PERCENT EXPONENT ROUNDS`. There are a million keys of 20 bytes. Their
//! distribution is Zipf's with this exponent, or uniform if it is 0. Values have 100 bytes, a batch
//! has 16 operations, and the cache of 512 MiB is full. Each round measures four cases: one thread;
//! two threads that share a cache; two threads with a cache each, which shows the machine's
//! maximum; and sixteen threads that share a cache. The program prints the rates of a round in a
//! line, in millions of operations a second.
#![allow(clippy::disallowed_methods, reason = "this program measures time")]
#![expect(clippy::print_stdout, reason = "this is a command-line program")]

use larder_store::{
    Access, Attributes, Batches, Change, Engine, HashedKey, Lookups, NewCas, NewTags, NewValue,
    Seconds, SizeClasses, segment,
};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const KEYS: u32 = 1_000_000;
const BATCH: usize = 16;
/// The duration of each measurement in a round.
const MEASURED: Duration = Duration::from_millis(400);
const VALUE: [u8; 100] = [b'v'; 100];
/// The number of sets before the measurements: more than fit in memory.
const WARM_UP: usize = 5 * KEYS as usize;
/// The number of random operations that are generated before the measurements. All threads repeat
/// the same operations, each from another position, so that more threads do not read more memory.
const DRAWN: usize = 1 << 19;

#[derive(Clone, Copy)]
struct Operation {
    key: [u8; 20],
    sets: bool,
}

fn key(number: u32) -> [u8; 20] {
    let mut key = *b"key-0000000000000000";
    let digits = format!("{number:016}");
    key[4..].copy_from_slice(digits.as_bytes());
    key
}

fn draw(rng: &mut impl Rng, set_percent: u32, exponent: f64) -> Vec<Operation> {
    let zipf = Zipf::new(f64::from(KEYS), exponent).expect("the exponent is not negative");
    #[expect(clippy::cast_possible_truncation, reason = "a whole number up to KEYS")]
    let mut one = || Operation {
        key: key(zipf.sample(rng) as u32),
        sets: rng.random_range(0..100) < set_percent,
    };
    std::iter::repeat_with(&mut one).take(DRAWN).collect()
}

fn set(engine: &mut impl Engine, key: HashedKey<'_>) {
    let put = || Change::Put {
        attributes: Attributes::default(),
        cas: NewCas::Fresh,
        value: NewValue::Bytes(&VALUE),
        fetched: false,
        tags: NewTags::None,
    };
    engine.update(key, &mut None, |_| (put(), ())).expect("room");
}

fn batch(engine: &mut impl Engine, operations: &[Operation]) -> usize {
    engine.begin_batch(Seconds(1));
    let mut hashes = [0; BATCH];
    for (hash, operation) in hashes.iter_mut().zip(operations) {
        *hash = engine.hash(&operation.key);
        engine.announce(*hash);
    }
    engine.prefetch_announced();
    let mut found = 0;
    for (hash, operation) in hashes.iter().zip(operations) {
        let key = HashedKey { bytes: &operation.key, hash: *hash };
        if operation.sets {
            set(engine, key);
        } else {
            engine.get(key, Access::Tracked, |item| found += item.value.len());
        }
    }
    engine.end_batch();
    found
}

fn full_cache() -> segment::Cache {
    let classes = SizeClasses::new(vec![1 << 20], 56);
    let cache = segment::Cache::new(segment::Config {
        limit_bytes: 512 << 20,
        cas: true,
        classes,
        seed: 1,
        evict: true,
        item_size_max: 1 << 20,
        threads: 16,
        size_exponent: larder_store::eviction::SIZE_EXPONENT,
        flash: None,
    })
    .expect("memory");
    let mut engine = cache.handle();
    engine.begin_batch(Seconds(1));
    // Make enough sets to use all memory before the measurement, because the system takes time for
    // the first use of each page.
    for number in (0..KEYS).cycle().take(WARM_UP) {
        let key = key(number);
        let hash = engine.hash(&key);
        set(&mut engine, HashedKey { bytes: &key, hash });
    }
    engine.end_batch();
    drop(engine);
    cache
}

/// Returns the total number of operations per second, with one thread for each of `caches`.
fn measure(caches: &[&segment::Cache], operations: &[Operation]) -> f64 {
    let (stop, ready) = (AtomicBool::new(false), Barrier::new(caches.len() + 1));
    let work = |number: usize| {
        let mut engine = caches[number].handle();
        let batches = operations.as_chunks::<BATCH>().0;
        let first = batches.len() * number / caches.len();
        ready.wait();
        let (mut done, begun) = (0, Instant::now());
        for operations in batches.iter().cycle().skip(first) {
            std::hint::black_box(batch(&mut engine, operations));
            done += BATCH;
            if stop.load(Ordering::Relaxed) {
                break;
            }
        }
        done as f64 / begun.elapsed().as_secs_f64()
    };
    std::thread::scope(|scope| {
        let work = &work;
        let workers: Vec<_> =
            (0..caches.len()).map(|number| scope.spawn(move || work(number))).collect();
        ready.wait();
        std::thread::sleep(MEASURED);
        stop.store(true, Ordering::Relaxed);
        workers.into_iter().map(|worker| worker.join().expect("no panic")).sum()
    })
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [set_percent, exponent, rounds] = arguments.as_slice() else {
        panic!("usage: scaling SET_PERCENT EXPONENT ROUNDS");
    };
    let set_percent = set_percent.parse().expect("a whole number");
    let exponent = exponent.parse().expect("a number");
    let rounds: u32 = rounds.parse().expect("a whole number");
    let (cache, other) = (full_cache(), full_cache());
    let operations = draw(&mut SmallRng::seed_from_u64(1), set_percent, exponent);
    for _ in 0..rounds {
        let [one, two, apart, sixteen] =
            [&[&cache] as &[_], &[&cache; 2], &[&cache, &other], &[&cache; 16]]
                .map(|caches| measure(caches, &operations) / 1e6);
        println!("{one:.3} {two:.3} {apart:.3} {sixteen:.3}");
    }
}
