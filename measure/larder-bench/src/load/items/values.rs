//! Generates values: draws their sizes from a distribution, and derives their bytes from the key.
//!
//! A verified value derives entirely from its key: its length, its first eight bytes (which differ
//! for all keys of a key space), and the offset of the rest in the pool. Verification therefore
//! detects a value that was truncated, or replaced by the value of another key. It does not detect
//! a stale value of the same key, because all values of a key are equal. It also does not detect a
//! value of another key if both have fewer than eight bytes and happen to be equal. Values of one
//! byte are equal for one in 256 pairs of keys, but differ for any two of 100 adjacent keys.

use crate::settings::{DataSize, KeySpace, Settings};
use rand::distr::weighted::WeightedIndex;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use rand_distr::{Distribution, LogNormal};

/// Number of offsets in the pool at which a value can start.
const OFFSETS: u64 = 1 << 16;

/// A pool of bytes. A value is a slice of the pool at an offset that derives from the key. In a
/// verified value, such a slice follows the first eight bytes.
#[derive(Debug)]
pub(crate) struct Values {
    pool: Vec<u8>,
    sizes: Sizes,
    /// Whether values derive entirely from their keys.
    verified: bool,
    /// [`mix`](Self::mix) adds this number to keys, so that equal key numbers of two key spaces
    /// have different values.
    salt: u64,
}

/// A value in two parts: a head and a slice of the pool. The head is empty unless values are
/// verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Value<'v> {
    head: [u8; HEAD_LEN],
    head_len: usize,
    rest: &'v [u8],
}

/// Maximum length in bytes of a verified value's head. Heads of this length differ for all keys of
/// a key space.
const HEAD_LEN: usize = 8;

impl Value<'_> {
    /// Returns the bytes of the value. If both parts are in use, joins them in `memory`.
    #[inline]
    pub(crate) fn bytes<'b>(&'b self, memory: &'b mut Vec<u8>) -> &'b [u8] {
        if self.head_len == 0 {
            return self.rest;
        }
        memory.clear();
        memory.extend_from_slice(&self.head[..self.head_len]);
        memory.extend_from_slice(self.rest);
        memory
    }

    fn is(&self, bytes: &[u8]) -> bool {
        let Some((head, rest)) = bytes.split_at_checked(self.head_len) else { return false };
        head == &self.head[..self.head_len] && rest == self.rest
    }
}

#[derive(Debug)]
enum Sizes {
    Fixed(usize),
    Range(usize, usize),
    ByKey { minimum: usize, maximum: usize, keys: (u64, u64) },
    List(Vec<usize>, WeightedIndex<u32>),
    LogNormal(LogNormal<f64>, usize),
}

impl Values {
    /// Returns the value generator of a run without key spaces, or `None` if the distribution of
    /// sizes has invalid parameters.
    pub(crate) fn new(settings: &Settings) -> Option<Self> {
        Self::of_sizes(settings, &settings.data_size, 0)
    }

    /// Returns the value generator of a key space, or `None` if the distribution of sizes has
    /// invalid parameters.
    pub(crate) fn of_space(settings: &Settings, space: &KeySpace) -> Option<Self> {
        // FNV-1a of the prefix.
        let salt = space.keys.prefix.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self::of_sizes(settings, &space.data_size, salt)
    }

    fn of_sizes(settings: &Settings, data_size: &DataSize, salt: u64) -> Option<Self> {
        let sizes = Sizes::new(data_size)?;
        let len = usize::try_from(OFFSETS).ok()? + sizes.largest();
        let mut pool = vec![b'x'; len];
        // The seed is constant, so that a run can verify the values of an earlier run.
        let mut rng = SmallRng::seed_from_u64(0);
        if settings.random_data {
            rng.fill_bytes(&mut pool);
        } else if settings.verify {
            // Each byte is one of sixteen letters, chosen at random, so values compress to half
            // their size, and slices at different offsets differ.
            rng.fill_bytes(&mut pool);
            pool.iter_mut().for_each(|byte| *byte = b'a' + *byte % 16);
        }
        Some(Self { pool, sizes, verified: settings.verify, salt })
    }

