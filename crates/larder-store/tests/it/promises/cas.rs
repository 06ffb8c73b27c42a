//! Fresh CAS values are unique and rise for each item. A handle wastes few of them.

use super::common::*;
use larder_store::segment::{Cache, Handle};
use larder_store::{Attributes, NewCas};
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The highest fresh value of a standalone cache.
const FRESH_MAX: u64 = (1 << 48) - 1;

fn choose(engine: &mut Handle, key: &[u8], cas: u64) {
    let stored = set_with(engine, key, b"chosen", Attributes::default(), NewCas::Exactly(cas));
    assert_eq!(stored, Ok(cas));
}

fn fresh(engine: &mut Handle, key: &[u8]) -> u64 {
    set(engine, key, b"fresh").expect("the cache has room")
}

/// Checks that no CAS value is issued twice while several threads skip values that clients have
/// chosen.
#[test]
fn no_two_fresh_values_are_equal_while_clients_choose_higher_ones() {
    const THREADS: u64 = 2;
    const TIME: Duration = Duration::from_secs(2);
    let cache = cache(16 * MIB);
    let (lined_up, last) = (StartLine::new(2), AtomicUsize::new(20_000));
    let end = Instant::now() + TIME;
    let drawn = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (cache, lined_up, last) = (&cache, &lined_up, &last);
                scope.spawn(move || {
                    let mut engine = cache.handle();
                    let (key, mut drawn) = (thread.to_le_bytes(), Vec::new());
                    for round in 0.. {
                        if thread == 0 && Instant::now() > end {
                            last.fetch_min(round, Ordering::SeqCst);
                        }
                        // This value is above every block that a handle has taken.
                        choose(&mut engine, &key, (round as u64 + 1) * 1_000_000);
                        lined_up.wait(round);
                        drawn.extend([fresh(&mut engine, &key), fresh(&mut engine, b"shared")]);
                        if round >= last.load(Ordering::SeqCst) {
                            break;
                        }
                    }
                    drawn
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    let distinct: HashSet<u64> = drawn.iter().copied().collect();
    assert_eq!(drawn.len() - distinct.len(), 0, "no value was drawn twice");
}

#[test]
fn a_fresh_value_is_higher_than_the_last_of_its_item() {
    const THREADS: u64 = 4;
    let cache = cache(16 * MIB);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let cache = &cache;
            scope.spawn(move || {
                let mut engine = cache.handle();
                let mut random = Random::new(thread);
                let mut last = 0;
                for _ in 0..20_000 {
                    let key = thread.to_le_bytes();
                    if random.below(8) == 0 {
                        last += random.below(100_000) as u64;
                        choose(&mut engine, &key, last);
                    }
                    let cas = fresh(&mut engine, &key);
                    assert!(cas > last, "{cas} after {last}");
                    last = cas;
                }
            });
        }
    });
}

#[test]
fn handles_that_write_a_key_in_turn_use_few_values() {
    const WRITES: u32 = 100_000;
    let cache = cache(16 * MIB);
    let mut handles = [cache.handle(), cache.handle()];
    let mut last = 0;
    for _ in 0..WRITES / 2 {
        for engine in &mut handles {
            let cas = fresh(engine, b"key");
            assert!(cas > last, "{cas} after {last}");
            last = cas;
        }
    }
    assert!(last < 1 << 23, "{last} after {WRITES} writes");
}

#[test]
fn many_handles_that_write_a_key_in_turn_use_few_values() {
    let cache = cache(64 * MIB);
    let mut handles: Vec<Handle> = (0..16).map(|_| cache.handle()).collect();
    let mut last = 0;
    for _ in 0..5000 {
        for engine in &mut handles {
            let cas = fresh(engine, b"key");
            assert!(cas > last, "{cas} after {last}");
            last = cas;
        }
    }
    assert!(last < 1 << 23, "{last} after 80,000 writes");
}

