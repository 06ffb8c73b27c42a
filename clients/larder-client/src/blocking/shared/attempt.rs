//! A connection that a thread opens, for all who need it.

use crate::blocking::wait::Wait;
use crate::error::{Error, ErrorKind};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread, ThreadId};
use std::time::Instant;

/// A connection that a thread opens, for all who need it.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) opener: ThreadId,
    /// When the opener's time is over.
    deadline: Instant,
    outcome: OnceLock<Result<(), Error>>,
    waiting: Mutex<Vec<Thread>>,
}

impl Opening {
    pub(super) fn new(deadline: Instant) -> Self {
        let opener = thread::current().id();
        Self { opener, deadline, outcome: OnceLock::new(), waiting: Mutex::default() }
    }

    pub(super) fn end(&self, outcome: Result<(), Error>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody else ends it.
        drop(self.outcome.set(outcome));
        waiting.drain(..).for_each(|thread| thread.unpark());
    }

    /// Waits until there is a connection, or another one is to be opened by the caller.
    ///
    /// # Errors
    /// There will be none; it is over by the deadline.
    pub(super) fn await_outcome(&self, deadline: Instant, wait: &Wait) -> Result<(), Error> {
        {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            if self.outcome.get().is_none() {
                waiting.push(thread::current());
            }
        }
        loop {
            match self.outcome.get() {
                // That it was interrupted, or had too little time, is the matter of who has opened it.
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
