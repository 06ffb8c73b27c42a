//! Generates streams that consist of several phases or take their keys from several sources.

use super::NoDistribution;
use super::stream::{Counted, Stream};
use crate::simulate::Request;
use rand::distr::Distribution;
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_distr::{LogNormal, Zipf};
use rapidhash::RapidHashMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A phase of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) enum Phase<'s> {
    /// Each request chooses a source at random and takes its key from this source. The number
    /// before each source is its probability.
    Mixed { requests: usize, sources: &'s [(f64, Source)] },
    /// Requests all keys of a set in order, `rounds` times.
    Loop { set: u32, keys: u32, value_bytes: u32, rounds: u32 },
    /// Looks up all keys of a set in reverse order. Only these requests are counted. Neither a
    /// replay nor a simulated cache stores a key after a miss, so the number of hits equals the
    /// number of keys of the set that the cache still holds.
    LookUp { set: u32, keys: u32, value_bytes: u32 },
    /// Starts the counting of hits and misses. Requests of earlier phases only fill the cache.
    CountFromHere,
}

/// A source of keys.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// The n-th most popular of `keys` keys has a probability proportional to n^-exponent; with
    /// exponent 0, the distribution is uniform. All Zipf sources use the same set of keys.
    Zipf { keys: u32, exponent: f64, sizes: Sizes, ranks: Ranks },
    /// Keys with one request each.
    Once { value_bytes: u32 },
    /// Keys with two requests each. Between the two, the source requests `apart` other new keys for
    /// the first time.
    Twice { apart: u64, value_bytes: u32 },
    /// Keys with two to four requests each, all within about `within` requests of this source.
    Sessions { within: u64, value_bytes: u32 },
}

/// The order of keys by popularity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ranks {
    /// The first key is the most popular.
    InOrder,
    /// A random order.
    Shuffled,
}

/// The distribution of value sizes in bytes. A key keeps the size of its first request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sizes {
    Equal(u32),
    /// The logarithm of the size is uniformly distributed.
    LogUniform {
        least: f64,
        most: f64,
    },
    /// The size has a log-normal distribution, limited to 1 to `most` bytes.
    LogNormal {
        median: f64,
        sigma: f64,
        most: f64,
    },
    /// The first `keys` keys have values of `value_bytes`, all others of `rest_bytes`.
    Popular {
        keys: u64,
        value_bytes: u32,
        rest_bytes: u32,
    },
}

