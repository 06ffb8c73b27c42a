//! The unit of time, and detection of process pauses.

/// Milliseconds, as a duration or as a time. The clock must continue while the machine is
/// suspended. Names of this type have no unit suffix. Names of other integers in milliseconds end
/// in `_ms` or `_MS`.
pub type Millis = u64;

/// A longer gap between two iterations of the member's loop counts as a pause of the process. The
/// longest step of an iteration, a request to the coordinator, takes less time.
const PAUSE_MIN: Millis = 1000;

/// Detects pauses of the process from the gaps between iterations of a loop.
#[derive(Debug, Default)]
pub(crate) struct PauseWatch {
    /// The time of the last iteration; `None` before the first one.
    last: Option<Millis>,
    /// The end and the length of the last pause.
    pause: Option<(Millis, Millis)>,
}

impl PauseWatch {
    /// Records an iteration of the loop at this time.
    pub(crate) fn note(&mut self, now: Millis) {
        let gap = self.last.map_or(0, |last| now.saturating_sub(last));
        if gap > PAUSE_MIN {
            self.pause = Some((now, gap));
        }
        self.last = Some(now);
    }

    /// Returns the end and the length of the last pause.
    pub(crate) fn last(&self) -> Option<(Millis, Millis)> {
        self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_gap_between_iterations_is_a_pause() {
        let mut watch = PauseWatch::default();
        for now in [100_000, 100_100, 101_100] {
            watch.note(now);
            assert_eq!(watch.last(), None, "{now}");
        }
        watch.note(106_700);
        watch.note(106_800);
        assert_eq!(watch.last(), Some((106_700, 5600)));
    }
}
