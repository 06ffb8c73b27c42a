//! A failing device: it causes misses, but no wrong value, and no request hangs.

use super::common::*;
use larder_device::{Faults, Memory};
use larder_store::segment::Cache;
use larder_store::{Maintenance, Seconds};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use std::collections::HashMap;
use std::time::Duration;

/// Makes random requests, and compares the results with an oracle. The only allowed difference is a
/// missing item. Returns the cache, the number of hits, and the number of missing items.
fn oracle(faults: Faults, device_len: usize, requests: usize, seed: u64) -> (Cache, usize, usize) {
    let device = Memory::new(device_len, seed);
    device.set_faults(faults);
    let cache = Cache::new(config(16 * MIB, &device, any_size())).unwrap();
    let now = clock();
    let mut client = Client::new(&cache, &now);
    let mut random = SmallRng::seed_from_u64(seed);
    let mut expected: HashMap<usize, Vec<u8>> = HashMap::new();
    let (mut hits, mut misses) = (0, 0);
    for request in 0..requests {
        let i = random.random_range(0..40_000);
        let version = request as u64;
        match random.random_range(0..20) {
            0..9 => {
                client.set(&key(i), &value(i, version, 1500));
                expected.insert(i, value(i, version, 1500));
            }
            9 => {
                client.delete(&key(i));
                expected.remove(&i);
            }
            10 => {
                if client.append(&key(i), b"+")
                    && let Some(value) = expected.get_mut(&i)
                {
                    value.push(b'+');
                }
            }
            _ => match (client.get(&key(i)), expected.get(&i)) {
                (Some(found), Some(expected)) => {
                    assert_eq!(&found, expected, "{i} at {request}");
                    hits += 1;
                }
                (Some(found), None) => panic!("{i} is back at {request}: {} bytes", found.len()),
                (None, Some(_)) => {
                    expected.remove(&i);
                    misses += 1;
                }
                (None, None) => (),
            },
        }
        if request % 10_000 == 9_999 {
            client.handle.maintain(Seconds(client.now().0));
        }
    }
    (cache, hits, misses)
}

#[test]
fn without_faults_hardly_any_item_is_missing() {
    let (cache, hits, misses) = oracle(Faults::default(), 256 * MIB, 200_000, 1);
    let gauges = cache.flash_gauges().unwrap();
    assert!(gauges.get_extstore > 10_000, "{gauges:?}");
    assert!(misses * 10 < hits, "{misses} of {hits}: {gauges:?}");
    assert_eq!((gauges.miss, gauges.badcrc), (0, 0));
}

#[test]
fn a_full_device_drops_its_oldest_pages() {
    let (cache, hits, _) = oracle(Faults::default(), 24 * MIB, 300_000, 2);
    let gauges = cache.flash_gauges().unwrap();
    assert!(gauges.page_evictions + gauges.page_reclaims > 20, "{gauges:?}");
    assert!(hits > 20_000 && gauges.badcrc == 0, "{hits}: {gauges:?}");
}

#[test]
fn slow_reads_and_writes_change_nothing() {
    let delay_max = Duration::from_micros(300);
    oracle(Faults { delay_max, ..Faults::default() }, 64 * MIB, 30_000, 3);
}

#[test]
fn failed_short_and_wrong_reads_are_misses() {
    let faults =
        Faults { read_errors: 400, short_reads: 400, flipped_bits: 20, ..Faults::default() };
    let (cache, hits, _) = oracle(faults, 64 * MIB, 100_000, 4);
    let gauges = cache.flash_gauges().unwrap();
    assert!(hits > 1_000 && gauges.miss > 10 && gauges.badcrc > 0, "{hits}: {gauges:?}");
}

