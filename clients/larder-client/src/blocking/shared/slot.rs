//! A slot for one shared connection. A call that finds no open connection opens one.

use super::attempt::ConnectAttempt;
use super::connection::SharedConnection;
use crate::blocking::stream::NewConnection;
use crate::blocking::wait::Wait;
use crate::error::Error;
use crate::metrics::CloseReason;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

/// A slot for one connection.
#[derive(Debug, Default)]
pub(super) struct Slot {
    state: Mutex<SlotState>,
    /// The number of calls that use the connection or wait for it to open.
    pub(super) calls: AtomicUsize,
}

#[derive(Debug, Default)]
pub(super) struct SlotState {
    pub(super) connection: Option<Arc<SharedConnection>>,
    attempt: Option<Arc<ConnectAttempt>>,
}

impl Slot {
    pub(super) fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn connection(
        &self,
        deadline: Instant,
        open: impl Fn() -> Result<NewConnection, Error>,
        wait: &Wait,
    ) -> Result<Arc<SharedConnection>, Error> {
        loop {
            let attempt = {
                let mut state = self.lock();
                if let Some(old) = state
                    .connection
                    .take_if(|connection| connection.is_over() || !connection.is_open())
                {
                    old.closes(CloseReason::Lifetime);
                }
                if let Some(connection) = &state.connection {
                    return Ok(Arc::clone(connection));
                }
                let Some(attempt) = &state.attempt else {
                    let attempt = Arc::new(ConnectAttempt::new(deadline));
                    state.attempt = Some(Arc::clone(&attempt));
                    drop(state);
                    return self.open(&attempt, open, wait);
                };
                if attempt.opener == thread::current().id() {
                    // This thread is already opening the connection, and its waiter makes this
                    // nested call. Waiting for the outer call would deadlock, so the nested call
                    // opens a connection of its own.
                    drop(state);
                    return open().map(|opened| Arc::new(SharedConnection::new(opened, wait)));
                }
                Arc::clone(attempt)
            };
            attempt.await_outcome(deadline, wait)?;
        }
    }

    pub(super) fn open(
        &self,
        attempt: &ConnectAttempt,
        open: impl Fn() -> Result<NewConnection, Error>,
        wait: &Wait,
    ) -> Result<Arc<SharedConnection>, Error> {
        let opened = open().map(|opened| Arc::new(SharedConnection::new(opened, wait)));
        {
            let mut state = self.lock();
            state.attempt = None;
            state.connection = opened.as_ref().ok().cloned();
        }
        attempt.end(opened.as_ref().map(|_| ()).map_err(Error::clone));
        opened
    }

    /// Removes a connection from the slot, so that the next call opens a new connection. `reason`
    /// is the reason for closing the removed connection.
    pub(super) fn close(&self, connection: &Arc<SharedConnection>, reason: CloseReason) {
        connection.closes(reason);
        self.lock().connection.take_if(|other| Arc::ptr_eq(other, connection));
    }
}
