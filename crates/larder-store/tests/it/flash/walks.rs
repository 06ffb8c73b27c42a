//! Walks visit each item in memory and on flash once and with its value, even if items move at the
//! same time.

use super::common::*;
use larder_device::{Faults, Memory};
use larder_store::segment::Cache;
use larder_store::{Lookup, Maintenance, Seconds, WalkPosition, WalkState, Walks};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

const LEN_MAX: usize = 1000;

/// Returns a cache with a limit of 16 MiB and `items` items of half a KB on average. Most items are
/// on flash.
fn full(items: usize, device: &Memory) -> (Cache, Client, Arc<AtomicU32>) {
    let cache = Cache::new(config(16 * MIB, device, any_size())).unwrap();
    let now = clock();
    let mut client = Client::new(&cache, &now);
    fill(&cache, &mut client, 0..items, 0);
    (cache, client, now)
}

/// Returns the number of a key.
fn number(key: &[u8]) -> usize {
    let digits = key.strip_prefix(b"key-").expect("a key of this test");
    std::str::from_utf8(digits).unwrap().parse().unwrap()
}

/// Walks in steps of about `items` items, and calls `visit` with the number of each key and its
/// value.
fn walk(
    client: &mut Client,
    items: usize,
    mut between: impl FnMut(&mut Client, WalkState),
    mut visit: impl FnMut(usize, &[u8]),
) {
    let mut walk = client.handle.walk();
    loop {
        let state = client.continue_walk(&mut walk, items, |key, value| visit(number(key), value));
        if state == WalkState::End {
            return;
        }
        between(client, state);
    }
}

/// If the walk is waiting, waits until its waker is called. The caller calls this function between
/// two steps.
fn wait(client: &mut Client, state: WalkState) {
    if state == WalkState::Waiting {
        client.wait_for_walk();
    }
}

/// Returns the CAS of each existing item.
fn present(client: &mut Client, items: usize) -> HashMap<usize, u64> {
    (0..items).filter_map(|i| Some((i, client.cas_of(&key(i))?))).collect()
}

#[test]
fn a_walk_shows_the_items_that_lookups_find() {
    const ITEMS: usize = 60_000;
    let (cache, mut client, _) = full(ITEMS, &Memory::new(128 * MIB, 7));
    let gauges = cache.flash_gauges().unwrap();
    assert!(gauges.objects_used > 20_000, "{gauges:?}");
    let mut shown = vec![0; ITEMS];
    let (mut steps, mut waits) = (0, 0);
    walk(
        &mut client,
        100,
        |client, state| {
            steps += 1;
            waits += usize::from(state == WalkState::Waiting);
            wait(client, state);
        },
        |i, found| {
            assert_eq!(found, value(i, 0, LEN_MAX), "{i}");
            shown[i] += 1;
        },
    );
    assert!(waits > 100 && steps > ITEMS / 300, "{waits} of {steps}");
    let after = cache.flash_gauges().unwrap();
    assert_eq!(after.get_extstore, gauges.get_extstore, "the walk does not count as lookups");
    assert_eq!(shown.iter().filter(|times| **times > 0).count() as u64, cache.gauges().items);
    for (i, times) in shown.into_iter().enumerate() {
        assert_eq!(times, u32::from(client.get(&key(i)).is_some()), "{i}");
    }
}

/// Walks in parts of about `items` items: each walk continues at the position of the previous walk.
/// Calls `visit` with the number of each key, and returns the number of parts.
fn walk_in_parts(client: &mut Client, items: usize, mut visit: impl FnMut(usize)) -> usize {
    let (mut position, mut parts) = (0, 0);
    loop {
        parts += 1;
        let mut walk = client.handle.walk_from(position);
        let mut items = items;
        position = loop {
            match client.continue_walk(&mut walk, items, |key, _| visit(number(key))) {
                WalkState::End => return parts,
                state => {
                    items = 0;
                    if let WalkPosition::At(position) = client.handle.walk_position(&walk) {
                        break position;
                    }
                    wait(client, state);
                }
            }
        };
        assert!(position > 0);
    }
}

#[test]
fn walks_in_parts_show_everything_once() {
    const ITEMS: usize = 40_000;
    let (cache, mut client, _) = full(ITEMS, &Memory::new(128 * MIB, 7));
    assert!(cache.flash_gauges().unwrap().objects_used > 10_000);
    let expected = present(&mut client, ITEMS);
    for items in [1, 50, 5_000] {
        let mut shown = vec![0; ITEMS];
        let parts = walk_in_parts(&mut client, items, |i| shown[i] += 1);
        assert!(parts > ITEMS / items.max(100) / 2, "{parts}");
        for (i, times) in shown.into_iter().enumerate() {
            assert_eq!(times, usize::from(expected.contains_key(&i)), "{i} in steps of {items}");
        }
    }
    for position in [1, 12_345, u64::from(u32::MAX), u64::MAX] {
        let mut walk = client.handle.walk_from(position);
        while client.continue_walk(&mut walk, 1_000, |_, _| ()) != WalkState::End {}
    }
}

