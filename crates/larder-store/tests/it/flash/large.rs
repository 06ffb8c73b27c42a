//! Large values: they have segments of their own in memory, and blocks of their own on flash.

use super::common::*;
use larder_device::{Faults, Memory};
use larder_store::segment::{Cache, Config};
use larder_store::{
    Attributes, Batches, Change, Expiry, FlashSettings, Lookup, Maintenance, NewCas, NewTags,
    NewValue, Refusal, Seconds, Updates, Uploads,
};
use nix::sys::memfd::{MFdFlags, memfd_create};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The maximum length of a value in bytes, not counting the 24 bytes that each value has in
/// addition.
const LEN_MAX: usize = 400_000;

fn large_config(device: &Memory, settings: FlashSettings) -> Config {
    let mut config = config(16 * MIB, device, settings);
    config.flash.as_mut().unwrap().page_len = 4 * MIB as u64;
    config
}

/// Sets values of any length up to [`LEN_MAX`], no faster than the device writes them.
fn fill_large(cache: &Cache, client: &mut Client, items: std::ops::Range<usize>) {
    for i in items {
        client.set(&key(i), &value(i, 0, LEN_MAX));
        settle(cache);
    }
}

/// Returns a cache with a limit of 16 MiB that contains 60 MB of values.
fn full() -> (Cache, Client, Arc<std::sync::atomic::AtomicU32>) {
    let device = Memory::new(256 * MIB, 7);
    let cache = Cache::new(large_config(&device, any_size())).unwrap();
    let now = clock();
    let mut client = Client::new(&cache, &now);
    fill_large(&cache, &mut client, 0..300);
    (cache, client, now)
}

/// Reads of large values need memory. They wait until other items were written to flash, so hardly
/// any item is lost.
#[test]
fn hardly_anything_is_lost_by_reading_large_values() {
    const SMALL: usize = 10_000;
    const LARGE: usize = 60;
    let device = Memory::new(256 * MIB, 7);
    let cache = Cache::new(large_config(&device, any_size())).unwrap();
    let now = clock();
    let mut client = Client::new(&cache, &now);
    for i in 0..SMALL {
        client.set(&key(i), &value(i, 0, 1000));
        pace(&cache, i);
    }
    fill_large(&cache, &mut client, SMALL..SMALL + LARGE);
    let items = cache.gauges().items;
    device.set_faults(Faults { delay_max: Duration::from_millis(2), ..Faults::default() });
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let (cache, now) = (&cache, &now);
            scope.spawn(move || {
                let (mut client, mut random) =
                    (Client::new(cache, now), SmallRng::seed_from_u64(seed));
                for _ in 0..60 {
                    let i = SMALL + random.random_range(0..LARGE);
                    let found = client.get(&key(i));
                    assert!(found.is_none_or(|found| found == value(i, 0, LEN_MAX)), "{i}");
                }
            });
        }
    });
    settle(&cache);
    // If no memory is free for a read, and no read or write under way could free memory, the read
    // may evict items.
    let lost = items - cache.gauges().items;
    assert!(lost < 100, "{lost}: {:?}", cache.flash_gauges());
}

#[test]
fn large_values_are_found_on_flash() {
    let (cache, mut client, _) = full();
    let gauges = cache.flash_gauges().unwrap();
    assert!(gauges.objects_used > 200, "{gauges:?}");
    assert!(gauges.bytes_used > 40 * MIB as u64, "{gauges:?}");
    assert_eq!(cache.gauges().items, 300);
    for round in 0..3 {
        for i in 0..300 {
            assert!(client.get(&key(i)) == Some(value(i, 0, LEN_MAX)), "{i} in round {round}");
            settle(&cache);
        }
    }
    let gauges = cache.flash_gauges().unwrap();
    assert!(gauges.get_extstore > 600 && gauges.recache > 10, "{gauges:?}");
    assert_eq!((gauges.miss, gauges.badcrc, gauges.dropped), (0, 0, 0), "{gauges:?}");
}

