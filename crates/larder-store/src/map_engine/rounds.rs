//! When to look through all items for those that have expired or were flushed.

use crate::Seconds;

/// Rounds through all items, for one cache.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    last: Option<(Seconds, u64)>,
}

impl Rounds {
    /// Whether the next round is due. If so, it begins.
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

/// The time between two rounds in seconds. A round looks at every item, so it should be rare.
const ROUND_SECS: u32 = 30;
