//! Generates streams of requests. The same seed generates the same stream.

use super::stream::{Counted, Stream};
use crate::simulate::Request;
use rand::distr::Distribution;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rand_distr::{LogNormal, Zipf};
use rapidhash::RapidHashMap;
use serde::Serialize;
use std::num::NonZeroU32;
use std::str::FromStr;

/// Number of requests in a round of a `scan` stream: [`SCAN_START`] ordinary requests, then
/// requests for new keys.
const SCAN_ROUND: usize = 250_000;
const SCAN_START: usize = 200_000;

/// Number of requests between drift steps of the popularity.
const DRIFT_EVERY: usize = 50_000;

/// Size of a drift step, in thousandths of the number of keys. A step is rounded up to whole keys.
const DRIFT_PER_MILLE: u64 = 2;

/// Median in bytes and sigma of log-normal value sizes, similar to those of Twitter's clusters.
const LOG_NORMAL: (f64, f64) = (230.0, 1.3);

/// Median and sigma of value sizes in the first and the second half of a `sizeshift` stream.
const SHIFT: [(f64, f64); 2] = [(150.0, 0.3), (900.0, 0.3)];

/// Minimum and maximum of log-normal value sizes, in bytes.
const SIZES: (f64, f64) = (8.0, 65_536.0);

/// Properties of a stream in addition to a Zipf distribution of keys. On the command line, `+`
/// joins their names, and `zipf` means none of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traits {
    /// `onehit`: some requests are for keys that are requested only once.
    pub one_hits: bool,
    /// `scan`: after every 200,000 requests, the next 50,000 are for keys that are requested only
    /// once.
    pub scans: bool,
    /// `drift`: after every 50,000 requests, each key moves up by 0.2 % of the ranks, except the
    /// most popular 0.2 %, which become the least popular.
    pub drifts: bool,
    /// `lognormal`: value sizes are log-normal (median 230 bytes, sigma 1.3).
    pub log_normal: bool,
    /// `sizeshift`: the second half of the requests is for other keys, with values of 900 bytes
    /// instead of 150 (medians; sigma 0.3).
    pub size_shift: bool,
    /// `ttl`: shares of the keys have the TTLs of [`Workload::ttl_mix`].
    pub ttls: bool,
}

impl Traits {
    /// A Zipf distribution without other properties.
    pub const ZIPF: Self = Self {
        one_hits: false,
        scans: false,
        drifts: false,
        log_normal: false,
        size_shift: false,
        ttls: false,
    };
}

impl FromStr for Traits {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut traits = Self::default();
        for name in text.split('+') {
            match name {
                "zipf" => {}
                "onehit" => traits.one_hits = true,
                "scan" => traits.scans = true,
                "drift" => traits.drifts = true,
                "lognormal" => traits.log_normal = true,
                "sizeshift" => traits.size_shift = true,
                "ttl" => traits.ttls = true,
                _ => {
                    let known = "zipf, onehit, scan, drift, lognormal, sizeshift, ttl";
                    return Err(format!(
                        "unknown stream `{name}`; expected {known}, or several names joined by +"
                    ));
                }
            }
        }
        Ok(traits)
    }
}

/// A share of the keys with their TTL.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TtlShare {
    /// Share of all keys, from 0 to 1.
    pub share: f64,
    /// TTL of this share's keys, in seconds.
    pub secs: u32,
}

/// The parameters of a generated stream.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Workload {
    /// Properties in addition to the Zipf distribution.
    pub traits: Traits,
    /// Number of requests.
    pub requests: usize,
    /// Number of keys of the Zipf distribution. Keys that are requested only once do not count.
    /// With [`Traits::size_shift`], each half of the stream has this number of keys of its own.
    pub keys: u32,
    /// The n-th most popular key is requested with a probability proportional to n^-exponent.
    pub exponent: f64,
    /// Size of each value in bytes. Ignored if the traits define sizes.
    pub value_bytes: u32,
    /// Share of the requests for keys that are requested only once, with [`Traits::one_hits`].
    pub one_hit_share: f64,
    /// The TTLs of keys, with [`Traits::ttls`]. The other keys never expire.
    pub ttl_mix: Vec<TtlShare>,
    /// Requests per second of stream time.
    pub per_sec: u32,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// The parameters of a distribution are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a Zipf stream needs at least one key and an exponent that is not negative")]
pub struct NoDistribution;

