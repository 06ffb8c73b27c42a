//! Compares the segment engine's miss-ratio curve with simulated LRU caches of several sizes.
#![expect(clippy::cast_possible_truncation, reason = "keys and sizes are far below their types")]

use super::common::{START, Setup, get, remove, set};
use larder_store::{Batches, Updates, segment};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::Zipf;

const LIMIT: usize = 16 << 20;
/// The share of the memory limit that the engine's estimate assumes for live items.
const LIVE: f64 = 0.95;
/// The memory that a typical item needs in addition to its key and value, in bytes. It includes the
/// CAS and the index word, like `Config::overhead` with a CAS.
const ITEM: usize = 31;
const KEYS: u32 = 300_000;
/// All keys of the load and the scans are below this number.
const KEYS_ALL: usize = 2 * KEYS as usize + 1;
const READS: usize = 1_000_000;
const ERROR_MAX: f64 = 0.03;

/// An LRU cache: a ring of keys in the order in which they were used.
struct Lru {
    bytes_free: i64,
    /// The neighbours of each key: the key that was last used right after it, and the key that was
    /// last used right before it. A key that is not stored is its own neighbour.
    ring: Vec<[usize; 2]>,
    lens: Vec<i64>,
    hits: u32,
}

const NEWER: usize = 0;
const OLDER: usize = 1;
/// The end of the ring, between the newest and the oldest key.
const END: usize = KEYS_ALL;

impl Lru {
    fn new(factor: f64) -> Self {
        let bytes_free = (LIMIT as f64 * LIVE * factor) as i64;
        let ring = (0..=END).map(|key| [key, key]).collect();
        Self { bytes_free, ring, lens: vec![0; END], hits: 0 }
    }

    fn remove(&mut self, key: usize) -> bool {
        let [newer, older] = std::mem::replace(&mut self.ring[key], [key, key]);
        (self.ring[newer][OLDER], self.ring[older][NEWER]) = (older, newer);
        self.bytes_free += std::mem::take(&mut self.lens[key]);
        newer != key
    }

    /// Looks a key up, and stores it on a miss.
    fn read(&mut self, key: u32, len: i64) {
        let key = key as usize;
        self.hits += u32::from(self.remove(key));
        let newest = self.ring[END][OLDER];
        self.ring[key] = [END, newest];
        (self.ring[END][OLDER], self.ring[newest][NEWER]) = (key, key);
        self.lens[key] = len;
        self.bytes_free -= len;
        while self.bytes_free < 0 {
            self.remove(self.ring[END][NEWER]);
        }
    }
}

/// Returns the length of a key's value. The length depends only on the key.
fn value_len(key: u32) -> usize {
    20 + key.wrapping_mul(0x9e37_79b9) as usize % 180
}

/// Reads the keys through a cache, stores the keys that miss, and compares the cache's miss-ratio
/// curve with simulated LRU caches.
fn check(name: &str, keys: impl Iterator<Item = u32>) {
    let cache = segment::Cache::new(Setup { limit_bytes: LIMIT, ..Setup::default() }.segments());
    let cache = cache.unwrap();
    let mut engine = cache.handle();
    let points = [0.25, 0.5, 1.0, 2.0, 4.0];
    let mut replays = points.map(Lru::new);
    let half = READS / 2;
    for (i, key) in keys.take(READS).enumerate() {
        let (name, len) = (key.to_le_bytes(), value_len(key));
        engine.begin_batch(START);
        if get(&mut engine, &name).is_none() {
            set(&mut engine, &name, &[7; 200][..len]).unwrap();
        }
        engine.end_batch();
        replays.iter_mut().for_each(|lru| lru.read(key, (ITEM + name.len() + len) as i64));
        if i == half {
            // The caches are warm now, so count only the later reads.
            cache.reset_counters();
            replays.iter_mut().for_each(|lru| lru.hits = 0);
        }
    }
    let curve = cache.miss_ratio_curve();
    let replayed = replays.map(|lru| f64::from(lru.hits) / (READS - half) as f64);
    let estimated = curve.hit_ratios.iter();
    let errors: Vec<f64> =
        estimated.zip(replayed).map(|(&(_, ratio), hits)| ratio - hits).collect();
    assert_eq!(curve.hit_ratios.iter().map(|point| point.0).collect::<Vec<_>>(), points);
    assert!(
        errors.iter().all(|error| error.abs() <= ERROR_MAX),
        "{name}: errors {errors:.3?}, replayed {replayed:.3?}, {curve:?}"
    );
}

fn zipf(exponent: f64) -> impl Iterator<Item = u32> {
    let zipf = Zipf::new(f64::from(KEYS), exponent).unwrap();
    SmallRng::seed_from_u64(1).sample_iter(zipf).map(|key| key as u32)
}

#[test]
#[ignore = "long tier: a million reads"]
fn zipf_0_8() {
    check("0.8", zipf(0.8));
}

#[test]
fn zipf_1_0() {
    check("1.0", zipf(1.0));
}

#[test]
#[ignore = "long tier: a million reads"]
fn zipf_1_2() {
    check("1.2", zipf(1.2));
}

/// In this load, one read in five belongs to a long scan.
#[test]
fn zipf_and_scans() {
    let mut draw = SmallRng::seed_from_u64(2);
    let mut scanned = KEYS;
    check(
        "scan",
        zipf(1.0).map(move |key| {
            if !draw.random_ratio(1, 5) {
                return key;
            }
            scanned = if scanned < KEYS * 2 { scanned + 1 } else { KEYS };
            scanned
        }),
    );
}

#[test]
fn removed_items_count_as_misses_at_any_memory_size() {
    let cache = segment::Cache::new(Setup::default().segments()).unwrap();
    let mut engine = cache.handle();
    let lap = |engine: &mut segment::Handle, change: fn(&mut segment::Handle, &[u8])| {
        for key in 0..50_000_u32 {
            engine.begin_batch(START);
            let _ = get(engine, &key.to_le_bytes());
            change(engine, &key.to_le_bytes());
            engine.end_batch();
        }
        let curve = cache.miss_ratio_curve();
        cache.reset_counters();
        curve.hit_ratios[4].1
    };
    let store: fn(&mut segment::Handle, &[u8]) = |engine, key| {
        set(engine, key, b"value").unwrap();
    };
    assert!(lap(&mut engine, store) < 0.1, "no item exists yet");
    assert!(lap(&mut engine, store) > 0.9, "all items exist");
    assert!(lap(&mut engine, remove) > 0.9);
    assert!(lap(&mut engine, store) < 0.1, "all items were removed");
    lap(&mut engine, store);
    engine.flush(None);
    assert!(lap(&mut engine, store) < 0.1, "all items were flushed");
}
