//! Tests the guarantees of the cache's documentation.
#![expect(clippy::print_stdout, reason = "the seed of a failure, and figures")]

use larder_cache::{BuildError, Cache, Evicted, InsertError, InsertOptions};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Barrier, Mutex, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

const SMALL: usize = 2 << 20;

fn cache(memory: usize) -> Cache {
    Cache::builder().memory(memory).build().unwrap()
}

fn wait_until(event: &str, mut holds: impl FnMut() -> bool) {
    let start_time = Instant::now();
    while !holds() {
        assert!(start_time.elapsed() < Duration::from_secs(60), "{event}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns a value that contains `key` and `number`.
fn value(key: u32, number: u32, len: usize) -> Vec<u8> {
    let mut value = vec![number.to_le_bytes()[0]; len.max(8)];
    value[..4].copy_from_slice(&key.to_le_bytes());
    value[4..8].copy_from_slice(&number.to_le_bytes());
    value
}

#[test]
fn a_cache_with_enough_memory_behaves_like_a_map() {
    let cache = cache(64 << 20);
    let mut map: HashMap<String, Vec<u8>> = HashMap::new();
    let seed = std::env::var("LARDER_SEED").map_or_else(|_| rand::random(), |s| s.parse().unwrap());
    println!("LARDER_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    for number in 0..20_000 {
        let key = format!("key-{}", rng.random_range(0..200));
        match rng.random_range(0..100) {
            0..40 => {
                let len = if rng.random_range(0..50) == 0 { 200_000 } else { 300 };
                let value = value(1, number, rng.random_range(0..len));
                cache.insert(&key, &value).unwrap();
                map.insert(key, value);
            }
            40..55 => assert_eq!(cache.remove(&key), map.remove(&key).is_some(), "{key}"),
            55..60 => assert_eq!(cache.contains(&key), map.contains_key(&key), "{key}"),
            60..70 => {
                let made = value(2, number, 100);
                let found = cache.get_or_insert_with(&key, || made.clone());
                assert_eq!(found, *map.entry(key).or_insert(made));
            }
            70..85 => {
                let same = cache.read(&key, |value| Some(value) == map.get(&key).map(|v| &v[..]));
                assert_eq!(same, map.contains_key(&key).then_some(true), "{key}");
            }
            85 if rng.random_range(0..100) == 0 => {
                cache.clear();
                map.clear();
            }
            _ => assert_eq!(cache.get(&key).as_deref(), map.get(&key).map(|v| &v[..]), "{key}"),
        }
    }
    let all: Vec<&String> = map.keys().collect();
    cache.batch(|batch| {
        for keys in all.chunks(32) {
            batch.prefetch(keys);
            for key in keys {
                assert_eq!(batch.get(key).as_deref(), Some(&map[*key][..]), "{key}");
            }
        }
    });
    wait_until("cleared items are removed", || cache.len() == map.len());
    assert_eq!(cache.stats().evictions, 0, "all items fit");
}

#[test]
fn lookups_by_more_threads_than_cores_find_values_of_one_write() {
    const MEMORY: usize = 4 << 20;
    let cache = cache(MEMORY);
    let threads: Vec<_> = (0..32)
        .map(|thread| {
            let cache = cache.clone();
            thread::spawn(move || {
                for number in 0..8_000_u32 {
                    let key = (thread * 7 + number * 13) % 40_000;
                    let name = key.to_le_bytes();
                    let len = if number % 400 == 0 { 40_000 } else { number as usize % 200 };
                    match cache.insert(name, value(key, number, len)) {
                        Ok(()) | Err(InsertError::OutOfMemory) => (),
                        Err(other) => panic!("{other}"),
                    }
                    let other = (key + 1) % 40_000;
                    cache.read(other.to_le_bytes(), |value| {
                        assert_eq!(value[..4], other.to_le_bytes());
                        assert!(
                            value[8..].iter().all(|byte| *byte == value[4]),
                            "all bytes belong to one write"
                        );
                    });
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let stats = cache.stats();
    assert!(stats.evictions > 0, "{stats:?}");
    assert_eq!(stats.hits + stats.misses, 32 * 8_000);
    assert_eq!(stats.insertions + stats.refusals, 32 * 8_000);
    assert!(stats.memory_used <= MEMORY as u64, "{stats:?}");
}

#[test]
fn one_maker_makes_a_value_for_all_threads() {
    let cache = cache(SMALL);
    let made = AtomicUsize::new(0);
    let barrier = Barrier::new(16);
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                barrier.wait();
                let value = cache.get_or_insert_with("key", || {
                    made.fetch_add(1, Relaxed);
                    thread::sleep(Duration::from_millis(50));
                    "value"
                });
                assert_eq!(value, "value");
            });
        }
    });
    assert_eq!(made.into_inner(), 1);
}

#[test]
fn a_value_that_is_not_stored_reaches_all_who_wait() {
    let cache = Cache::builder().memory(SMALL).item_size_max(10).build().unwrap();
    let (made, barrier) = (AtomicUsize::new(0), Barrier::new(4));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                barrier.wait();
                let value = cache.get_or_insert_with("key", || {
                    made.fetch_add(1, Relaxed);
                    thread::sleep(Duration::from_millis(100));
                    vec![1; 100]
                });
                assert_eq!(value.len(), 100);
            });
        }
    });
    assert!(made.into_inner() < 4);
    assert!(!cache.contains("key"));
}

