//! The connection pool of one server.
//!
//! A call holds a permit of a semaphore while it uses or opens a connection. The semaphore is fair:
//! it serves calls in order of arrival.

use super::link::Link;
use crate::core::idle::IdleConnections;
use crate::error::{Error, ErrorKind};
use crate::metrics::{CloseReason, ServerRecorder};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, SemaphorePermit, TryAcquireError};
use tokio::time::timeout_at;

/// The connection pool of a server.
///
/// A call opens a connection only if it has a permit and finds no idle connection, so there are
/// never more connections than permits.
#[derive(Debug)]
pub(crate) struct Pool {
    permits: Semaphore,
    max: usize,
    idle: Mutex<IdleConnections<Link>>,
    waiting: AtomicUsize,
    recorder: Arc<ServerRecorder>,
}

/// A pooled connection, or the right to open one. Dropping it returns a usable connection to the
/// pool, and closes an unusable connection.
#[derive(Debug)]
pub(crate) struct PooledConnection<'p> {
    pool: &'p Pool,
    /// The connection. `None` before it is opened and after it is closed.
    link: Option<Link>,
    /// The permit. Because this field is the last, the permit is dropped after the connection.
    _permit: SemaphorePermit<'p>,
}

impl Pool {
    pub(crate) fn new(max: usize, idle_time_max: Duration, recorder: Arc<ServerRecorder>) -> Self {
        let max = max.min(Semaphore::MAX_PERMITS);
        Self {
            permits: Semaphore::new(max),
            max,
            idle: Mutex::new(IdleConnections::new(idle_time_max)),
            waiting: AtomicUsize::new(0),
            recorder,
        }
    }

    fn idle(&self) -> MutexGuard<'_, IdleConnections<Link>> {
        // Each change leaves the state consistent, so a poisoned lock is safe to use.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Acquires an idle connection, or the right to open one. If neither is available, waits until
    /// the deadline.
    ///
    /// # Errors
    /// `PoolTimeout`: no connection became free before the deadline. `ClientClosed`: the client is
    /// closed.
    pub(crate) async fn take(&self, deadline: Instant) -> Result<PooledConnection<'_>, Error> {
        let closed = || Error::definite(ErrorKind::ClientClosed);
        let permit = match self.permits.try_acquire() {
            Ok(permit) => permit,
            Err(TryAcquireError::Closed) => return Err(closed()),
            Err(TryAcquireError::NoPermits) => {
                let _waiting = WaitGuard::new(&self.waiting);
                let _time = self.recorder.wait();
                match timeout_at(deadline.into(), self.permits.acquire()).await {
                    Ok(permit) => permit.map_err(|_| closed())?,
                    Err(_) => return Err(Error::definite(ErrorKind::PoolTimeout)),
                }
            }
        };
        let link = self.idle().take();
        Ok(PooledConnection { pool: self, link, _permit: permit })
    }

    /// Closes idle connections at once, and other connections when they return to the pool. Later
    /// calls fail.
    pub(crate) fn close(&self) {
        self.permits.close();
        let idle = self.idle().drain();
        drop(idle);
    }

    /// Returns the numbers of connections (open or being opened), idle connections, and waiting
    /// calls.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        let idle = self.idle().len();
        let used = self.max - self.permits.available_permits();
        (used + idle, idle, self.waiting.load(Ordering::Relaxed))
    }
}

/// A guard that counts a waiting call until the guard is dropped.
struct WaitGuard<'c>(&'c AtomicUsize);

impl<'c> WaitGuard<'c> {
    fn new(count: &'c AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl PooledConnection<'_> {
    /// Returns the connection, after opening it if necessary.
    ///
    /// # Errors
    /// The connection cannot be opened.
    pub(crate) async fn link(
        &mut self,
        open: impl Future<Output = Result<Link, Error>>,
    ) -> Result<&mut Link, Error> {
        match &mut self.link {
            Some(link) => Ok(link),
            slot => Ok(slot.insert(open.await?)),
        }
    }

    /// Closes the connection if it is unusable. Returns whether there is a usable connection.
    pub(crate) fn check(&mut self) -> bool {
        if let Some(Err(reason)) = self.link.as_mut().map(Link::check_idle) {
            self.close(reason);
        }
        self.link.is_some()
    }

    /// Closes the connection, but keeps the permit to open another one.
    pub(crate) fn close(&mut self, reason: CloseReason) {
        self.link.take().into_iter().for_each(|link| link.close(reason));
    }
}

impl Drop for PooledConnection<'_> {
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
        // Closes the connection after unlocking, because closing is a system call.
        dropped.into_iter().for_each(|link| link.close(CloseReason::Idle));
    }
}
