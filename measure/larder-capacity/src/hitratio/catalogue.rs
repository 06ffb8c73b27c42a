//! Named workloads for the comparison of eviction policies. docs/hitratio.md describes them.
//!
//! A workload defines all parameters that affect its miss ratio: keys, value sizes, number of
//! requests and memory limit.

use super::mixture::{self, Phase, Ranks, Sizes, Source};
use super::{NoDistribution, Stream, Traits, Workload};

/// A workload with all parameters except the seed.
#[derive(Clone, Copy, Debug)]
pub struct NamedWorkload {
    /// The name for `--workload`.
    pub name: &'static str,
    /// Memory limit of the servers and of the simulated caches, in MiB.
    pub memory_mb: u64,
    recipe: Recipe,
}

#[derive(Clone, Copy, Debug)]
enum Recipe {
    /// A stream that `--stream` can also generate. Values have 300 bytes unless the traits define
    /// sizes.
    Stream {
        traits: Traits,
        keys: u32,
        exponent: f64,
        requests: usize,
    },
    Mixed {
        requests: usize,
        sources: &'static [(f64, Source)],
    },
    Phases(&'static [Phase<'static>]),
}

impl NamedWorkload {
    /// Generates the requests of the workload.
    ///
    /// # Errors
    /// A distribution of the catalogue has invalid parameters.
    pub fn stream(&self, seed: u64) -> Result<Stream, NoDistribution> {
        let mut stream = match self.recipe {
            Recipe::Phases(phases) => mixture::stream(self.name, phases, seed)?,
            Recipe::Mixed { requests, sources } => {
                mixture::stream(self.name, &[Phase::Mixed { requests, sources }], seed)?
            }
            Recipe::Stream { traits, keys, exponent, requests } => Workload {
                traits,
                requests,
                keys,
                exponent,
                value_bytes: 300,
                one_hit_share: 0.3,
                ttl_mix: Vec::new(),
                per_sec: 50_000,
                seed,
            }
            .stream(self.name)?,
        };
        stream.memory_mb = Some(self.memory_mb);
        Ok(stream)
    }
}

const MILLION: usize = 1_000_000;

/// Zipf 1.0 over a million keys with values of 300 bytes.
const ZIPF: Source = zipf(1_000_000, 1.0, Sizes::Equal(300));
const TWICE: Source = Source::Twice { apart: 40_000, value_bytes: 300 };
const SESSIONS: Source = Source::Sessions { within: 65_000, value_bytes: 300 };
const LOG_UNIFORM: Sizes = Sizes::LogUniform { least: 60.0, most: 1e6 };
const LOG_NORMAL_1K: Sizes = Sizes::LogNormal { median: 1024.0, sigma: 2.0, most: 1e6 };

/// 5,100 keys with values of 11 KiB, each set once and read once.
const OLD_READ: Phase<'static> =
    Phase::Loop { set: 0, keys: 5_100, value_bytes: 11 << 10, rounds: 2 };

