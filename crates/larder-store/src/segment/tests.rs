//! Behaviour that users of a cache rely on, in one thread. Tests with threads and with random
//! operations are in `tests/`.
#![expect(clippy::cast_possible_truncation, reason = "test values repeat")]

use super::*;
use crate::*;
use std::task::Waker;

const NOW: Seconds = Seconds(1_000_000);

fn config(mib: usize, evict: bool) -> Config {
    let limit_bytes = mib << 20;
    Config {
        limit_bytes,
        cas: true,
        classes: SizeClasses::new(vec![96, 1024, 1 << 20], 59),
        seed: 7,
        evict,
        item_size_max: limit_bytes / 2,
        threads: 1,
        size_exponent: 0.7,
        flash: None,
    }
}

pub(crate) fn cache(mib: usize, evict: bool) -> Cache {
    Cache::new(config(mib, evict)).unwrap()
}

fn growable(mib: usize, mib_max: usize) -> Cache {
    Cache::growable(config(mib, true), mib_max << 20).unwrap()
}

fn key<'k>(handle: &Handle, bytes: &'k [u8]) -> HashedKey<'k> {
    HashedKey { bytes, hash: handle.hash(bytes) }
}

fn set(handle: &mut Handle, name: &[u8], value: &[u8], expiry: Expiry) -> Result<u64, Refusal> {
    let attributes = Attributes { expiry, ..Attributes::default() };
    let value = NewValue::Bytes(value);
    let put = || Change::Put {
        attributes,
        cas: NewCas::Fresh,
        value,
        fetched: false,
        tags: NewTags::None,
    };
    handle.update(key(handle, name), &mut None, |_| (put(), ())).map(|updated| updated.cas)
}

fn whole_value(item: &Item<'_, ChainLease>) -> Vec<u8> {
    match &item.value {
        Value::Whole(bytes) => bytes.to_vec(),
        Value::Large(lease) => {
            let mut all = Vec::new();
            while all.len() < lease.len() {
                all.extend_from_slice(lease.piece(all.len()));
            }
            all
        }
    }
}

fn get(handle: &mut Handle, name: &[u8]) -> Lookup<Vec<u8>> {
    handle.get(key(handle, name), Access::Tracked, whole_value)
}

fn append(handle: &mut Handle, name: &[u8], more: &[u8]) -> Result<(), Refusal> {
    let attributes = Attributes::default();
    let value = NewValue::Append(more);
    let put = || Change::Put {
        attributes,
        cas: NewCas::Fresh,
        value,
        fetched: false,
        tags: NewTags::None,
    };
    handle.update(key(handle, name), &mut None, |_| (put(), ())).map(drop)
}

/// Stores items with values of 1000 bytes.
fn fill(handle: &mut Handle, names: std::ops::Range<u32>) {
    for i in names {
        handle.begin_batch(NOW);
        set(handle, &i.to_le_bytes(), &[i as u8; 1000], Expiry::Never).unwrap();
        handle.end_batch();
    }
}

fn count_found(handle: &mut Handle, names: std::ops::Range<u32>) -> usize {
    handle.begin_batch(NOW);
    let hits = names.filter(|i| match get(handle, &i.to_le_bytes()) {
        Lookup::Hit(value) => {
            assert_eq!(value, [*i as u8; 1000], "each item has its own value");
            true
        }
        _ => false,
    });
    let hits = hits.count();
    handle.end_batch();
    hits
}

fn settle(handle: &mut Handle) {
    for _ in 0..1_000_000 {
        if !handle.maintain(NOW) && handle.shared.alloc().excess() == 0 {
            return;
        }
    }
    panic!("maintenance does not end");
}

