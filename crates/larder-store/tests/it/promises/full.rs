//! Full caches that are configured not to evict, and caches that must not evict because they have
//! free memory.

use super::common::*;
use larder_store::segment::Cache;
use larder_store::{Batches, Refusal};
use std::thread;
use std::time::Duration;

const GIB: usize = 1 << 30;

#[test]
fn a_cache_that_does_not_evict_takes_items_until_its_memory_is_full() {
    const ITEMS: u32 = 1_500_000;
    let cache = keeping_cache(GIB);
    let mut engine = cache.handle();
    for i in 0..ITEMS {
        engine.begin_batch(START);
        let stored = set(&mut engine, &i.to_le_bytes(), &[7; 10]);
        engine.end_batch();
        let used = || cache.gauges().used_bytes / MIB as u64;
        assert!(stored.is_ok(), "item {i}, with {} MiB of 1024 in use: {stored:?}", used());
    }
    assert_eq!(cache.gauges().items, u64::from(ITEMS));
    let is_there = |i: u32| has(&mut engine, &i.to_le_bytes());
    assert!((0..ITEMS).step_by(97).all(is_there));
}

/// Several threads store items. One of them grows the index while the other threads write.
#[test]
fn threads_that_share_a_cache_that_does_not_evict_are_refused_nothing() {
    const THREADS: u32 = 4;
    const ITEMS: u32 = 200_000;
    let cache = keeping_cache(GIB);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let cache = &cache;
            scope.spawn(move || {
                let mut engine = cache.handle();
                for i in 0..ITEMS {
                    let key = (u64::from(thread) << 32 | u64::from(i)).to_le_bytes();
                    let stored = set(&mut engine, &key, &[7; 10]);
                    assert!(stored.is_ok(), "item {i} of thread {thread}: {stored:?}");
                }
            });
        }
    });
    assert_eq!(cache.gauges().items, u64::from(THREADS * ITEMS));
}

#[test]
fn a_refused_set_costs_little() {
    const REFUSED: u32 = 500;
    let cache = keeping_cache(64 * MIB);
    let mut engine = cache.handle();
    engine.begin_batch(START);
    let mut fits = |i: u32| set(&mut engine, &i.to_le_bytes(), &[7; 1000]).is_ok();
    let stored = (0..100_000).take_while(|&i| fits(i)).count();
    // An item takes 1,032 bytes.
    assert!(stored * 1032 >= 64 * MIB * 9 / 10, "refused after {stored} items");
    let begun = cpu_time();
    for i in 0..REFUSED {
        engine.end_batch();
        engine.begin_batch(START);
        let key = (u64::from(i) | 1 << 32).to_le_bytes();
        assert_eq!(set(&mut engine, &key, &[7; 1000]), Err(Refusal::OutOfMemory));
    }
    let mean = (cpu_time() - begun) / REFUSED;
    assert!(mean < Duration::from_micros(50), "{mean:?} for each refused set");
}

#[test]
fn nothing_is_evicted_while_there_is_memory() {
    const THREADS: u32 = 4;
    const ITEMS: u32 = 250_000;
    let cache = cache(GIB);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let cache = &cache;
            scope.spawn(move || store_and_overwrite(cache, thread, ITEMS));
        }
    });
    let gauges = cache.gauges();
    assert!(gauges.used_bytes < GIB as u64 / 2, "{} B in use", gauges.used_bytes);
    assert_eq!((gauges.evictions, gauges.items), (0, u64::from(THREADS * ITEMS)));
}

fn store_and_overwrite(cache: &Cache, thread: u32, items: u32) {
    let mut engine = cache.handle();
    let mut random = Random::new(thread.into());
    for i in 0..items {
        let key = |i: u32| (u64::from(thread) << 32 | u64::from(i)).to_le_bytes();
        set(&mut engine, &key(i), &[7; 10]).unwrap();
        if i % 4 == 0 {
            let old = u32::try_from(random.below(i as usize + 1)).unwrap();
            set(&mut engine, &key(old), &[8; 20]).unwrap();
        }
    }
}
