//! The connections to one server, and the threads that wait for one.
//!
//! ```text
//!   take() ─▶ an idle connection, or the right to open one ──▶ Lease ──▶ the first of those who wait
//!     │                                                          │       or an idle connection
//!     └─▶ nothing left: wait in line, until the deadline         └─ (dropped: its place is passed on)
//! ```

use super::link::Link;
use super::wait::Wait;
use crate::core::idle::Idle;
use crate::error::{Error, ErrorKind};
use crate::metrics::{CloseReason, ServerRecorder};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// The connections to a server.
#[derive(Debug)]
pub(crate) struct Pool {
    state: Mutex<State>,
    max: usize,
    wait: Wait,
    recorder: Arc<ServerRecorder>,
}

#[derive(Debug)]
struct State {
    idle: Idle<Link>,
    /// Connections that there are or that are being opened.
    open: usize,
    waiting: VecDeque<Arc<Waiter>>,
    is_closed: bool,
}

/// A thread that waits.
#[derive(Debug)]
struct Waiter {
    thread: Thread,
    /// What it was given.
    place: Mutex<Option<Place>>,
}

/// The place of a connection in a pool.
#[derive(Debug)]
enum Place {
    /// With a connection in it.
    Link(Box<Link>),
    /// For a connection that is yet to be opened.
    Empty,
    /// The pool is closed.
    Closed,
}

/// A connection of a pool, or the right to open one, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lease<'p> {
    pool: &'p Pool,
    /// `None` until it was opened, and after it was closed.
    link: Option<Link>,
}

impl Pool {
    pub(crate) fn new(
        max: usize,
        idle_time_max: Duration,
        wait: Wait,
        recorder: Arc<ServerRecorder>,
    ) -> Self {
        let idle = Idle::new(idle_time_max);
        let state = State { idle, open: 0, waiting: VecDeque::new(), is_closed: false };
        Self { state: Mutex::new(state), max, wait, recorder }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change of it is whole before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection, or the right to open one.
    ///
    /// # Errors
    /// `PoolTimeout`: others had all connections until the deadline; `Interrupted`, `ClientClosed`.
    pub(crate) fn take(&self, deadline: Instant) -> Result<Lease<'_>, Error> {
        let waiter = {
            let mut state = self.lock();
            if state.is_closed {
                return Err(Error::definite(ErrorKind::ClientClosed));
            }
            if let Some(link) = state.idle.take() {
                return Ok(Lease { pool: self, link: Some(link) });
            }
            if state.open < self.max {
                state.open += 1;
                return Ok(Lease { pool: self, link: None });
            }
            let waiter = Arc::new(Waiter { thread: thread::current(), place: Mutex::default() });
            state.waiting.push_back(Arc::clone(&waiter));
            waiter
        };
        self.wait(&waiter, deadline)
    }

    fn wait(&self, waiter: &Arc<Waiter>, deadline: Instant) -> Result<Lease<'_>, Error> {
        let _time = self.recorder.wait();
        let end = loop {
            // After the deadline a place is of no use any more.
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break ErrorKind::PoolTimeout;
            }
            if let Some(place) = waiter.take() {
                return self.lease(place);
            }
            if let Err(interrupted) = self.wait.park(left, || waiter.has_place()) {
                break interrupted;
            }
        };
        self.lock().waiting.retain(|other| !Arc::ptr_eq(other, waiter));
        // A place that came at the last moment goes on to the next one.
        drop(waiter.take().map(|place| self.lease(place)));
        Err(Error::definite(end))
    }

    fn lease(&self, place: Place) -> Result<Lease<'_>, Error> {
        match place {
            Place::Link(link) => Ok(Lease { pool: self, link: Some(*link) }),
            Place::Empty => Ok(Lease { pool: self, link: None }),
            Place::Closed => Err(Error::definite(ErrorKind::ClientClosed)),
        }
    }

    /// Gives a place back.
    fn give_back(&self, link: Option<Link>) {
        let mut state = self.lock();
        let link = link.filter(|_| !state.is_closed);
        let Some(waiter) = state.waiting.pop_front() else {
            let dropped = match link {
                Some(link) => state.idle.put(link, Instant::now()).inspect(|_| state.open -= 1),
                None => {
                    state.open -= 1;
                    None
                }
            };
            drop(state);
            // Closing it is a system call.
            dropped.into_iter().for_each(|link| link.close(CloseReason::Idle));
            return;
        };
        let place = match link {
            Some(link) => Place::Link(Box::new(link)),
            None => Place::Empty,
        };
        // The lock is held, so the thread that gives up waiting finds what it was given.
        waiter.give(place);
        drop(state);
        waiter.thread.unpark();
    }

    /// Closes idle connections, also those that are in use once they are given back, and refuses further calls.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        let idle = state.idle.drain();
        state.open -= idle.len();
        let waiting = std::mem::take(&mut state.waiting);
        waiting.iter().for_each(|waiter| waiter.give(Place::Closed));
        drop(state);
        drop(idle);
        waiting.iter().for_each(|waiter| waiter.thread.unpark());
    }

    /// Connections that there are, those that are idle, and the threads that wait.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        let state = self.lock();
        (state.open, state.idle.len(), state.waiting.len())
    }
}

impl Waiter {
    fn take(&self) -> Option<Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn has_place(&self) -> bool {
        self.place.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn give(&self, place: Place) {
        *self.place.lock().unwrap_or_else(PoisonError::into_inner) = Some(place);
    }
}

impl Lease<'_> {
    /// The connection, which is opened if there is none.
    ///
    /// # Errors
    /// It can't be opened.
    pub(crate) fn link(
        &mut self,
        open: impl FnOnce() -> Result<Link, Error>,
    ) -> Result<&mut Link, Error> {
        match &mut self.link {
            Some(link) => Ok(link),
            place => Ok(place.insert(open()?)),
        }
    }

    /// Closes a connection that can't go on. Returns whether one is left.
    pub(crate) fn check(&mut self) -> bool {
        if let Some(Err(reason)) = self.link.as_mut().map(Link::check_idle) {
            self.close(reason);
        }
        self.link.is_some()
    }

    /// Closes the connection. Its place is kept, for another one.
    pub(crate) fn close(&mut self, reason: CloseReason) {
        self.link.take().into_iter().for_each(|link| link.close(reason));
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        if let Some(Err(reason)) = self.link.as_ref().map(Link::check_used) {
            self.close(reason);
        }
        self.pool.give_back(self.link.take());
    }
}