/// All named workloads.
pub const NAMED: &[NamedWorkload] = &[
    streamed("zipf", 11, Traits::ZIPF, 1.0),
    streamed("scan", 25, Traits { scans: true, ..Traits::ZIPF }, 0.9),
    streamed("drift", 13, Traits { drifts: true, ..Traits::ZIPF }, 1.0),
    streamed("one-hit", 29, Traits { one_hits: true, ..Traits::ZIPF }, 0.9),
    streamed("log-normal", 25, Traits { log_normal: true, ..Traits::ZIPF }, 0.9),
    NamedWorkload {
        name: "log-uniform",
        memory_mb: 100,
        recipe: Recipe::Phases(&log_uniform(&[(1.0, zipf(10_000, 0.0, LOG_UNIFORM))])),
    },
    NamedWorkload {
        name: "log-uniform-zipf",
        memory_mb: 100,
        recipe: Recipe::Phases(&log_uniform(&[(1.0, zipf(10_000, 0.9, LOG_UNIFORM))])),
    },
    mixed("log-normal-1k", 100, 3 * MILLION, &[(1.0, zipf(140_000, 0.0, LOG_NORMAL_1K))]),
    mixed("log-normal-1k-zipf", 100, 3 * MILLION, &[(1.0, zipf(140_000, 0.9, LOG_NORMAL_1K))]),
    mixed("twice", 32, MILLION, &[(1.0, TWICE)]),
    mixed("half-twice", 32, MILLION, &[(0.5, TWICE), (0.5, ZIPF)]),
    mixed("sessions", 32, 3 * MILLION, &[(1.0, SESSIONS)]),
    mixed("half-sessions", 32, 3 * MILLION, &[(0.5, SESSIONS), (0.5, ZIPF)]),
    mixed("large-popular", 32, MILLION, &[(1.0, LARGE_POPULAR)]),
    mixed(
        "small-one-hit",
        40,
        2 * MILLION,
        &[
            (0.5, Source::Once { value_bytes: 60 }),
            (0.5, zipf(100_000, 0.9, Sizes::Equal(4 << 10))),
        ],
    ),
    mixed(
        "large-one-hit",
        40,
        2 * MILLION,
        &[
            (0.03, Source::Once { value_bytes: 200_000 }),
            (0.97, zipf(400_000, 0.9, Sizes::Equal(500))),
        ],
    ),
    NamedWorkload {
        name: "old-then-loop",
        memory_mb: 60,
        recipe: Recipe::Phases(&[
            OLD_READ,
            Phase::Loop { set: 1, keys: 16_000, value_bytes: 3 << 10, rounds: 12 },
        ]),
    },
    NamedWorkload {
        name: "old-then-new",
        memory_mb: 60,
        recipe: Recipe::Phases(&[
            OLD_READ,
            Phase::Loop { set: 1, keys: 5_100, value_bytes: 3 << 10, rounds: 1 },
            Phase::LookUp { set: 1, keys: 5_100, value_bytes: 3 << 10 },
        ]),
    },
    NamedWorkload {
        name: "new-ranks",
        memory_mb: 32,
        recipe: Recipe::Phases(&[
            Phase::Mixed { requests: MILLION, sources: &[(1.0, ZIPF)] },
            Phase::CountFromHere,
            Phase::Mixed { requests: MILLION / 2, sources: &[(1.0, ZIPF_SHUFFLED)] },
        ]),
    },
];

const LARGE_POPULAR: Source =
    zipf(200_000, 0.9, Sizes::Popular { keys: 2_000, value_bytes: 20_000, rest_bytes: 300 });

const ZIPF_SHUFFLED: Source = Source::Zipf {
    keys: 1_000_000,
    exponent: 1.0,
    sizes: Sizes::Equal(300),
    ranks: Ranks::Shuffled,
};

const fn streamed(
    name: &'static str,
    memory_mb: u64,
    traits: Traits,
    exponent: f64,
) -> NamedWorkload {
    let (keys, requests) = (1_000_000, 2 * MILLION);
    let recipe = Recipe::Stream { traits, keys, exponent, requests };
    NamedWorkload { name, memory_mb, recipe }
}

const fn mixed(
    name: &'static str,
    memory_mb: u64,
    requests: usize,
    sources: &'static [(f64, Source)],
) -> NamedWorkload {
    NamedWorkload { name, memory_mb, recipe: Recipe::Mixed { requests, sources } }
}

/// Returns two equal halves: the first fills the cache, and only the second is counted. If the
/// first half counted too, the misses of the empty cache would distort the result. A much longer
/// replay would reduce this effect, but takes too much time with such large values.
const fn log_uniform<'s>(sources: &'s [(f64, Source)]) -> [Phase<'s>; 3] {
    let mixed = Phase::Mixed { requests: MILLION / 10, sources };
    [mixed, Phase::CountFromHere, mixed]
}

const fn zipf(keys: u32, exponent: f64, sizes: Sizes) -> Source {
    Source::Zipf { keys, exponent, sizes, ranks: Ranks::InOrder }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hitratio::HitStats;
    use crate::simulate::{Lru, Policy};

    fn lru(name: &str) -> HitStats {
        let workload = NAMED.iter().find(|workload| workload.name == name).unwrap();
        let stream = workload.stream(1).unwrap();
        let mut lru = Lru::new(workload.memory_mb << 20);
        let mut stats = HitStats::default();
        let charged = stream.charged(56);
        for (index, (charged, request)) in charged.iter().zip(&stream.requests).enumerate() {
            let hit = lru.request(charged);
            if index >= stream.counted.first() {
                stats.count(hit, request.size);
            }
        }
        stats
    }

    /// The parameters of the workloads were tuned to these miss ratios.
    #[test]
    fn an_lru_misses_as_documented() {
        let check = |name: &str, expected: f64| {
            let found = lru(name).miss_ratio();
            assert!((found / expected - 1.0).abs() < 0.02, "{name}: {found} of {expected}");
        };
        check("log-uniform", 0.896);
        check("log-normal-1k", 0.904);
        check("twice", 0.521);
        check("half-twice", 0.647);
        check("old-then-loop", 0.104);
        assert_eq!(lru("old-then-new").hits(), 5_100);
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = NAMED.iter().map(|workload| workload.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), NAMED.len());
    }
}