/// A large value that was copied to memory keeps its copy on flash. So its eviction neither writes
/// nor loses the value, even while the device completes no writes.
#[test]
fn a_large_value_that_was_only_read_is_not_written_again() {
    let (cache, mut client, _) = full();
    let read = |client: &mut Client| {
        for i in 0..300 {
            assert!(client.get(&key(i)) == Some(value(i, 0, LEN_MAX)), "{i}");
            settle(&cache);
        }
    };
    // After the first reads, most values in memory are copies.
    (0..2).for_each(|_| read(&mut client));
    let before = cache.flash_gauges().unwrap();
    (0..2).for_each(|_| read(&mut client));
    let after = cache.flash_gauges().unwrap();
    let recached = after.recache - before.recache;
    let (returned, written) =
        (after.returned - before.returned, after.objects_written - before.objects_written);
    assert!(recached > 20, "{after:?}");
    assert!(returned * 10 > recached * 8, "{returned} of {recached}: {after:?}");
    assert!(written * 5 < recached, "{written} of {recached}: {after:?}");
    assert_eq!((after.miss, after.badcrc, after.dropped), (0, 0, 0), "{after:?}");
    assert_eq!(cache.gauges().items, 300);
}

/// Changes of large values that are in memory and have a copy on flash must not be lost when the
/// values are evicted from memory.
#[test]
fn a_change_of_a_large_value_outdates_its_copy_on_flash() {
    let (cache, mut client, now) = full();
    let soon = Expiry::At(Seconds(client.now().0 + 500));
    let changed = 0..40;
    for i in changed.clone() {
        (0..3).for_each(|_| assert!(client.get(&key(i)).is_some(), "{i}"));
        let done = match i % 4 {
            0 => client.touch(&key(i), soon),
            1 => client.append(&key(i), b"more"),
            2 => client.append(&key(i), &vec![b'!'; 200_000]),
            _ => {
                let stale = client.update(&key(i), |found| match found {
                    Some(item) => {
                        let attributes = Attributes { stale: true, ..item.attributes };
                        let access = larder_store::Access::Untracked;
                        (Change::SetAttributes { attributes, cas: NewCas::Fresh, access }, true)
                    }
                    None => (Change::Keep, false),
                });
                stale.unwrap()
            }
        };
        assert!(done, "{i}");
        settle(&cache);
    }
    assert!(cache.flash_gauges().unwrap().recache > 20, "{:?}", cache.flash_gauges());
    // These values are read as often as the changed values were, so they evict the changed values.
    fill_large(&cache, &mut client, 300..600);
    for i in (0..3).flat_map(|_| 300..600) {
        assert!(client.get(&key(i)).is_some(), "{i}");
        settle(&cache);
    }
    let before = cache.flash_gauges().unwrap().get_extstore;
    for i in changed.clone() {
        let found = client.look(&key(i), |item| (item.attributes, copied(&item.value)));
        let Lookup::Hit((attributes, bytes)) = found else { panic!("{i}: {found:?}") };
        let plain = value(i, 0, LEN_MAX);
        let is_right = match i % 4 {
            0 => attributes.expiry == soon && bytes == plain,
            1 => bytes == [&plain[..], b"more"].concat(),
            2 => bytes == [&plain[..], &vec![b'!'; 200_000]].concat(),
            _ => attributes.stale && bytes == plain,
        };
        assert!(is_right, "{i}");
        settle(&cache);
    }
    let reads = cache.flash_gauges().unwrap().get_extstore - before;
    assert!(reads > 10, "{reads}: many were on flash");
    now.fetch_add(600, Ordering::Relaxed);
    assert!(changed.step_by(4).all(|i| client.get(&key(i)).is_none()), "they have expired");
}

