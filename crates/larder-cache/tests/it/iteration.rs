//! Iterators over keys and values.

use larder_cache::{Cache, InsertOptions, Typed};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

fn cache(memory: usize) -> Cache {
    Cache::builder().memory(memory).build().unwrap()
}

#[test]
fn an_iteration_returns_each_key_and_value_once_if_nothing_writes() {
    let cache = cache(64 << 20);
    let mut map = BTreeMap::new();
    for number in 0..50_000_u32 {
        let len = if number % 5_000 == 0 { 200_000 } else { number as usize % 90 };
        cache.insert(number.to_be_bytes(), vec![1; len]).unwrap();
        map.insert(number.to_be_bytes().to_vec(), vec![1; len]);
    }
    let mut keys: Vec<_> = cache.keys().map(|key| key.to_vec()).collect();
    keys.sort();
    assert!(keys.iter().eq(map.keys()));
    let before = cache.stats();
    let mut count = 0;
    for (key, value) in &cache {
        assert_eq!(map[&key[..]], value);
        count += 1;
    }
    assert_eq!(count, map.len());
    assert_eq!(cache.stats(), before, "an iteration counts no lookups");
}

#[test]
fn an_iteration_omits_values_that_lookups_do_not_find() {
    let cache = cache(4 << 20);
    cache.insert_with("tagged", "1", InsertOptions::new().tag("tag")).unwrap();
    cache.insert_with("soon", "2", InsertOptions::new().ttl(Duration::from_millis(1))).unwrap();
    cache.insert("removed", "3").unwrap();
    cache.insert("stays", "4").unwrap();
    cache.remove("removed");
    cache.drop_tag("tag");
    while cache.contains("soon") {
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(cache.keys().collect::<Vec<_>>(), ["stays"]);
    cache.clear();
    assert_eq!(cache.iter().next(), None);
}

#[test]
fn an_iteration_returns_every_key_that_stays_while_threads_write() {
    const STAYS: u32 = 20_000;
    let cache = cache(64 << 20);
    for number in 0..STAYS {
        cache.insert(number.to_be_bytes(), "stays").unwrap();
    }
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        for thread in 0..4_u32 {
            let (cache, ends) = (&cache, &ends);
            scope.spawn(move || {
                for number in 0..100_000_u32 {
                    let key = [thread.to_be_bytes(), number.to_be_bytes()].concat();
                    cache.insert(&key, "goes").unwrap();
                    cache.insert((number % STAYS).to_be_bytes(), "stays").unwrap();
                    if number % 4 != 0 {
                        cache.remove(&key);
                    }
                    if ends.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        for _ in 0..5 {
            let keys: BTreeSet<_> = cache.keys().filter(|key| key.len() == 4).collect();
            assert_eq!(keys.len(), STAYS as usize);
            assert!(
                cache.iter().filter(|(key, _)| key.len() == 4).all(|(_, value)| value == "stays")
            );
        }
        ends.store(true, Ordering::Relaxed);
    });
}

#[test]
fn the_cache_can_be_used_during_an_iteration() {
    let cache = cache(1 << 20);
    let value = |number: u32| number.to_be_bytes().repeat(10 + number as usize % 5);
    for number in 0..1000_u32 {
        cache.insert(number.to_be_bytes(), value(number)).unwrap();
    }
    // All memory is written several times while two iterations are paused.
    let (mut first, mut second) = (cache.keys(), cache.iter());
    assert!(first.next().is_some() && second.next().is_some());
    for number in 0..100_000 {
        cache.insert((number % 30_000_u32).to_be_bytes(), value(number % 30_000)).unwrap();
    }
    assert_eq!(cache.stats().refusals, 0);
    let number_of = |key: &[u8]| u32::from_be_bytes(key.try_into().unwrap());
    assert!(first.all(|key| number_of(&key) < 30_000));
    assert!(second.all(|(key, found)| found == value(number_of(&key))));
    for key in cache.keys() {
        cache.remove(key);
    }
    assert_eq!(cache.keys().next(), None);
}

#[test]
fn typed_iterations_return_decoded_keys_of_their_prefix() {
    let cache = cache(4 << 20);
    let words: Typed<str, u32> = Typed::new(cache.clone()).prefix("word:");
    let pairs: Typed<(u8, u64), String> = Typed::new(cache.clone()).prefix("pair:");
    for number in 0..100_u32 {
        words.insert(&number.to_string(), &number).unwrap();
        pairs.insert(&(1, number.into()), &number.to_string()).unwrap();
    }
    cache.insert("word:", "not a word").unwrap();
    cache.insert("other", "value").unwrap();
    let found: BTreeSet<String> = words.keys().collect();
    assert_eq!(found, (0..100).map(|number: u32| number.to_string()).collect());
    let found: BTreeMap<(u8, u64), String> = pairs.iter().collect();
    assert_eq!(found, (0..100).map(|number: u64| ((1, number), number.to_string())).collect());
}