    /// Returns a value for `key`. If values are verified, the size derives from the key. Otherwise
    /// the size is random.
    #[inline]
    pub(crate) fn draw(&self, key: u64, rng: &mut SmallRng) -> Value<'_> {
        if self.verified {
            return self.verified(key);
        }
        Value {
            head: [0; HEAD_LEN],
            head_len: 0,
            rest: self.part(self.mix(key), self.sizes.draw(key, rng)),
        }
    }

    /// Returns whether `value` is the verified value of `key`.
    pub(crate) fn is_of(&self, key: u64, value: &[u8]) -> bool {
        self.verified(key).is(value)
    }

    fn verified(&self, key: u64) -> Value<'_> {
        let mixed = self.mix(key);
        let len = match self.sizes {
            Sizes::Fixed(len) => len,
            _ => self.sizes.draw(key, &mut SmallRng::seed_from_u64(key)),
        };
        let head_len = len.min(HEAD_LEN);
        Value { head: mixed.to_be_bytes(), head_len, rest: self.part(mixed, len - head_len) }
    }

    /// Mixes a key number by Fibonacci hashing (Knuth 6.4). The mapping is one-to-one, and adjacent
    /// keys get results with very different high bytes.
    fn mix(&self, key: u64) -> u64 {
        key.wrapping_add(self.salt).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn part(&self, mixed: u64, len: usize) -> &[u8] {
        let start = usize::try_from((mixed >> 48) % OFFSETS).unwrap_or(0);
        &self.pool[start..start + len]
    }
}

impl Sizes {
    fn new(size: &DataSize) -> Option<Self> {
        Some(match size {
            DataSize::Fixed(len) => Self::Fixed(*len),
            DataSize::Range(least, most) => Self::Range(*least, *most),
            DataSize::ByKey { minimum, maximum, keys } => {
                Self::ByKey { minimum: *minimum, maximum: *maximum, keys: *keys }
            }
            DataSize::List(list) => {
                let weights = WeightedIndex::new(list.iter().map(|(_, weight)| *weight)).ok()?;
                Self::List(list.iter().map(|(len, _)| *len).collect(), weights)
            }
            DataSize::LogNormal { median, sigma, maximum } => {
                Self::LogNormal(LogNormal::new(median.ln(), *sigma).ok()?, *maximum)
            }
        })
    }

    fn largest(&self) -> usize {
        match self {
            Self::Fixed(len) => *len,
            Self::Range(_, most) | Self::ByKey { maximum: most, .. } => *most,
            Self::List(list, _) => list.iter().copied().max().unwrap_or(0),
            Self::LogNormal(_, maximum) => *maximum,
        }
    }

    fn draw(&self, key: u64, rng: &mut SmallRng) -> usize {
        match self {
            Self::Fixed(len) => *len,
            Self::Range(least, most) => rng.random_range(*least..=*most),
            Self::ByKey { minimum, maximum, keys: (first, last) } => {
                let span = u128::from(last - first).max(1);
                let grown = (maximum - minimum) as u128
                    * u128::from(key.clamp(*first, *last) - first)
                    / span;
                minimum + usize::try_from(grown).unwrap_or(0)
            }
            Self::List(list, weights) => list[weights.sample(rng)],
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "positive, and cut at the maximum"
            )]
            Self::LogNormal(distribution, maximum) => {
                (distribution.sample(rng).round() as usize).min(*maximum)
            }
        }
    }
}

