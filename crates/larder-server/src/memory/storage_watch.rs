//! Log lines about item storage: refused changes and flash device failures.
//!
//! The engine counts these events but does not log them. About once a second, a worker compares the
//! counts with those of the last log lines.

use larder_store::FlashGauges;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The minimum time between two log lines about the same count of failures.
const INTERVAL: Duration = Duration::from_secs(60);

/// Watches the storage and logs problems: the increase of each failure count, at most once a
/// minute, and that the flash tier was turned off.
#[derive(Debug, Default)]
pub(crate) struct StorageWatch(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    refused: LoggedCount,
    flash_errors: LoggedCount,
    is_flash_off: bool,
}

/// The log lines of one check.
#[derive(Default)]
struct Lines {
    warnings: Vec<String>,
    error: Option<&'static str>,
}

/// The input of one check.
pub(crate) struct StorageCounts {
    /// The number of changes that were refused because memory was full.
    pub(crate) refused: u64,
    /// Whether the engine may evict items; false with `-M`.
    pub(crate) evicts: bool,
    /// The gauges of the flash tier; `None` without flash.
    pub(crate) flash: Option<FlashGauges>,
}

impl StorageWatch {
    /// Logs the refused changes and the flash failures that no earlier line has reported.
    pub(crate) fn check(&self, counts: &StorageCounts) {
        let lines = self.lines(counts, Instant::now());
        lines.warnings.iter().for_each(|line| tracing::warn!("{line}"));
        lines.error.iter().for_each(|line| tracing::error!("{line}"));
    }

    fn lines(&self, counts: &StorageCounts, now: Instant) -> Lines {
        // No code panics while it holds this lock, so the lock is never poisoned.
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lines = Lines::default();
        if let Some(new) = state.refused.due(counts.refused, now) {
            let cause = if counts.evicts {
                "memory is full, and no item could be evicted in time; raise -m"
            } else {
                "memory is full, and -M forbids evictions; raise -m, or omit -M"
            };
            let line = format!("changes refused: {new} since the last such line: {cause}");
            lines.warnings.push(line);
        }
        let Some(flash) = &counts.flash else { return lines };
        if let Some(new) = state.flash_errors.due(flash.failures, now) {
            let line = format!(
                "flash: {new} reads or writes of -o ext_path failed since the last such line; check the device (dmesg)"
            );
            lines.warnings.push(line);
        }
        if flash.is_off && !state.is_flash_off {
            state.is_flash_off = true;
            lines.error = Some(
                "flash: turned off after repeated failures; its items are misses until larderd is restarted \
                 with a working device",
            );
        }
        lines
    }
}

/// A failure count's value at its last log line, and the time of this line.
#[derive(Debug, Default)]
struct LoggedCount {
    /// The count at the last line; 0 before the first line.
    logged: u64,
    at: Option<Instant>,
}

impl LoggedCount {
    /// Returns the increase since the last line, and records the count as logged. Returns `None` if
    /// there is no increase, or if the last line is less than [`INTERVAL`] old.
    fn due(&mut self, count: u64, now: Instant) -> Option<u64> {
        // A lower count means that `stats reset` has set the counter to 0.
        if count < self.logged {
            self.logged = 0;
        }
        let is_early = self.at.is_some_and(|at| now.saturating_duration_since(at) < INTERVAL);
        if count == self.logged || is_early {
            return None;
        }
        self.at = Some(now);
        Some(count - std::mem::replace(&mut self.logged, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lines that a check logs for these counts. `flash` contains the number of
    /// failures, and 1 if flash is off or 0 if it is on.
    fn lines(watch: &StorageWatch, refused: u64, flash: [u64; 2], now: Instant) -> Vec<String> {
        let [errors, off] = flash;
        let gauges = FlashGauges { failures: errors, is_off: off == 1, ..FlashGauges::default() };
        let counts = StorageCounts { refused, evicts: false, flash: Some(gauges) };
        let Lines { warnings, error } = watch.lines(&counts, now);
        warnings.into_iter().chain(error.map(str::to_owned)).collect()
    }

    #[test]
    fn a_count_is_logged_once_a_minute_with_its_increase() {
        let (watch, start) = (StorageWatch::default(), Instant::now());
        let at = |secs| start + Duration::from_secs(secs);
        assert_eq!(lines(&watch, 0, [0, 0], at(0)), [""; 0]);
        assert!(lines(&watch, 5, [0, 0], at(1))[0].starts_with("changes refused: 5 since"));
        assert_eq!(lines(&watch, 9, [0, 0], at(60)), [""; 0]);
        assert!(lines(&watch, 12, [0, 0], at(61))[0].starts_with("changes refused: 7 since"));
        // The count is lower after `stats reset`.
        assert!(lines(&watch, 3, [0, 0], at(130))[0].starts_with("changes refused: 3 since"));
    }

    #[test]
    fn the_end_of_flash_is_logged_once() {
        let (watch, start) = (StorageWatch::default(), Instant::now());
        let seen = lines(&watch, 0, [256, 1], start);
        assert!(seen[0].starts_with("flash: 256 reads or writes"), "{seen:?}");
        assert!(seen[1].starts_with("flash: turned off"), "{seen:?}");
        assert_eq!(lines(&watch, 0, [256, 1], start + INTERVAL), [""; 0]);
    }
}