#[test]
fn a_higher_limit_holds_more_and_a_lower_one_gives_memory_back() {
    let cache = growable(8, 64);
    let mut handle = cache.handle();
    fill(&mut handle, 0..20_000);
    let at_first = count_found(&mut handle, 0..20_000);
    assert!((5000..8000).contains(&at_first), "{at_first}");
    cache.set_limit(32 << 20).unwrap();
    fill(&mut handle, 0..20_000);
    assert_eq!(count_found(&mut handle, 0..20_000), 20_000, "all items fit under the raised limit");
    assert_eq!(cache.gauges().limit_bytes, 32 << 20);
    cache.set_limit(24 << 20).unwrap();
    settle(&mut handle);
    assert_eq!(count_found(&mut handle, 0..20_000), 20_000, "all items still fit");
    cache.set_limit(8 << 20).unwrap();
    settle(&mut handle);
    assert!(cache.gauges().used_bytes <= 8 << 20);
    let left = count_found(&mut handle, 0..20_000);
    assert!(left > 5000, "{left}");
    fill(&mut handle, 20_000..21_000);
    assert!(count_found(&mut handle, 20_000..21_000) > 500, "writes continue");
    assert!(cache.gauges().used_bytes <= 8 << 20);
}

#[test]
fn a_small_cache_under_a_large_limit_stays_small() {
    let cache = cache(64, true);
    let mut handle = cache.handle();
    // About a thousand items of 1 KiB each are overwritten about a hundred times, in random order.
    let names = (0..100_000_u32).map(|i| i.wrapping_mul(2_654_435_761) >> 22);
    for name in names {
        fill(&mut handle, name..name + 1);
    }
    assert_eq!(count_found(&mut handle, 0..1024), 1024);
    let used = handle.shared.alloc().ever_used() * handle.shared.segment_len();
    assert!(used < 4 << 20, "{used}");
}

/// Overwrites `names` items in random order, in batches. `len` returns the length of a value for a
/// random number. At the same time, another handle ends its batch only after every `pause` sets.
/// Returns the used memory divided by the size of the items. The used memory does not include 16
/// segments for the index and for open segments.
fn used_by_overwritten(names: u32, pause: u32, len: impl Fn(u32) -> usize) -> f64 {
    let cache = cache(256, true);
    let mut handle = cache.handle();
    let mut reader = cache.handle();
    reader.begin_batch(NOW);
    let random = |i: u32| i.wrapping_mul(2_654_435_761) ^ i.wrapping_mul(0x9e37_79b1) >> 15;
    let (steps, value) = (30 * names, [7; 4096]);
    for i in 0..steps {
        if i % 32 == 0 {
            handle.end_batch();
            handle.begin_batch(Seconds(NOW.0 + i / (steps / 400)));
        }
        if i % pause == 0 {
            reader.end_batch();
            reader.begin_batch(Seconds(NOW.0 + i / (steps / 400)));
        }
        let name = random(i) >> 8 & (names - 1);
        let len = len(random(i.wrapping_add(77)) >> 5);
        set(&mut handle, &name.to_le_bytes(), &value[..len], Expiry::Never).unwrap();
    }
    handle.end_batch();
    reader.end_batch();
    let segment_len = handle.shared.segment_len();
    let (items, bytes) = (cache.gauges().items, cache.gauges().bytes);
    assert!(items > u64::from(names) * 99 / 100, "nearly all items are found: {items}");
    let used = (handle.shared.alloc().ever_used() - 16) * segment_len;
    used as f64 / bytes as f64
}

#[test]
fn overwriting_items_takes_little_more_memory_than_writing_them_once() {
    let equal = used_by_overwritten(1 << 15, 32, |_| 500);
    let changing = used_by_overwritten(1 << 15, 32, |random| 1 + random as usize % 1024);
    let long = used_by_overwritten(1 << 13, 32, |random| 2048 + random as usize % 1024);
    let paused = used_by_overwritten(1 << 15, 3000, |_| 500);
    assert!(paused < 1.3, "{paused}: another handle pauses for 3,000 sets at a time");
    assert!(equal < 1.0 && changing < 1.15 && long < 1.25, "{equal} {changing} {long}");
}