/// Returns the maximum value size in bytes, capped at 4096, to size buffers. Returns 0 if the
/// distribution has invalid parameters.
pub(crate) fn typical_len(size: &DataSize) -> usize {
    Sizes::new(size).map_or(0, |sizes| sizes.largest()).min(4096)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Arguments;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn values(line: &str) -> Values {
        let words = ["bench", "--verify", "-s", "127.0.0.1"].into_iter();
        let line = Line::parse_from(words.chain(line.split_whitespace()));
        Values::new(&line.arguments.settings().unwrap()).unwrap()
    }

    fn value(values: &Values, key: u64) -> Vec<u8> {
        let mut rng = SmallRng::seed_from_u64(key.wrapping_add(99));
        values.draw(key, &mut rng).bytes(&mut Vec::new()).to_vec()
    }

    const SIZES: [&str; 10] = [
        "-d 1",
        "-d 2",
        "-d 8",
        "-d 9",
        "-d 16",
        "-d 300 -R",
        "--data-size-range 1-1000",
        "--data-size-range 1-1000 --data-size-pattern S",
        "--data-size-list 1:1,8:1,500:3",
        "--data-size-lognormal 200:1.5:5000",
    ];

    #[test]
    fn sizes_grow_with_the_key() {
        let line = "--data-size-range 10-110 --key-minimum 5 --key-maximum 15";
        let sizes = |line: &str| (5..=15).map(|key| value(&values(line), key).len()).collect();
        let growing: Vec<usize> = sizes(&format!("{line} --data-size-pattern S"));
        assert_eq!(growing, (10..=110).step_by(10).collect::<Vec<_>>());
        let random: Vec<usize> = sizes(&format!("{line} --data-size-pattern R"));
        assert_ne!(random, growing);
        let one = "--data-size-range 10-110 --data-size-pattern S --key-minimum 5 --key-maximum 5";
        assert_eq!(value(&values(one), 5).len(), 10);
    }

    #[test]
    fn a_value_is_the_one_of_its_key() {
        for line in SIZES.into_iter().chain(["-d 0"]) {
            let values = values(line);
            for key in (0..1000).chain([u64::MAX]) {
                assert!(values.is_of(key, &value(&values, key)), "{line}: {key}");
            }
        }
    }

    #[test]
    fn a_value_of_another_length_is_seen() {
        for line in SIZES {
            let values = values(line);
            for key in 0..1000 {
                let right = value(&values, key);
                let longer = [&right[..], &right[..1.min(right.len())], b"x"].concat();
                let cut = [0, right.len() / 2, right.len() - 1].map(|len| &right[..len]);
                for wrong in cut.into_iter().chain([&longer[..]]) {
                    assert!(!values.is_of(key, wrong), "{line}: {key} with {}", wrong.len());
                }
            }
        }
    }

    #[test]
    fn a_changed_byte_is_seen() {
        for line in SIZES {
            let values = values(line);
            for key in 0..100 {
                let mut wrong = value(&values, key);
                for at in 0..wrong.len() {
                    wrong[at] ^= 1;
                    assert!(!values.is_of(key, &wrong), "{line}: {key} at {at}");
                    wrong[at] ^= 1;
                }
            }
        }
    }

    #[test]
    fn the_value_of_a_neighbour_is_seen() {
        for line in SIZES {
            let values = values(line);
            for key in 0..1000 {
                for other in key + 1..key + 100 {
                    assert!(!values.is_of(key, &value(&values, other)), "{line}: {key} {other}");
                }
            }
        }
    }

    #[test]
    fn from_eight_bytes_on_no_two_keys_share_a_value() {
        let values = values("-d 8");
        let all: std::collections::HashSet<_> =
            (0..100_000).map(|key| value(&values, key)).collect();
        assert_eq!(all.len(), 100_000);
    }

    #[test]
    fn the_tail_of_another_value_is_seen() {
        let values = values("-d 64");
        for key in 0..1000 {
            let (mut torn, other) = (value(&values, key), value(&values, key + 1));
            torn[32..].copy_from_slice(&other[32..]);
            assert!(!values.is_of(key, &torn), "{key}");
        }
    }
}
