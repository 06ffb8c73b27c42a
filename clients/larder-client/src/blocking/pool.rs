//! The connection pool of one server.
//!
//! ```text
//!   take() ─▶ an idle connection, or the right to open one ──▶ PooledConnection ──▶ the first waiting thread,
//!     │                                                          (dropped)           or the idle connections
//!     └─▶ no free slot: wait in line, until the deadline
//! ```

use super::link::Link;
use super::wait::Wait;
use crate::core::idle::IdleConnections;
use crate::error::{Error, ErrorKind};
use crate::metrics::{CloseReason, ServerRecorder};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// The connection pool of a server.
#[derive(Debug)]
pub(crate) struct Pool {
    state: Mutex<State>,
    max: usize,
    wait: Wait,
    recorder: Arc<ServerRecorder>,
}

#[derive(Debug)]
struct State {
    idle: IdleConnections<Link>,
    /// The number of connections that are open or being opened.
    open: usize,
    waiting: VecDeque<Arc<WaitingThread>>,
    is_closed: bool,
}

/// A thread that waits for a pool slot.
#[derive(Debug)]
struct WaitingThread {
    thread: Thread,
    /// The slot delivered to the thread. `None` until another thread delivers it.
    slot: Mutex<Option<PoolSlot>>,
}

/// The result of waiting for a pool slot.
#[derive(Debug)]
enum PoolSlot {
    /// A slot with a connection.
    Link(Box<Link>),
    /// A slot for a connection that is not open yet.
    Empty,
    /// The pool is closed.
    Closed,
}

/// A pooled connection, or the right to open one. Dropping it returns the slot to the pool.
#[derive(Debug)]
pub(crate) struct PooledConnection<'p> {
    pool: &'p Pool,
    /// The connection. `None` before it is opened and after it is closed.
    link: Option<Link>,
}

impl Pool {
    pub(crate) fn new(
        max: usize,
        idle_time_max: Duration,
        wait: Wait,
        recorder: Arc<ServerRecorder>,
    ) -> Self {
        let idle = IdleConnections::new(idle_time_max);
        let state = State { idle, open: 0, waiting: VecDeque::new(), is_closed: false };
        Self { state: Mutex::new(state), max, wait, recorder }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change leaves the state consistent, so a poisoned lock is safe to use.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Acquires an idle connection, or the right to open one. If neither is available, waits until
    /// the deadline.
    ///
    /// # Errors
    /// `PoolTimeout`: no connection became free before the deadline. `Interrupted`: a waiter ended
    /// the call. `ClientClosed`: the client is closed.
    pub(crate) fn take(&self, deadline: Instant) -> Result<PooledConnection<'_>, Error> {
        let waiting_thread = {
            let mut state = self.lock();
            if state.is_closed {
                return Err(Error::definite(ErrorKind::ClientClosed));
            }
            if let Some(link) = state.idle.take() {
                return Ok(PooledConnection { pool: self, link: Some(link) });
            }
            if state.open < self.max {
                state.open += 1;
                return Ok(PooledConnection { pool: self, link: None });
            }
            let waiting_thread =
                Arc::new(WaitingThread { thread: thread::current(), slot: Mutex::default() });
            state.waiting.push_back(Arc::clone(&waiting_thread));
            waiting_thread
        };
        self.wait(&waiting_thread, deadline)
    }

    fn wait(
        &self,
        waiting_thread: &Arc<WaitingThread>,
        deadline: Instant,
    ) -> Result<PooledConnection<'_>, Error> {
        let _time = self.recorder.wait();
        let end = loop {
            // Checks the deadline first, because the call cannot use a connection after its
            // deadline.
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break ErrorKind::PoolTimeout;
            }
            if let Some(slot) = waiting_thread.take() {
                return self.pooled(slot);
            }
            if let Err(interrupted) = self.wait.park(left, || waiting_thread.has_slot()) {
                break interrupted;
            }
        };
        self.lock().waiting.retain(|other| !Arc::ptr_eq(other, waiting_thread));
        // Another thread may have delivered a slot just before the removal. Dropping the slot
        // passes it to the next waiting thread.
        drop(waiting_thread.take().map(|slot| self.pooled(slot)));
        Err(Error::definite(end))
    }

    fn pooled(&self, slot: PoolSlot) -> Result<PooledConnection<'_>, Error> {
        match slot {
            PoolSlot::Link(link) => Ok(PooledConnection { pool: self, link: Some(*link) }),
            PoolSlot::Empty => Ok(PooledConnection { pool: self, link: None }),
            PoolSlot::Closed => Err(Error::definite(ErrorKind::ClientClosed)),
        }
    }

    /// Puts a slot back into the pool.
    fn give_back(&self, link: Option<Link>) {
        let mut state = self.lock();
        let link = link.filter(|_| !state.is_closed);
        let Some(waiting_thread) = state.waiting.pop_front() else {
            let dropped = match link {
                Some(link) => state.idle.put(link, Instant::now()).inspect(|_| state.open -= 1),
                None => {
                    state.open -= 1;
                    None
                }
            };
            drop(state);
            // Closes the connection after unlocking, because closing is a system call.
            dropped.into_iter().for_each(|link| link.close(CloseReason::Idle));
            return;
        };
        let slot = match link {
            Some(link) => PoolSlot::Link(Box::new(link)),
            None => PoolSlot::Empty,
        };
        // Delivers while the pool is locked. A thread that stops waiting at the same time then
        // finds the slot.
        waiting_thread.give(slot);
        drop(state);
        waiting_thread.thread.unpark();
    }

    /// Closes idle connections at once, and other connections when they return to the pool. Later
    /// calls fail.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        let idle = state.idle.drain();
        state.open -= idle.len();
        let waiting = std::mem::take(&mut state.waiting);
        waiting.iter().for_each(|waiting_thread| waiting_thread.give(PoolSlot::Closed));
        drop(state);
        drop(idle);
        waiting.iter().for_each(|waiting_thread| waiting_thread.thread.unpark());
    }

    /// Returns the numbers of connections (open or being opened), idle connections, and waiting
    /// threads.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        let state = self.lock();
        (state.open, state.idle.len(), state.waiting.len())
    }
}

impl WaitingThread {
    fn take(&self) -> Option<PoolSlot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn has_slot(&self) -> bool {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn give(&self, slot: PoolSlot) {
        *self.slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(slot);
    }
}

impl PooledConnection<'_> {
    /// Returns the connection, after opening it if necessary.
    ///
    /// # Errors
    /// The connection cannot be opened.
    pub(crate) fn link(
        &mut self,
        open: impl FnOnce() -> Result<Link, Error>,
    ) -> Result<&mut Link, Error> {
        match &mut self.link {
            Some(link) => Ok(link),
            slot => Ok(slot.insert(open()?)),
        }
    }

    /// Closes the connection if it is unusable. Returns whether there is a usable connection.
    pub(crate) fn check(&mut self) -> bool {
        if let Some(Err(reason)) = self.link.as_mut().map(Link::check_idle) {
            self.close(reason);
        }
        self.link.is_some()
    }

    /// Closes the connection, but keeps the slot to open another one.
    pub(crate) fn close(&mut self, reason: CloseReason) {
        self.link.take().into_iter().for_each(|link| link.close(reason));
    }
}

impl Drop for PooledConnection<'_> {
    fn drop(&mut self) {
        if let Some(Err(reason)) = self.link.as_ref().map(Link::check_used) {
            self.close(reason);
        }
        self.pool.give_back(self.link.take());
    }
}
