//! Caches of typed values.

use larder_cache::{Cache, Codec, InsertError, InsertOptions, Typed, TypedError};
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

#[derive(Clone, Serialize, Deserialize, Debug, PartialEq)]
struct Page {
    title: String,
    links: Vec<u32>,
}

fn page(number: u32) -> Page {
    Page { title: format!("page {number}"), links: (0..number % 50).collect() }
}

fn cache() -> Cache {
    Cache::builder().memory(16 << 20).build().unwrap()
}

#[test]
fn values_come_back_as_they_were() {
    let pages: Typed<(u32, String), Page> = Typed::new(cache());
    let key = |number: u32| (number, format!("of {number}"));
    for number in 0..10_000 {
        pages.insert(&key(number), &page(number)).unwrap();
    }
    for number in 0..10_000 {
        assert_eq!(pages.get(&key(number)), Some(page(number)));
    }
    assert!(pages.contains(&key(7)) && pages.remove(&key(7)) && !pages.remove(&key(7)));
    assert_eq!(pages.get(&key(7)), None);
    let ttl = InsertOptions::new().ttl(Duration::from_millis(1));
    pages.insert_with(&key(8), &page(8), ttl).unwrap();
    let start_time = std::time::Instant::now();
    while pages.get(&key(8)).is_some() {
        assert!(start_time.elapsed() < Duration::from_secs(30), "the value expires");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn prefixes_tell_types_apart() {
    let cache = cache();
    let numbers: Typed<u32, u64> = Typed::new(cache.clone()).prefix("n");
    let pages: Typed<u32, Page> = Typed::new(cache.clone()).prefix("p");
    numbers.insert(&1, &9).unwrap();
    pages.insert(&1, &page(1)).unwrap();
    assert_eq!((numbers.get(&1), pages.get(&1)), (Some(9), Some(page(1))));
    assert_eq!(numbers.get(&2), None);
    assert_eq!((cache.len(), numbers.clone().cache().len()), (2, 2));
}

#[test]
fn a_value_that_cannot_be_decoded_is_replaced() {
    let cache = cache();
    let pages: Typed<str, Page> = Typed::new(cache.clone());
    let numbers: Typed<str, u64> = Typed::new(cache);
    numbers.insert("key", &u64::MAX).unwrap();
    assert_eq!(pages.get("key"), None);
    assert_eq!(pages.get_or_insert_with("key", || page(3)), page(3));
    assert_eq!(pages.get("key"), Some(page(3)));
}

#[test]
fn one_maker_makes_a_value_for_all_threads() {
    let pages: Typed<u32, Page> = Typed::new(cache());
    let made = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for number in 0..500 {
                    let found = pages.get_or_insert_with(&number, || {
                        made.fetch_add(1, Ordering::Relaxed);
                        page(number)
                    });
                    assert_eq!(found, page(number));
                }
            });
        }
    });
    assert_eq!(made.load(Ordering::Relaxed), 500);
    let failed = pages.try_get_or_insert_with(&1_000, InsertOptions::new(), || Err("no"));
    assert_eq!(failed, Err("no"));
    assert_eq!(pages.get(&1_000), None);
}

/// A codec that refuses odd numbers.
struct Even;

#[derive(Debug, PartialEq)]
struct IsOdd;

impl std::fmt::Display for IsOdd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the number is odd")
    }
}

impl std::error::Error for IsOdd {}

impl Codec<u8, u8> for Even {
    type Error = IsOdd;

    fn encode_key(&self, key: &u8, bytes: &mut Vec<u8>) -> Result<(), IsOdd> {
        bytes.resize(bytes.len() + usize::from(*key), b'k');
        Ok(())
    }

    fn encode(&self, value: &u8, bytes: &mut Vec<u8>) -> Result<(), IsOdd> {
        bytes.push(*value);
        if value.is_multiple_of(2) { Ok(()) } else { Err(IsOdd) }
    }

    fn decode(&self, bytes: &[u8]) -> Result<u8, IsOdd> {
        bytes.first().copied().ok_or(IsOdd)
    }
}

#[test]
fn a_value_that_cannot_be_encoded_is_an_error_and_removes_the_old_value() {
    let evens = Typed::with_codec(cache(), Even);
    evens.insert(&1, &2).unwrap();
    assert_eq!(evens.insert(&1, &3), Err(TypedError::Encode(IsOdd)));
    assert_eq!(evens.get(&1), None);
    assert_eq!(evens.insert(&0, &2), Err(TypedError::Insert(InsertError::KeyLength)));
    let made = evens.try_get_or_insert_with(&1, InsertOptions::new(), || Ok::<_, Infallible>(5));
    assert_eq!((made, evens.get(&1)), (Ok(5), None), "the caller gets the value");
    assert_eq!(
        TypedError::Encode(IsOdd).to_string(),
        "the key or the value can't be encoded: the number is odd"
    );
}
