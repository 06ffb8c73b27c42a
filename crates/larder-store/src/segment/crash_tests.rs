//! A process may die before any store. A scenario runs on a small region; before each of its stores the
//! region is copied, the copy is opened as a later process would, and what is found there is compared with
//! what had been acknowledged. Each change in progress is found done or not done, whole.
#![expect(clippy::cast_possible_truncation, reason = "test values repeat")]

use super::alloc::Use;
use super::layout::limit_min;
use super::raw::Region;
use super::restart::{self, Restart};
use super::shared::Shared;
use super::sync::at_each_store;
use super::table::SegmentState;
use super::*;
use crate::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

const NOW: Seconds = Seconds(1_000_000);
const KEYS: u8 = 24;

/// What clients know of a key: its value, its flags and when it expires.
type Known = Option<(Vec<u8>, u32, Expiry)>;

#[derive(Default)]
struct Oracle {
    /// What was acknowledged. Keys that the cache has evicted are not there.
    known: HashMap<Vec<u8>, Known>,
    /// What the change in progress makes of these keys.
    changing: HashMap<Vec<u8>, Known>,
    /// Keys that were evicted in the middle of a change.
    may_miss: Vec<Vec<u8>>,
    stores: usize,
}

fn config(limit_bytes: usize) -> Config {
    Config {
        limit_bytes,
        cas: true,
        classes: SizeClasses::new(vec![96, 1024, 1 << 20], 59),
        seed: 7,
        evict: true,
        item_size_max: limit_bytes / 2,
        threads: 1,
        size_exponent: 0.7,
    }
}

/// A later process's cache over a copy of the region.
fn reopened(shared: &Shared, config: &Config) -> (Cache, Restart) {
    let len = shared.table().layout.region_len();
    let copy = Region::new(len).unwrap();
    // SAFETY: no other thread uses the region.
    let bytes = unsafe { shared.table().region.bytes(0, len) };
    // SAFETY: nobody else knows the copy.
    unsafe { copy.write(0, bytes) };
    let (shared, restart) =
        restart::reuse(config.clone(), copy, len, 0, Use::Free).expect("it is no damage");
    (Cache { shared: Arc::new(shared) }, restart)
}

fn hashed<'k>(handle: &Handle, bytes: &'k [u8]) -> HashedKey<'k> {
    HashedKey { bytes, hash: handle.hash(bytes) }
}

fn read(handle: &mut Handle, key: &[u8]) -> Known {
    let key = hashed(handle, key);
    let found = handle.get(key, Access::Untracked, |item| {
        let value = match &item.value {
            Value::Whole(bytes) => bytes.to_vec(),
            Value::Large(lease) => {
                let mut all = Vec::new();
                while all.len() < lease.len() {
                    all.extend_from_slice(lease.piece(all.len()));
                }
                all
            }
        };
        (value, item.attributes.client_flags, item.attributes.expiry)
    });
    match found {
        Lookup::Hit(known) => Some(known),
        _ => None,
    }
}

impl Oracle {
    /// Compares a cache with what is known.
    fn check(&self, cache: &Cache) {
        let mut handle = cache.handle();
        handle.begin_batch(NOW);
        for (key, known) in &self.known {
            let found = read(&mut handle, key);
            let missed = found.is_none() && self.may_miss.contains(key);
            let is_right = &found == known || self.changing.get(key) == Some(&found) || missed;
            let short = |known: &Known| known.as_ref().map(|(value, ..)| value.len());
            assert!(
                is_right,
                "store {}, key {key:?}: {:?}, known {:?}, changing to {:?}",
                self.stores,
                short(&found),
                short(known),
                self.changing.get(key).map(short)
            );
        }
        handle.end_batch();
        let words = cache.shared.slots_used.load(Ordering::Relaxed);
        assert_eq!(cache.gauges().items, words as u64, "items are counted");
    }

    /// Removes all items of a cache and everything that maintenance can: no memory may be lost.
    fn check_nothing_is_lost(&self, cache: &Cache) {
        let mut handle = cache.handle();
        for key in self.known.keys() {
            handle.begin_batch(NOW);
            let key = hashed(&handle, key);
            let removed = handle.update(key, &mut None, |_| (Change::Remove, ()));
            assert!(removed.is_ok());
            handle.end_batch();
        }
        assert_eq!(cache.gauges().items, 0);
        // Stores of other keys use every segment that can be freed.
        for i in 0..4000_u32 {
            handle.begin_batch(NOW);
            let key = i.to_le_bytes();
            let key = hashed(&handle, &key);
            let put = || Change::Put {
                attributes: Attributes::default(),
                cas: NewCas::Fresh,
                value: NewValue::Bytes(&[7; 700]),
                fetched: false,
            };
            handle.update(key, &mut None, |_| (put(), ())).expect("there is room");
            handle.end_batch();
        }
        drop(handle);
        let (table, alloc) = (cache.shared.table(), cache.shared.alloc());
        let unqueued = (0..table.layout.segments_first as u32)
            .filter(|segment| table.entry(*segment).is(SegmentState::Sealed))
            .count() as u64;
        // One may be emptied at this moment.
        assert!(unqueued - alloc.queues.len() <= 1, "{unqueued} {}", alloc.queues.len());
        for segment in 0..table.layout.segments_first as u32 {
            let entry = table.entry(segment);
            let is_left = entry.is(SegmentState::Chain) || entry.is(SegmentState::Taken);
            assert!(!is_left, "segment {segment} is lost: store {}", self.stores);
        }
    }
}

