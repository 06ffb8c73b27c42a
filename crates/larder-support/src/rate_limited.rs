//! Warnings that a hostile peer could cause a thousand times a second: each is logged at most once a
//! minute.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_secs(60);

/// A warning that is logged at most once a minute, with the number of times that it was due.
#[derive(Debug, Default)]
pub struct RateLimitedWarning(Mutex<(Option<Instant>, u64)>);

impl RateLimitedWarning {
    /// Logs what `message` says, unless that was logged in the last minute.
    pub fn warn(&self, message: impl FnOnce() -> String) {
        if let Some(before) = self.due(Instant::now()) {
            let message = message();
            match before {
                0 => tracing::warn!("{message}"),
                _ => tracing::warn!("{message} ({before} times more since this was last logged)"),
            }
        }
    }

    /// The number of times that it was not logged since the last time; `None` if it is not due.
    fn due(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, silent) = &mut *state;
        if last.is_some_and(|last| now.saturating_duration_since(last) < INTERVAL) {
            *silent += 1;
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(silent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_comes_once_a_minute_and_says_how_often_it_did_not() {
        let (warning, start) = (RateLimitedWarning::default(), Instant::now());
        let at = |secs| warning.due(start + Duration::from_secs(secs));
        assert_eq!([at(0), at(1), at(59)], [Some(0), None, None]);
        assert_eq!([at(60), at(61), at(125)], [Some(2), None, Some(1)]);
    }
}
