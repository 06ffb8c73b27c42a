//! Simulated caches against slow, obvious ones, and against each other.

use larder_bench::simulate::{Lru, Optimum, Policy, Request, S3Fifo, Tuning, hits_at_most};
use proptest::prelude::*;
use std::num::NonZeroU32;

/// A request as it is drawn: milliseconds since the one before, key, size, TTL (0 is none).
type Drawn = (u64, u32, u32, u32);

fn stream(drawn: &[Drawn]) -> Vec<Request> {
    let mut now_ms = 0;
    let request = |&(pause_ms, key, size, ttl): &Drawn| {
        now_ms += pause_ms;
        Request { now_ms, key, size, ttl_secs: NonZeroU32::new(ttl) }
    };
    drawn.iter().map(request).collect()
}

/// Few keys with mixed sizes, each with one size and TTL.
fn mixed() -> impl Strategy<Value = Vec<Request>> {
    let one = (0..400u64, 0..40u32);
    proptest::collection::vec(one, 1..400).prop_map(|drawn| {
        let sized = |&(pause, key): &(u64, u32)| {
            (pause, key, 1 + key * 7 % 23, [0, 0, 2, 9][key as usize % 4])
        };
        stream(&drawn.iter().map(sized).collect::<Vec<_>>())
    })
}

/// Requests for items that change their size and TTL as they like.
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

#[derive(Clone, Copy, PartialEq)]
struct Item {
    request: Request,
    hits: u8,
}

fn new(request: &Request) -> Item {
    Item { request: *request, hits: 0 }
}

fn bytes(items: &[Item]) -> u64 {
    items.iter().map(|item| u64::from(item.request.size)).sum()
}

/// The least recent first.
fn naive_lru(requests: &[Request], capacity: u64) -> Vec<bool> {
    let mut items: Vec<Item> = Vec::new();
    let mut ask = |request: &Request| {
        items.retain(|item| request.now_ms < item.request.expires_ms());
        let found = items.iter().position(|item| item.request.key == request.key);
        let item = found.map(|at| items.remove(at));
        if item.is_some() || u64::from(request.size) <= capacity {
            items.push(item.unwrap_or_else(|| new(request)));
        }
        while bytes(&items) > capacity {
            items.remove(0);
        }
        item.is_some()
    };
    requests.iter().map(&mut ask).collect()
}

/// S3-FIFO over lists, oldest first.
#[derive(Default)]
struct NaiveS3Fifo {
    small: Vec<Item>,
    main: Vec<Item>,
    ghosts: Vec<u32>,
}

impl NaiveS3Fifo {
    fn ask(&mut self, request: &Request, capacity: u64) -> bool {
        for queue in [&mut self.small, &mut self.main] {
            queue.retain(|item| request.now_ms < item.request.expires_ms());
        }
        let mut all = self.small.iter_mut().chain(&mut self.main);
        if let Some(item) = all.find(|item| item.request.key == request.key) {
            item.hits = 3.min(item.hits + 1);
            return true;
        }
        let size = u64::from(request.size);
        if size > capacity {
            return false;
        }
        let ghost = self.ghosts.iter().position(|key| *key == request.key);
        ghost.map(|at| self.ghosts.remove(at));
        while bytes(&self.small) + bytes(&self.main) + size > capacity {
            self.evict(capacity);
        }
        let queue = if ghost.is_some() { &mut self.main } else { &mut self.small };
        queue.push(new(request));
        false
    }

    fn evict(&mut self, capacity: u64) {
        if self.main.is_empty() || 10 * bytes(&self.small) > capacity {
            let mean = (bytes(&self.small) + bytes(&self.main)) as f64
                / (self.small.len() + self.main.len()) as f64;
            let item = self.small.remove(0);
            let size = f64::from(item.request.size);
            let wanted = 1 + u8::from(size / mean > 2.0) + u8::from(size / mean > 8.0);
            if item.hits >= wanted {
                self.main.push(Item { hits: 0, ..item });
            } else {
                self.bury(item.request.key);
            }
        } else {
            let item = self.main.remove(0);
            if item.hits > 0 {
                self.main.push(Item { hits: item.hits - 1, ..item });
            } else {
                self.bury(item.request.key);
            }
        }
    }