/// A failed write evicts the items that it contains. The other items of the page stay, and the page
/// is used again some time later.
#[test]
fn a_failed_write_costs_its_own_items_alone() {
    const ITEMS: usize = 60_000;
    let device = Memory::new(128 * MIB, 17);
    let cache = Cache::new(config(16 * MIB, &device, any_size())).unwrap();
    let now = clock();
    let mut client = Client::new(&cache, &now);
    // The device counts its writes. Only this count determines which writes fail, not the thread
    // that writes.
    device.set_faults(Faults { write_errors: 40, ..Faults::default() });
    for from in (0..ITEMS).step_by(1000) {
        (from..from + 1000).for_each(|i| client.set(&key(i), &value(i, 0, 1000)));
        settle(&cache);
    }
    device.set_faults(Faults::default());
    let gauges = cache.flash_gauges().unwrap();
    assert!(gauges.failures > 3 && !gauges.is_off, "{gauges:?}");
    let evicted = usize::try_from(cache.gauges().evictions).unwrap();
    assert!(evicted > 0 && evicted < ITEMS / 10, "{evicted}: {gauges:?}");
    let found = (0..ITEMS).filter(|i| client.get(&key(*i)) == Some(value(*i, 0, 1000))).count();
    let evicted_since = usize::try_from(cache.gauges().evictions).unwrap() - evicted;
    assert!(
        found + evicted + evicted_since >= ITEMS,
        "{found} found, {evicted} evicted: {gauges:?}"
    );
    // After the deletions, the empty pages are free. Pages with a failed write become free only
    // some time later.
    let pages = gauges.pages_free + gauges.pages_used;
    (0..ITEMS).for_each(|i| _ = client.delete(&key(i)));
    let free = || cache.flash_gauges().unwrap().pages_free;
    let least = pages - gauges.failures - 4;
    wait_for("the pages are empty", || free() >= least);
    now.fetch_add(3600, std::sync::atomic::Ordering::Relaxed);
    wait_for("the pages have rested", || {
        client.handle.maintain(client.now());
        free() >= pages - 4
    });
}

#[test]
fn failed_reads_of_a_page_cost_their_own_items_alone() {
    const ITEMS: usize = 30_000;
    let device = Memory::new(64 * MIB, 3);
    let cache = Cache::new(config(16 * MIB, &device, any_size())).unwrap();
    let mut client = Client::new(&cache, &clock());
    fill(&cache, &mut client, 0..ITEMS, 0);
    settle(&cache);
    device.set_faults(Faults { read_errors: 5, ..Faults::default() });
    // Read only the first items, which are on the same page: failures on several pages would switch
    // flash off.
    let lost: Vec<usize> = (0..800).filter(|i| client.get(&key(*i)).is_none()).collect();
    device.set_faults(Faults::default());
    let gauges = cache.flash_gauges().unwrap();
    assert!(lost.len() > 50 && !gauges.is_off, "{}: {gauges:?}", lost.len());
    let found = (0..ITEMS).filter(|i| client.get(&key(*i)) == Some(value(*i, 0, 1000))).count();
    let evicted = usize::try_from(cache.gauges().evictions).unwrap();
    assert!(
        found + lost.len() + evicted >= ITEMS,
        "{found}, {}, {evicted}: {gauges:?}",
        lost.len()
    );
}

/// A page has more than 256 unreadable items. Flash is switched off after 256 counted errors, but
/// only a few errors of one page count.
#[test]
fn a_defective_page_costs_its_own_items_alone() {
    const ITEMS: usize = 60_000;
    let device = Memory::new(128 * MIB, 3);
    let cache = Cache::new(config(16 * MIB, &device, any_size())).unwrap();
    let now = clock();
    let mut client = Client::new(&cache, &now);
    fill(&cache, &mut client, 0..ITEMS, 0);
    let page = MIB as u64;
    device.set_faults(Faults { defect: Some((3 * page, page)), ..Faults::default() });
    let read = |client: &mut Client| {
        (0..ITEMS).filter(|i| client.get(&key(*i)) == Some(value(*i, 0, 1000))).count()
    };
    let found = read(&mut client);
    let gauges = cache.flash_gauges().unwrap();
    let lost = usize::try_from(gauges.miss).unwrap();
    assert!(lost > 500 && !gauges.is_off, "{lost}: {gauges:?}");
    let evicted = usize::try_from(cache.gauges().evictions).unwrap();
    // A few items have the same hash bits as another key, and are replaced when that key is set.
    assert!(found + lost + evicted + 20 >= ITEMS, "{found}, {lost}, {evicted}: {gauges:?}");
    device.set_faults(Faults::default());
    assert!(read(&mut client) + 100 > found, "the other items are still there");
}

