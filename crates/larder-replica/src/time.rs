//! The unit of time, the estimated clock of a peer, and detection of process pauses.

/// Milliseconds, as a duration or as a time. The clock must continue while the machine is
/// suspended. Names of fields and variables of this type have no unit suffix. Names of other
/// integers in milliseconds end in `_ms` or `_MS`.
pub type Millis = u64;

/// A lower bound for the clock of a peer, computed from the send times in its messages. The rates
/// of both clocks may each differ from real time by up to 1 %.
#[derive(Clone, Copy, Debug)]
pub struct PeerClock {
    /// The send time of a message on the peer's clock.
    sent: Millis,
    /// The time on the local clock at which that message arrived.
    arrived: Millis,
}

impl PeerClock {
    /// Creates the clock from the send time of a message that arrived at `arrived`.
    #[must_use]
    pub fn new(sent: Millis, arrived: Millis) -> Self {
        Self { sent, arrived }
    }

    /// Notes the send time of a message. A delayed message changes nothing: its send time is below
    /// the bound.
    pub fn note(&mut self, sent: Millis, arrived: Millis) {
        if sent >= self.at(arrived) {
            *self = Self { sent, arrived };
        }
    }

    /// Returns the bound at this time on the local clock.
    #[must_use]
    pub fn at(&self, now: Millis) -> Millis {
        // Both times are rounded down, so their difference can be one millisecond too large.
        let elapsed = now.saturating_sub(self.arrived).saturating_sub(1);
        self.sent.saturating_add(elapsed / 100 * 98 + elapsed % 100 * 98 / 100)
    }
}

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
    /// Records that an iteration of the loop has started at `now`.
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
    fn the_clock_of_a_peer_ignores_delayed_messages() {
        let mut clock = PeerClock::new(5000, 100);
        assert_eq!((clock.at(100), clock.at(201)), (5000, 5098));
        clock.note(5150, 2200);
        assert_eq!(clock.at(2201), 5000 + 2058, "it was delayed by two seconds");
        clock.note(7100, 2201);
        assert_eq!(clock.at(2201), 7100);
    }

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
