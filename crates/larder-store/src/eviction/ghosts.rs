//! Ghosts: fingerprints of recently evicted keys, eight for each index bucket.
//!
//! ```text
//! 15        12 11                                   0
//! ┌───────────┬──────────────────────────────────────┐
//! │ epoch     │ fingerprint                          │   fingerprint 0 is an empty slot
//! └───────────┴──────────────────────────────────────┘
//! ```
//! If a key is set again while its ghost lasts, its item was evicted too early, and the new item
//! goes to the main queue. A ghost lasts for at most as many evictions as there are live items.
//! These evictions are divided into 8 epochs of the same length. A ghost is dropped earlier when
//! eight younger ghosts fill its bucket.
//!
//! There are only 16 epoch numbers, which are reused. Outdated ghosts therefore have to be cleared
//! before the number of their epoch is used again. Each call to [`GhostClock::count_evictions`]
//! returns the buckets to sweep next, so that the whole table is swept once in 4 epochs.
#![expect(clippy::cast_possible_truncation, reason = "ghosts are cut out of a word")]

/// The number of ghosts per bucket.
pub const GHOSTS: usize = 8;

/// The number of epochs after which an epoch number is reused.
const EPOCHS: u8 = 16;
/// A ghost is outdated after this many epochs.
const EPOCHS_LASTING: u8 = 8;
/// A sweep over the whole table takes this many epochs.
const EPOCHS_SWEEP: u64 = 4;
const FINGERPRINT_BITS: u32 = 12;
const FINGERPRINT_MASK: u16 = (1 << FINGERPRINT_BITS) - 1;

/// The number of a ghost epoch: 0 to 15.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GhostEpoch(u8);

impl GhostEpoch {
    /// Returns the epoch with a stored number. Only the low 4 bits of the number count.
    #[must_use]
    pub fn from_index(index: u8) -> Self {
        Self(index % EPOCHS)
    }

    /// Returns the epoch's number.
    #[must_use]
    pub fn index(self) -> u8 {
        self.0
    }
}

/// The two words of a bucket's ghosts. The engine loads both under the lock of the bucket's stripe,
/// and stores the changed words. The youngest ghost is in the lowest bits of the first word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ghosts(pub [u64; 2]);

impl Ghosts {
    /// Adds a ghost for `hash`. Removes an earlier ghost for `hash`, outdated ghosts, and, if all
    /// slots are taken, the oldest ghost.
    #[must_use]
    pub fn remember(self, hash: u64, epoch: GhostEpoch) -> Self {
        let kept = self.forget(hash).slots().into_iter().filter(|ghost| counts(*ghost, epoch));
        let new = u16::from(epoch.0) << FINGERPRINT_BITS | fingerprint(hash);
        Self::from_slots(std::iter::once(new).chain(kept))
    }

    /// Returns whether there is a current ghost with the fingerprint of `hash`.
    #[must_use]
    pub fn holds(self, hash: u64, epoch: GhostEpoch) -> bool {
        let wanted = fingerprint(hash);
        let is_wanted = |ghost| ghost & FINGERPRINT_MASK == wanted && counts(ghost, epoch);
        self.slots().into_iter().any(is_wanted)
    }

    /// Removes the ghost with the fingerprint of `hash`, if there is one.
    #[must_use]
    pub fn forget(self, hash: u64) -> Self {
        let removed = fingerprint(hash);
        let others = self.slots().into_iter().filter(|ghost| ghost & FINGERPRINT_MASK != removed);
        Self::from_slots(others)
    }

    /// Removes outdated ghosts.
    #[must_use]
    pub fn sweep(self, epoch: GhostEpoch) -> Self {
        Self::from_slots(self.slots().into_iter().filter(|ghost| counts(*ghost, epoch)))
    }

    fn slots(self) -> [u16; GHOSTS] {
        std::array::from_fn(|i| (self.0[i / 4] >> (i % 4 * 16)) as u16)
    }

    fn from_slots(ghosts: impl Iterator<Item = u16>) -> Self {
        let mut words = [0; 2];
        for (i, ghost) in ghosts.take(GHOSTS).enumerate() {
            words[i / 4] |= u64::from(ghost) << (i % 4 * 16);
        }
        Self(words)
    }
}

fn counts(ghost: u16, epoch: GhostEpoch) -> bool {
    let age = epoch.0.wrapping_sub((ghost >> FINGERPRINT_BITS) as u8) % EPOCHS;
    ghost & FINGERPRINT_MASK != 0 && age < EPOCHS_LASTING
}

/// Returns the fingerprint of a hash: bits that the index uses neither for its bucket numbers nor
/// for its hash prefixes. It is at least 1, because 0 is an empty slot.
fn fingerprint(hash: u64) -> u16 {
    ((hash >> 32) as u16 & FINGERPRINT_MASK).max(1)
}

/// The buckets to sweep after evictions: `count` buckets, starting with `first`. The range wraps
/// around at the end of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sweep {
    first: usize,
    count: usize,
    buckets: usize,
}

impl Iterator for Sweep {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.count = self.count.checked_sub(1)?;
        let bucket = self.first;
        self.first = if bucket + 1 < self.buckets { bucket + 1 } else { 0 };
        Some(bucket)
    }
}

/// The clock of ghost epochs. Evictions advance it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GhostClock {
    epoch: GhostEpoch,
    /// The number of evictions in this epoch.
    evictions: u64,
    /// The bucket to sweep next.
    next_bucket: usize,
    /// The fraction of a bucket, in units of 2^-32, that is due to be swept.
    due: u64,
}

impl GhostClock {
    /// Returns a clock that continues in `epoch`, for example after a restart.
    #[must_use]
    pub fn new(epoch: GhostEpoch) -> Self {
        Self { epoch, ..Self::default() }
    }

