//! An upper bound on the hits of any cache, also for items that differ in size and expire.
//!
//! The optimal choice of items is NP-hard if sizes differ. The bound (PFOO-L: Berger, Beckmann,
//! Harchol-Balter, "Practical bounds on optimal caching with variable object sizes", 2018) lets the
//! cache exceed its capacity at one time if it holds less at another: a hit costs the item's bytes ×
//! the number of requests since the key's request before, the budget is capacity × length of the
//! stream, and the cheapest hits are bought first.

use super::request::Request;
use rapidhash::RapidHashMap;

/// Summary of all requests for a key.
#[derive(Debug, Default)]
struct Key {
    /// Minimum size of all its requests.
    charge: u64,
    /// Maximum value of a hit of all its requests.
    value: u64,
    /// Maximum TTL of all its requests.
    lifetime_ms: u64,
    /// Index and time of its last request so far.
    last: Option<(u32, u64)>,
    /// When a cache of infinite capacity stored the key last, and the number of hits it had for the
    /// key so far. No cache has more.
    stored_ms: u64,
    hits: usize,
    /// For each possible hit, how long the key had to be held, in requests.
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

    /// Cost (in bytes × requests) and value of each possible hit.
    fn offers(mut self) -> impl Iterator<Item = (f64, f64)> {
        self.gaps.sort_unstable();
        self.gaps.truncate(self.hits);
        let (charge, value) = (self.charge as f64, self.value as f64);
        self.gaps.into_iter().map(move |gap| (f64::from(gap) * charge, value))
    }
}

/// Upper bound on the total value of the hits in a cache of `capacity` bytes with any policy, where
/// `value` is the value of a request that hits. The stream has at most 2^32 requests.
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

/// Buys offers of `(cost, value)` with the budget, the cheapest per value first, and a fraction of the
/// last one.
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
