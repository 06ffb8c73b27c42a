//! Pauses of the process, for the log. This module reads no clock.

use larder_replica::Millis;
use std::time::Duration;

/// The minimum time between two iterations of the coordinator's loop that counts as a pause, in
/// milliseconds. A call to etcd, the longest step of an iteration, takes less.
const PAUSE_MIN: Millis = 1500;
/// The time after the end of a pause in which a change of leaders is a result of the pause, in
/// milliseconds. The paused leader reads the record at once, unless etcd is slow.
const RESULT_MAX: Millis = 10_000;

/// Detects pauses of the process from the times of the iterations of a loop.
#[derive(Debug, Default)]
pub(super) struct PauseWatch {
    /// The time of the last iteration; `None` before the first one.
    last: Option<Millis>,
    /// The end and the length of the last pause.
    pause: Option<(Millis, Millis)>,
}

impl PauseWatch {
    /// Notes an iteration. All times must be of a clock that includes suspension.
    pub(super) fn note(&mut self, now: Millis) {
        let gap = self.last.map_or(0, |last| now.saturating_sub(last));
        if gap >= PAUSE_MIN {
            self.pause = Some((now, gap));
        }
        self.last = Some(now);
    }

    /// Forgets the pause, because it has no result.
    pub(super) fn forget(&mut self) {
        self.pause = None;
    }

    /// Returns the length of a pause that has just ended, and forgets the pause. Returns `None` if
    /// there was none in the last [`RESULT_MAX`] milliseconds.
    pub(super) fn take_recent(&mut self, now: Millis) -> Option<Duration> {
        let (end, length) = self.pause.take()?;
        (now.saturating_sub(end) <= RESULT_MAX).then(|| Duration::from_millis(length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_gap_between_iterations_is_a_pause_for_some_seconds() {
        let mut watch = PauseWatch::default();
        for now in [100_000, 100_100, 101_500] {
            watch.note(now);
            assert_eq!(watch.take_recent(now), None, "{now}");
        }
        watch.note(106_700);
        watch.note(106_800);
        assert_eq!(watch.take_recent(106_900), Some(Duration::from_millis(5200)));
        assert_eq!(watch.take_recent(106_900), None, "it is reported once");
        watch.note(109_000);
        watch.forget();
        assert_eq!(watch.take_recent(109_000), None, "the leader has survived it");
        watch.note(111_000);
        assert_eq!(watch.take_recent(121_001), None, "it ended long ago");
    }
}
