//! A cache whose memory is in a file, and its flash, after a restart.

use crate::common::*;
use larder_device::{Device, Memory};
use larder_store::segment::{Cache, Config, Restart};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;

fn open(config: &Config, file: &File, seed: u64) -> (Cache, Restart) {
    let config = Config { seed, ..config.clone() };
    Cache::in_file(config, 0, file.try_clone().unwrap(), 1).unwrap()
}

/// A cache with so many items, most of them on flash, that has ended, and how many it had: a busy machine may
/// have dropped some.
fn ended(device: &Memory, items: usize) -> (Config, File, u64) {
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
fn items_on_flash_are_there_again() {
    let device = Memory::new(64 * MIB, 5);
    let (config, file, mut kept) = ended(&device, 60_000);
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
        // What comes back to memory evicts others, which a busy machine may drop.
        let evicted = cache.gauges().evictions;
        assert!(found <= kept && kept - found <= evicted, "{found} of {kept}, {evicted} evicted");
        assert_eq!(cache.flash_gauges().unwrap().miss, 0);
        kept = cache.gauges().items;
    }
    let (cache, _) = open(&config, &file, 20);
    let mut client = Client::new(&cache, &clock());
    fill(&cache, &mut client, 60_000..120_000, 0);
    let kept = (60_000..120_000).filter(|i| client.get(&key(*i)) == Some(value(*i, 0, 1000)));
    assert!(kept.count() > 59_000, "and the tier goes on");
}

#[test]
fn flash_with_another_content_is_not_used() {
    let device = Memory::new(64 * MIB, 5);
    let (config, file, _) = ended(&device, 60_000);
    device.begin(77).unwrap();
    let (cache, restart) = open(&config, &file, 13);
    assert_eq!(restart, Restart::Warm);
    assert_eq!(cache.flash_gauges().unwrap().objects_used, 0);
    assert_ne!(device.id(), Some(77), "what is written from now on is told from that");
    let mut client = Client::new(&cache, &clock());
    let there = (0..60_000).filter(|i| {
        let found = client.get(&key(*i));
        assert!(found.is_none() || found == Some(value(*i, 0, 1000)) && i % 10 != 0, "{i}");
        found.is_some()
    });
    let there = there.count();
    assert!(there > 1_000, "what was in memory is there: {there}");
    assert_eq!(cache.gauges().items, there as u64);
}

#[test]
fn without_flash_only_what_was_in_memory_is_there() {
    let device = Memory::new(64 * MIB, 5);
    let (config, file, _) = ended(&device, 60_000);
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
    // The flash still has the id of then, but not the words that refer to it.
    let (cache, restart) = open(&config, &file, 14);
    assert_eq!(restart, Restart::Warm);
    assert_eq!(cache.flash_gauges().unwrap().objects_used, 0);
    let mut client = Client::new(&cache, &clock());
    assert_eq!(client.get(&key(5)), Some(b"new".to_vec()));
}
