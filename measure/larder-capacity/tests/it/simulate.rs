//! Compares simulated caches with simple reference implementations and with each other.

use larder_capacity::simulate::{Lru, Optimum, Policy, Request, S3Fifo, Settings, hits_at_most};
use proptest::prelude::*;
use std::num::NonZeroU32;

/// A generated request: milliseconds since the previous request, key, size, TTL in seconds (0 for
/// no expiry).
type Drawn = (u64, u32, u32, u32);

fn stream(drawn: &[Drawn]) -> Vec<Request> {
    let mut now_ms = 0;
    let request = |&(pause_ms, key, size, ttl): &Drawn| {
        now_ms += pause_ms;
        Request { now_ms, key, size, ttl_secs: NonZeroU32::new(ttl) }
    };
    drawn.iter().map(request).collect()
}

/// Requests for few keys of different sizes. The size and TTL of a key never change.
fn mixed() -> impl Strategy<Value = Vec<Request>> {
    let one = (0..400u64, 0..40u32);
    proptest::collection::vec(one, 1..400).prop_map(|drawn| {
        let sized = |&(pause, key): &(u64, u32)| {
            (pause, key, 1 + key * 7 % 23, [0, 0, 2, 9][key as usize % 4])
        };
        stream(&drawn.iter().map(sized).collect::<Vec<_>>())
    })
}

/// Requests for items whose size and TTL change with each request.
fn wild() -> impl Strategy<Value = Vec<Request>> {
    proptest::collection::vec((0..400u64, 0..40u32, 1..30u32, 0..4u32), 1..400)
        .prop_map(|drawn| stream(&drawn))
}

/// Requests for items of 10 bytes that never expire.
fn equal() -> impl Strategy<Value = Vec<Request>> {
    proptest::collection::vec(0..40u32, 1..400)
        .prop_map(|keys| stream(&keys.iter().map(|key| (1, *key, 10, 0)).collect::<Vec<_>>()))
}

fn play(policy: &mut dyn Policy, requests: &[Request], capacity: u64) -> Vec<bool> {
    let mut hits = Vec::new();
    for request in requests {
        hits.push(policy.request(request));
        assert!(policy.used() <= capacity, "{} of {capacity} bytes", policy.used());
    }
    hits
}

fn count(hits: &[bool]) -> usize {
    hits.iter().filter(|hit| **hit).count()
}

fn bytes(items: &[Request]) -> u64 {
    items.iter().map(|item| u64::from(item.size)).sum()
}

/// Returns an S3-FIFO cache with segments of 30 bytes, which hold few items.
fn s3_fifo(capacity: u64) -> S3Fifo {
    S3Fifo::new(capacity, Settings { segment_len: Some(30), ..Settings::default() })
}

/// Returns whether each request hits a reference LRU cache: a list of items, the least recently
/// used first.
fn naive_lru(requests: &[Request], capacity: u64) -> Vec<bool> {
    let mut items: Vec<Request> = Vec::new();
    let mut ask = |request: &Request| {
        items.retain(|item| request.now_ms < item.expires_ms());
        let found = items.iter().position(|item| item.key == request.key);
        let item = found.map(|at| items.remove(at));
        if item.is_some() || u64::from(request.size) <= capacity {
            items.push(item.unwrap_or(*request));
        }
        while bytes(&items) > capacity {
            items.remove(0);
        }
        item.is_some()
    };
    requests.iter().map(&mut ask).collect()
}

proptest! {
    #[test]
    fn lru_is_lru(requests in wild(), capacity in 1..300u64) {
        let hits = play(&mut Lru::new(capacity), &requests, capacity);
        prop_assert_eq!(hits, naive_lru(&requests, capacity));
    }

    #[test]
    fn nothing_beats_the_optimum_with_equal_sizes(requests in equal(), capacity in 10..300u64) {
        let optimum = count(&play(&mut Optimum::new(capacity, &requests), &requests, capacity));
        let s3fifo = play(&mut s3_fifo(capacity), &requests, capacity);
        prop_assert!(count(&s3fifo) <= optimum);
        let lru = play(&mut Lru::new(capacity), &requests, capacity);
        prop_assert!(count(&lru) <= optimum);
        prop_assert!(optimum as f64 <= hits_at_most(&requests, capacity, |_| 1) + 1e-6);
    }

    #[test]
    fn nothing_beats_the_bound(requests in prop_oneof![mixed(), wild()], capacity in 1..300u64) {
        let policies: [&mut dyn Policy; 3] = [
            &mut Lru::new(capacity),
            &mut s3_fifo(capacity),
            &mut Optimum::new(capacity, &requests),
        ];
        let by_object = hits_at_most(&requests, capacity, |_| 1);
        let by_byte = hits_at_most(&requests, capacity, |request| u64::from(request.size));
        for policy in policies {
            let hits = play(policy, &requests, capacity);
            let hit_bytes: u64 = hits
                .iter()
                .zip(&requests)
                .map(|(hit, request)| u64::from(*hit) * u64::from(request.size))
                .sum();
            prop_assert!(count(&hits) as f64 <= by_object + 1e-6);
            prop_assert!(hit_bytes as f64 <= by_byte + 1e-6);
        }
    }
}