#[test]
fn the_next_one_makes_a_value_when_a_maker_fails_or_panics() {
    let cache = cache(SMALL);
    let attempts = AtomicUsize::new(0);
    let results: Vec<Result<&str, ()>> = thread::scope(|scope| {
        let ask = || {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                cache.try_get_or_insert_with("key", || {
                    let attempt = attempts.fetch_add(1, Relaxed);
                    thread::sleep(Duration::from_millis(20));
                    match attempt {
                        0 => panic!("a maker panics, on purpose"),
                        1 => Err("the maker fails"),
                        _ => Ok("value"),
                    }
                })
            }));
            outcome.map(|made| made.map_or_else(|error| error, |_| "made")).map_err(|_| ())
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let count = |wanted| results.iter().filter(|result| **result == wanted).count();
    assert_eq!(attempts.into_inner(), 3);
    assert_eq!((count(Err(())), count(Ok("the maker fails")), count(Ok("made"))), (1, 1, 6));
}

#[test]
fn makers_that_need_each_other_do_not_wait_forever() {
    let (one, other) = (cache(SMALL), cache(SMALL));
    // A maker requests its own key.
    let value = one.get_or_insert_with("a", || {
        assert_eq!(one.get_or_insert_with("a", || "inner"), "inner");
        "outer"
    });
    assert_eq!(value, "outer");
    // The makers of two threads request each other's keys, in two caches.
    let barrier = Barrier::new(2);
    thread::scope(|scope| {
        for (mine, yours) in [(&one, &other), (&other, &one)] {
            let barrier = &barrier;
            scope.spawn(move || {
                mine.get_or_insert_with("shared", || {
                    barrier.wait();
                    yours.get_or_insert_with("shared", || "inner");
                    "outer"
                })
            });
        }
    });
    assert!(one.contains("shared") && other.contains("shared"));
}

#[test]
fn closures_may_use_the_cache_at_any_depth() {
    fn nested(cache: &Cache, depth: usize) -> usize {
        let deeper = cache.read("key", |value| {
            assert_eq!(value, b"value");
            cache.insert(depth.to_le_bytes(), "inner").unwrap();
            if depth == 0 { 0 } else { nested(cache, depth - 1) }
        });
        deeper.unwrap() + 1
    }
    let cache = cache(16 << 20);
    cache.insert("key", "value").unwrap();
    assert_eq!(nested(&cache, 100), 101, "more calls than slots");
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.insertions), (101, 102), "all calls were counted");
    let in_batch = cache.batch(|batch| {
        batch.insert("other", "1").unwrap();
        cache.get("other").map(|value| value.len() + batch.get("key").unwrap().len())
    });
    assert_eq!(in_batch, Some(6));
    // A panic in a closure leaves the cache unchanged.
    let panicked = catch_unwind(|| cache.read("key", |_| panic!("a reader panics, on purpose")));
    assert!(panicked.is_err());
    assert_eq!(nested(&cache, 2), 3);
}

