//! Checks that a cache survives the death of its process at any moment. A scenario runs on a small
//! region. Before a store to the region, the test copies the region, opens the copy as a later
//! process would, and compares its items with the acknowledged items. Each unfinished change must
//! be either completely done or not done at all.
//!
//! With `LARDER_CRASH_STEP=1` the process dies before each store of a scenario. By default it dies
//! before one store in five.
#![expect(clippy::cast_possible_truncation, reason = "test values repeat")]

use super::cache::shared::Shared;
use super::index::buckets::Buckets;
use super::item::witness::Witness;
use super::memory::allocator::RestoredUse;
use super::memory::layout::limit_min;
use super::memory::raw::Region;
use super::memory::table::SegmentState;
use super::restart::region_file::{self, ReopenError, Restart};
use super::sync::{AtomicU64, at_each_store};
use super::*;
use crate::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

mod on_flash;

const NOW: Seconds = Seconds(1_000_000);

/// Returns a number `n`: the process dies before every `n`th store.
fn crash_step() -> usize {
    std::env::var("LARDER_CRASH_STEP").map_or(5, |step| step.parse().expect("a number"))
}

/// The acknowledged state of a key: its value, its flags and its expiry.
type Known = Option<(Vec<u8>, u32, Expiry)>;

#[derive(Default)]
struct Oracle {
    /// The acknowledged state of each key that was used; `None` if the key was removed or evicted.
    known: HashMap<Vec<u8>, Known>,
    /// The state that the unfinished change will give to each key that it changes.
    changing: HashMap<Vec<u8>, Known>,
    /// Keys that were evicted during a change, or may have been lost with a page on flash.
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
        flash: None,
    }
}

/// Opens a copy of the region as a later process would.
fn reopened(shared: &Shared, config: &Config) -> (Cache, Restart) {
    let len = shared.table().layout.region_len();
    let copy = Region::new(len).unwrap();
    // SAFETY: no other thread uses the region.
    let bytes = unsafe { shared.table().region.bytes(0, len) };
    // SAFETY: no other thread has access to the copy.
    unsafe { copy.write(0, bytes) };
    let (shared, restart) = region_file::reuse(config.clone(), copy, len, 0, RestoredUse::Free)
        .expect("the copy is not damaged");
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
    /// Compares a cache with the acknowledged items.
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
        assert_eq!(cache.gauges().items, words as u64, "all items are counted");
    }

    /// Removes all items of a cache and stores other items. Checks that no memory is lost.
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
        for i in 0..2000_u32 {
            handle.begin_batch(NOW);
            let key = i.to_le_bytes();
            let key = hashed(&handle, &key);
            let put = || Change::Put {
                attributes: Attributes::default(),
                cas: NewCas::Fresh,
                value: NewValue::Bytes(&[7; 700]),
                fetched: false,
                tags: NewTags::None,
            };
            handle.update(key, &mut None, |_| (put(), ())).expect("the cache has room");
            handle.end_batch();
        }
        drop(handle);
        check_books(cache);
    }
}

/// Checks that every byte of a segment belongs to a live or a dead record, and that every segment
/// of a chain belongs to an item. No other thread may use the cache.
fn check_books(cache: &Cache) {
    let shared = &cache.shared;
    let (table, alloc) = (shared.table(), shared.alloc());
    let segments = table.layout.segments as u32;
    let mut live = vec![0; segments as usize];
    let mut chained = 0;
    shared.index.retain(|_, word| {
        if word.is_on_flash() {
            return true;
        }
        let record = shared.record(word, Witness::alone(table));
        live[record.segment() as usize] += record.len();
        chained += record.chain_segments(table.layout.segment_len);
        true
    });
    let open: HashMap<u32, usize> =
        alloc.orphans.iter().map(|open| (open.segment, open.at)).collect();
    let mut chains = 0;
    for segment in 0..segments {
        let entry = table.entry(segment);
        let written = match entry.state().unwrap() {
            SegmentState::Sealed => entry.written().load(Ordering::Relaxed) as usize,
            SegmentState::Open => open[&segment] - table.layout.start(segment),
            SegmentState::Chain => {
                chains += 1;
                continue;
            }
            SegmentState::Taken => panic!("segment {segment} has no owner"),
            _ => continue,
        };
        let dead = entry.dead() as usize;
        assert_eq!(live[segment as usize] + dead, written, "segment {segment}, {dead} dead");
        assert!(!entry.is_closed(), "segment {segment}");
    }
    assert_eq!(chains, chained, "segments of chains");
    let next = shared.index.len();
    if table.wants(next) == 0 {
        let is_empty = |word: &AtomicU64| word.load(Ordering::Relaxed) == 0;
        assert!(table.bucket(next).iter().all(is_empty), "the next bucket is empty");
    }
}

