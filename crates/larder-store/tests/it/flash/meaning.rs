//! Every request has the same result for an item in memory and an item on flash.

use super::common::*;
use larder_device::Memory;
use larder_store::segment::{Cache, Config, Handle};
use larder_store::{
    Attributes, Change, Expiry, FlashSettings, Lookup, Maintenance, NewCas, NewTags, NewValue,
    Seconds, Updates,
};
use std::sync::atomic::Ordering;

/// Returns a cache with a limit of 16 MiB and items of up to 1 KB. If there are many items, most of
/// them are on flash.
fn full(items: usize) -> (Cache, Client, std::sync::Arc<std::sync::atomic::AtomicU32>) {
    let device = Memory::new(128 * MIB, 7);
    let cache = Cache::new(config(16 * MIB, &device, any_size())).unwrap();
    let now = clock();
    let mut client = Client::new(&cache, &now);
    fill(&cache, &mut client, 0..items, 0);
    // On a busy machine the writing threads may be late, so that items are evicted without a write.
    // The tests expect the first 2,000 items, so set the evicted items among them again.
    for i in 0..items.min(2_000) {
        if client.get(&key(i)).is_none() {
            client.set(&key(i), &value(i, 0, 1000));
        }
    }
    (cache, client, now)
}

#[test]
fn items_beyond_memory_are_found_on_flash() {
    let (cache, mut client, _) = full(60_000);
    let gauges = cache.flash_gauges().unwrap();
    assert!(gauges.objects_used > 30_000, "{gauges:?}");
    // On a busy machine the writing threads may be late, so that items are evicted without a write.
    let (items, evicted) = (cache.gauges().items, cache.gauges().evictions);
    assert!(items > 58_000, "{items}");
    let found = (0..60_000).filter(|i| match client.get(&key(*i)) {
        Some(found) => found == value(*i, 0, 1000),
        None => false,
    });
    // Copying an item to memory evicts other items, which later lookups then miss.
    let found = found.count() as u64;
    let evicted = cache.gauges().evictions - evicted;
    assert!(found <= items && items - found <= evicted, "{found} of {items}, {evicted} evicted");
    let gauges = cache.flash_gauges().unwrap();
    assert!(gauges.get_extstore > 30_000 && gauges.miss == 0 && gauges.badcrc == 0, "{gauges:?}");
    assert_eq!(client.get(b"another"), None);
}