#[test]
fn items_expire_without_a_call() {
    let cache = cache(SMALL);
    let options = InsertOptions::new().ttl(Duration::from_millis(1500));
    cache.insert("stays", "1").unwrap();
    let start_time = Instant::now();
    for number in 0..1000_u32 {
        cache.insert_with(number.to_le_bytes(), "2", options.clone()).unwrap();
    }
    let long = InsertOptions::new().ttl(Duration::from_secs(1000));
    cache.insert_with("long", "3", long).unwrap();
    wait_until("the items expire", || !cache.contains(999_u32.to_le_bytes()));
    // An item may expire up to a second before its TTL has passed, and expires later if the
    // scheduler delays the cache's thread.
    assert!(start_time.elapsed() > Duration::from_millis(500), "{:?}", start_time.elapsed());
    wait_until("the items are removed", || cache.len() == 2);
    assert!(cache.contains("stays") && cache.contains("long"));
}

#[test]
fn the_listener_is_told_of_each_eviction_and_may_use_the_cache() {
    let evictions: Arc<Mutex<Vec<Evicted>>> = Arc::default();
    let shared_cache: Arc<OnceLock<Cache>> = Arc::default();
    let builder = Cache::builder().memory(SMALL).on_evict({
        let (evictions, shared_cache) = (Arc::clone(&evictions), Arc::clone(&shared_cache));
        move |evicted| {
            let cache = shared_cache.get().unwrap();
            assert!(!cache.contains(&evicted.key), "the evicted item is gone");
            evictions.lock().unwrap().push(evicted.clone());
            if evicted.key.len() == 4 {
                cache.insert("last evicted", &evicted.key).unwrap();
            }
        }
    });
    let cache = builder.build().unwrap();
    // From here on, the cache's own listener holds a clone of the cache, so the cache is never
    // freed.
    shared_cache.set(cache.clone()).unwrap();
    for number in 0..50_000_u32 {
        cache.insert(number.to_le_bytes(), [7; 100]).unwrap();
    }
    let evictions = evictions.lock().unwrap();
    assert!(evictions.len() > 10_000);
    assert_eq!(evictions.len() as u64, cache.stats().evictions);
    assert!(evictions.iter().all(|evicted| evicted.value_len == 100 || evicted.key.len() > 4));
}

#[test]
fn a_listener_that_panics_does_not_stop_the_cache() {
    let builder =
        Cache::builder().memory(SMALL).on_evict(|_| resume_unwind(Box::new("on purpose")));
    let cache = builder.build().unwrap();
    let mut panics = 0;
    for number in 0..30_000_u32 {
        let insert = || cache.insert(number.to_le_bytes(), [7; 100]);
        panics += usize::from(catch_unwind(AssertUnwindSafe(insert)).is_err());
        assert!(cache.contains(number.to_le_bytes()), "the insert has taken effect");
    }
    assert!(panics > 0);
    let soon = InsertOptions::new().ttl(Duration::from_secs(1));
    let _ = catch_unwind(AssertUnwindSafe(|| cache.insert_with("soon", "1", soon)));
    wait_until("the clock continues", || !cache.contains("soon"));
}

#[test]
fn large_values_are_kept_whole_and_their_leases_returned() {
    let cache = cache(8 << 20);
    let large = |number: u32| value(number, number, 1_000_000 + number as usize);
    for number in 0..60 {
        cache.insert("large", large(number)).unwrap();
        assert_eq!(cache.get("large").unwrap(), large(number));
        let len = cache.read("large", |value| {
            assert!(value == large(number));
            // The value was copied, so the closure may replace it.
            cache.insert("large", "small").unwrap();
            value.len()
        });
        assert_eq!(len, Some(1_000_000 + number as usize));
        assert_eq!(cache.get("large").unwrap(), "small");
    }
    assert_eq!(cache.stats().refusals, 0, "the memory of all earlier values was reused");
}

