//! Items that were copied from flash to memory and are then evicted from memory.

use super::common::*;
use larder_device::Memory;
use larder_store::segment::Cache;
use larder_store::{Attributes, Change, Expiry, FlashGauges, NewCas, NewTags, NewValue, Seconds};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

const ITEMS: usize = 40_000;

fn attributes(i: usize) -> Attributes {
    let far = if i.is_multiple_of(6) { 1_000_000 } else { 40_000 };
    let expiry = if i.is_multiple_of(3) { Expiry::At(Seconds(1_000 + far)) } else { Expiry::Never };
    let client_flags = u32::try_from(i % 2 * 9).unwrap();
    Attributes { client_flags, expiry, ..Attributes::default() }
}

/// Returns a cache with a limit of 16 MiB and items of up to 1 KB. All items have been demoted to
/// flash at least once, because reads of other items evicted them from memory.
fn full(flash_len: usize) -> (Cache, Client, Arc<AtomicU32>) {
    let device = Memory::new(flash_len, 7);
    let cache = Cache::new(config(16 * MIB, &device, any_size())).unwrap();
    let now = clock();
    let mut client = Client::new(&cache, &now);
    for i in 0..ITEMS {
        client.set_with(&key(i), &value(i, 0, 1000), attributes(i));
        pace(&cache, i);
    }
    (0..2).for_each(|_| read(&cache, &mut client, 0..ITEMS));
    (cache, client, now)
}

/// Reads each item three times, so that it is copied to memory. The copies evict other items.
fn read(cache: &Cache, client: &mut Client, items: std::ops::Range<usize>) {
    for i in items {
        let found = client.look(&key(i), |item| (item.attributes, copied(&item.value)));
        if let larder_store::Lookup::Hit((found, bytes)) = found {
            assert_eq!(found, attributes(i), "{i}");
            assert_eq!(version(i, &bytes, 1000), 0);
        }
        (0..2).for_each(|_| drop(client.get(&key(i))));
        pace(cache, i);
    }
    settle(cache);
}

fn gauges(cache: &Cache) -> FlashGauges {
    cache.flash_gauges().unwrap()
}

#[test]
fn an_item_that_was_only_read_is_not_written_again() {
    let (cache, mut client, _) = full(128 * MIB);
    let before = gauges(&cache);
    read(&cache, &mut client, 0..ITEMS);
    let after = gauges(&cache);
    let recached = after.recache - before.recache;
    assert!(recached > ITEMS as u64 / 2, "{after:?}");
    let (written, returned) =
        (after.objects_written - before.objects_written, after.returned - before.returned);
    assert!(returned > recached / 2, "{returned} of {recached}: {after:?}");
    assert!(written < recached / 20, "{written} of {recached}: {after:?}");
    assert_eq!((after.miss, after.badcrc), (0, 0), "{after:?}");
    assert_eq!(cache.gauges().items, ITEMS as u64 - cache.gauges().evictions);
}

#[test]
fn an_item_changed_in_memory_is_written_again() {
    let (cache, mut client, now) = full(128 * MIB);
    let changed = 0..2_000;
    let soon = Expiry::At(Seconds(client.now().0 + 500));
    let flags = |i: usize| attributes(i).client_flags;
    for i in changed.clone() {
        // These reads copy the item to memory.
        (0..3).for_each(|_| drop(client.get(&key(i))));
        match i % 4 {
            0 => assert!(client.touch(&key(i), soon)),
            1 => assert!(client.append(&key(i), b"more")),
            2 => {
                let attributes = Attributes { stale: true, ..attributes(i) };
                let marked = client.update(&key(i), |found| match found {
                    Some(_) => {
                        let (cas, access) = (NewCas::Same, larder_store::Access::Untracked);
                        (Change::SetAttributes { attributes, cas, access }, true)
                    }
                    None => (Change::Keep, false),
                });
                assert_eq!(marked, Ok(true));
            }
            _ => {
                let bytes = value(i, 3, 1000);
                let set = client.update(&key(i), |_| {
                    let (attributes, cas) = (attributes(i), NewCas::Exactly(77));
                    let value = NewValue::Bytes(&bytes);
                    (
                        Change::Put { attributes, cas, value, fetched: false, tags: NewTags::None },
                        (),
                    )
                });
                assert_eq!(set, Ok(()));
            }
        }
        pace(&cache, i);
    }
    let recached = gauges(&cache).recache;
    // These reads evict the changed items.
    read(&cache, &mut client, 2_000..ITEMS);
    let reads = gauges(&cache).get_extstore;
    let (mut found, mut wrong) = (0, Vec::new());
    for i in changed.clone() {
        let known = client.look(&key(i), |item| (item.attributes, item.cas, copied(&item.value)));
        let larder_store::Lookup::Hit((seen, cas, bytes)) = known else { continue };
        found += 1;
        let plain = value(i, 0, 1000);
        let is_right = match i % 4 {
            0 => seen.expiry == soon && seen.client_flags == flags(i) && bytes == plain,
            1 => bytes == [&plain[..], b"more"].concat(),
            2 => seen.stale && bytes == plain,
            _ => cas == 77 && bytes == value(i, 3, 1000),
        };
        if !is_right {
            wrong.push(i);
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
    let after = gauges(&cache);
    assert!(found > 1_900, "{found}: {after:?}");
    assert!(recached > 1_500 && after.get_extstore - reads > 1_500, "they were on flash");
    now.fetch_add(600, std::sync::atomic::Ordering::Relaxed);
    for i in changed.step_by(4) {
        assert_eq!(client.get(&key(i)), None, "{i} has expired");
    }
}

/// Items are in memory and have a copy on flash. Checks that the copies are not used any more after
/// their pages were emptied and reused.
#[test]
fn a_copy_in_a_page_that_was_emptied_is_not_used() {
    let (cache, mut client, _) = full(64 * MIB);
    for i in 0..4_000 {
        (0..3).for_each(|_| drop(client.get(&key(i))));
        pace(&cache, i);
    }
    let before = gauges(&cache);
    for round in 0..3 {
        for i in 0..120_000 {
            let i = ITEMS + round * 120_000 + i;
            client.set(&key(i), &value(i, 0, 1000));
            // These items stay in memory, while all pages are reused several times.
            for hot in [i % 4_000, i * 7 % 4_000] {
                if let Some(bytes) = client.get(&key(hot)) {
                    assert_eq!(version(hot, &bytes, 1000), 0);
                }
            }
            pace(&cache, i);
        }
        read(&cache, &mut client, 0..ITEMS);
    }
    let after = gauges(&cache);
    assert!(after.page_evictions > before.page_evictions + 64, "{after:?}");
    assert!(after.objects_written > before.objects_written + 300_000, "{after:?}");
    assert_eq!((after.miss, after.badcrc), (0, 0), "{after:?}");
}

#[test]
fn a_flush_reaches_items_that_are_in_memory_and_on_flash() {
    let (cache, mut client, _) = full(128 * MIB);
    for i in 0..4_000 {
        (0..3).for_each(|_| drop(client.get(&key(i))));
    }
    larder_store::Updates::flush(&mut client.handle, None);
    fill(&cache, &mut client, ITEMS..ITEMS + 30_000, 0);
    for i in 0..ITEMS {
        assert_eq!(client.get(&key(i)), None, "{i}");
    }
}
