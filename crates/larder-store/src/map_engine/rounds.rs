//! The schedule of searches for items that have expired or were flushed.

use crate::Seconds;

/// The rounds of a cache. Each round visits all items.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    last: Option<(Seconds, u64)>,
}

impl Rounds {
    /// Starts a round if one is due: the first round, the first after a flush, or a round
    /// [`ROUND_SECS`] after the last one. Returns whether it has started one.
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

/// The time in seconds between the starts of two rounds. Rounds should be rare, because each visits
/// every item.
const ROUND_SECS: u32 = 30;
