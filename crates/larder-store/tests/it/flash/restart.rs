//! Restarts of a cache whose memory is in a file, with its flash.

use super::common::*;
use larder_device::{Device, Faults, Memory};
use larder_store::segment::{Cache, Config, ConfigError, Restart};
use larder_store::{
    Attributes, Change, Expiry, Lookup, Maintenance, NewCas, NewTags, NewValue, Seconds,
    SubsecondMillis, Tag, Updates,
};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;

fn open(config: &Config, file: &File, seed: u64) -> (Cache, Restart) {
    let config = Config { seed, ..config.clone() };
    Cache::in_file(config, 0, file.try_clone().unwrap(), 1).unwrap()
}

/// Fills a cache with `items` items, most of which move to flash. Then deletes every tenth item and
/// closes the cache. Returns its configuration, its file, and its number of items. On a busy
/// machine, some items may have been evicted without a write.
fn fill_and_close(device: &Memory, items: usize) -> (Config, File, u64) {
    let file = File::from(memfd_create("region", MFdFlags::empty()).unwrap());
    let config = config(16 * MIB, device, any_size());
    let (cache, restart) = open(&config, &file, 11);
    assert_eq!(restart, Restart::Cold(None));
    let mut client = Client::new(&cache, &clock());
    fill(&cache, &mut client, 0..items, 0);
    for i in (0..items).step_by(10) {
        client.delete(&key(i));
    }
    let kept = cache.gauges().items;
    assert!(kept * 10 > items as u64 * 8, "{kept}");
    (config, file, kept)
}

#[test]
fn pages_that_failed_are_used_again_after_a_restart() {
    let file = File::from(memfd_create("region", MFdFlags::empty()).unwrap());
    let device = Memory::new(64 * MIB, 17);
    let config = config(16 * MIB, &device, any_size());
    let (cache, _) = open(&config, &file, 11);
    let mut client = Client::new(&cache, &clock());
    device.set_faults(Faults { write_errors: 40, ..Faults::default() });
    fill(&cache, &mut client, 0..60_000, 0);
    settle(&cache);
    device.set_faults(Faults::default());
    (0..60_000).for_each(|i| _ = client.delete(&key(i)));
    let gauges = || cache.flash_gauges().unwrap();
    wait_for("a page is out of use after a write error", || {
        gauges().pages_free + gauges().pages_used < gauges().page_count
    });
    drop((client, cache));
    let (cache, restart) = open(&config, &file, 12);
    assert_eq!(restart, Restart::Warm);
    let gauges = cache.flash_gauges().unwrap();
    assert_eq!(gauges.pages_free + gauges.pages_used, gauges.page_count, "{gauges:?}");
}

#[test]
fn items_on_flash_are_found_after_a_restart() {
    let device = Memory::new(64 * MIB, 5);
    let (config, file, mut kept) = fill_and_close(&device, 60_000);
    for round in 0..3 {
        let (cache, restart) = open(&config, &file, 12 + round);
        assert_eq!(restart, Restart::Warm);
        let mut client = Client::new(&cache, &clock());
        assert_eq!(cache.gauges().items, kept);
        assert!(cache.flash_gauges().unwrap().objects_used > 10_000);
        let mut found = 0;
        for i in 0..60_000 {
            if let Some(value_found) = client.get(&key(i)) {
                assert!(i % 10 != 0 && value_found == value(i, 0, 1000), "{i}");
                found += 1;
            }
        }
        // Copying an item to memory evicts other items, on a busy machine perhaps without a write.
        let evicted = cache.gauges().evictions;
        assert!(found <= kept && kept - found <= evicted, "{found} of {kept}, {evicted} evicted");
        assert_eq!(cache.flash_gauges().unwrap().miss, 0);
        kept = cache.gauges().items;
    }
    let (cache, _) = open(&config, &file, 20);
    let mut client = Client::new(&cache, &clock());
    fill(&cache, &mut client, 60_000..120_000, 0);
    let kept = (60_000..120_000).filter(|i| client.get(&key(*i)) == Some(value(*i, 0, 1000)));
    assert!(kept.count() > 59_000, "and the tier continues");
}