impl Workload {
    /// Generates the stream.
    ///
    /// # Errors
    /// The number of keys is 0, or the exponent is negative or not a number.
    pub fn stream(&self, name: &str) -> Result<Stream, NoDistribution> {
        let zipf = Zipf::new(f64::from(self.keys), self.exponent).map_err(|_| NoDistribution)?;
        let mut keys = Keys { workload: self, zipf, random: random(self.seed), fresh: FRESH };
        let mut objects = Objects::new(self);
        let requests = (0..self.requests).map(|index| {
            let key = keys.draw(index);
            let object = objects.object(key, index);
            let now_ms = index as u64 * 1000 / u64::from(self.per_sec.max(1));
            Request { now_ms, ..object }
        });
        Ok(Stream {
            name: name.to_owned(),
            requests: requests.collect(),
            names: None,
            counted: Counted::All,
            memory_mb: None,
        })
    }

    fn is_late(&self, index: usize) -> bool {
        index >= self.requests / 2
    }
}

fn random(seed: u64) -> Xoshiro256PlusPlus {
    Xoshiro256PlusPlus::seed_from_u64(seed)
}

/// The number of the first key that is requested only once. Below it are two ranges of 2^32 keys:
/// the second is for the second half of a `sizeshift` stream, and the first for all other requests.
const FRESH: u64 = 1 << 33;

struct Keys<'w> {
    workload: &'w Workload,
    zipf: Zipf<f64>,
    random: Xoshiro256PlusPlus,
    fresh: u64,
}

impl Keys<'_> {
    fn draw(&mut self, index: usize) -> u64 {
        let traits = self.workload.traits;
        let scans = traits.scans && index % SCAN_ROUND >= SCAN_START;
        if scans || traits.one_hits && self.random.random::<f64>() < self.workload.one_hit_share {
            self.fresh += 1;
            return self.fresh;
        }
        let rank = self.rank();
        let keys = u64::from(self.workload.keys);
        let step = if traits.drifts { (keys * DRIFT_PER_MILLE).div_ceil(1000) } else { 0 };
        let key = (rank + (index / DRIFT_EVERY) as u64 * step) % keys;
        if traits.size_shift && self.workload.is_late(index) { key + (1 << 32) } else { key }
    }

    /// Returns the rank of a random key. The most popular key has rank 0.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole, in 1..=n")]
    fn rank(&mut self) -> u64 {
        self.zipf.sample(&mut self.random) as u64 - 1
    }
}

/// Assigns each key a number, a value size and a TTL at its first request.
struct Objects<'w> {
    workload: &'w Workload,
    random: Xoshiro256PlusPlus,
    objects: RapidHashMap<u64, Request>,
}

impl<'w> Objects<'w> {
    fn new(workload: &'w Workload) -> Self {
        let random = random(workload.seed.wrapping_add(1));
        Self { workload, random, objects: RapidHashMap::default() }
    }

    fn object(&mut self, key: u64, index: usize) -> Request {
        if let Some(object) = self.objects.get(&key) {
            return *object;
        }
        let number = u32::try_from(self.objects.len()).unwrap_or(u32::MAX);
        let (size, ttl_secs) = (self.draw_size(index), self.draw_ttl());
        let object = Request { now_ms: 0, key: number, size, ttl_secs };
        self.objects.insert(key, object);
        object
    }

    fn draw_size(&mut self, index: usize) -> u32 {
        let traits = self.workload.traits;
        let (median, sigma) = match traits {
            Traits { size_shift: true, .. } => SHIFT[usize::from(self.workload.is_late(index))],
            Traits { log_normal: true, .. } => LOG_NORMAL,
            _ => return self.workload.value_bytes,
        };
        LogNormal::new(f64::ln(median), sigma)
            .map_or(self.workload.value_bytes, |sizes| clamped(sizes.sample(&mut self.random)))
    }