/// Several threads write to the same page at the same time, and all of these writes fail.
#[test]
fn failed_writes_to_one_page_do_not_turn_flash_off() {
    let device = Memory::new(128 * MIB, 17);
    let cache = Cache::new(config(16 * MIB, &device, any_size())).unwrap();
    let mut client = Client::new(&cache, &clock());
    let (mut from, mut pages) = (0, 0);
    let failures = || cache.flash_gauges().unwrap().failures;
    // Use several pages, because a page may have only one write under way when that write fails.
    while pages < 4 || failures() < pages + 2 {
        pages += 1;
        assert!(pages < 12, "writes of several threads reach a page: {:?}", cache.flash_gauges());
        let defect = Some((pages * 7 * MIB as u64, MIB as u64));
        // The delay makes the writes of all threads overlap.
        let delay_max = Duration::from_millis(5);
        device.set_faults(Faults { defect, delay_max, ..Faults::default() });
        let (first, before) = (from, failures());
        while failures() == before {
            (from..from + 2000).for_each(|i| client.set(&key(i), &value(i, 0, 1000)));
            from += 2000;
            // The device is slower than the client. Without this pause, further items would be
            // dropped instead of written.
            settle(&cache);
            assert!(from < first + 60_000, "a write reaches the page: {:?}", cache.flash_gauges());
        }
    }
    let gauges = cache.flash_gauges().unwrap();
    assert!(!gauges.is_off, "{gauges:?}");
}

#[test]
fn torn_writes_are_detected() {
    for torn_unnoticed in [false, true] {
        let faults = Faults { torn_writes: 30, torn_unnoticed, ..Faults::default() };
        let (cache, hits, _) = oracle(faults, 64 * MIB, 100_000, 5);
        assert!(hits > 1_000, "{hits}: {:?}", cache.flash_gauges());
    }
}

#[test]
fn a_device_that_refuses_writes_is_switched_off() {
    let (cache, hits, _) =
        oracle(Faults { is_full: true, ..Faults::default() }, 64 * MIB, 100_000, 6);
    let gauges = cache.flash_gauges().unwrap();
    assert!(gauges.is_off && gauges.objects_used == 0, "{gauges:?}");
    assert!(hits > 1_000, "items in memory are still found");
}

#[test]
fn a_hanging_device_delays_only_reads_and_not_for_long() {
    let device = Memory::new(64 * MIB, 9);
    let cache = Cache::new(config(16 * MIB, &device, any_size())).unwrap();
    let now = clock();
    let mut client = Client::new(&cache, &now);
    (0..30_000).for_each(|i| client.set(&key(i), &value(i, 0, 1000)));
    settle(&cache);
    device.set_faults(Faults { hangs: true, ..Faults::default() });
    // Sets do not wait for the device.
    (30_000..60_000).for_each(|i| client.set(&key(i), &value(i, 0, 1000)));
    assert!((59_900..60_000).all(|i| client.get(&key(i)).is_some()), "items in memory are found");
    let passing = std::thread::spawn({
        let (cache, now) = (cache.clone(), std::sync::Arc::clone(&now));
        move || {
            let mut handle = cache.handle();
            for _ in 0..10 {
                std::thread::sleep(Duration::from_millis(20));
                let next = now.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
                handle.maintain(Seconds(next));
            }
        }
    });
    let missing = (0..30_000).find(|i| client.get(&key(*i)).is_none());
    assert!(missing.is_some(), "a read that hangs is a miss");
    passing.join().unwrap();
    device.set_faults(Faults::default());
    let found = (0..30_000).filter(|i| client.get(&key(*i)) == Some(value(*i, 0, 1000))).count();
    assert!(found > 1_000, "{found}");
}
