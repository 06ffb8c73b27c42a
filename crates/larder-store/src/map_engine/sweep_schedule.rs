//! The schedule of searches for items that have expired or were flushed.

use crate::Seconds;

/// The schedule of a cache's rounds of search. Each round visits all items.
#[derive(Debug, Default)]
pub(crate) struct SweepSchedule {
    last: Option<(Seconds, u64)>,
}

impl SweepSchedule {
    /// Starts a round if a round is due: the first round, the first round after a flush, or a round
    /// [`ROUND_SECS`] after the start of the last round. Returns whether it has started a round.
    pub(crate) fn begin(&mut self, now: Seconds, flush_generation: u64) -> bool {
        let due = self.last.is_none_or(|(begun, begun_generation)| {
            begun_generation != flush_generation || now.0.saturating_sub(begun.0) >= ROUND_SECS
        });
        if due {
            self.last = Some((now, flush_generation));
        }
        due
    }
}

/// The time between the starts of two rounds, in seconds. Rounds should be rare, because each round
/// visits every item.
const ROUND_SECS: u32 = 30;