/// If all items fit into the cache, every policy has all possible hits, and the bound equals their
/// number.
#[test]
fn a_cache_that_holds_all_items_misses_only_new_and_expired_ones() {
    // Key 1 has a TTL of 2 s: stored at 0, hit at 1.0 and 1.9, expired at 2.0 and stored again, hit
    // at 3.9, expired at 4.0.
    let times = [0, 1000, 1900, 2000, 3900, 4000];
    let mut drawn: Vec<Drawn> = Vec::new();
    let mut before = 0;
    for time in times {
        drawn.push((time - before, 1, 10, 2));
        before = time;
    }
    let requests = stream(&drawn);
    let expected = [false, true, true, false, true, false];
    let policies: [&mut dyn Policy; 3] =
        [&mut Lru::new(1000), &mut s3_fifo(1000), &mut Optimum::new(1000, &requests)];
    for policy in policies {
        assert_eq!(play(policy, &requests, 1000), expected);
    }
    assert_eq!(hits_at_most(&requests, 1000, |_| 1), 3.0);
}

#[test]
fn a_lookup_does_not_store_the_item() {
    let requests = stream(&[1, 2, 1, 2, 1].map(|key| (1, key, 10, 0)));
    let policies: [&mut dyn Policy; 3] =
        [&mut Lru::new(1000), &mut s3_fifo(1000), &mut Optimum::new(1000, &requests)];
    for policy in policies {
        let mut hits = vec![policy.request(&requests[0])];
        hits.extend(requests[1..].iter().map(|request| policy.look_up(request)));
        assert_eq!(hits, [false, false, true, false, true]);
    }
}

/// Requests 8,000 items of 300 bytes from a cache of 4 MiB, twice in the same order. Then requests
/// 300 items of 10,000 bytes, each twice in a row. Returns the number of small items that the cache
/// still holds.
fn survivors(size_exponent: f64, threads: usize) -> usize {
    let settings = Settings { size_exponent, threads, ..Settings::default() };
    let mut cache = S3Fifo::new(4 << 20, settings);
    let request = |key, size| Request { now_ms: 0, key, size, ttl_secs: None };
    let first = (0..8_000).map(|key| request(key, 300));
    let then = (8_000..8_300).flat_map(|key| [request(key, 10_000); 2]);
    first.clone().chain(first.clone()).chain(then).for_each(|request| {
        cache.request(&request);
    });
    first.filter(|request| cache.request(request)).count()
}

#[test]
fn small_items_outlive_large_ones_if_size_counts() {
    for threads in [1, 4] {
        let [by_age, by_size] = [0.0, 0.7].map(|exponent| survivors(exponent, threads));
        assert!(by_size > 2 * by_age, "{by_size} and {by_age}, {threads} threads");
    }
}

#[test]
fn large_values_have_chains_of_segments() {
    // Each item takes three segments of 16 KiB and 850 bytes of a fourth one.
    let requests: Vec<Drawn> = (0..140).map(|i| (1, i % 70, 50_002, 0)).collect();
    let mut cache = S3Fifo::new(4 << 20, Settings::default());
    let hits = play(&mut cache, &stream(&requests), 4 << 20);
    assert_eq!(count(&hits), 70, "the cache holds all 70 items");
    let too_large = Request { now_ms: 200, key: 99, size: 3 << 20, ttl_secs: None };
    assert_eq!([0; 2].map(|_| cache.request(&too_large)), [false; 2]);
    assert_eq!(cache.used(), 70 * 50_002);
}

#[test]
fn the_optimum_keeps_the_keys_that_return_soonest() {
    // The cache holds two items. After key 3, keys 1 and 2 are requested again, but key 3 is not,
    // so the cache does not store key 3.
    let keys = [1, 2, 3, 1, 2, 4, 1];
    let requests = stream(&keys.map(|key| (1, key, 10, 0)));
    let hits = play(&mut Optimum::new(20, &requests), &requests, 20);
    assert_eq!(hits, [false, false, false, true, true, false, true]);
}
