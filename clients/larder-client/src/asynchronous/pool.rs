//! The connections to one server, and the calls that wait for one.
//!
//! Each call holds a permit of a semaphore while it has a connection, or the right to open one. The semaphore gives
//! permits to calls in the order in which they came.

use super::link::Link;
use crate::core::idle::Idle;
use crate::error::{Error, ErrorKind};
use crate::metrics::{CloseReason, ServerRecorder};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, SemaphorePermit, TryAcquireError};
use tokio::time::timeout_at;

/// The connections to a server.
///
/// A connection is only opened by a call that has a permit and finds no idle one, so there are never more of them than
/// permits.
#[derive(Debug)]
pub(crate) struct Pool {
    permits: Semaphore,
    max: usize,
    idle: Mutex<Idle<Link>>,
    waiting: AtomicUsize,
    recorder: Arc<ServerRecorder>,
}

/// A connection of a pool, or the right to open one, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lease<'p> {
    pool: &'p Pool,
    /// `None` until it was opened, and after it was closed.
    link: Option<Link>,
    /// Given back after the connection.
    _permit: SemaphorePermit<'p>,
}

impl Pool {
    pub(crate) fn new(max: usize, idle_time_max: Duration, recorder: Arc<ServerRecorder>) -> Self {
        let max = max.min(Semaphore::MAX_PERMITS);
        Self {
            permits: Semaphore::new(max),
            max,
            idle: Mutex::new(Idle::new(idle_time_max)),
            waiting: AtomicUsize::new(0),
            recorder,
        }
    }

    fn idle(&self) -> MutexGuard<'_, Idle<Link>> {
        // Each change of it is whole before anything can panic.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection, or the right to open one.
    ///
    /// # Errors
    /// `PoolTimeout`: others had all connections until the deadline; `ClientClosed`.
    pub(crate) async fn take(&self, deadline: Instant) -> Result<Lease<'_>, Error> {
        let closed = || Error::definite(ErrorKind::ClientClosed);
        let permit = match self.permits.try_acquire() {
            Ok(permit) => permit,
            Err(TryAcquireError::Closed) => return Err(closed()),
            Err(TryAcquireError::NoPermits) => {
                let _waiting = Waiting::new(&self.waiting);
                let _time = self.recorder.wait();
                match timeout_at(deadline.into(), self.permits.acquire()).await {
                    Ok(permit) => permit.map_err(|_| closed())?,
                    Err(_) => return Err(Error::definite(ErrorKind::PoolTimeout)),
                }
            }
        };
        let link = self.idle().take();
        Ok(Lease { pool: self, link, _permit: permit })
    }

    /// Closes idle connections, also those that are in use once they are given back, and refuses further calls.
    pub(crate) fn close(&self) {
        self.permits.close();
        let idle = self.idle().drain();
        drop(idle);
    }

    /// Connections that there are or that are being opened, those that are idle, and the calls that wait.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        let idle = self.idle().len();
        let used = self.max - self.permits.available_permits();
        (used + idle, idle, self.waiting.load(Ordering::Relaxed))
    }
}

/// Counts a call that waits.
struct Waiting<'c>(&'c AtomicUsize);

impl<'c> Waiting<'c> {
    fn new(count: &'c AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Lease<'_> {
    /// The connection, which is opened if there is none.
    ///
    /// # Errors
    /// It can't be opened.
    pub(crate) async fn link(
        &mut self,
        open: impl Future<Output = Result<Link, Error>>,
    ) -> Result<&mut Link, Error> {
        match &mut self.link {
            Some(link) => Ok(link),
            place => Ok(place.insert(open.await?)),
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
        let Some(link) = self.link.take() else { return };
        let mut idle = self.pool.idle();
        if self.pool.permits.is_closed() {
            return;
        }
        let dropped = idle.put(link, Instant::now());
        drop(idle);
        // Closing it is a system call.
        dropped.into_iter().for_each(|link| link.close(CloseReason::Idle));
    }
}
