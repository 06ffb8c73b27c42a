//! An attempt to connect. Several callers may wait for its outcome.

use crate::blocking::wait::Wait;
use crate::error::{Error, ErrorKind};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread, ThreadId};
use std::time::Instant;

/// One thread's attempt to connect. Other callers wait for its outcome.
#[derive(Debug)]
pub(super) struct ConnectAttempt {
    pub(super) opener: ThreadId,
    /// The deadline of the connecting call.
    deadline: Instant,
    outcome: OnceLock<Result<(), Error>>,
    waiting: Mutex<Vec<Thread>>,
}

impl ConnectAttempt {
    pub(super) fn new(deadline: Instant) -> Self {
        let opener = thread::current().id();
        Self { opener, deadline, outcome: OnceLock::new(), waiting: Mutex::default() }
    }

    pub(super) fn end(&self, outcome: Result<(), Error>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        // Only the opener ends the attempt, so `set` succeeds.
        drop(self.outcome.set(outcome));
        waiting.drain(..).for_each(|thread| thread.unpark());
    }

    /// Waits for the outcome. After `Ok`, the caller checks the slot again: the slot has an open
    /// connection, or the caller has to open a connection.
    ///
    /// # Errors
    /// The attempt failed, the deadline of this call has passed, or this call was interrupted.
    pub(super) fn await_outcome(&self, deadline: Instant, wait: &Wait) -> Result<(), Error> {
        {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            if self.outcome.get().is_none() {
                waiting.push(thread::current());
            }
        }
        loop {
            match self.outcome.get() {
                // An interruption or a timeout concerns only the opener, so the other callers try
                // again.
                Some(Err(error)) if matches!(error.kind(), ErrorKind::Interrupted) => return Ok(()),
                Some(Err(_)) if self.deadline <= Instant::now() => return Ok(()),
                Some(Err(error)) => return Err(error.clone().echo()),
                Some(Ok(())) => return Ok(()),
                None => (),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::definite(ErrorKind::Timeout).echo());
            }
            wait.park(left, || self.outcome.get().is_some()).map_err(Error::definite)?;
        }
    }
}