#[test]
fn overwritten_large_values_leave_no_memory_in_use() {
    let cache = cache(256, true);
    let mut handle = cache.handle();
    let segment_len = handle.shared.segment_len();
    // The front of each value is in segments of its own, and the rest is among other items.
    let value = vec![7; 2 * segment_len + segment_len / 3];
    for i in 0..3000_u32 {
        handle.begin_batch(NOW);
        set(&mut handle, &(i % 8).to_le_bytes(), &value, Expiry::Never).unwrap();
        handle.end_batch();
    }
    let used = handle.shared.alloc().ever_used();
    assert!(used < 100, "{used} of {}", handle.shared.limit_segments());
}

#[test]
fn impossible_limits_are_refused() {
    let cache = growable(8, 16);
    let LimitRefused { min, max } = cache.set_limit(17 << 20).unwrap_err();
    assert!(min < 4 << 20 && (15 << 20..17 << 20).contains(&max), "{min} {max}");
    assert_eq!(cache.set_limit(min - 1), Err(LimitRefused { min, max }));
    assert_eq!((cache.set_limit(max), cache.set_limit(min)), (Ok(()), Ok(())));
    // After the index has grown, the minimum limit is higher, because the index keeps its memory.
    cache.set_limit(16 << 20).unwrap();
    let mut handle = cache.handle();
    handle.begin_batch(NOW);
    for i in 0..300_000_u32 {
        set(&mut handle, &i.to_le_bytes(), b"", Expiry::Never).unwrap();
    }
    handle.end_batch();
    assert!(cache.set_limit(3 << 20).unwrap_err().min > 3 << 20);
    assert_eq!(Cache::new(cache.shared.config.clone()).unwrap().set_limit(8 << 20), Ok(()));
}

#[test]
fn under_a_lower_limit_without_eviction_everything_stays() {
    let cache = cache(16, false);
    let mut handle = cache.handle();
    fill(&mut handle, 0..10_000);
    cache.set_limit(8 << 20).unwrap();
    (0..1000).for_each(|_| _ = handle.maintain(NOW));
    assert_eq!(count_found(&mut handle, 0..10_000), 10_000);
    let refused = (10_000..20_000_u32)
        .find(|i| set(&mut handle, &i.to_le_bytes(), &[0; 1000], Expiry::Never).is_err());
    assert!(refused.is_some_and(|i| i < 13_000), "{refused:?}");
    cache.set_limit(16 << 20).unwrap();
    fill(&mut handle, 20_000..22_000);
}

#[test]
fn a_stored_item_is_found_until_it_is_removed() {
    let mut handle = cache(4, true).handle();
    handle.begin_batch(NOW);
    assert_eq!(get(&mut handle, b"a"), Lookup::Miss);
    assert_eq!(set(&mut handle, b"a", b"1", Expiry::Never), Ok(1));
    assert_eq!(set(&mut handle, b"a", b"22", Expiry::Never), Ok(2));
    assert_eq!(get(&mut handle, b"a"), Lookup::Hit(b"22".to_vec()));
    let removed = handle.update(key(&handle, b"a"), &mut None, |_| (Change::Remove, ()));
    assert!(removed.is_ok());
    assert_eq!(get(&mut handle, b"a"), Lookup::Miss);
    assert_eq!(handle.gauges().items, 0);
    assert_eq!(handle.gauges().bytes, 0);
}

