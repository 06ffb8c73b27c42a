//! Helpers for the simulations: random numbers from a seed, and runs of many seeds.
#![allow(clippy::disallowed_methods, reason = "tests read the environment")]

use std::cell::Cell;

/// The default number of seeds.
const SEEDS: u64 = 500;

/// SplitMix64 (Steele et al. 2014).
pub(crate) struct Random(Cell<u64>);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Cell::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d)))
    }

    pub(crate) fn next(&self) -> u64 {
        self.0.set(self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mixed = self.0.get();
        let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&self, end: u64) -> u64 {
        self.next() % end
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

/// Returns the only seed to run (`LARDER_SEED`), if there is one.
pub(crate) fn only_seed() -> Option<u64> {
    number("LARDER_SEED")
}

/// Runs each seed twice, on all cores. Runs only the seed `LARDER_SEED` if it is set, and otherwise
/// the seeds 1 to `LARDER_SEEDS` (500 by default). Returns the results. Panics if a seed panics, or
/// if its two results differ.
pub(crate) fn run_seeds<T: PartialEq + Send>(run: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let seeds: Vec<u64> = match only_seed() {
        Some(seed) => vec![seed],
        None => (1..=number("LARDER_SEEDS").unwrap_or(SEEDS)).collect(),
    };
    let twice = |seed: u64| {
        let twice = std::panic::AssertUnwindSafe(|| (run(seed), run(seed)));
        let (first, second) = std::panic::catch_unwind(twice).map_err(|_| seed)?;
        if first == second { Ok(first) } else { Err(seed) }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = seeds.len().div_ceil(threads).max(1);
    let ended: Vec<Result<T, u64>> = std::thread::scope(|scope| {
        let runs: Vec<_> = seeds
            .chunks(share)
            .map(|seeds| scope.spawn(|| seeds.iter().map(|seed| twice(*seed)).collect::<Vec<_>>()))
            .collect();
        runs.into_iter().flat_map(|run| run.join().unwrap()).collect()
    });
    let failed: Vec<u64> = ended.iter().filter_map(|ended| ended.as_ref().err().copied()).collect();
    let few = &failed[..failed.len().min(5)];
    assert!(
        failed.is_empty(),
        "{} of {} seeds failed, {few:?} among them: LARDER_SEED={} repeats the first",
        failed.len(),
        seeds.len(),
        few[0]
    );
    ended.into_iter().flatten().collect()
}