    /// Returns the epoch for new ghosts.
    #[must_use]
    pub fn epoch(&self) -> GhostEpoch {
        self.epoch
    }

    /// Counts `evictions` items that were evicted from a cache that now has `live` items and
    /// `buckets` index buckets. Returns the buckets that the caller has to sweep next. The caller
    /// passes [`Ghosts::sweep`] the epoch that [`GhostClock::epoch`] returns after this call. The
    /// caller calls this function after each evicted segment, because a call ends at most one
    /// epoch.
    pub fn count_evictions(&mut self, evictions: u64, live: u64, buckets: usize) -> Sweep {
        let epoch_len = (live / u64::from(EPOCHS_LASTING)).max(1);
        let counted = evictions.min(epoch_len);
        self.evictions += counted;
        if self.evictions >= epoch_len {
            self.evictions -= epoch_len;
            self.evictions = self.evictions.min(epoch_len - 1);
            self.epoch = GhostEpoch::from_index(self.epoch.0 + 1);
        }
        let part = (u128::from(counted) << 32) / u128::from(EPOCHS_SWEEP * epoch_len);
        let due = u128::from(self.due) + part * buckets as u128;
        self.due = due as u64 & u64::from(u32::MAX);
        let count = ((due >> 32) as usize).min(buckets);
        let first = if self.next_bucket < buckets { self.next_bucket } else { 0 };
        self.next_bucket = (first + count) % buckets.max(1);
        Sweep { first, count, buckets }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOCH: GhostEpoch = GhostEpoch(14);

    fn hash(i: u64) -> u64 {
        i << 32
    }

    fn remembered(range: std::ops::RangeInclusive<u64>) -> Ghosts {
        range.fold(Ghosts::default(), |ghosts, i| ghosts.remember(hash(i), EPOCH))
    }

    #[test]
    fn the_last_eight_ghosts_are_remembered_until_removed() {
        let ghosts = remembered(1..=9);
        assert!(!ghosts.holds(hash(1), EPOCH), "pushed out");
        assert!((2..=9).all(|i| ghosts.holds(hash(i), EPOCH)));
        let ghosts = ghosts.forget(hash(5));
        assert!((2..=9).all(|i| ghosts.holds(hash(i), EPOCH) == (i != 5)));
    }

    #[test]
    fn a_key_has_one_ghost_and_fills_the_slot_of_a_forgotten_one() {
        let twice = remembered(1..=8).remember(hash(3), EPOCH);
        assert!((1..=8).all(|i| twice.holds(hash(i), EPOCH)));
        let refilled = twice.forget(hash(3)).remember(hash(9), EPOCH);
        assert!((1..=9).all(|i| refilled.holds(hash(i), EPOCH) == (i != 3)));
    }

    #[test]
    fn a_ghost_counts_for_8_epochs() {
        let ghosts = remembered(1..=1);
        for age in 0..16 {
            let now = GhostEpoch::from_index(EPOCH.0 + age);
            assert_eq!(ghosts.holds(hash(1), now), age < 8, "{age} epochs later");
            assert_eq!(ghosts.sweep(now) == ghosts, age < 8);
            assert_eq!(ghosts.sweep(now) == Ghosts::default(), age >= 8);
        }
    }

    #[test]
    fn a_fingerprint_is_never_an_empty_slot() {
        assert!(!Ghosts::default().holds(0, EPOCH));
        assert!(Ghosts::default().remember(0, EPOCH).holds(0, EPOCH));
    }

    /// Each case contains the number of live items, the number of buckets, and the number of
    /// evictions in each call. When the number of evictions reaches the number of live items, about
    /// 8 epochs must have passed.
    #[test]
    fn as_many_evictions_as_live_items_are_8_epochs() {
        for (live, buckets, batch) in [(800, 100, 1), (800, 100, 50), (8000, 5, 7), (8, 1000, 1)] {
            let mut clock = GhostClock::default();
            let epochs = (0..live / batch)
                .filter(|_| {
                    let before = clock.epoch();
                    clock.count_evictions(batch, live, buckets);
                    clock.epoch() != before
                })
                .count();
            assert!((7..=8).contains(&epochs), "{epochs} with {live} live items");
        }
    }

    #[test]
    fn every_bucket_is_swept_before_an_epoch_number_is_reused() {
        for (live, batch, growth) in [(1000, 1, 0), (1000, 300, 0), (10, 1, 0), (1000, 20, 7)] {
            let (mut clock, mut buckets, mut epochs) = (GhostClock::default(), 500, 0u64);
            let mut swept = vec![0; buckets];
            while epochs < 100 {
                let before = clock.epoch();
                let sweep = clock.count_evictions(batch, live, buckets);
                epochs += u64::from(clock.epoch() != before);
                sweep.for_each(|bucket| swept[bucket] = epochs);
                // A ghost is outdated after 8 epochs, and its epoch number is reused after 16, so a
                // bucket must be swept within 8 epochs.
                let late = swept.iter().filter(|at| epochs - **at >= 8).count();
                assert_eq!(late, 0, "with {live} live items");
                // A new bucket has the ghosts of the bucket that was split.
                (0..growth).for_each(|_| swept.push(swept[swept.len() / 2]));
                buckets += growth;
            }
        }
    }

    #[test]
    fn extreme_numbers_do_not_overflow() {
        let mut clock = GhostClock::new(GhostEpoch::from_index(15));
        assert_eq!(clock.count_evictions(5, 0, 0).count(), 0);
        assert_eq!(clock.epoch(), GhostEpoch::from_index(0));
        assert_eq!(clock.count_evictions(u64::MAX, u64::MAX, 1 << 40).count, 1 << 38);
    }
}