#[test]
fn values_of_every_length_are_read_back() {
    let mut handle = cache(64, true).handle();
    let bytes: Vec<u8> = (0..5_000_000_u32).map(|i| (i % 251) as u8).collect();
    let segment_len = handle.shared.segment_len();
    let edges = (1..4).flat_map(|n| [n * segment_len / 2 - 300, n * segment_len / 2 + 300]);
    for len in (0..70).chain([4000, 65_535, 65_536, 65_537, 1 << 20, 5_000_000]).chain(edges) {
        set(&mut handle, b"k", &bytes[..len], Expiry::Never).unwrap();
        assert!(get(&mut handle, b"k") == Lookup::Hit(bytes[..len].to_vec()), "{len}");
    }
    set(&mut handle, b"k", &bytes[..100], Expiry::Never).unwrap();
    for len in [1, 1000, 40_000, 1_000_000] {
        let before = get(&mut handle, b"k").map(|value| value.len());
        append(&mut handle, b"k", &bytes[..len]).unwrap();
        assert_eq!(get(&mut handle, b"k").map(|v| v.len() - len), before);
    }
}

#[test]
fn a_full_cache_evicts_and_keeps_its_limit() {
    let cache = cache(8, true);
    let mut handle = cache.handle();
    for i in 0..200_000_u32 {
        handle.begin_batch(NOW);
        set(&mut handle, &i.to_le_bytes(), &[7; 100], Expiry::Never).unwrap();
        handle.end_batch();
    }
    let live = (0..200_000_u32).filter(|i| get(&mut handle, &i.to_le_bytes()) != Lookup::Miss);
    let live = live.count();
    assert!(live > 8 * 7000, "{live} items in 8 MiB");
    let gauges = handle.gauges();
    assert_eq!(gauges.items, live as u64);
    assert_eq!(gauges.evictions, 200_000 - live as u64);
    assert!(gauges.used_bytes <= 8 << 20);
}

#[test]
fn without_eviction_a_full_cache_refuses_and_loses_nothing() {
    let mut handle = cache(4, false).handle();
    let stored = (0..100_000_u32)
        .take_while(|i| set(&mut handle, &i.to_le_bytes(), &[7; 100], Expiry::Never).is_ok())
        .count() as u32;
    assert!((20_000..100_000).contains(&stored), "{stored}");
    assert!((0..stored).all(|i| get(&mut handle, &i.to_le_bytes()) == Lookup::Hit(vec![7; 100])));
}

#[test]
fn large_values_alone_are_evicted_one_by_one() {
    let mut handle = cache(16, true).handle();
    for i in 0..200_u32 {
        set(&mut handle, &i.to_le_bytes(), &vec![i as u8; 1 << 20], Expiry::Never).unwrap();
    }
    let live = (0..200_u32).filter(|i| get(&mut handle, &i.to_le_bytes()) != Lookup::Miss).count();
    assert!((10..=15).contains(&live), "{live} of 16 MiB");
}

#[test]
fn a_lease_outlives_its_item() {
    let mut handle = cache(8, true).handle();
    set(&mut handle, b"large", &vec![1; 1 << 20], Expiry::Never).unwrap();
    let mut lease = None;
    handle.get(key(&handle, b"large"), Access::Tracked, |item| {
        let Value::Large(_) = item.value else { panic!("large") };
    });
    handle
        .update(key(&handle, b"large"), &mut None, |found| {
            if let Lookup::Hit(Item { value: Value::Large(large), .. }) = found {
                lease = Some(large.clone());
            }
            (Change::Remove, ())
        })
        .unwrap();
    for i in 0..60_u32 {
        set(&mut handle, &i.to_le_bytes(), &vec![9; 1 << 20], Expiry::Never).unwrap();
    }
    let lease = lease.unwrap();
    assert!((0..1 << 20).step_by(997).all(|at| lease.piece(at)[0] == 1));
}