#[test]
fn a_walk_misses_nothing_while_items_are_set_removed_and_read() {
    const ITEMS: usize = 40_000;
    let (cache, mut client, _) = full(ITEMS, &Memory::new(256 * MIB, 8));
    let mut random = SmallRng::seed_from_u64(3);
    let mut versions = vec![0; ITEMS];
    for round in 0_u64..3 {
        let before = present(&mut client, ITEMS);
        let mut stays: Vec<bool> = (0..ITEMS).map(|i| before.contains_key(&i)).collect();
        let mut next = round << 32;
        let mut shown = vec![0; ITEMS];
        let versions = std::cell::RefCell::new(&mut versions);
        walk(
            &mut client,
            50,
            |client, state| {
                for _ in 0..random.random_range(0..6) {
                    let i = random.random_range(0..ITEMS);
                    match random.random_range(0..8) {
                        0 => {
                            client.delete(&key(i));
                            stays[i] = false;
                        }
                        1..5 => {
                            // A new item did not exist during the whole walk.
                            stays[i] &= client.get(&key(i)).is_some();
                            next += 1;
                            client.set(&key(i), &value(i, next, LEN_MAX));
                            versions.borrow_mut()[i] = next;
                        }
                        // The second read copies the item to memory.
                        _ => (0..2).for_each(|_| drop(client.get(&key(i)))),
                    }
                }
                wait(client, state);
            },
            |i, found| {
                assert_eq!(version(i, found, LEN_MAX), versions.borrow()[i], "{i}");
                shown[i] += 1;
            },
        );
        let after = present(&mut client, ITEMS);
        let missed: Vec<usize> =
            (0..ITEMS).filter(|i| stays[*i] && after.contains_key(i) && shown[*i] == 0).collect();
        let stayed = stays.iter().filter(|stays| **stays).count();
        assert!(stayed > ITEMS / 3, "{stayed}");
        assert!(missed.is_empty(), "{missed:?} of {stayed}: {:?}", cache.flash_gauges());
    }
}

struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Other threads promote, demote, rewrite and evict items.
#[test]
fn a_walk_misses_nothing_while_other_threads_work() {
    const ITEMS: usize = 40_000;
    let (cache, mut client, now) = full(ITEMS, &Memory::new(48 * MIB, 9));
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (cache, now, has_ended) = (&cache, &now, &has_ended);
            scope.spawn(move || {
                let mut client = Client::new(cache, now);
                let mut random = SmallRng::seed_from_u64(thread);
                for request in 1.. {
                    if has_ended.load(Ordering::Relaxed) {
                        return;
                    }
                    let i = random.random_range(0..ITEMS);
                    match random.random_range(0..40) {
                        0 => client.set(&key(i), &value(i, request, LEN_MAX)),
                        1 => drop(client.delete(&key(i))),
                        2..8 => (0..2).for_each(|_| drop(client.get(&key(i)))),
                        _ => drop(client.get(&key(i))),
                    }
                    pace(cache, usize::try_from(request).unwrap());
                }
            });
        }
        // When this guard is dropped, the other threads end, even if a check has failed.
        let _end = EndOnDrop(&has_ended);
        let mut stayed = 0;
        for _ in 0..6 {
            let before = present(&mut client, ITEMS);
            let mut shown = vec![0; ITEMS];
            walk(&mut client, 100, wait, |i, found| {
                version(i, found, LEN_MAX);
                shown[i] += 1;
            });
            let after = present(&mut client, ITEMS);
            for (i, cas) in before {
                if after.get(&i) == Some(&cas) {
                    assert_ne!(shown[i], 0, "{i} existed the whole time");
                    stayed += 1;
                }
            }
        }
        assert!(stayed > ITEMS, "{stayed}");
    });
}

