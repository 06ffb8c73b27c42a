//! The forwarded requests of one session: the session adds them, and the thread that reads from the leader answers them.

use larder_session::{ForwardId, ForwardOutcome};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

/// Within this time a session that may retry has done so.
const RETRIED_WITHIN: Duration = Duration::from_millis(100);

/// The forwarded requests of a session, and their answers.
#[derive(Debug, Default)]
pub(super) struct RouteState {
    /// Requests whose answers the session has not taken yet, in order.
    pub(super) passed: VecDeque<Answers>,
    /// How often requests were passed.
    pub(super) passes: u64,
    /// The requests whose answer the session waits for.
    pub(super) awaited: Option<ForwardId>,
    /// Bytes of answers that have arrived since more was requested.
    pub(super) received: usize,
    pub(super) waker: Option<Waker>,
    /// Since when its requests have waited for a leader, and when the last of them ended.
    pub(super) waits_since: Option<Instant>,
    pub(super) ended_at: Option<Instant>,
    /// The route of the requests that were sent last: answers of other routes are dropped.
    pub(super) route: Option<u64>,
    /// Rises when requests are sent, so that a wait ends only for those that it began with.
    pub(super) round: u64,
}

/// The answers to requests that were passed together.
#[derive(Debug)]
pub(super) struct Answers {
    pub(super) to: ForwardId,
    pub(super) bytes: Vec<u8>,
    /// The result of the requests; `None` while they wait.
    pub(super) routed: Option<ForwardOutcome>,
}

impl RouteState {
    /// Requests are sent, or are to be.
    pub(super) fn begin(&mut self, waker: &Waker) {
        // A retry comes at once: later requests are new ones, or the local node has answered in between.
        if self.ended_at.take().is_some_and(|ended| ended.elapsed() > RETRIED_WITHIN) {
            self.waits_since = None;
        }
        self.waker = Some(waker.clone());
    }

    /// Whether any requests still wait for a result.
    pub(super) fn is_open(&self) -> bool {
        self.passed.iter().any(|answers| answers.routed.is_none())
    }

    /// Ends all requests that are not answered, with this result.
    pub(super) fn end(&mut self, routed: ForwardOutcome) {
        self.ended_at = Some(Instant::now());
        for answers in &mut self.passed {
            if matches!(answers.routed, None | Some(ForwardOutcome::More)) {
                answers.routed = Some(routed);
            }
        }
        self.wake();
    }

    /// Adds an answer to the first requests that are not answered, and their result.
    pub(super) fn answer(&mut self, bytes: &[u8], routed: Option<ForwardOutcome>) {
        let is_open = |answers: &Answers| answers.routed.is_none();
        let Some(at) = self.passed.iter().position(is_open) else { return };
        let Some(answers) = self.passed.get_mut(at) else { return };
        answers.bytes.extend_from_slice(bytes);
        answers.routed = routed;
        self.received += bytes.len();
        if routed.is_some() {
            let is_awaited = self.awaited == Some(answers.to);
            self.ended_at = Some(Instant::now());
            // The session takes answers in order, unless requests that another group did not answer follow those of
            // the client that it awaits.
            if at == 0 || is_awaited {
                self.wake();
            }
        }
    }

    pub(super) fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }

    /// The result of earlier requests that failed.
    pub(super) fn failure(&self) -> Option<ForwardOutcome> {
        let routed = self.passed.iter().filter_map(|answers| answers.routed);
        routed.into_iter().find(|routed| {
            matches!(
                routed,
                ForwardOutcome::Retry | ForwardOutcome::ConnectionLost | ForwardOutcome::NoLeader
            )
        })
    }
}

/// Locks also after a panic of a thread that held the lock.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