/// Clients choose extreme CAS values. Checks that fresh values stay within the range of the
/// counter, and that no value is issued twice.
#[test]
fn extreme_values_of_clients_exhaust_nothing() {
    let near = |value: u64| [value - 1, value, value + 1];
    let chosen = [1 << 47, FRESH_MAX, 1 << 53, (1 << 63) - 1, u64::MAX - 1].map(near);
    for chosen in chosen.into_iter().flatten() {
        check_after(&cache(4 * MIB), &[chosen]);
    }
}

#[test]
fn a_series_of_extreme_values_exhausts_nothing() {
    let highest = [u64::MAX, (1 << 63) - 2, (1 << 63) - 1, 1 << 63, FRESH_MAX - 3, FRESH_MAX];
    check_after(&cache(4 * MIB), &highest);
    let series: Vec<u64> = (0..200).map(|i| FRESH_MAX - 200 + i).collect();
    check_after(&cache(4 * MIB), &series);
}

/// Stores the `chosen` values one after another with fresh values in between, from two handles.
fn check_after(cache: &Cache, chosen: &[u64]) {
    let mut handles = [cache.handle(), cache.handle()];
    let mut drawn = HashSet::new();
    for &chosen in chosen {
        for engine in &mut handles {
            choose(engine, b"key", chosen);
            let mut last = chosen;
            for key in [&b"key"[..], b"key", b"other", b"key"] {
                let cas = fresh(engine, key);
                let about = format!("{cas:#x} after a client chose {chosen:#x}");
                assert!((1..=FRESH_MAX).contains(&cas), "out of range: {about}");
                assert!(cas != last || key == b"other", "the item's own: {about}");
                assert!(drawn.insert(cas), "drawn before: {about}");
                last = if key == b"key" { cas } else { last };
            }
        }
    }
}

/// A client sets the CAS of an item to the last fresh value or a little more. Checks that the next
/// fresh values differ from the client's value.
#[test]
fn a_value_that_a_client_guessed_is_not_the_next_fresh_one_of_its_item() {
    let cache = cache(4 * MIB);
    let mut engine = cache.handle();
    let mut last = fresh(&mut engine, b"key");
    for ahead in (0..1000).chain([65_534, 65_535, 65_536, 65_537, 1 << 20]) {
        let chosen = last + ahead;
        choose(&mut engine, b"key", chosen);
        let cas = fresh(&mut engine, b"key");
        assert!(cas > chosen, "{cas} after {chosen}");
        last = fresh(&mut engine, b"other");
        assert!(last != cas && last != chosen, "{last} after {cas} and {chosen}");
    }
}

/// If a client chooses a CAS below 2^47, the next fresh values are higher. If the client's CAS is
/// 2^47 or more, the counter ignores it, but may reach it later.
#[test]
fn fresh_values_rise_beyond_the_highest_followed_value() {
    const FOLLOWED_MAX: u64 = (1 << 47) - 1;
    let cache = cache(16 * MIB);
    let mut engines = [cache.handle(), cache.handle()];
    // Both handles take low values from the counter before a client chooses a high value.
    let mut seen: HashSet<u64> = engines.iter_mut().map(|engine| fresh(engine, b"item")).collect();
    choose(&mut engines[0], b"item", FOLLOWED_MAX - 40);
    let mut last = FOLLOWED_MAX - 40;
    for i in 0..1000 {
        let cas = fresh(&mut engines[i % 2], b"item");
        assert!(cas > last && cas <= FRESH_MAX, "{cas} after {last}");
        assert!(seen.insert(cas), "{cas} was drawn before");
        last = cas;
    }
    assert!(last > FOLLOWED_MAX);
    for chosen in [FRESH_MAX - 1, FRESH_MAX, FRESH_MAX + 1, i64::MAX as u64, u64::MAX] {
        choose(&mut engines[0], b"item", chosen);
        let mut last = 0;
        for _ in 0..100 {
            let cas = fresh(&mut engines[1], b"item");
            assert!(cas > last && cas <= FRESH_MAX && cas != chosen, "{cas} after {last}");
            assert!(seen.insert(cas), "{cas} was drawn before");
            last = cas;
        }
    }
}