#[test]
fn expired_items_are_gone_in_their_second_and_reclaimed() {
    let mut handle = cache(4, true).handle();
    handle.begin_batch(NOW);
    for i in 0..2000_u32 {
        let at = Seconds(NOW.0 + 10 + i % 5);
        set(&mut handle, &i.to_le_bytes(), &[1; 500], Expiry::At(at)).unwrap();
    }
    handle.end_batch();
    handle.begin_batch(Seconds(NOW.0 + 10));
    assert_eq!(get(&mut handle, &0_u32.to_le_bytes()), Lookup::Expired);
    assert!(matches!(get(&mut handle, &1_u32.to_le_bytes()), Lookup::Hit(_)));
    handle.end_batch();
    while handle.maintain(Seconds(NOW.0 + 20)) {}
    let left = handle.gauges().items;
    assert!(left < 300, "only items of the open segment are left: {left}");
}

#[test]
fn items_stored_after_a_flush_stay() {
    let mut handle = cache(4, true).handle();
    handle.begin_batch(NOW);
    set(&mut handle, b"a", b"1", Expiry::Never).unwrap();
    handle.flush(None);
    assert_eq!(get(&mut handle, b"a"), Lookup::Flushed);
    set(&mut handle, b"b", b"2", Expiry::Never).unwrap();
    assert_eq!(get(&mut handle, b"b"), Lookup::Hit(b"2".to_vec()));
    handle.flush(Some(Seconds(NOW.0 + 5)));
    assert_eq!(get(&mut handle, b"b"), Lookup::Hit(b"2".to_vec()));
    handle.begin_batch(Seconds(NOW.0 + 5));
    assert_eq!(get(&mut handle, b"b"), Lookup::Flushed);
}

#[test]
fn overwrites_leave_most_of_the_memory_alive() {
    let mut handle = cache(16, true).handle();
    let mut random = 1_u64;
    let mut next = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % below
    };
    // 30 % of all sets hit an existing key.
    let mut newest = 0_u64;
    for _ in 0..1_000_000 {
        let id = if next(100) < 30 && newest > 60_000 { newest - next(60_000) } else { newest + 1 };
        newest = newest.max(id);
        handle.begin_batch(NOW);
        set(&mut handle, &id.to_le_bytes(), &[1; 120], Expiry::Never).unwrap();
        handle.end_batch();
    }
    let item = 120 + 8 + 31;
    let live = handle.gauges().items * item;
    assert!(live * 100 >= (16 << 20) * 80, "{} % live", live * 100 / (16 << 20));
}

#[test]
fn a_walk_that_loses_reports_restarts_its_stripe() {
    let cache = cache(8, false);
    let mut handle = cache.handle();
    let names = 0..3000_u32;
    for i in names.clone() {
        set(&mut handle, &i.to_le_bytes(), b"value", Expiry::Never).unwrap();
    }
    let mut shown = std::collections::HashMap::new();
    let mut walk = handle.walk();
    for step in 0.. {
        let state = handle.continue_walk(&mut walk, 50, Waker::noop(), |key, _| {
            *shown.entry(key.to_vec()).or_insert(0) += 1;
        });
        if state == WalkState::End {
            break;
        }
        if step == 2 {
            let index = &cache.shared.index;
            let stripes = (0..10_000).flat_map(|_| 0..index.stripes());
            stripes.for_each(|stripe| index.walks.report(stripe, || 0));
        }
    }
    assert!(names.clone().all(|i| shown.contains_key(&i.to_le_bytes()[..])), "no item is missed");
    let again = shown.values().filter(|times| **times > 1).count();
    assert!((50..1000).contains(&again), "{again} items were shown twice");
}

/// Sets `name` to values of `len` bytes 400 times, so that records of earlier values are
/// overwritten.
fn overwrite(handle: &mut Handle, name: &[u8], len: usize) {
    for i in 0..400_u32 {
        handle.begin_batch(NOW);
        set(handle, name, &vec![i as u8; len], Expiry::Never).unwrap();
        handle.end_batch();
    }
}

fn replaced(cache: &Cache) -> u64 {
    let table = cache.shared.table();
    let segments = u32::try_from(table.layout.segments).unwrap();
    (0..segments).map(|segment| table.entry(segment).taken_dead()).sum()
}

