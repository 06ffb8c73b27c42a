//! How much more two threads do than one, and whether many on few cores hold each other up:
//! operations a second of the segment engine by itself, without sessions or sockets.
//!
//! Usage: `scaling THREADS SET_PERCENT SECONDS EXPONENT`. A million keys of 20 bytes by Zipf with this
//! exponent, 0 for all alike; values of 100 bytes, 16 operations a batch. Prints millions of
//! operations a second.
#![allow(clippy::disallowed_methods, reason = "it measures")]
#![expect(clippy::print_stdout, reason = "it is a command")]

use larder_store::{
    Access, Attributes, Change, Engine, HashedKey, NewCas, NewValue, Seconds, SizeClasses, segment,
};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const KEYS: u32 = 1_000_000;
const BATCH: usize = 16;
const VALUE: [u8; 100] = [b'v'; 100];
/// Sets before it begins: more than fit in memory.
const WARM_UP: usize = 5 * KEYS as usize;
/// Operations that are drawn beforehand. All threads go round the same ones, each from a place of its
/// own, so that more threads do not mean more memory to read.
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
    let zipf = Zipf::new(f64::from(KEYS), exponent).expect("a distribution");
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

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [threads, set_percent, secs, exponent] = arguments.as_slice() else {
        panic!("usage: scaling THREADS SET_PERCENT SECONDS EXPONENT");
    };
    let [threads, set_percent, secs] =
        [threads, set_percent, secs].map(|text| text.parse::<u32>().expect("a number"));
    let exponent = exponent.parse().expect("a number");
    let classes = SizeClasses::new(vec![1 << 20], 56);
    let cache = segment::Cache::new(segment::Config {
        limit_bytes: 512 << 20,
        cas: true,
        classes,
        seed: 1,
        evict: true,
        item_size_max: 1 << 20,
        threads: threads as usize,
        size_exponent: larder_store::eviction::SIZE_EXPONENT,
    })
    .expect("memory");
    let mut engine = cache.handle();
    engine.begin_batch(Seconds(1));
    // So often that all memory was in use before: its first use is the system's work.
    for number in (0..KEYS).cycle().take(WARM_UP) {
        let key = key(number);
        let hash = engine.hash(&key);
        set(&mut engine, HashedKey { bytes: &key, hash });
    }
    engine.end_batch();
    let operations = draw(&mut SmallRng::seed_from_u64(1), set_percent, exponent);
    let (stop, ready) = (AtomicBool::new(false), Barrier::new(threads as usize + 1));
    let work = |number: u32| {
        let mut engine = cache.handle();
        let batches = operations.as_chunks::<BATCH>().0;
        let first = batches.len() * number as usize / threads as usize;
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
    let total: f64 = std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..threads).map(|number| scope.spawn(move || work(number))).collect();
        ready.wait();
        std::thread::sleep(Duration::from_secs(secs.into()));
        stop.store(true, Ordering::Relaxed);
        workers.into_iter().map(|worker| worker.join().expect("no panic")).sum()
    });
    println!("{:.3}", total / 1e6);
}