#[test]
fn changes_of_items_on_flash_are_exact() {
    let (_cache, mut client, now) = full(40_000);
    for i in 0..2_000 {
        let expected = value(i, 0, 1000);
        match i % 8 {
            0 => {
                assert!(client.delete(&key(i)));
                assert!(!client.delete(&key(i)));
                assert_eq!(client.get(&key(i)), None);
            }
            1 => {
                assert!(client.append(&key(i), b"!!"));
                assert_eq!(client.get(&key(i)), Some([&expected[..], b"!!"].concat()));
            }
            2 => {
                client.set(&key(i), b"new");
                assert_eq!(client.get(&key(i)), Some(b"new".to_vec()));
            }
            3 => {
                let at = Expiry::At(Seconds(client.now().0 + 10));
                assert!(client.touch(&key(i), at));
                assert_eq!(client.get(&key(i)), Some(expected));
            }
            4 => {
                let added = client.update(&key(i), |found| match found {
                    Some(_) => (Change::Keep, false),
                    None => (put(b"added"), true),
                });
                assert_eq!(added, Ok(false), "the item exists");
            }
            5 => {
                let before = client.cas_of(&key(i)).unwrap();
                client.set(&key(i), b"blind");
                assert!(client.cas_of(&key(i)).unwrap() > before, "the CAS rises");
            }
            6 => {
                let cas = client.cas_of(&key(i)).unwrap();
                let swapped = client.update(&key(i), |found| match found {
                    Some(item) if item.cas == cas => (put(b"swapped"), true),
                    _ => (Change::Keep, false),
                });
                assert_eq!(swapped, Ok(true));
                assert_eq!(client.get(&key(i)), Some(b"swapped".to_vec()));
            }
            _ => assert_eq!(client.get(&key(i)), Some(expected)),
        }
    }
    now.fetch_add(20, Ordering::Relaxed);
    for i in (3..2_000).step_by(8) {
        assert_eq!(client.get(&key(i)), None, "the item has expired");
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
fn attributes_survive_demotion_and_promotion() {
    let device = Memory::new(64 * MIB, 7);
    let cache = Cache::new(config(16 * MIB, &device, any_size())).unwrap();
    let now = clock();
    let mut client = Client::new(&cache, &now);
    let attributes = |i: usize| Attributes {
        client_flags: u32::try_from(i % 3 * 77).unwrap(),
        expiry: if i.is_multiple_of(2) {
            Expiry::Never
        } else {
            Expiry::At(Seconds(100_000 + u32::try_from(i).unwrap()))
        },
        stale: i.is_multiple_of(5),
        won: i.is_multiple_of(7),
        binary_key: i.is_multiple_of(11),
    };
    let mut cases = Vec::new();
    for i in 0..40_000 {
        cases.push(client.set_with(&key(i), &value(i, 0, 800), attributes(i)));
        pace(&cache, i);
    }
    let mut missing = 0;
    for (i, cas) in cases.into_iter().enumerate() {
        let found = client.look(&key(i), |item| (item.attributes, item.cas, item.fetched));
        if found == Lookup::Miss {
            missing += 1;
            continue;
        }
        assert_eq!(found, Lookup::Hit((attributes(i), cas, false)), "{i}");
        let found = client.look(&key(i), |item| (item.attributes, item.cas, item.fetched));
        assert_eq!(found, Lookup::Hit((attributes(i), cas, true)), "{i}, once more");
    }
    // A busy machine may have dropped some items.
    assert!(missing < 1_000, "{missing}");
}

#[test]
fn a_flush_reaches_items_on_flash_and_later_ones_are_kept() {
    let (cache, mut client, _) = full(40_000);
    client.handle.flush(None);
    for i in (0..40_000).step_by(7) {
        assert_eq!(client.get(&key(i)), None, "{i}");
    }
    fill(&cache, &mut client, 0..40_000, 1);
    let kept = (0..40_000).filter(|i| client.get(&key(*i)) == Some(value(*i, 1, 1000))).count();
    assert!(kept > 39_000, "{kept}");
}

#[test]
fn repeatedly_read_items_are_copied_to_memory() {
    let (cache, mut client, _) = full(40_000);
    let reads = || cache.flash_gauges().unwrap().get_extstore;
    for _ in 0..6 {
        for i in 0..500 {
            assert_eq!(client.get(&key(i)), Some(value(i, 0, 1000)));
        }
    }
    let before = reads();
    for i in 0..500 {
        assert_eq!(client.get(&key(i)), Some(value(i, 0, 1000)));
    }
    assert_eq!(reads(), before, "the items are in memory");
    assert!(cache.flash_gauges().unwrap().recache >= 300);
}

#[test]
fn small_items_are_not_written() {
    let device = Memory::new(64 * MIB, 7);
    let settings = FlashSettings { item_size: 512, ..FlashSettings::default() };
    let cache = Cache::new(config(16 * MIB, &device, settings)).unwrap();
    let mut client = Client::new(&cache, &clock());
    (0..200_000).for_each(|i| client.set(&key(i), &value(i, 0, 300)));
    assert_eq!(cache.flash_gauges().unwrap().objects_written, 0);
    assert!(cache.gauges().evictions > 0);
}

#[test]
fn idle_items_are_demoted_before_their_memory_is_needed() {
    demote_idle_items(|handle, now| handle.maintain(now));
}

#[test]
fn idle_items_are_demoted_without_a_crawler() {
    demote_idle_items(|handle, now| handle.shrink(now));
}

fn demote_idle_items(maintain: impl Fn(&mut Handle, Seconds) -> bool) {
    let device = Memory::new(64 * MIB, 7);
    let settings = FlashSettings { item_age: Some(60), ..any_size() };
    let cache = Cache::new(config(16 * MIB, &device, settings)).unwrap();
    let now = clock();
    let mut client = Client::new(&cache, &now);
    fill(&cache, &mut client, 0..6_000, 0);
    let on_flash = || cache.flash_gauges().unwrap().objects_used;
    assert_eq!(on_flash(), 0, "no item is demoted while memory is free");
    now.fetch_add(50, Ordering::Relaxed);
    for i in 0..100 {
        assert_eq!(client.get(&key(i)), Some(value(i, 0, 1000)));
    }
    now.fetch_add(20, Ordering::Relaxed);
    // The last items wait in a write buffer of 64 KiB that is not full.
    wait_for("all idle items are demoted", || {
        let now = client.now();
        maintain(&mut client.handle, now);
        settle(&cache);
        on_flash() > 5_900 - 100
    });
    let reads = cache.flash_gauges().unwrap().get_extstore;
    for i in 0..100 {
        assert_eq!(client.get(&key(i)), Some(value(i, 0, 1000)));
    }
    assert_eq!(
        cache.flash_gauges().unwrap().get_extstore,
        reads,
        "items that were read have stayed"
    );
    for i in 100..6_000 {
        assert_eq!(client.get(&key(i)), Some(value(i, 0, 1000)), "{i}");
    }
    assert_eq!(cache.gauges().evictions, 0);
}

/// A cache without eviction must not demote items, because the flash tier drops items to make room
/// for later items.
#[test]
fn a_cache_without_eviction_demotes_no_item() {
    let device = Memory::new(64 * MIB, 7);
    let settings = FlashSettings { item_age: Some(60), ..any_size() };
    let config = Config { evict: false, ..config(16 * MIB, &device, settings) };
    let cache = Cache::new(config).unwrap();
    let now = clock();
    let mut client = Client::new(&cache, &now);
    fill(&cache, &mut client, 0..6_000, 0);
    for _ in 0..100 {
        now.fetch_add(60, Ordering::Relaxed);
        client.handle.maintain(client.now());
        settle(&cache);
    }
    assert_eq!(cache.flash_gauges().unwrap().objects_written, 0);
}

/// Lookups skip a page whose items have all expired. If the page is not full, an item with a later
/// expiry may be written to it. Then lookups read the page again, so the index must not refer to
/// its old items any more.
#[test]
fn a_key_that_was_stored_after_its_item_had_expired_has_one_item() {
    let device = Memory::new(128 * MIB, 7);
    let cache = Cache::new(config(16 * MIB, &device, any_size())).unwrap();
    let now = clock();
    let mut client = Client::new(&cache, &now);
    let at = Expiry::At(Seconds(client.now().0 + 100));
    for i in 0..30_000 {
        let attributes = Attributes { expiry: at, ..Attributes::default() };
        client.set_with(&key(i), &value(i, 0, 1000), attributes);
        pace(&cache, i);
    }
    settle(&cache);
    now.fetch_add(200, Ordering::Relaxed);
    for i in 0..30_000 {
        let bytes = value(i, 1, 1000);
        let added = client.update(&key(i), |found| match found {
            Some(_) => (Change::Keep, false),
            None => (put(&bytes), true),
        });
        assert_eq!(added, Ok(true), "{i} had expired");
        pace(&cache, i);
    }
    fill(&cache, &mut client, 30_000..60_000, 0);
    for i in 0..30_000 {
        let deleted = client.update(&key(i), |found| (Change::Remove, found.is_some()));
        assert!(client.get(&key(i)).is_none(), "{i} was deleted: {deleted:?}");
    }
}