/// The parameters of a test.
#[derive(Clone, Copy)]
struct Scenario {
    seed: u64,
    /// The number of bytes by which the limit exceeds the lowest possible limit.
    room: usize,
    keys: u16,
    /// The number of changes during which the process does not die.
    warm_up: usize,
    changes: usize,
    /// Whether each value has one of a few lengths, none of which makes it a large value.
    is_small: bool,
}

/// Runs a scenario, and opens a copy of the region before one store in [`crash_step`]. Returns the
/// number of stores.
fn run(scenario: Scenario) -> usize {
    let config = config(limit_min(3) + scenario.room);
    let cache = Cache::new(config.clone()).unwrap();
    let oracle = Rc::new(RefCell::new(Oracle::default()));
    let evicted = Arc::new(std::sync::Mutex::new(Vec::new()));
    let evictions = Arc::clone(&evicted);
    cache.observe_evictions(Box::new(move |eviction| {
        evictions.lock().unwrap().push(eviction.key.to_vec());
    }));
    let mut rng = StdRng::seed_from_u64(scenario.seed);
    let mut handle = cache.handle();
    for _ in 0..scenario.warm_up {
        operate(&mut handle, &mut rng, &oracle, &evicted, scenario);
    }
    let look = {
        let step = crash_step();
        let (shared, config) = (Arc::clone(&cache.shared), config);
        let (oracle, evicted) = (Rc::clone(&oracle), Arc::clone(&evicted));
        move || {
            // Skips the stores that the test makes while it borrows the oracle.
            let Ok(mut oracle) = oracle.try_borrow_mut() else { return };
            oracle.stores += 1;
            oracle.may_miss.extend(evicted.lock().unwrap().drain(..));
            if !oracle.stores.is_multiple_of(step) {
                return;
            }
            let (copy, restart) = reopened(&shared, &config);
            assert_eq!(restart, Restart::Repaired);
            check_books(&copy);
            oracle.check(&copy);
            if (oracle.stores / step).is_multiple_of(101) {
                oracle.check_nothing_is_lost(&copy);
            }
        }
    };
    at_each_store(Some(Box::new(look)));
    for _ in 0..scenario.changes {
        operate(&mut handle, &mut rng, &oracle, &evicted, scenario);
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
    scenario: Scenario,
) {
    let key = rng.random_range(0..scenario.keys).to_be_bytes().to_vec();
    let known = oracle.borrow().known.get(&key).cloned().flatten();
    let flags = if rng.random() { rng.random() } else { 0 };
    let expiry = match rng.random_range(0..4) {
        0 => Expiry::At(Seconds(NOW.0 + rng.random_range(1..200_000))),
        1 => Expiry::at_millis(u64::from(NOW.0) * 1000 + rng.random_range(1..50_000)),
        _ => Expiry::Never,
    };
    let binary_key = rng.random_ratio(1, 4);
    let attributes =
        Attributes { client_flags: flags, expiry, binary_key, ..Attributes::default() };
    let len = match rng.random_range(0..12) {
        // Two of these lengths differ by the length of an extension and a tag. So a record with an
        // extension and a tag may have the same length as a record without them.
        _ if scenario.is_small => [10, 18, 20, 26, 100][rng.random_range(0..5)],
        0 => rng.random_range(12_000..50_000),
        1 | 2 => rng.random_range(500..12_000),
        // The lengths repeat, so that dead records are overwritten.
        _ => [10, 18, 20, 26, 200][rng.random_range(0..5)],
    };
    let tag = if rng.random_ratio(1, 4) { handle.tag(b"t").ok() } else { None };
    let tags = tag.as_slice();
    let byte: u8 = rng.random();
    let bytes: Vec<u8> = (0..len).map(|i| byte ^ (i as u8)).collect();
    let put = |value| Change::Put {
        attributes,
        cas: NewCas::Fresh,
        value,
        fetched: false,
        tags: if tags.is_empty() { NewTags::None } else { NewTags::These(tags) },
    };
    let is_flush = !scenario.is_small && rng.random_range(0..100) == 0;
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
        // Do not change an item that is missing: making room for the change may have evicted it.
        let needs_item = matches!(
            change,
            Change::SetAttributes { .. } | Change::Put { value: NewValue::Append(_), .. }
        );
        let decide = |found: Lookup<&Item<'_, ChainLease>>| {
            let is_there = matches!(found, Lookup::Hit(_));
            (if needs_item && !is_there { Change::Keep } else { change }, ())
        };
        handle.update(hashed, &mut None, decide).is_ok()
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
    // Note the evicted keys: the cache may have evicted the changed key itself, or another key.
    let evicted_keys: Vec<Vec<u8>> = evicted.lock().unwrap().drain(..).collect();
    oracle.may_miss.extend(evicted_keys);
    let may_miss = std::mem::take(&mut oracle.may_miss);
    handle.begin_batch(NOW);
    for key in may_miss {
        let found = read(handle, &key);
        assert!(
            found.is_none() || oracle.known.get(&key) == Some(&found),
            "the live cache has the acknowledged items"
        );
        oracle.known.insert(key, found);
    }
    handle.end_batch();
}

