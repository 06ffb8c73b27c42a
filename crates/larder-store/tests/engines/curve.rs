//! The miss-ratio curve of the segment engine, beside replays through LRU caches of each size.

use crate::common::{START, Setup, get, set};
use larder_store::{Engine, segment};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::Zipf;
use std::collections::{BTreeMap, HashMap};

const LIMIT: usize = 16 << 20;
/// What of the limit the engine says that live items have.
const LIVE: f64 = 0.9;
/// Bytes of an item beside key and value, with its CAS.
const ITEM: usize = 31;
const KEYS: u32 = 400_000;
const READS: usize = 1_500_000;
const ERROR_MAX: f64 = 0.03;

/// A cache that forgets what was not used for longest.
struct Lru {
    bytes_free: i64,
    uses: BTreeMap<u64, u32>,
    items: HashMap<u32, (u64, i64)>,
    clock: u64,
    hits: u32,
}

impl Lru {
    fn new(factor: f64) -> Self {
        let bytes_free = (LIMIT as f64 * LIVE * factor) as i64;
        let (uses, items) = (BTreeMap::new(), HashMap::new());
        Self { bytes_free, uses, items, clock: 0, hits: 0 }
    }

    fn remove(&mut self, key: u32) -> bool {
        let Some((used, len)) = self.items.remove(&key) else { return false };
        self.uses.remove(&used);
        self.bytes_free += len;
        true
    }

    /// Looks a key up, and stores it if it is not there.
    fn read(&mut self, key: u32, len: i64) {
        self.hits += u32::from(self.remove(key));
        self.clock += 1;
        self.uses.insert(self.clock, key);
        self.items.insert(key, (self.clock, len));
        self.bytes_free -= len;
        while self.bytes_free < 0 {
            let oldest = *self.uses.first_key_value().unwrap().1;
            self.remove(oldest);
        }
    }
}

/// Always the same for a key.
fn value_len(key: u32) -> usize {
    20 + key.wrapping_mul(0x9e37_79b9) as usize % 180
}

/// Reads the keys through a cache, stores those that miss, and compares.
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
            // The caches are warm.
            cache.reset_counters();
            replays.iter_mut().for_each(|lru| lru.hits = 0);
        }
    }
    let curve = cache.miss_ratio_curve();
    let replayed = replays.map(|lru| f64::from(lru.hits) / (READS - half) as f64);
    let estimated = curve.hit_ratios.iter();
    let errors: Vec<f64> = estimated.zip(replayed).map(|(&(_, ratio), hits)| ratio - hits).collect();
    assert_eq!(curve.hit_ratios.iter().map(|point| point.0).collect::<Vec<_>>(), points);
    println!("{name} {errors:.3?} {replayed:.3?} {curve:?}");
    assert!(
        errors.iter().all(|error| error.abs() <= ERROR_MAX),
        "{name}: {errors:.3?} beside {replayed:.3?}, {curve:?}"
    );
}

fn zipf(exponent: f64) -> impl Iterator<Item = u32> {
    let zipf = Zipf::new(f64::from(KEYS), exponent).unwrap();
    SmallRng::seed_from_u64(1).sample_iter(zipf).map(|key| key as u32)
}

#[test]
fn zipf_0_8() {
    check("0.8", zipf(0.8));
}

#[test]
fn zipf_1_0() {
    check("1.0", zipf(1.0));
}

#[test]
fn zipf_1_2() {
    check("1.2", zipf(1.2));
}

/// One read in five goes through a long row of keys.
#[test]
fn zipf_and_scans() {
    let mut draw = SmallRng::seed_from_u64(2);
    let mut scanned = KEYS;
    check("scan", zipf(1.0).map(move |key| {
        if !draw.random_ratio(1, 5) {
            return key;
        }
        scanned = if scanned < KEYS * 2 { scanned + 1 } else { KEYS };
        scanned
    }));
}