#[test]
fn flash_with_another_content_is_not_used() {
    let device = Memory::new(64 * MIB, 5);
    let (config, file, _) = fill_and_close(&device, 60_000);
    device.set_id(77).unwrap();
    let (cache, restart) = open(&config, &file, 13);
    assert_eq!(restart, Restart::Warm);
    assert_eq!(cache.flash_gauges().unwrap().objects_used, 0);
    assert_ne!(device.id(), Some(77), "new content has another id");
    let mut client = Client::new(&cache, &clock());
    let there = (0..60_000).filter(|i| {
        let found = client.get(&key(*i));
        assert!(found.is_none() || found == Some(value(*i, 0, 1000)) && i % 10 != 0, "{i}");
        found.is_some()
    });
    let there = there.count();
    assert!(there > 1_000, "items in memory are found: {there}");
    assert_eq!(cache.gauges().items, there as u64);
}

#[test]
fn a_restart_without_flash_keeps_only_items_in_memory() {
    let device = Memory::new(64 * MIB, 5);
    let (config, file, _) = fill_and_close(&device, 60_000);
    let without = Config { flash: None, ..config.clone() };
    {
        let (cache, restart) = open(&without, &file, 13);
        assert_eq!(restart, Restart::Warm);
        let mut client = Client::new(&cache, &clock());
        let there =
            (0..60_000).filter(|i| client.get(&key(*i)) == Some(value(*i, 0, 1000))).count();
        assert!(there > 1_000 && cache.gauges().items == there as u64, "{there}");
        client.set(&key(5), b"new");
    }
    // The flash still has its old id, but the index has no words that refer to it.
    let (cache, restart) = open(&config, &file, 14);
    assert_eq!(restart, Restart::Warm);
    assert_eq!(cache.flash_gauges().unwrap().objects_used, 0);
    let mut client = Client::new(&cache, &clock());
    assert_eq!(client.get(&key(5)), Some(b"new".to_vec()));
}

/// A cache with eviction disabled can reopen flash that was written with eviction enabled. Few
/// pages are free, and items on flash are distinguished by few bits of their hashes.
#[test]
fn nothing_on_flash_is_lost_in_a_cache_that_does_not_evict() {
    const ITEMS: usize = 80_000;
    let device = Memory::new(16 * MIB, 5);
    let file = File::from(memfd_create("region", MFdFlags::empty()).unwrap());
    let mut config = config(16 * MIB, &device, any_size());
    let (cache, _) = open(&config, &file, 11);
    let mut client = Client::new(&cache, &clock());
    fill(&cache, &mut client, 0..ITEMS, 0);
    // All pages are about half full. A cache that evicts would rewrite or drop some of them.
    (0..ITEMS).step_by(2).for_each(|i| _ = client.delete(&key(i)));
    settle(&cache);
    drop((client, cache));
    config.flash.as_mut().unwrap().settings.compact_under = u32::MAX;
    config.flash.as_mut().unwrap().settings.drop_under = u32::MAX;
    let keeping = Config { evict: false, ..config };
    let (cache, restart) = open(&keeping, &file, 12);
    assert_eq!(restart, Restart::Warm);
    let kept = cache.gauges().items;
    let now = clock();
    let mut client = Client::new(&cache, &now);
    for _ in 0..20 {
        std::thread::sleep(std::time::Duration::from_millis(10));
        now.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        client.handle.maintain(client.now());
    }
    let mut found = 0;
    for i in 0..ITEMS {
        found += u64::from(client.get(&key(i)).is_some());
        if i % 20 == 0 {
            // Copies the item to memory.
            client.get(&key(i));
        }
    }
    assert_eq!((found, cache.gauges().items), (kept, kept), "{:?}", cache.flash_gauges());
    // Some of these keys have the same hash bits as an item on flash.
    const NEW: usize = 20_000;
    (ITEMS..ITEMS + NEW).for_each(|i| client.set(&key(i), b"new"));
    assert_eq!(cache.gauges().items, kept + NEW as u64, "{:?}", cache.flash_gauges());
    let still_there = (0..ITEMS).filter(|i| client.get(&key(*i)).is_some()).count();
    assert_eq!(still_there as u64, kept, "{:?}", cache.flash_gauges());
    let gauges = cache.flash_gauges().unwrap();
    assert_eq!((gauges.objects_evicted, cache.gauges().evictions), (0, 0), "{gauges:?}");
}