/// Runs `operations` random changes, and opens a copy of the region before each store.
fn run(seed: u64, operations: usize, limit_bytes: usize, lost_every: usize) -> usize {
    let config = config(limit_bytes);
    let cache = Cache::new(config.clone()).unwrap();
    let oracle = Rc::new(RefCell::new(Oracle::default()));
    let evicted = Arc::new(std::sync::Mutex::new(Vec::new()));
    let evictions = Arc::clone(&evicted);
    cache.observe_evictions(Box::new(move |eviction| {
        evictions.lock().unwrap().push(eviction.key.to_vec());
    }));
    let mut rng = StdRng::seed_from_u64(seed);
    let mut handle = cache.handle();
    let look = {
        let (shared, config) = (Arc::clone(&cache.shared), config);
        let (oracle, evicted) = (Rc::clone(&oracle), Arc::clone(&evicted));
        move || {
            // The test asks the live cache something.
            let Ok(mut oracle) = oracle.try_borrow_mut() else { return };
            oracle.stores += 1;
            oracle.may_miss.extend(evicted.lock().unwrap().drain(..));
            let (copy, restart) = reopened(&shared, &config);
            assert_eq!(restart, Restart::Repaired);
            oracle.check(&copy);
            if oracle.stores.is_multiple_of(lost_every) {
                oracle.check_nothing_is_lost(&copy);
            }
        }
    };
    at_each_store(Some(Box::new(look)));
    for _ in 0..operations {
        operate(&mut handle, &mut rng, &oracle, &evicted);
    }
    at_each_store(None);
    drop(handle);
    oracle.borrow().stores
}

fn operate(
    handle: &mut Handle,
    rng: &mut StdRng,
    oracle: &RefCell<Oracle>,
    evicted: &std::sync::Mutex<Vec<Vec<u8>>>,
) {
    let key = vec![b'k', rng.random_range(0..KEYS)];
    let known = oracle.borrow().known.get(&key).cloned().flatten();
    let flags = if rng.random() { rng.random() } else { 0 };
    let expiry = match rng.random_range(0..4) {
        0 => Expiry::At(Seconds(NOW.0 + rng.random_range(1..200_000))),
        _ => Expiry::Never,
    };
    let attributes = Attributes { client_flags: flags, expiry, ..Attributes::default() };
    let len = match rng.random_range(0..12) {
        0 => rng.random_range(12_000..50_000),
        1 | 2 => rng.random_range(500..12_000),
        // Lengths that come again, for the places of dead records.
        _ => [10, 20, 200][rng.random_range(0..3)],
    };
    let byte: u8 = rng.random();
    let bytes: Vec<u8> = (0..len).map(|i| byte ^ (i as u8)).collect();
    let put = |value| Change::Put { attributes, cas: NewCas::Fresh, value, fetched: false };
    let is_flush = rng.random_range(0..60) == 0;
    let (change, after): (Option<Change<'_>>, Known) = match rng.random_range(0..10) {
        0 | 1 => (Some(Change::Remove), None),
        2 if known.is_some() => {
            let (mut value, ..) = known.clone().unwrap();
            value.extend_from_slice(&bytes);
            (Some(put(NewValue::Append(&bytes))), Some((value, flags, expiry)))
        }
        3 if known.is_some() => {
            let (value, ..) = known.clone().unwrap();
            let change =
                Change::SetAttributes { attributes, cas: NewCas::Same, access: Access::Tracked };
            (Some(change), Some((value, flags, expiry)))
        }
        4 => (None, known.clone()),
        _ => (Some(put(NewValue::Bytes(&bytes))), Some((bytes.clone(), flags, expiry))),
    };
    {
        let mut oracle = oracle.borrow_mut();
        oracle.known.entry(key.clone()).or_default();
        oracle.changing = match is_flush {
            true => oracle.known.keys().map(|key| (key.clone(), None)).collect(),
            false => HashMap::from([(key.clone(), after)]),
        };
    }
    handle.begin_batch(NOW);
    let done = if is_flush {
        handle.flush(None);
        true
    } else if let Some(change) = change {
        let hashed = hashed(handle, &key);
        handle.update(hashed, &mut None, |_| (change, ())).is_ok()
    } else {
        handle.maintain(NOW);
        true
    };
    handle.end_batch();
    let mut oracle = oracle.borrow_mut();
    if done {
        let changed = std::mem::take(&mut oracle.changing);
        oracle.known.extend(changed);
    }
    // The cache may have evicted the key in favour of itself, or another one.
    let gone: Vec<Vec<u8>> = evicted.lock().unwrap().drain(..).collect();
    oracle.may_miss.extend(gone);
    let may_miss = std::mem::take(&mut oracle.may_miss);
    handle.begin_batch(NOW);
    for key in may_miss {
        let found = read(handle, &key);
        assert!(
            found.is_none() || oracle.known.get(&key) == Some(&found),
            "the live cache is right"
        );
        oracle.known.insert(key, found);
    }
    handle.end_batch();
}

#[test]
fn whenever_a_process_dies_what_it_acknowledged_is_there() {
    let mut stores = 0;
    for seed in 0..4 {
        stores += run(seed, 250, limit_min(3) + (100 << 10), 97);
    }
    assert!(stores > 4000, "{stores} points of death");
}

#[test]
fn a_process_may_die_while_it_evicts() {
    let stores = run(100, 600, limit_min(3), 211);
    assert!(stores > 2000, "{stores} points of death");
}

#[test]
fn a_header_page_of_something_else_is_refused() {
    let config = config(limit_min(3));
    let cache = Cache::new(config.clone()).unwrap();
    let len = cache.shared.table().layout.region_len();
    let copy = Region::new(len).unwrap();
    let refused = restart::reuse(config, copy, len, 0, Use::Free);
    assert_eq!(refused.err(), Some(Unusable::NoRegion));
}
