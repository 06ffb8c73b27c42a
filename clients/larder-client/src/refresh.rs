//! Signals to the thread that refreshes the list of servers. The client sends these signals after a
//! server fault, and when it is closed or dropped.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A signal to the thread that refreshes a client's list of servers. The client's calls share the
/// signal with that thread.
#[derive(Debug, Default)]
pub(crate) struct RefreshSignal {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    is_requested: bool,
    is_stopped: bool,
}

impl RefreshSignal {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests a refresh after a server fault. Returns without waiting for the refresh.
    pub(crate) fn request(&self) {
        self.lock().is_requested = true;
        self.changed.notify_all();
    }

    /// Stops the thread, because the client is closed or dropped.
    pub(crate) fn stop(&self) {
        self.lock().is_stopped = true;
        self.changed.notify_all();
    }

    /// Waits until a refresh is requested, for at least `least` and at most `most`. Returns false
    /// at once if the thread has to stop.
    pub(crate) fn wait(&self, least: Duration, most: Duration) -> bool {
        let is_running = |state: &mut State| !state.is_stopped;
        let waited = self.changed.wait_timeout_while(self.lock(), least, is_running);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        let is_idle = |state: &mut State| !state.is_stopped && !state.is_requested;
        let rest = most.saturating_sub(least);
        let waited = self.changed.wait_timeout_while(self.lock(), rest, is_idle);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_requested = false;
        !state.is_stopped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn requests_before_a_wait_count_as_one() {
        let signal = RefreshSignal::default();
        signal.request();
        signal.request();
        assert!(signal.wait(Duration::ZERO, LONG));
        assert!(signal.wait(Duration::ZERO, Duration::ZERO));
        assert!(!signal.lock().is_requested);
    }

    #[test]
    fn a_stopped_thread_does_not_wait() {
        let signal = RefreshSignal::default();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| signal.wait(LONG, LONG));
            signal.stop();
            assert!(!waiting.join().unwrap());
        });
        assert!(!signal.wait(LONG, LONG));
    }
}