    fn bury(&mut self, key: u32) {
        self.ghosts.push(key);
        let most = 0.9 * (self.small.len() + self.main.len()) as f64;
        while self.ghosts.len() as f64 > most {
            self.ghosts.remove(0);
        }
    }
}

proptest! {
    #[test]
    fn lru_is_lru(requests in wild(), capacity in 1..300u64) {
        let hits = play(&mut Lru::new(capacity), &requests, capacity);
        prop_assert_eq!(hits, naive_lru(&requests, capacity));
    }

    #[test]
    fn s3_fifo_is_s3_fifo(requests in wild(), capacity in 1..300u64) {
        let hits = play(&mut S3Fifo::new(capacity, Tuning::default()), &requests, capacity);
        let mut naive = NaiveS3Fifo::default();
        let expected: Vec<_> = requests.iter().map(|request| naive.ask(request, capacity)).collect();
        prop_assert_eq!(hits, expected);
    }

    #[test]
    fn nothing_beats_the_optimum_with_equal_sizes(requests in equal(), capacity in 10..300u64) {
        let optimum = count(&play(&mut Optimum::new(capacity, &requests), &requests, capacity));
        for tuning in [Tuning::default(), Tuning { ghost_share: 0.0, ..Tuning::default() }] {
            let s3fifo = play(&mut S3Fifo::new(capacity, tuning), &requests, capacity);
            prop_assert!(count(&s3fifo) <= optimum);
        }
        let lru = play(&mut Lru::new(capacity), &requests, capacity);
        prop_assert!(count(&lru) <= optimum);
        prop_assert!(optimum as f64 <= hits_at_most(&requests, capacity, |_| 1) + 1e-6);
    }

    #[test]
    fn nothing_beats_the_bound(requests in prop_oneof![mixed(), wild()], capacity in 1..300u64) {
        let policies: [&mut dyn Policy; 3] = [
            &mut Lru::new(capacity),
            &mut S3Fifo::new(capacity, Tuning::default()),
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

/// All that can be had is had, by everyone, where everything fits; so the bound is no empty promise.
#[test]
fn an_endless_cache_misses_only_what_is_new_or_expired() {
    // Key 1 lives 2 s: stored at 0, hit at 1.0 and 1.9, gone at 2.0, hit at 3.9, gone at 4.0.
    let times = [0, 1000, 1900, 2000, 3900, 4000];
    let mut drawn: Vec<Drawn> = Vec::new();
    let mut before = 0;
    for time in times {
        drawn.push((time - before, 1, 10, 2));
        before = time;
    }
    let requests = stream(&drawn);
    let expected = [false, true, true, false, true, false];
    let policies: [&mut dyn Policy; 3] = [
        &mut Lru::new(1000),
        &mut S3Fifo::new(1000, Tuning::default()),
        &mut Optimum::new(1000, &requests),
    ];
    for policy in policies {
        assert_eq!(play(policy, &requests, 1000), expected);
    }
    assert_eq!(hits_at_most(&requests, 1000, |_| 1), 3.0);
}

#[test]
fn the_optimum_keeps_what_returns_soonest() {
    // Two fit. At the request for 3, key 1 returns before 2, and 3 never: 3 is not kept at all.
    let keys = [1, 2, 3, 1, 2, 4, 1];
    let requests = stream(&keys.map(|key| (1, key, 10, 0)));
    let hits = play(&mut Optimum::new(20, &requests), &requests, 20);
    assert_eq!(hits, [false, false, false, true, true, false, true]);
}