/// A walk reads large values piece by piece. The memory for each value is freed by evicting other
/// items.
#[test]
fn a_walk_shows_large_values() {
    const ITEMS: usize = 300;
    const LEN_MAX: usize = 400_000;
    let mut config = config(16 * MIB, &Memory::new(256 * MIB, 13), any_size());
    config.flash.as_mut().unwrap().page_len = 4 * MIB as u64;
    let cache = Cache::new(config).unwrap();
    let mut client = Client::new(&cache, &clock());
    for i in 0..ITEMS {
        client.set(&key(i), &value(i, 0, LEN_MAX));
        settle(&cache);
    }
    assert!(cache.flash_gauges().unwrap().objects_used > 200);
    let mut shown = vec![0; ITEMS];
    let mut next = 0;
    walk(
        &mut client,
        100,
        |client, state| {
            next = (next + 7) % ITEMS;
            let found = client.get(&key(next));
            assert!(found.is_none_or(|found| found == value(next, 0, LEN_MAX)), "{next}");
            wait(client, state);
        },
        |i, found| {
            assert!(found == value(i, 0, LEN_MAX), "{i}");
            shown[i] += 1;
        },
    );
    let missed: Vec<usize> =
        (0..ITEMS).filter(|i| shown[*i] == 0 && client.get(&key(*i)).is_some()).collect();
    assert!(missed.is_empty(), "{missed:?}");
    let times = shown.iter().sum::<u32>();
    assert!((200..1000).contains(&times), "{times}");
}

#[test]
fn a_walk_over_a_device_that_fails_ends_and_shows_no_wrong_value() {
    const ITEMS: usize = 40_000;
    let device = Memory::new(128 * MIB, 10);
    let (cache, mut client, _) = full(ITEMS, &device);
    let before = cache.gauges().items;
    let delay_max = Duration::from_micros(200);
    let faults = Faults {
        delay_max,
        read_errors: 2_000,
        short_reads: 2_000,
        flipped_bits: 2_000,
        ..Faults::default()
    };
    device.set_faults(faults);
    let mut shown = vec![0; ITEMS];
    walk(&mut client, 100, wait, |i, found| {
        assert_eq!(found, value(i, 0, LEN_MAX), "{i}");
        shown[i] += 1;
    });
    device.set_faults(Faults::default());
    let gauges = cache.flash_gauges().unwrap();
    assert!(gauges.miss > 0 && !gauges.is_off, "{gauges:?}");
    let found = (0..ITEMS).filter(|i| client.get(&key(*i)).is_some()).count();
    let shown = shown.into_iter().filter(|times| *times > 0).count();
    assert_eq!(shown, found, "items that could not be read were removed: {gauges:?}");
    assert!(found as u64 + gauges.miss <= before, "{found} of {before}: {gauges:?}");
}

#[test]
fn a_walk_over_a_hanging_device_ends_and_delays_only_reads() {
    const ITEMS: usize = 30_000;
    let device = Memory::new(64 * MIB, 11);
    let (cache, mut client, now) = full(ITEMS, &device);
    device.set_faults(Faults { hangs: true, ..Faults::default() });
    let passing = std::thread::spawn({
        let (cache, device) = (cache.clone(), device.clone());
        move || {
            let mut handle = cache.handle();
            for _ in 0..12 {
                std::thread::sleep(Duration::from_millis(20));
                handle.maintain(Seconds(now.fetch_add(1, Ordering::Relaxed) + 1));
            }
            device.set_faults(Faults::default());
        }
    });
    let mut shown = 0;
    let mut stored = 0;
    walk(
        &mut client,
        100,
        |client, state| {
            let begun = Instant::now();
            client.set(b"key-0", &value(0, 1, LEN_MAX));
            assert!(client.get(b"key-0").is_some());
            assert!(begun.elapsed() < Duration::from_secs(5), "the item is in memory");
            stored += 1;
            wait(client, state);
        },
        |i, found| {
            version(i, found, LEN_MAX);
            shown += 1;
        },
    );
    passing.join().unwrap();
    let gauges = cache.flash_gauges().unwrap();
    assert!(stored > 10 && shown > 1_000 && gauges.miss > 0, "{stored} {shown}: {gauges:?}");
}

/// A paused walk does not prevent requests from reading. Dropping the walk frees its memory.
#[test]
fn requests_read_while_a_walk_is_paused() {
    const ITEMS: usize = 40_000;
    let (cache, mut client, _) = full(ITEMS, &Memory::new(128 * MIB, 12));
    let mut walks: Vec<_> = (0..20).map(|_| client.handle.walk()).collect();
    for walk in &mut walks {
        while client.continue_walk(walk, 100, |_, _| ()) == WalkState::More {}
    }
    let begun = Instant::now();
    let found = (0..2_000).filter(|i| client.get(&key(*i)).is_some()).count();
    assert!(found > 1_000, "{found}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    drop(walks);
    settle(&cache);
    let found = client.look(&key(ITEMS - 1), |item| item.value.len());
    assert!(matches!(found, Lookup::Hit(_)), "{found:?}");
}
