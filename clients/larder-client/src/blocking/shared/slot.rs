//! The slot of a shared connection, which is opened when a call needs it.

use super::attempt::Opening;
use super::connection::Line;
use crate::blocking::stream::Opened;
use crate::blocking::wait::Wait;
use crate::error::Error;
use crate::metrics::CloseReason;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

/// The place of a connection.
#[derive(Debug, Default)]
pub(super) struct Slot {
    state: Mutex<SlotState>,
    /// Calls that use it, or that wait until it is open.
    pub(super) calls: AtomicUsize,
}

#[derive(Debug, Default)]
pub(super) struct SlotState {
    pub(super) line: Option<Arc<Line>>,
    opening: Option<Arc<Opening>>,
}

impl Slot {
    pub(super) fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn line(
        &self,
        deadline: Instant,
        open: impl Fn() -> Result<Opened, Error>,
        wait: &Wait,
    ) -> Result<Arc<Line>, Error> {
        loop {
            let opening = {
                let mut state = self.lock();
                if let Some(old) = state.line.take_if(|line| line.is_over() || !line.is_open()) {
                    old.closes(CloseReason::Lifetime);
                }
                if let Some(line) = &state.line {
                    return Ok(Arc::clone(line));
                }
                let Some(opening) = &state.opening else {
                    let opening = Arc::new(Opening::new(deadline));
                    state.opening = Some(Arc::clone(&opening));
                    drop(state);
                    return self.open(&opening, open, wait);
                };
                if opening.opener == thread::current().id() {
                    // Its waiter has run something that makes this call, which gets a connection of its own.
                    drop(state);
                    return open().map(|opened| Arc::new(Line::new(opened, wait)));
                }
                Arc::clone(opening)
            };
            opening.await_outcome(deadline, wait)?;
        }
    }

    pub(super) fn open(
        &self,
        opening: &Opening,
        open: impl Fn() -> Result<Opened, Error>,
        wait: &Wait,
    ) -> Result<Arc<Line>, Error> {
        let opened = open().map(|opened| Arc::new(Line::new(opened, wait)));
        {
            let mut state = self.lock();
            state.opening = None;
            state.line = opened.as_ref().ok().cloned();
        }
        opening.end(opened.as_ref().map(|_| ()).map_err(Error::clone));
        opened
    }

    /// Has the next call open another connection.
    pub(super) fn close(&self, line: &Arc<Line>, reason: CloseReason) {
        line.closes(reason);
        self.lock().line.take_if(|other| Arc::ptr_eq(other, line));
    }
}