#[test]
fn the_tail_of_a_leased_value_is_not_overwritten() {
    let cache = cache(64, true);
    let mut handle = cache.handle();
    let chain_len = handle.shared.segment_len();
    let mut leases = Vec::new();
    for i in 0..40 {
        let bytes = vec![1; chain_len + 500 + i % 2];
        set(&mut handle, b"large", &bytes, Expiry::Never).unwrap();
        let name = key(&handle, b"large");
        let change = handle.update(name, &mut None, |found| {
            if let Lookup::Hit(Item { value: Value::Large(large), .. }) = found {
                leases.push(large.clone());
            }
            (Change::Remove, ())
        });
        change.unwrap();
    }
    // Some of these records have the same length as the records that contained the tails.
    (480..540).for_each(|len| overwrite(&mut handle, b"small", len));
    assert!(replaced(&cache) > 1000);
    for lease in leases {
        assert!(lease.piece(chain_len).iter().all(|byte| *byte == 1), "a tail was overwritten");
    }
}

#[test]
fn items_that_overwrite_flushed_ones_stay() {
    let cache = cache(64, true);
    let mut handle = cache.handle();
    overwrite(&mut handle, b"old", 100);
    let before = replaced(&cache);
    assert!(before > 0);
    handle.flush(None);
    handle.begin_batch(NOW);
    for i in 0..200_u8 {
        set(&mut handle, &[b'n', i], &[2; 98], Expiry::Never).unwrap();
    }
    assert_eq!(get(&mut handle, b"old"), Lookup::Flushed);
    let stays = |i| get(&mut handle, &[b'n', i]) == Lookup::Hit(vec![2; 98]);
    assert!((0..200_u8).all(stays), "no item is in a flushed segment");
    assert_eq!(replaced(&cache), before);
}

#[test]
fn items_that_overwrite_dead_records_keep_their_own_expiry() {
    let cache = cache(64, true);
    let mut handle = cache.handle();
    overwrite(&mut handle, b"k", 100);
    let before = replaced(&cache);
    let soon = Expiry::At(Seconds(NOW.0 + 10));
    for i in 0..20_u8 {
        handle.begin_batch(NOW);
        let expiry = if i % 2 == 0 { soon } else { Expiry::Never };
        set(&mut handle, &[i], &[2; 100], expiry).unwrap();
        handle.end_batch();
    }
    assert!(replaced(&cache) > before);
    let items = handle.gauges().items;
    while handle.maintain(Seconds(NOW.0 + 20)) {}
    assert_eq!(items - handle.gauges().items, 10, "maintenance finds the expired items");
    assert!(
        (0..20_u8).all(|i| (get(&mut handle, &[i]) == Lookup::Hit(vec![2; 100])) == (i % 2 == 1))
    );
}

#[test]
fn records_of_items_that_are_minutes_old_are_not_overwritten() {
    let cache = cache(64, true);
    let mut handle = cache.handle();
    overwrite(&mut handle, b"k", 100);
    for (age, is_used) in [(100, true), (256, false)] {
        let before = replaced(&cache);
        handle.begin_batch(Seconds(NOW.0 + age));
        set(&mut handle, b"k", &[1; 100], Expiry::Never).unwrap();
        handle.end_batch();
        assert_eq!(replaced(&cache) > before, is_used, "{age} s");
    }
}

#[test]
fn a_full_cache_has_no_free_lists() {
    let cache = cache(8, true);
    let mut handle = cache.handle();
    overwrite(&mut handle, b"k", 100);
    for i in 0..100_000_u32 {
        handle.begin_batch(NOW);
        set(&mut handle, &i.to_le_bytes(), &[7; 100], Expiry::Never).unwrap();
        handle.end_batch();
    }
    assert!(!cache.shared.has_free_lists());
    let before = replaced(&cache);
    overwrite(&mut handle, b"k", 100);
    assert_eq!(replaced(&cache), before);
}