#[test]
fn a_refused_insert_removes_the_old_value() {
    let cache = Cache::builder().memory(8 << 20).item_size_max(2 << 20).build().unwrap();
    for len in [(2 << 20) + 1, 5 << 20] {
        cache.insert("key", "old").unwrap();
        assert_eq!(cache.insert("key", vec![0; len]), Err(InsertError::TooLarge));
        assert_eq!(cache.get("key"), None);
    }
    assert_eq!(cache.insert("", "value"), Err(InsertError::KeyLength));
    assert_eq!(cache.insert([0; 1025], "value"), Err(InsertError::KeyLength));
    cache.insert([0; 250], "value").unwrap();
    assert!(cache.contains([0; 250]));
    assert_eq!(cache.get([0; 300]), None);
    assert_eq!(cache.get_or_insert_with("", || "made"), "made");
    assert!(!cache.remove([1; 300]));
}

#[test]
fn the_smallest_memory_works() {
    let Err(BuildError::Memory { min, .. }) = Cache::builder().memory(1000).build() else {
        panic!("1000 bytes are refused")
    };
    let cache = cache(min);
    let threads: Vec<_> = (0..8_u32)
        .map(|thread| {
            let cache = cache.clone();
            thread::spawn(move || {
                let stored = (0..5_000).filter(|number| {
                    let key = thread * 10_000 + number;
                    cache.insert(key.to_le_bytes(), value(key, *number, 50)).is_ok()
                });
                stored.count()
            })
        })
        .collect();
    let stored: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert!(stored > 20_000, "{stored} of 40000");
    assert!(cache.stats().memory_used <= min as u64);
    println!("the smallest memory is {min} bytes, for {} items", cache.len());
}

#[test]
fn hit_ratios_are_estimated() {
    // The sample has one key in 128, about 3,700 of the keys below, so the estimate's standard
    // deviation is below 0.02.
    let cache = cache(16 * SMALL);
    assert_eq!(cache.hit_ratio_at(1.0), None);
    let mut rng = StdRng::seed_from_u64(1);
    for _ in 0..1_600_000 {
        let key: u32 = rng.random_range(0..480_000);
        cache.get_or_insert_with(key.to_le_bytes(), || vec![0; 100]);
    }
    let [half, full, double] = [0.5, 1.0, 2.0].map(|factor| cache.hit_ratio_at(factor).unwrap());
    assert!(half < full && full < double, "{half} {full} {double}");
    let before = cache.stats();
    for _ in 0..50_000 {
        let key: u32 = rng.random_range(0..480_000);
        cache.get_or_insert_with(key.to_le_bytes(), || vec![0; 100]);
    }
    let measured = (cache.stats().hits - before.hits) as f64 / 50_000.0;
    assert!((measured - full).abs() < 0.15, "{measured} {full}");
}

#[test]
fn a_cache_ends_with_its_last_clone_while_threads_that_used_it_live() {
    // The cache owns the listener, so the drop of the listener shows that the cache was freed.
    let alive = Arc::new(());
    let weak = Arc::downgrade(&alive);
    let cache = Cache::builder().memory(SMALL).on_evict(move |_| drop(Arc::clone(&alive)));
    let cache = cache.build().unwrap();
    let (done, used) = mpsc::channel();
    let (end, ends) = mpsc::channel::<()>();
    let thread = {
        let cache = cache.clone();
        thread::spawn(move || {
            cache.insert("key", "value").unwrap();
            drop(cache);
            done.send(()).unwrap();
            let _ = ends.recv();
        })
    };
    used.recv().unwrap();
    assert!(cache.contains("key"));
    drop(cache);
    wait_until("the cache is freed", || weak.strong_count() == 0);
    drop(end);
    thread.join().unwrap();
}