fn run_all(scenarios: &[Scenario]) {
    for scenario in scenarios {
        let stores = run(*scenario);
        assert!(stores > 4 * scenario.changes, "{stores} points of death");
    }
}

/// The process dies while dead records are replaced, and while large values are written and
/// appended to.
#[test]
fn a_process_may_die_while_memory_is_free() {
    let room = 1 << 20;
    let scenario =
        |seed| Scenario { seed, room, keys: 24, warm_up: 100, changes: 150, is_small: false };
    run_all(&[1, 2, 3].map(scenario));
    run_all(&[Scenario { keys: 60, warm_up: 1000, is_small: true, ..scenario(4) }]);
}

/// The process dies while segments are cleaned and evicted, and while large values move.
#[test]
fn a_process_may_die_while_memory_is_full() {
    let scenario =
        |seed, keys| Scenario { seed, room: 0, keys, warm_up: 1500, changes: 200, is_small: false };
    run_all(&[scenario(1, 60), scenario(2, 100), scenario(3, 300)]);
}

/// The process dies while buckets are split, and while items move to their other buckets.
#[test]
fn a_process_may_die_while_the_index_grows() {
    let scenario =
        |seed| Scenario { seed, room: 0, keys: 4000, warm_up: 3300, changes: 150, is_small: true };
    run_all(&[1, 2].map(scenario));
}

#[test]
fn a_foreign_header_page_is_refused() {
    let config = config(limit_min(3));
    let cache = Cache::new(config.clone()).unwrap();
    let len = cache.shared.table().layout.region_len();
    let copy = Region::new(len).unwrap();
    let refused = region_file::reuse(config, copy, len, 0, RestoredUse::Free);
    assert!(matches!(refused, Err(ReopenError::Unusable(ColdStartReason::NoRegion))));
}