#[test]
fn changes_of_large_items_on_flash_are_exact() {
    let (cache, mut client, now) = full();
    for i in 0..200 {
        let expected = value(i, 0, LEN_MAX);
        match i % 8 {
            0 => {
                assert!(client.delete(&key(i)));
                assert_eq!(client.get(&key(i)), None);
            }
            1 => {
                let more = vec![b'!'; i * 300];
                assert!(client.append(&key(i), &more));
                assert!(client.get(&key(i)) == Some([expected, more].concat()), "{i}");
            }
            2 => {
                let prepended = client.update(&key(i), |found| match found {
                    Some(item) => {
                        let (attributes, value) = (item.attributes, NewValue::Prepend(b"??"));
                        let cas = NewCas::Fresh;
                        (
                            Change::Put {
                                attributes,
                                cas,
                                value,
                                fetched: false,
                                tags: NewTags::None,
                            },
                            true,
                        )
                    }
                    None => (Change::Keep, false),
                });
                assert_eq!(prepended, Ok(true));
                assert!(client.get(&key(i)) == Some([&b"??"[..], &expected].concat()), "{i}");
            }
            3 => {
                let at = Expiry::At(Seconds(client.now().0 + 10));
                assert!(client.touch(&key(i), at));
                assert!(client.get(&key(i)) == Some(expected), "{i}");
            }
            4 => {
                let before = client.cas_of(&key(i)).unwrap();
                client.set(&key(i), b"blind");
                assert!(client.cas_of(&key(i)).unwrap() > before, "the CAS rises");
                assert_eq!(client.get(&key(i)), Some(b"blind".to_vec()));
            }
            5 => {
                client.set(&key(i), &value(i, 1, LEN_MAX));
                assert!(client.get(&key(i)) == Some(value(i, 1, LEN_MAX)), "{i}");
            }
            6 => {
                let added = client.update(&key(i), |found| (Change::Keep, found.is_some()));
                assert_eq!(added, Ok(true), "the item exists");
            }
            _ => assert_eq!(client.get(&key(i)), Some(expected)),
        }
        settle(&cache);
    }
    now.fetch_add(20, Ordering::Relaxed);
    for i in (3..200).step_by(8) {
        assert_eq!(client.get(&key(i)), None, "the item has expired");
    }
    client.handle.flush(None);
    for i in 0..300 {
        assert_eq!(client.get(&key(i)), None, "{i} was flushed");
    }
}

#[test]
fn attributes_of_large_items_survive_demotion_and_promotion() {
    let device = Memory::new(256 * MIB, 7);
    let cache = Cache::new(large_config(&device, any_size())).unwrap();
    let mut client = Client::new(&cache, &clock());
    let attributes = |i: usize| Attributes {
        client_flags: u32::try_from(i % 3 * 77).unwrap(),
        expiry: match i % 4 {
            0 => Expiry::Never,
            1 => Expiry::At(Seconds(10_000)),
            _ => Expiry::At(Seconds(1_000_000)),
        },
        stale: i.is_multiple_of(5),
        won: i.is_multiple_of(7),
        binary_key: i.is_multiple_of(11),
    };
    let mut cases = Vec::new();
    for i in 0..150 {
        let value = value(i, 0, LEN_MAX);
        cases.push(client.set_with(&key(i), &value, attributes(i)));
        settle(&cache);
    }
    assert!(cache.flash_gauges().unwrap().objects_used > 50);
    for (i, cas) in cases.into_iter().enumerate() {
        let found = client.look(&key(i), |item| (item.attributes, item.cas));
        assert_eq!(found, Lookup::Hit((attributes(i), cas)), "{i}");
        settle(&cache);
    }
}

