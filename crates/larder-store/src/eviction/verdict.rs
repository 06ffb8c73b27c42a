//! Decides whether an item stays in memory when its segment is evicted.

use super::queue_kind::Queue;

/// The decision about an item whose segment is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The item moves from the small queue to the main queue, with frequency 0.
    MoveToMain,
    /// The item is written to the main queue again, with this frequency.
    Reinsert(u8),
    /// The item leaves memory: the engine demotes it to flash, or drops it and adds a ghost.
    Evict,
}

/// After the main queue has kept items with the total length of this many segments, it evicts an
/// item despite its frequency.
const KEPT_SEGMENTS_MAX: u64 = 16;

/// Limits the work of an eviction when every item of the main queue was hit, and so would be kept.
/// After the main queue has kept items with a total length of 16 segments, it evicts one item
/// despite its frequency. An eviction of an item without hits halves the count of kept bytes. Each
/// handle has its own limit.
#[derive(Clone, Debug)]
pub struct KeepLimit {
    kept_bytes: u64,
    kept_bytes_max: u64,
}

impl KeepLimit {
    /// Returns a limit for segments of this length in bytes.
    #[must_use]
    pub fn new(segment_len: usize) -> Self {
        Self { kept_bytes: 0, kept_bytes_max: KEPT_SEGMENTS_MAX * segment_len as u64 }
    }

    /// Decides about an item with frequency `freq` in an evicted segment of `queue`, and counts the
    /// item if the main queue keeps it. `bytes` is the length of the item's record, without its
    /// chain.
    pub fn verdict(&mut self, queue: Queue, freq: u8, bytes: u64) -> Verdict {
        match (queue, freq.checked_sub(1)) {
            (Queue::Small, Some(_)) => Verdict::MoveToMain,
            (Queue::Small, None) => Verdict::Evict,
            (Queue::Main, _) if self.kept_bytes > self.kept_bytes_max => {
                self.kept_bytes = 0;
                Verdict::Evict
            }
            (Queue::Main, Some(lowered)) => {
                self.kept_bytes += bytes;
                Verdict::Reinsert(lowered)
            }
            (Queue::Main, None) => {
                self.kept_bytes /= 2;
                Verdict::Evict
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_hit_promotes_and_each_round_in_main_costs_one() {
        let mut limit = KeepLimit::new(1000);
        let cases = [
            (Queue::Small, 0, Verdict::Evict),
            (Queue::Small, 1, Verdict::MoveToMain),
            (Queue::Small, 3, Verdict::MoveToMain),
            (Queue::Main, 0, Verdict::Evict),
            (Queue::Main, 1, Verdict::Reinsert(0)),
            (Queue::Main, 3, Verdict::Reinsert(2)),
        ];
        for (queue, freq, verdict) in cases {
            assert_eq!(limit.verdict(queue, freq, 10), verdict, "{queue:?}, {freq}");
        }
    }

    #[test]
    fn main_evicts_an_item_after_16_segments_of_kept_ones() {
        let mut limit = KeepLimit::new(100);
        let verdicts = (0..36).map(|_| limit.verdict(Queue::Main, 3, 100));
        let evicted = verdicts.enumerate().filter(|(_, verdict)| *verdict == Verdict::Evict);
        assert_eq!(evicted.map(|(i, _)| i).collect::<Vec<_>>(), [17, 35]);
    }
}