/// The flash tier needs memory, but items occupy all of it. A cache that evicts drops the oldest
/// items for the tier.
#[test]
fn a_full_cache_that_does_not_evict_starts_only_without_a_new_flash() {
    let device = Memory::new(64 * MIB, 5);
    let file = File::from(memfd_create("region", MFdFlags::empty()).unwrap());
    let with_flash = Config { evict: false, ..config(16 * MIB, &device, any_size()) };
    let without = Config { flash: None, ..with_flash.clone() };
    let (cache, _) = open(&without, &file, 11);
    let mut client = Client::new(&cache, &clock());
    let bytes = value(0, 0, 1000);
    let put = Change::Put {
        attributes: Attributes::default(),
        cas: NewCas::Fresh,
        value: NewValue::Bytes(&bytes),
        fetched: false,
        tags: NewTags::None,
    };
    let stored = (0..).take_while(|i| client.update(&key(*i), |_| (put, ())).is_ok()).count();
    drop((client, cache));
    for seed in 12..17 {
        let refused = Cache::in_file(with_flash.clone(), 0, file.try_clone().unwrap(), 1);
        assert!(matches!(refused, Err(ConfigError::NoRoomForFlash)), "{seed}");
    }
    let (cache, restart) = open(&without, &file, 20);
    assert_eq!((restart, cache.gauges().items), (Restart::Warm, stored as u64));
    drop(cache);
    let (cache, restart) = open(&Config { evict: true, ..with_flash }, &file, 21);
    let kept = cache.gauges().items;
    assert!(restart == Restart::Warm && kept > stored as u64 / 2, "{kept} of {stored}");
}

/// Fields that do not fit the header of an item survive demotion, promotion and a restart.
#[test]
fn extended_items_are_the_same_on_flash_and_after_a_restart() {
    let device = Memory::new(128 * MIB, 5);
    let file = File::from(memfd_create("region", MFdFlags::empty()).unwrap());
    let config = config(16 * MIB, &device, any_size());
    let items = 20_000_usize;
    let name = |i: usize| {
        let mut name = key(i);
        name.resize([name.len(), 255, 256, 1024][i % 4], b'k');
        name
    };
    let attributes = |i: usize| {
        let early = SubsecondMillis::new(u16::try_from(1 + i % 999).unwrap()).unwrap();
        let expiry = match i % 3 {
            0 => Expiry::Never,
            1 => Expiry::Before(Seconds(50_000), early),
            _ => Expiry::Before(Seconds(200_000), early),
        };
        let client_flags = if i.is_multiple_of(7) { 9 } else { 0 };
        Attributes {
            binary_key: i.is_multiple_of(5),
            expiry,
            client_flags,
            ..Attributes::default()
        }
    };
    // Every hundredth item is large.
    let len = |i: usize| if i.is_multiple_of(100) { 100_000 } else { 600 };
    let now = clock();
    let check = |client: &mut Client, cache: &Cache| {
        let mut found = 0;
        for i in 0..items {
            let shown = client.look(&name(i), |item| (item.attributes, copied(&item.value)));
            if let Lookup::Hit(shown) = shown {
                assert!(shown == (attributes(i), value(i, 0, len(i))), "item {i}");
                found += 1;
            }
        }
        let gauges = cache.flash_gauges().unwrap();
        assert!(gauges.get_extstore > 1_000 && gauges.badcrc == 0, "{gauges:?}");
        assert!(found > items / 2, "{found}");
    };
    let (cache, _) = open(&config, &file, 11);
    let mut client = Client::new(&cache, &now);
    for i in 0..items {
        client.set_with(&name(i), &value(i, 0, len(i)), attributes(i));
        if i % 64 == 0 {
            client.handle.maintain(client.now());
        }
        pace(&cache, i);
    }
    check(&mut client, &cache);
    drop((client, cache));
    let (cache, restart) = open(&config, &file, 12);
    assert_eq!(restart, Restart::Warm);
    let mut client = Client::new(&cache, &now);
    check(&mut client, &cache);
    now.store(50_000, std::sync::atomic::Ordering::Relaxed);
    let ended = (0..items).step_by(3).filter(|i| client.get(&name(i + 1)).is_some()).count();
    assert_eq!(ended, 0, "the items have expired");
}

