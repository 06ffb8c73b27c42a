//! Generates values: their sizes from a distribution, their bytes from the key.

use crate::settings::{DataSize, Settings};
use rand::distr::weighted::WeightedIndex;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use rand_distr::{Distribution, LogNormal};

/// Number of offsets in the pool at which a value can begin.
const OFFSETS: u64 = 1 << 16;

/// A pool of bytes. A value is a slice of it that begins at an offset computed from the key.
#[derive(Debug)]
pub(crate) struct Values {
    pool: Vec<u8>,
    sizes: Sizes,
}

#[derive(Debug)]
enum Sizes {
    Fixed(usize),
    Range(usize, usize),
    List(Vec<usize>, WeightedIndex<u32>),
    LogNormal(LogNormal<f64>, usize),
}

impl Values {
    /// None if the distribution of sizes has invalid parameters.
    pub(crate) fn new(settings: &Settings) -> Option<Self> {
        let sizes = Sizes::new(&settings.data_size)?;
        let len = usize::try_from(OFFSETS).ok()? + sizes.largest();
        let mut pool = vec![b'x'; len];
        // The seed is constant, so that values that an earlier run stored are right, too.
        let mut rng = SmallRng::seed_from_u64(0);
        if settings.random_data {
            rng.fill_bytes(&mut pool);
        } else if settings.verify {
            // A quarter of the bytes is random: values compress, but no two offsets are alike.
            pool.chunks_mut(32).for_each(|chunk| {
                let end = chunk.len().min(8);
                rng.fill_bytes(&mut chunk[..end]);
            });
        }
        Some(Self { pool, sizes })
    }

    /// A value for `key`, of a random size.
    pub(crate) fn draw(&self, key: u64, rng: &mut SmallRng) -> &[u8] {
        self.of(key, self.sizes.draw(rng))
    }

    /// Whether `value` can have been returned by [`draw`](Self::draw) for `key`.
    pub(crate) fn is_of(&self, key: u64, value: &[u8]) -> bool {
        value.len() <= self.sizes.largest() && self.of(key, value.len()) == value
    }

    fn of(&self, key: u64, len: usize) -> &[u8] {
        // Fibonacci hashing (Knuth 6.4): adjacent keys get offsets that are far apart.
        let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
        let start = usize::try_from(mixed % OFFSETS).unwrap_or(0);
        &self.pool[start..start + len]
    }
}

impl Sizes {
    fn new(size: &DataSize) -> Option<Self> {
        Some(match size {
            DataSize::Fixed(len) => Self::Fixed(*len),
            DataSize::Range(least, most) => Self::Range(*least, *most),
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
            Self::Range(_, most) => *most,
            Self::List(list, _) => list.iter().copied().max().unwrap_or(0),
            Self::LogNormal(_, maximum) => *maximum,
        }
    }

    fn draw(&self, rng: &mut SmallRng) -> usize {
        match self {
            Self::Fixed(len) => *len,
            Self::Range(least, most) => rng.random_range(*least..=*most),
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

/// A typical value size, by which buffers are sized.
pub(crate) fn typical_len(size: &DataSize) -> usize {
    Sizes::new(size).map_or(0, |sizes| sizes.largest()).min(4096)
}
