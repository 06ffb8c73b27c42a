//! An upper bound on the hits of any cache, for items of any sizes and TTLs.
//!
//! The optimal choice of items is NP-hard if sizes differ. The bound (PFOO-L: Berger, Beckmann,
//! Harchol-Balter, "Practical bounds on optimal caching with variable object sizes", 2018) limits
//! only the average use of memory: the cache may exceed its capacity at one time if it holds less
//! at another. The cost of a hit is the size of the item in bytes × the number of requests since
//! the previous request for the key. The budget is the capacity × the length of the stream. The
//! bound is the number of hits that fit the budget if the cheapest hits are taken first.

use super::request::Request;
use rapidhash::RapidHashMap;

/// Summary of all requests for a key.
#[derive(Debug, Default)]
struct Key {
    /// Minimum size of the item over all requests.
    charge: u64,
    /// Maximum value of a hit over all requests.
    value: u64,
    /// Maximum TTL over all requests, in milliseconds.
    lifetime_ms: u64,
    /// Index and time in milliseconds of the last request; `None` before the first.
    last: Option<(u32, u64)>,
    /// State of a cache of infinite capacity, which has at least as many hits as any other cache:
    /// the time of its last set of the key, and its number of hits for the key.
    stored_ms: u64,
    hits: usize,
    /// For each possible hit, the number of requests since the previous request for the key.
    gaps: Vec<u32>,
}

impl Key {
    fn ask(&mut self, index: u32, now_ms: u64) {
        if let Some((before, before_ms)) = self.last.replace((index, now_ms)) {
            if now_ms - before_ms < self.lifetime_ms {
                self.gaps.push(index - before);
            }
            if now_ms - self.stored_ms < self.lifetime_ms {
                self.hits += 1;
                return;
            }
        }
        self.stored_ms = now_ms;
    }

    /// Returns the cheapest possible hits, each with its cost (in bytes × requests) and its value.
    /// Their number is the number of hits of a cache of infinite capacity.
    fn offers(mut self) -> impl Iterator<Item = (f64, f64)> {
        self.gaps.sort_unstable();
        self.gaps.truncate(self.hits);
        let (charge, value) = (self.charge as f64, self.value as f64);
        self.gaps.into_iter().map(move |gap| (f64::from(gap) * charge, value))
    }
}

/// Returns an upper bound on the total value of the hits of any cache of `capacity` bytes. `value`
/// returns the value of a hit. The stream has at most 2^32 requests.
#[must_use]
pub fn hits_at_most(requests: &[Request], capacity: u64, value: impl Fn(&Request) -> u64) -> f64 {
    let mut keys: RapidHashMap<u32, Key> = RapidHashMap::default();
    for request in requests {
        let (charge, value) = (u64::from(request.size), value(request));
        let lifetime_ms = request.expires_ms() - request.now_ms;
        let new = || Key { charge, ..Key::default() };
        let key = keys.entry(request.key).or_insert_with(new);
        key.charge = key.charge.min(charge);
        key.value = key.value.max(value);
        key.lifetime_ms = key.lifetime_ms.max(lifetime_ms);
    }
    for (index, request) in (0u32..).zip(requests) {
        if let Some(key) = keys.get_mut(&request.key) {
            key.ask(index, request.now_ms);
        }
    }
    let fitting = keys.into_values().filter(|key| key.charge <= capacity);
    let offers = fitting.flat_map(Key::offers).collect();
    buy(offers, capacity as f64 * requests.len() as f64)
}

/// Returns the total value of the offers `(cost, value)` that fit the budget, the lowest cost per
/// value first. Adds the part of the first remaining offer that still fits.
fn buy(mut offers: Vec<(f64, f64)>, mut budget: f64) -> f64 {
    offers.retain(|(_, worth)| *worth > 0.0);
    offers.sort_unstable_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
    let mut bought = 0.0;
    for (cost, worth) in offers {
        if cost > budget {
            return bought + worth * budget / cost;
        }
        budget -= cost;
        bought += worth;
    }
    bought
}
