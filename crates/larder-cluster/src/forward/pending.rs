//! The forwarded requests of one session. The session adds requests, and the thread that reads from
//! the leader adds replies.

use larder_session::{ForwardId, ForwardOutcome};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

/// A request that the session sends within this time after an outcome counts as a retry, which does
/// not restart the time limit for the session's wait for a leader. A later request gets a new time
/// limit.
const RETRIED_WITHIN: Duration = Duration::from_millis(100);

/// The forwarded requests of a session, and their replies.
#[derive(Debug, Default)]
pub(super) struct RouteState {
    /// The batches whose final outcome the session has not taken, oldest first.
    pub(super) batches: VecDeque<ForwardedBatch>,
    /// The number for the next batch.
    pub(super) next_id: u64,
    /// The batch for which the session last called [`Route::take`](larder_session::Route::take), if
    /// the batch was pending; `None` if that call returned an outcome.
    pub(super) awaited: Option<ForwardId>,
    /// The number of reply bytes received since the last `Continue` frame.
    pub(super) received: usize,
    pub(super) waker: Option<Waker>,
    /// The time at which the session started to wait for a leader. Retries do not reset it. `None`
    /// if the session does not wait.
    pub(super) waiting_since: Option<Instant>,
    /// The time at which a batch last got an outcome; `None` once the session has started to send
    /// again.
    pub(super) ended_at: Option<Instant>,
    /// The route of the session's open conversation; `None` if it has none. Replies on other routes
    /// are dropped.
    pub(super) route: Option<u64>,
    /// Distinguishes the session's waits for a leader: the end of an old wait must not affect later
    /// requests. Incremented when a batch is added while all earlier batches are answered.
    pub(super) round: u64,
}

/// Requests that a session has forwarded together, and their reply.
#[derive(Debug)]
pub(super) struct ForwardedBatch {
    pub(super) id: ForwardId,
    pub(super) reply: Vec<u8>,
    /// The outcome; `None` while it is pending.
    pub(super) outcome: Option<ForwardOutcome>,
}

impl RouteState {
    /// Records that the session starts to send requests or waits for room. `waker` replaces the
    /// session's waker.
    pub(super) fn start(&mut self, waker: &Waker) {
        // A retry follows the outcome at once. If more time has passed, this is a new request, and
        // its wait for a leader gets a new time limit.
        if self.ended_at.take().is_some_and(|ended| ended.elapsed() > RETRIED_WITHIN) {
            self.waiting_since = None;
        }
        self.waker = Some(waker.clone());
    }

    /// Returns whether any batch has no outcome yet.
    pub(super) fn is_open(&self) -> bool {
        self.batches.iter().any(|batch| batch.outcome.is_none())
    }

    /// Returns whether any batch has no complete reply.
    pub(super) fn has_unanswered(&self) -> bool {
        self.batches.iter().any(|batch| matches!(batch.outcome, None | Some(ForwardOutcome::More)))
    }

    /// Gives this outcome to all batches without a complete reply.
    pub(super) fn end(&mut self, outcome: ForwardOutcome) {
        self.ended_at = Some(Instant::now());
        for batch in &mut self.batches {
            if matches!(batch.outcome, None | Some(ForwardOutcome::More)) {
                batch.outcome = Some(outcome);
            }
        }
        self.wake();
    }

    /// Appends `bytes` to the reply of the first batch without an outcome, and sets the outcome of
    /// that batch. With `None`, more of the reply follows. [`ForwardOutcome::Close`] also ends the
    /// later batches, because the peer drops their requests.
    pub(super) fn answer(&mut self, bytes: &[u8], outcome: Option<ForwardOutcome>) {
        let is_open = |batch: &ForwardedBatch| batch.outcome.is_none();
        let Some(at) = self.batches.iter().position(is_open) else { return };
        let Some(batch) = self.batches.get_mut(at) else { return };
        batch.reply.extend_from_slice(bytes);
        batch.outcome = outcome;
        self.received += bytes.len();
        if outcome == Some(ForwardOutcome::Close) {
            return self.end(ForwardOutcome::Retry);
        }
        if outcome.is_some() {
            let is_awaited = self.awaited == Some(batch.id);
            self.ended_at = Some(Instant::now());
            // Wake the session only for the reply that it takes next. It takes replies in order,
            // except for batches that it has sent again after a change of the owner. The session
            // must also resume a paused reply: until then, the peer answers no later batch.
            if at == 0 || is_awaited || outcome == Some(ForwardOutcome::More) {
                self.wake();
            }
        }
    }

    pub(super) fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }

    /// Returns the outcome for a new batch if an earlier batch has failed.
    pub(super) fn failure(&self) -> Option<ForwardOutcome> {
        let mut outcomes = self.batches.iter().filter_map(|batch| batch.outcome);
        outcomes.find_map(|outcome| match outcome {
            ForwardOutcome::RetryRest(_) | ForwardOutcome::Close => Some(ForwardOutcome::Retry),
            ForwardOutcome::Retry | ForwardOutcome::ConnectionLost | ForwardOutcome::NoLeader => {
                Some(outcome)
            }
            _ => None,
        })
    }
}

/// Locks a mutex, even if a thread has panicked while it held the lock.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