/// Makes random requests, and compares the results with an oracle. The only allowed difference is a
/// missing item. Small and large values share the device. Returns the cache, the number of hits,
/// and the number of missing items.
fn oracle(faults: Faults, device_len: usize, requests: usize, seed: u64) -> (Cache, usize, usize) {
    let device = Memory::new(device_len, seed);
    device.set_faults(faults);
    let cache = Cache::new(large_config(&device, any_size())).unwrap();
    let mut client = Client::new(&cache, &clock());
    let mut random = SmallRng::seed_from_u64(seed);
    let mut expected: HashMap<usize, Vec<u8>> = HashMap::new();
    let (mut hits, mut misses) = (0, 0);
    let len_max = |i: usize| if i.is_multiple_of(3) { LEN_MAX } else { 3_000 };
    for request in 0..requests {
        let i = random.random_range(0..400);
        let version = request as u64;
        match random.random_range(0..20) {
            0..7 => {
                client.set(&key(i), &value(i, version, len_max(i)));
                expected.insert(i, value(i, version, len_max(i)));
            }
            7 => {
                client.delete(&key(i));
                expected.remove(&i);
            }
            8 => {
                if client.append(&key(i), b"+")
                    && let Some(value) = expected.get_mut(&i)
                {
                    value.push(b'+');
                }
            }
            9 => {
                client.touch(&key(i), Expiry::At(Seconds(50_000)));
            }
            _ => match (client.get(&key(i)), expected.get(&i)) {
                (Some(found), Some(expected)) => {
                    assert!(&found == expected, "{i} at {request}");
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
        if request % 100 == 99 {
            client.handle.maintain(client.now());
        }
    }
    (cache, hits, misses)
}

#[test]
fn small_and_large_items_share_a_device() {
    let (cache, hits, misses) = oracle(Faults::default(), 256 * MIB, 6_000, 1);
    let gauges = cache.flash_gauges().unwrap();
    assert!(gauges.get_extstore > 300 && hits > misses, "{hits} {misses} {gauges:?}");
    assert_eq!((gauges.badcrc, gauges.miss), (0, 0), "{gauges:?}");
}

#[test]
fn pages_with_large_items_are_emptied() {
    let (cache, hits, misses) = oracle(Faults::default(), 32 * MIB, 6_000, 2);
    let gauges = cache.flash_gauges().unwrap();
    assert!(gauges.page_evictions + gauges.page_reclaims > 5, "{gauges:?}");
    assert!(gauges.compact_rescues > 0 && hits > 0, "{hits} {misses} {gauges:?}");
    assert_eq!((gauges.badcrc, gauges.miss), (0, 0), "{gauges:?}");
}

#[test]
fn a_device_that_fails_gives_no_wrong_large_value() {
    let faults = Faults {
        delay_max: Duration::from_micros(100),
        flipped_bits: 50,
        torn_writes: 50,
        torn_unnoticed: true,
        ..Faults::default()
    };
    for seed in 0..3 {
        let (_cache, hits, _) = oracle(faults, 64 * MIB, 2_000, seed);
        assert!(hits > 0);
    }
}

#[test]
fn threads_read_and_change_the_same_large_items() {
    let device = Memory::new(128 * MIB, 11);
    let cache = Cache::new(large_config(&device, any_size())).unwrap();
    let now = clock();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (cache, now) = (&cache, Arc::clone(&now));
            scope.spawn(move || {
                let mut client = Client::new(cache, &now);
                let mut random = SmallRng::seed_from_u64(thread);
                for request in 1..1_500_u64 {
                    let i = random.random_range(0..150);
                    match random.random_range(0..10) {
                        0..2 => client.set(&key(i), &value(i, request, LEN_MAX)),
                        2 => {
                            client.delete(&key(i));
                        }
                        3 => {
                            client.touch(&key(i), Expiry::At(Seconds(60_000)));
                        }
                        _ => {
                            if let Some(found) = client.get(&key(i)) {
                                version(i, &found, LEN_MAX);
                            }
                        }
                    }
                    if request % 50 == 0 {
                        client.handle.maintain(client.now());
                    }
                }
            });
        }
    });
    let gauges = cache.flash_gauges().unwrap();
    assert!(gauges.get_extstore > 100 && gauges.badcrc == 0, "{gauges:?}");
}

#[test]
fn large_items_on_flash_are_there_after_a_restart() {
    let device = Memory::new(256 * MIB, 5);
    let file = File::from(memfd_create("region", MFdFlags::empty()).unwrap());
    let open = || {
        let config = large_config(&device, any_size());
        Cache::in_file(config, 0, file.try_clone().unwrap(), 1).unwrap().0
    };
    let cache = open();
    fill_large(&cache, &mut Client::new(&cache, &clock()), 0..200);
    drop(cache);
    for round in 0..3 {
        let cache = open();
        let mut client = Client::new(&cache, &clock());
        assert_eq!(cache.gauges().items, 200, "round {round}");
        for i in 0..200 {
            assert!(client.get(&key(i)) == Some(value(i, 0, LEN_MAX)), "{i}");
            settle(&cache);
        }
        assert!(cache.flash_gauges().unwrap().get_extstore > 50);
    }
}

fn put(value: &[u8]) -> Change<'_> {
    let attributes = Attributes::default();
    Change::Put {
        attributes,
        cas: NewCas::Fresh,
        value: NewValue::Bytes(value),
        fetched: false,
        tags: NewTags::None,
    }
}

