//! A bound on what any cache can do, also when sizes differ and items expire.
//!
//! Which items a cache of limited bytes should hold is NP-hard once their sizes differ. The bound
//! (PFOO-L: Berger, Beckmann, Harchol-Balter, "Practical bounds on optimal caching with variable
//! object sizes", 2018) lets the cache be too full at one time if it is emptier at another: a hit
//! costs the item's bytes for as long as it was held since the request before, in total there are
//! capacity × length of the stream to spend, and the cheapest hits are bought first.

use super::Request;
use rapidhash::RapidHashMap;

/// A key's requests, taken together.
#[derive(Debug, Default)]
struct Key {
    /// Bytes held: the least of all its requests.
    charge: u64,
    /// Worth of a hit: the most of all.
    value: u64,
    /// The longest life.
    lifetime_ms: u64,
    /// The request before: which, and when.
    last: Option<(u32, u64)>,
    /// When an endless cache stored it last, and how often it hit since the first time: no cache
    /// hits more often.
    stored_ms: u64,
    hits: usize,
    /// How long it had to be held for each hit that can be, in requests.
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

    /// What hits cost, in bytes × requests, and are worth each.
    fn offers(mut self) -> impl Iterator<Item = (f64, f64)> {
        self.gaps.sort_unstable();
        self.gaps.truncate(self.hits);
        let (charge, value) = (self.charge as f64, self.value as f64);
        self.gaps.into_iter().map(move |gap| (f64::from(gap) * charge, value))
    }
}

/// The most that hits can be worth in a cache of `capacity` bytes, whatever its policy; a request
/// that hits is worth `value`. At most 2^32 requests.
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

/// Buys the cheapest of `(cost, worth)` first, of the last a part.
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
