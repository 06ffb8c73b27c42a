//! Rate-limited warnings: a hostile peer that causes a warning a thousand times a second must not
//! flood the log.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_secs(60);

/// A warning that is logged at most once a minute, with the number of suppressed occurrences.
#[derive(Debug, Default)]
pub struct RateLimitedWarning(Mutex<(Option<Instant>, u64)>);

impl RateLimitedWarning {
    /// Logs `message`. If this warning was logged in the last minute, only counts the occurrence
    /// for the next log line.
    pub fn warn(&self, message: impl FnOnce() -> String) {
        if let Some(before) = self.due(Instant::now()) {
            let message = message();
            match before {
                0 => tracing::warn!("{message}"),
                _ => tracing::warn!("{message} ({before} more since the last such warning)"),
            }
        }
    }

    /// If the warning may be logged now, returns the number of suppressed occurrences. If not,
    /// counts this occurrence as suppressed and returns `None`.
    fn due(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, suppressed) = &mut *state;
        if last.is_some_and(|last| now.saturating_duration_since(last) < INTERVAL) {
            *suppressed += 1;
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_logged_once_a_minute_with_the_suppressed_count() {
        let (warning, start) = (RateLimitedWarning::default(), Instant::now());
        let at = |secs| warning.due(start + Duration::from_secs(secs));
        assert_eq!([at(0), at(1), at(59)], [Some(0), None, None]);
        assert_eq!([at(60), at(61), at(125)], [Some(2), None, Some(1)]);
    }
}
