//! Key selection for requests.

use crate::settings::{Keys, Pattern};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt};
use rand_distr::{Distribution, Normal, Zipf};

/// Generates the key numbers of one client.
#[derive(Clone, Debug)]
pub(crate) enum KeyStream {
    Uniform { minimum: u64, maximum: u64 },
    InOrder { minimum: u64, maximum: u64, next: u64 },
    Gaussian { minimum: u64, maximum: u64, normal: Normal<f64> },
    Zipf { minimum: u64, zipf: Zipf<f64> },
}

impl KeyStream {
    /// Returns the key stream of connection `index` of `connections`, or `None` if the pattern has
    /// invalid parameters.
    pub(crate) fn new(
        keys: &Keys,
        pattern: Pattern,
        index: usize,
        connections: usize,
    ) -> Option<Self> {
        let (minimum, maximum) = (keys.minimum, keys.maximum);
        Some(match pattern {
            Pattern::Uniform => Self::Uniform { minimum, maximum },
            Pattern::Sequential => Self::InOrder { minimum, maximum, next: minimum },
            Pattern::Partitioned => {
                let (from, to) = part(keys, index as u64, connections as u64);
                Self::InOrder { minimum: from, maximum: to, next: from }
            }
            Pattern::Gaussian { median, deviation } => {
                Self::Gaussian { minimum, maximum, normal: Normal::new(median, deviation).ok()? }
            }
            #[expect(clippy::cast_precision_loss, reason = "ranks need no last digit")]
            Pattern::Zipf { exponent } => {
                Self::Zipf { minimum, zipf: Zipf::new(keys.count() as f64, exponent).ok()? }
            }
        })
    }

    pub(crate) fn next(&mut self, rng: &mut SmallRng) -> u64 {
        match self {
            Self::Uniform { minimum, maximum } => rng.random_range(*minimum..=*maximum),
            Self::InOrder { minimum, maximum, next } => {
                let number = *next;
                *next = if number == *maximum { *minimum } else { number + 1 };
                number
            }
            Self::Gaussian { minimum, maximum, normal } => {
                // If a random number is outside the range, generates another one, up to 100 times.
                // All attempts fail only if the range is far from the median. In that case, clamps
                // the last number to the range.
                let mut number = draw(normal, rng);
                for _ in 0..100 {
                    if (*minimum..=*maximum).contains(&number) {
                        break;
                    }
                    number = draw(normal, rng);
                }
                number.clamp(*minimum, *maximum)
            }
            Self::Zipf { minimum, zipf } => *minimum + draw(zipf, rng) - 1,
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "negative draws become 0, which the callers handle"
)]
fn draw(distribution: &impl Distribution<f64>, rng: &mut impl Rng) -> u64 {
    distribution.sample(rng).round() as u64
}

/// Returns the first and the last key number in connection `index`'s part of the range. If there
/// are more connections than keys, some connections have the same part.
fn part(keys: &Keys, index: u64, connections: u64) -> (u64, u64) {
    let share = |index: u64| {
        let offset = u128::from(keys.count()) * u128::from(index) / u128::from(connections);
        keys.minimum + u64::try_from(offset).unwrap_or(u64::MAX)
    };
    let (from, to) = (share(index), share(index + 1));
    let from = from.min(keys.maximum);
    (from, to.saturating_sub(1).max(from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn keys(minimum: u64, maximum: u64) -> Keys {
        let (set, get) = (Pattern::Uniform, Pattern::Uniform);
        Keys { prefix: "k-".to_owned(), minimum, maximum, set, get }
    }

    fn counts(pattern: Pattern, draws: usize) -> Vec<usize> {
        let keys = keys(10, 109);
        let mut stream = KeyStream::new(&keys, pattern, 0, 1).unwrap();
        let mut rng = SmallRng::seed_from_u64(7);
        let mut counts = vec![0; 100];
        for _ in 0..draws {
            counts[usize::try_from(stream.next(&mut rng) - 10).unwrap()] += 1;
        }
        counts
    }

    #[test]
    fn uniform_is_even() {
        assert!(counts(Pattern::Uniform, 100_000).iter().all(|n| (800..1200).contains(n)));
    }

    #[test]
    fn zipf_falls_with_rank() {
        let counts = counts(Pattern::Zipf { exponent: 1.0 }, 100_000);
        // The 100th harmonic number is 5.19: 1/5.19 of the random numbers select the first key, and
        // half as many select the second.
        assert!((18_000..20_500).contains(&counts[0]), "{}", counts[0]);
        assert!((9_000..10_300).contains(&counts[1]), "{}", counts[1]);
    }

    #[test]
    fn gaussian_has_its_middle() {
        let counts = counts(Pattern::Gaussian { median: 59.5, deviation: 10.0 }, 100_000);
        let within: usize = counts[40..60].iter().sum();
        assert!((65_000..71_000).contains(&within), "{within}");
    }

    #[test]
    fn in_order_goes_round() {
        assert_eq!(counts(Pattern::Sequential, 250)[49..51], [3, 2]);
    }

    #[test]
    fn parts_cover_all() {
        for (last, connections) in [(99, 7), (6, 7), (2, 7), (u64::MAX - 1, 3)] {
            let keys = keys(0, last);
            let parts: Vec<_> = (0..connections).map(|i| part(&keys, i, connections)).collect();
            assert_eq!((parts[0].0, parts.last().unwrap().1), (0, last));
            assert!(parts.windows(2).all(|two| two[1].0 <= two[0].1 + 1), "{parts:?}");
        }
    }
}