/// Generates the stream that consists of these phases.
pub(super) fn stream(
    name: &str,
    phases: &[Phase<'_>],
    seed: u64,
) -> Result<Stream, NoDistribution> {
    let mut mixture = Mixture::new(seed);
    for phase in phases {
        mixture.add(*phase)?;
    }
    Ok(Stream {
        name: name.to_owned(),
        requests: mixture.requests,
        names: None,
        counted: mixture.counted,
        memory_mb: None,
    })
}

/// Each kind of source starts its key numbers at a different multiple of this constant.
const KIND: u64 = 1 << 40;

/// The key numbers of set `n` of [`Phase::Loop`] and [`Phase::LookUp`] start at `4 * KIND + n *
/// SET`.
const SET: u64 = 1 << 32;

struct Mixture {
    random: Xoshiro256PlusPlus,
    /// Number and value size of each key that already occurred.
    key_data: RapidHashMap<u64, (u32, u32)>,
    requests: Vec<Request>,
    counted: Counted,
}

impl Mixture {
    fn new(seed: u64) -> Self {
        let random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let (key_data, requests) = (RapidHashMap::default(), Vec::new());
        Self { random, key_data, requests, counted: Counted::All }
    }

    fn add(&mut self, phase: Phase<'_>) -> Result<(), NoDistribution> {
        match phase {
            Phase::Mixed { requests, sources } => self.mix(requests, sources)?,
            Phase::Loop { set, keys, value_bytes, rounds } => (0..rounds)
                .flat_map(|_| set_keys(set, keys))
                .for_each(|key| self.request(key, Sizes::Equal(value_bytes))),
            Phase::LookUp { set, keys, value_bytes } => {
                self.counted = Counted::ReadOnlyFrom(self.requests.len());
                let newest_first = set_keys(set, keys).rev();
                newest_first.for_each(|key| self.request(key, Sizes::Equal(value_bytes)));
            }
            Phase::CountFromHere => self.counted = Counted::From(self.requests.len()),
        }
        Ok(())
    }

    fn mix(&mut self, requests: usize, sources: &[(f64, Source)]) -> Result<(), NoDistribution> {
        let drawing = |(share, source): &(f64, Source)| {
            Ok((*share, *source, Drawing::new(*source, &mut self.random)?))
        };
        let mut drawings: Vec<_> = sources.iter().map(drawing).collect::<Result<_, _>>()?;
        for _ in 0..requests {
            let mut left: f64 = self.random.random();
            let chosen = drawings.iter().position(|(share, ..)| {
                left -= share;
                left < 0.0
            });
            let last = drawings.len() - 1;
            let (_, source, drawing) = &mut drawings[chosen.unwrap_or(last)];
            let key = drawing.draw(&mut self.random);
            let sizes = source.sizes();
            self.request(key, sizes);
        }
        Ok(())
    }

    fn request(&mut self, key: u64, sizes: Sizes) {
        let number = u32::try_from(self.key_data.len()).unwrap_or(u32::MAX);
        let random = &mut self.random;
        let key_data =
            self.key_data.entry(key).or_insert_with(|| (number, sizes.draw(key, random)));
        self.requests.push(Request {
            now_ms: 0,
            key: key_data.0,
            size: key_data.1,
            ttl_secs: None,
        });
    }
}

fn set_keys(set: u32, keys: u32) -> impl DoubleEndedIterator<Item = u64> {
    (0..u64::from(keys)).map(move |key| 4 * KIND + u64::from(set) * SET + key)
}

impl Source {
    fn sizes(self) -> Sizes {
        match self {
            Self::Zipf { sizes, .. } => sizes,
            Self::Once { value_bytes }
            | Self::Twice { value_bytes, .. }
            | Self::Sessions { value_bytes, .. } => Sizes::Equal(value_bytes),
        }
    }
}

impl Sizes {
    fn draw(self, key: u64, random: &mut Xoshiro256PlusPlus) -> u32 {
        match self {
            Self::Equal(bytes) => bytes,
            Self::LogUniform { least, most } => {
                let share: f64 = random.random();
                whole(least * (most / least).powf(share))
            }
            Self::LogNormal { median, sigma, most } => LogNormal::new(f64::ln(median), sigma)
                .map_or(0, |sizes| whole(sizes.sample(random).clamp(1.0, most))),
            Self::Popular { keys, value_bytes, .. } if key < keys => value_bytes,
            Self::Popular { rest_bytes, .. } => rest_bytes,
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rounds, and is small")]
fn whole(bytes: f64) -> u32 {
    bytes as u32
}

/// The state of a source while the generator takes keys from it.
enum Drawing {
    /// `by_rank` maps ranks to keys. With `None`, each key equals its rank.
    Zipf {
        zipf: Zipf<f64>,
        by_rank: Option<Vec<u64>>,
    },
    Once {
        next: u64,
    },
    Twice {
        apart: u64,
        next: u64,
        again: Option<u64>,
    },
    Sessions {
        within: f64,
        next: u64,
        now: u64,
        due: BinaryHeap<Reverse<(u64, u64)>>,
    },
}

impl Drawing {
    fn new(source: Source, random: &mut Xoshiro256PlusPlus) -> Result<Self, NoDistribution> {
        Ok(match source {
            Source::Zipf { keys, exponent, ranks, .. } => {
                let zipf = Zipf::new(f64::from(keys), exponent).map_err(|_| NoDistribution)?;
                let by_rank = (ranks == Ranks::Shuffled).then(|| {
                    let mut by_rank: Vec<_> = (0..u64::from(keys)).collect();
                    by_rank.shuffle(random);
                    by_rank
                });
                Self::Zipf { zipf, by_rank }
            }
            Source::Once { .. } => Self::Once { next: KIND },
            Source::Twice { apart, .. } => Self::Twice { apart, next: 2 * KIND, again: None },
            Source::Sessions { within, .. } => Self::Sessions {
                within: within as f64,
                next: 3 * KIND,
                now: 0,
                due: BinaryHeap::new(),
            },
        })
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole, in 1..=n")]
    fn draw(&mut self, random: &mut Xoshiro256PlusPlus) -> u64 {
        match self {
            Self::Zipf { zipf, by_rank } => {
                let rank = zipf.sample(random) as u64 - 1;
                by_rank.as_ref().map_or(rank, |by_rank| by_rank[rank as usize])
            }
            Self::Once { next } => new_key(next),
            Self::Twice { apart, next, again } => again.take().unwrap_or_else(|| {
                let key = new_key(next);
                *again = key.checked_sub(*apart).filter(|key| *key >= 2 * KIND);
                key
            }),
            Self::Sessions { within, next, now, due } => {
                *now += 1;
                if due.peek().is_some_and(|Reverse((at, _))| at <= now) {
                    return due.pop().map_or(0, |Reverse((_, key))| key);
                }
                let key = new_key(next);
                for _ in 0..random.random_range(1..=3) {
                    let later: f64 = random.random();
                    due.push(Reverse((*now + (later * *within) as u64, key)));
                }
                key
            }
        }
    }
}

fn new_key(next: &mut u64) -> u64 {
    *next += 1;
    *next - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mixed(requests: usize, sources: &[(f64, Source)]) -> Vec<Request> {
        stream("", &[Phase::Mixed { requests, sources }], 7).unwrap().requests
    }

    /// Returns the indices of the requests for each key.
    fn request_indices(requests: &[Request]) -> Vec<Vec<usize>> {
        let mut indices = vec![Vec::new(); requests.len()];
        for (index, request) in requests.iter().enumerate() {
            indices[request.key as usize].push(index);
        }
        indices.retain(|indices| !indices.is_empty());
        indices
    }

    const fn zipf(sizes: Sizes, ranks: Ranks) -> Source {
        Source::Zipf { keys: 10_000, exponent: 1.0, sizes, ranks }
    }

    #[test]
    fn twice_is_as_many_new_keys_apart() {
        let requests = mixed(10_000, &[(1.0, Source::Twice { apart: 100, value_bytes: 1 })]);
        let indices = request_indices(&requests);
        // First, 100 keys have their first request. Then first requests of new keys alternate with
        // second requests of earlier keys.
        assert_eq!(indices.len(), 100 + 9_900 / 2);
        assert_eq!(&indices[0], &[0, 101]);
        assert_eq!(&indices[200], &[300, 501]);
        assert!(indices.iter().all(|indices| indices.len() <= 2));
    }

    #[test]
    fn sessions_have_two_to_four_requests_and_end() {
        let requests = mixed(60_000, &[(1.0, Source::Sessions { within: 500, value_bytes: 1 })]);
        let mut indices = request_indices(&requests);
        let mean = requests.len() as f64 / indices.len() as f64;
        assert!((2.9..3.1).contains(&mean), "{mean}");
        // Sessions near the end of the stream are incomplete.
        indices.retain(|indices| indices[0] < 59_000);
        for indices in indices {
            assert!((2..=4).contains(&indices.len()), "{indices:?}");
            assert!(indices[indices.len() - 1] - indices[0] < 600, "{indices:?}");
        }
    }

    #[test]
    fn sources_have_the_given_shares() {
        let requests = mixed(
            100_000,
            &[
                (0.3, Source::Once { value_bytes: 60 }),
                (0.7, zipf(Sizes::Equal(4096), Ranks::InOrder)),
            ],
        );
        let small = requests.iter().filter(|request| request.size == 60).count();
        assert!((29_000..31_000).contains(&small), "{small}");
        let alone = request_indices(&requests).iter().filter(|indices| indices.len() == 1).count();
        assert!(alone >= small, "{alone}");
    }

    #[test]
    fn sizes_have_the_median_of_their_distribution() {
        let median = |requests: Vec<Request>| {
            let mut by_key: RapidHashMap<u32, u32> = RapidHashMap::default();
            for request in requests {
                assert_eq!(*by_key.entry(request.key).or_insert(request.size), request.size);
            }
            let mut sizes: Vec<u32> = by_key.into_values().collect();
            sizes.sort_unstable();
            sizes[sizes.len() / 2]
        };
        const UNIFORM: Sizes = Sizes::LogUniform { least: 100.0, most: 1e6 };
        const NORMAL: Sizes = Sizes::LogNormal { median: 1024.0, sigma: 2.0, most: 1e6 };
        let uniform = median(mixed(100_000, &[(1.0, zipf(UNIFORM, Ranks::InOrder))]));
        assert!((8_500..11_500).contains(&uniform), "{uniform}");
        let normal = median(mixed(100_000, &[(1.0, zipf(NORMAL, Ranks::InOrder))]));
        assert!((930..1_120).contains(&normal), "{normal}");
    }

    #[test]
    fn popular_keys_have_their_own_size() {
        const SIZES: Sizes = Sizes::Popular { keys: 10, value_bytes: 20_000, rest_bytes: 300 };
        let requests = mixed(50_000, &[(1.0, zipf(SIZES, Ranks::InOrder))]);
        let mut large: Vec<_> = requests.iter().filter(|request| request.size > 300).collect();
        // With the harmonic numbers H, the share of these requests is H(10) / H(10,000) = 2.93 /
        // 9.79.
        assert!((14_500..15_500).contains(&large.len()), "{}", large.len());
        large.sort_unstable_by_key(|request| request.key);
        large.dedup_by_key(|request| request.key);
        assert_eq!(large.len(), 10);
    }

    #[test]
    fn the_same_keys_get_new_ranks() {
        let phases = [
            Phase::Mixed {
                requests: 400_000,
                sources: &[(1.0, zipf(Sizes::Equal(300), Ranks::InOrder))],
            },
            Phase::CountFromHere,
            Phase::Mixed {
                requests: 50_000,
                sources: &[(1.0, zipf(Sizes::Equal(300), Ranks::Shuffled))],
            },
        ];
        let stream = stream("", &phases, 7).unwrap();
        assert_eq!(stream.counted, Counted::From(400_000));
        let favourite = |part: &[Request]| {
            let indices = request_indices(part);
            let most = indices.iter().max_by_key(|indices| indices.len()).unwrap();
            (part[most[0]].key, most.len())
        };
        let (before, after) = stream.requests.split_at(400_000);
        let (old, new) = (favourite(&before[..50_000]), favourite(after));
        assert_ne!(old.0, new.0);
        // With the harmonic numbers H, the most popular key has 1 / H(10,000) = 1 / 9.79 of the
        // requests.
        assert!((4_800..5_400).contains(&new.1), "{new:?}");
        assert!(stream.footprint().keys <= 10_000);
    }

    #[test]
    fn a_lookup_does_not_store_the_item() {
        let phases = [
            Phase::Loop { set: 0, keys: 3, value_bytes: 9, rounds: 2 },
            Phase::Loop { set: 1, keys: 2, value_bytes: 5, rounds: 1 },
            Phase::LookUp { set: 1, keys: 2, value_bytes: 5 },
        ];
        let stream = stream("", &phases, 7).unwrap();
        let keys: Vec<u32> = stream.requests.iter().map(|request| request.key).collect();
        assert_eq!(keys, [0, 1, 2, 0, 1, 2, 3, 4, 4, 3]);
        assert_eq!(stream.requests[8].size, 5);
        let stores: Vec<bool> = (7..9).map(|index| stream.counted.stores(index)).collect();
        assert_eq!((stream.counted.first(), stores), (8, vec![true, false]));
    }
}
