//! Ghosts: 16-bit fingerprints of keys that were dropped lately, eight a bucket, oldest out first.
//! A key that comes back while its ghost is there was dropped too early and goes straight to the
//! main queue (S3-FIFO, Yang et al. 2023). Eight for the seven or so live items of a full bucket is
//! a little more than the 0.9 per item that the policy asks for.
//!
//! The words are only touched under the stripe lock of their bucket.
#![expect(clippy::cast_possible_truncation, reason = "fingerprints are cut out of a word")]

use super::sync::{AtomicU64, Ordering};

/// Remembers `hash`.
pub(super) fn remember(ghosts: [&AtomicU64; 2], hash: u64) {
    let [young, old] = ghosts.map(|word| word.load(Ordering::Relaxed));
    ghosts[0].store(young << 16 | u64::from(fingerprint(hash)), Ordering::Relaxed);
    ghosts[1].store(old << 16 | young >> 48, Ordering::Relaxed);
}

/// Whether `hash` is remembered.
pub(super) fn holds(ghosts: [&AtomicU64; 2], hash: u64) -> bool {
    let wanted = fingerprint(hash);
    let places = ghosts.into_iter().flat_map(|word| fingerprints(word.load(Ordering::Relaxed)));
    places.into_iter().any(|seen| seen == wanted)
}

/// Lets go of `hash`.
pub(super) fn forget(ghosts: [&AtomicU64; 2], hash: u64) {
    let gone = fingerprint(hash);
    for word in ghosts {
        let seen = fingerprints(word.load(Ordering::Relaxed));
        let kept = seen.map(|f| if f == gone { 0 } else { f });
        word.store(
            kept.iter().rev().fold(0, |word, &f| word << 16 | u64::from(f)),
            Ordering::Relaxed,
        );
    }
}

fn fingerprints(word: u64) -> [u16; 4] {
    [0, 16, 32, 48].map(|shift| (word >> shift) as u16)
}

/// Bits that neither the bucket nor the tag has used; never 0, which is an empty place.
fn fingerprint(hash: u64) -> u16 {
    ((hash >> 32) as u16).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_eight_are_remembered_until_forgotten() {
        let words = [AtomicU64::new(0), AtomicU64::new(0)];
        let ghosts = [&words[0], &words[1]];
        let hash = |i: u64| i * 0x0123_4567_89ab_cdef;
        (1..=9).for_each(|i| remember(ghosts, hash(i)));
        assert!(!holds(ghosts, hash(1)), "pushed out");
        assert!((2..=9).all(|i| holds(ghosts, hash(i))));
        forget(ghosts, hash(5));
        assert!((2..=9).all(|i| holds(ghosts, hash(i)) == (i != 5)));
    }
}
