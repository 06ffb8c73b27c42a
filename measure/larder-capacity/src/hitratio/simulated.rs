//! Runs a stream through simulated caches.

use super::replay::HitStats;
use super::stream::Stream;
use crate::simulate::{Lru, Optimum, Policy, Request, S3Fifo, Settings, hits_at_most};
use serde::Serialize;

/// Overhead of each item in bytes, in addition to its key and value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Overheads {
    /// Overhead in the simulated LRU.
    pub lru: u32,
    /// Overhead in the simulated S3-FIFO.
    pub s3fifo: u32,
}

impl Overheads {
    /// Returns the overhead for `optimum` and `bound`: the smaller of the two overheads. With the
    /// larger overhead, a simulated cache could have fewer misses than `optimum` and `bound`.
    fn least(self) -> u32 {
        self.lru.min(self.s3fifo)
    }
}

/// The results of simulated caches.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Simulated {
    /// An LRU cache.
    pub lru: HitStats,
    /// A cache with Larder's eviction policy.
    pub s3fifo: HitStats,
    /// Bélády's algorithm, with knowledge of future requests.
    pub optimum: HitStats,
    /// A lower bound on the miss ratio of any cache.
    pub bound: Bound,
}

/// Lower bounds on miss ratios (PFOO-L, see [`hits_at_most`]). If only the end of a stream is
/// counted, the bound still allows as many hits as in the entire stream, so it is often 0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bound {
    /// Bound on the miss ratio of requests.
    pub miss_ratio: f64,
    /// Bound on the miss ratio of bytes.
    pub byte_miss_ratio: f64,
}

/// Runs a stream through simulated caches of `capacity` bytes.
#[must_use]
pub fn simulate(stream: &Stream, capacity: u64, overheads: Overheads) -> Simulated {
    let lru = play(&mut Lru::new(capacity), stream, &stream.charged(overheads.lru));
    let mut s3fifo = S3Fifo::new(capacity, Settings::default());
    let s3fifo = play(&mut s3fifo, stream, &stream.charged(overheads.s3fifo));
    let charged = stream.charged(overheads.least());
    let optimum = play(&mut Optimum::new(capacity, &charged), stream, &charged);
    Simulated { lru, s3fifo, optimum, bound: bound(stream, &charged, capacity, overheads.least()) }
}

fn play(policy: &mut dyn Policy, stream: &Stream, charged: &[Request]) -> HitStats {
    let mut stats = HitStats::default();
    for (index, (charged, request)) in charged.iter().zip(&stream.requests).enumerate() {
        let hit = if stream.counted.stores(index) {
            policy.request(charged)
        } else {
            policy.look_up(charged)
        };
        if index >= stream.counted.first() {
            stats.count(hit, request.size);
        }
    }
    stats
}

fn bound(stream: &Stream, charged: &[Request], capacity: u64, overhead: u32) -> Bound {
    let key_and_overhead =
        |request: &Request| stream.key_bytes(request.key) as u64 + u64::from(overhead);
    let value_bytes =
        |request: &Request| u64::from(request.size).saturating_sub(key_and_overhead(request));
    let counted = &charged[stream.counted.first()..];
    let all_bytes: f64 = counted.iter().map(|request| value_bytes(request) as f64).sum();
    let hits = hits_at_most(charged, capacity, |_| 1);
    let hit_bytes = hits_at_most(charged, capacity, value_bytes);
    Bound {
        miss_ratio: (1.0 - hits / (counted.len() as f64).max(1.0)).max(0.0),
        byte_miss_ratio: (1.0 - hit_bytes / all_bytes.max(1.0)).max(0.0),
    }
}