#[test]
fn without_memory_for_a_large_value_a_get_is_a_miss_and_the_item_stays() {
    let device = Memory::new(256 * MIB, 5);
    let file = File::from(memfd_create("region", MFdFlags::empty()).unwrap());
    let open = |evict: bool| {
        let config = Config { evict, ..large_config(&device, any_size()) };
        Cache::in_file(config, 0, file.try_clone().unwrap(), 1).unwrap().0
    };
    let cache = open(true);
    fill_large(&cache, &mut Client::new(&cache, &clock()), 0..200);
    drop(cache);
    let cache = open(false);
    let mut client = Client::new(&cache, &clock());
    let put = |i: usize| client.update(&key(i), |_| (put(&[b'x'; 2_000]), ()));
    let stored = (1_000..).map(put).take_while(Result::is_ok).count();
    assert!(stored > 10, "{stored}");
    let found = (0..200).filter(|i| client.get(&key(*i)).is_some()).count();
    assert!((1..200).contains(&found), "{found}");
    let mut look = |i: &usize| client.update(&key(*i), |_| (Change::Keep, ()));
    let refused = (0..200).rev().find(|i| look(i) == Err(Refusal::OutOfMemory));
    assert!(refused.is_some(), "an update that depends on an unreadable value is refused");
    assert!(cache.flash_gauges().unwrap().get_oom > 0);
    drop(client);
    drop(cache);
    let cache = open(true);
    let mut client = Client::new(&cache, &clock());
    let i = refused.unwrap();
    assert!(client.get(&key(i)) == Some(value(i, 0, LEN_MAX)), "the item always existed");
}

#[test]
fn unused_read_values_do_not_keep_others_out() {
    const LONG: usize = 1_500_000;
    let device = Memory::new(256 * MIB, 7);
    let cache = Cache::new(large_config(&device, any_size())).unwrap();
    let now = clock();
    let mut client = Client::new(&cache, &now);
    for i in 0..60 {
        client.set(&key(i), &value(i, 0, LONG));
        settle(&cache);
    }
    // These peers read no replies. The items that they have requested are read from flash, and stay
    // in memory.
    let mut stalled: Vec<_> = (0..30).map(|_| Client::new(&cache, &now)).collect();
    let mut held = Vec::new();
    for (i, client) in stalled.iter_mut().enumerate() {
        client.begin(&key(i), &mut held);
        settle(&cache);
    }
    assert!(held.len() > 3, "{}", held.len());
    assert_eq!(client.handle.excess_memory().uploaded_by_any, 0, "no upload is in progress");
    now.fetch_add(1, Ordering::Relaxed);
    let found = (30..60).filter(|i| {
        let found = client.get(&key(*i));
        settle(&cache);
        found == Some(value(*i, 0, LONG))
    });
    let (found, evicted) = (found.count(), cache.gauges().evictions);
    assert!(found as u64 + evicted >= 30 && found > 20, "{found}, {evicted} evicted");
    // An upload of half the memory limit still succeeds.
    let mut upload = client.handle.upload(8 * MIB).unwrap();
    client.handle.begin_batch(client.now());
    for _ in 0..128 {
        client.handle.extend(&mut upload, &[b'x'; MIB / 16]).unwrap();
    }
    client.handle.end_batch();
    drop(held);
}

#[test]
fn an_abandoned_read_of_a_large_value_holds_no_page() {
    let device = Memory::new(32 * MIB, 5);
    let mut config = large_config(&device, any_size());
    // With a depth of 1, a request for a large value reads the pieces of the value one after the
    // other.
    config.flash.as_mut().unwrap().depth = 1;
    let cache = Cache::new(config).unwrap();
    let now = clock();
    let mut client = Client::new(&cache, &now);
    fill_large(&cache, &mut client, 0..100);
    let found = (0..100).filter(|i| client.get(&key(*i)) == Some(value(*i, 0, LEN_MAX))).count();
    assert!(found > 60 && cache.flash_gauges().unwrap().get_extstore > 20, "{found}");

    let mut stalled = Client::new(&cache, &now);
    let mut fetches = Vec::new();
    for i in 0..100 {
        stalled.begin(&key(i), &mut fetches);
    }
    assert!(!fetches.is_empty(), "a read is under way");
    for i in 100..500 {
        client.set(&key(i), &value(i, 0, LEN_MAX));
        settle(&cache);
    }
    let gauges = cache.flash_gauges().unwrap();
    assert!(gauges.page_evictions + gauges.page_reclaims > 2 * gauges.page_count, "{gauges:?}");
    assert_eq!(gauges.badcrc, 0);
    drop(fetches);
}