    fn draw_ttl(&mut self) -> Option<NonZeroU32> {
        if !self.workload.traits.ttls {
            return None;
        }
        let mut left: f64 = self.random.random();
        for &TtlShare { share, secs } in &self.workload.ttl_mix {
            left -= share;
            if left < 0.0 {
                return NonZeroU32::new(secs);
            }
        }
        None
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within SIZES")]
fn clamped(size: f64) -> u32 {
    size.clamp(SIZES.0, SIZES.1) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(traits: &str) -> Workload {
        Workload {
            traits: traits.parse().unwrap(),
            requests: 500_000,
            keys: 10_000,
            exponent: 1.0,
            value_bytes: 300,
            one_hit_share: 0.3,
            ttl_mix: vec![TtlShare { share: 0.5, secs: 10 }],
            per_sec: 1000,
            seed: 7,
        }
    }

    fn requests(traits: &str) -> Vec<Request> {
        workload(traits).stream("").unwrap().requests
    }

    /// Returns the number of requests for the most popular key, and the number of keys requested
    /// once.
    fn counts(requests: &[Request]) -> (usize, usize) {
        let mut counts: RapidHashMap<u32, usize> = RapidHashMap::default();
        requests.iter().for_each(|request| *counts.entry(request.key).or_default() += 1);
        let once = counts.values().filter(|count| **count == 1).count();
        (counts.into_values().max().unwrap(), once)
    }

    #[test]
    fn equal_seeds_make_equal_streams() {
        let all = "onehit+scan+drift+lognormal+ttl";
        assert_eq!(requests(all), requests(all));
        let other = Workload { seed: 8, ..workload(all) };
        assert_ne!(other.stream("").unwrap().requests, requests(all));
    }

    /// With 10,000 keys and exponent 1, the first key has 1 / 9.79 of the requests. 9.79 is the
    /// 10,000th harmonic number.
    #[test]
    fn the_most_popular_key_has_its_zipf_share() {
        let (most, once) = counts(&requests("zipf"));
        assert!((50_000..52_200).contains(&most), "{most} of 51,080");
        assert!(once < 200, "{once}");
    }

    #[test]
    fn exponents_from_0_up_are_allowed() {
        for (exponent, expected) in [(0.0, 50.0), (0.6, 500_000.0 * 0.010_2), (1.5, 193_000.0)] {
            let stream = Workload { exponent, ..workload("zipf") }.stream("").unwrap();
            let most = counts(&stream.requests).0 as f64;
            assert!((0.9..2.0).contains(&(most / expected)), "{exponent}: {most} of {expected}");
        }
        assert!(Workload { exponent: -1.0, ..workload("zipf") }.stream("").is_err());
    }

    #[test]
    fn one_hit_keys_have_the_requested_share() {
        let once = counts(&requests("onehit")).1;
        assert!((148_000..152_500).contains(&once), "{once} of 150,000");
        let once = counts(&requests("scan")).1;
        assert!((100_000..100_500).contains(&once), "{once} of 100,000");
    }

    /// The most popular key at the end differs from the most popular key at the start.
    #[test]
    fn popularity_drifts() {
        let requests = requests("drift");
        let favourite = |part: &[Request]| {
            let mut counts = vec![0; 20_000];
            part.iter().for_each(|request| counts[request.key as usize] += 1);
            (0..counts.len()).max_by_key(|key| counts[*key])
        };
        let (first, last) = (&requests[..50_000], &requests[450_000..]);
        assert_ne!(favourite(first), favourite(last));
    }

    #[test]
    fn sizes_have_the_documented_medians() {
        let median = |requests: &[Request]| {
            let mut sizes: Vec<u32> = requests.iter().map(|request| request.size).collect();
            sizes.sort_unstable();
            sizes[sizes.len() / 2]
        };
        let mut seen = std::collections::BTreeSet::new();
        let mut objects = requests("lognormal");
        objects.retain(|request| seen.insert(request.key));
        assert!((210..250).contains(&median(&objects)));
        let shifting = requests("sizeshift");
        let (early, late) = shifting.split_at(250_000);
        assert!((100..200).contains(&median(early)), "{}", median(early));
        assert!((700..1200).contains(&median(late)), "{}", median(late));
    }

    #[test]
    fn keys_keep_their_ttls() {
        let requests = requests("ttl");
        let mut ttls: RapidHashMap<u32, Option<NonZeroU32>> = RapidHashMap::default();
        for request in &requests {
            assert_eq!(*ttls.entry(request.key).or_insert(request.ttl_secs), request.ttl_secs);
        }
        let mortal = ttls.values().filter(|ttl| ttl.is_some()).count() as f64;
        assert!((0.47..0.53).contains(&(mortal / ttls.len() as f64)));
    }

    #[test]
    fn an_unknown_trait_is_refused() {
        assert!("zipf+scam".parse::<Traits>().unwrap_err().contains("`scam`"));
    }
}