/// Dropped tags stay dropped after restarts, even for items on flash. Other tags still work.
#[test]
fn dropped_tags_stay_dropped_on_flash_and_after_a_restart() {
    const TAGS: usize = 50;
    let device = Memory::new(128 * MIB, 5);
    let file = File::from(memfd_create("region", MFdFlags::empty()).unwrap());
    let config = config(16 * MIB, &device, any_size());
    let items = 30_000_usize;
    let name = |tag: usize| format!("tag {tag}").into_bytes();
    let now = clock();
    let live = |client: &mut Client| -> Vec<usize> {
        (0..items).filter(|i| client.get(&key(*i)).is_some()).collect()
    };
    let (cache, _) = open(&config, &file, 11);
    let mut client = Client::new(&cache, &now);
    for i in 0..items {
        // Every tenth item has no tag. The other items have two tags.
        let names = [name(i % TAGS), name(TAGS + i % 7)];
        let tags: Vec<Tag> = names.iter().map(|name| client.handle.tag(name).unwrap()).collect();
        let tags = if i % 10 == 0 { NewTags::None } else { NewTags::These(&tags) };
        client.set_tagged(&key(i), &value(i, 0, 1000), tags);
        if i % 64 == 0 {
            client.handle.maintain(client.now());
        }
        pace(&cache, i);
    }
    // Ignore the items that a busy machine has dropped.
    let mut known = live(&mut client);
    assert!(known.len() > items / 2, "{}", known.len());
    assert!(cache.flash_gauges().unwrap().objects_used > 5_000);
    let mut drop_tag = |client: &mut Client, tag: usize| {
        assert!(client.handle.drop_tag(&name(tag)), "{tag}");
        known.retain(|i| i % 10 == 0 || i % TAGS != tag && TAGS + i % 7 != tag);
        let found = live(client);
        assert!(found.iter().all(|i| known.contains(i)), "tag {tag}: an item came back");
        assert!(found.len() * 10 > known.len() * 9, "{} of {}", found.len(), known.len());
        known = found;
    };
    drop_tag(&mut client, 3);
    drop_tag(&mut client, TAGS + 2);
    drop((client, cache));
    for round in 0..3 {
        let (cache, restart) = open(&config, &file, 12 + round);
        assert_eq!(restart, Restart::Warm);
        let mut client = Client::new(&cache, &now);
        drop_tag(&mut client, 3);
        let tag = usize::try_from(round).unwrap() + 10;
        drop_tag(&mut client, tag);
        // A new item with that tag stays.
        let tags = [client.handle.tag(&name(tag)).unwrap()];
        client.set_tagged(b"new", b"1", NewTags::These(&tags));
        assert!(client.get(b"new").is_some());
    }
}
