//! Memory of connections, requests and replies. It counts towards the memory limit of all
//! connections of the server.

use super::app::App;
use crate::server_view::ServerView;
use crate::web_counts::WebCounts;
use bytes::Bytes;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::yield_now;
use tokio::time::timeout;

/// Reservations grow in steps of this many bytes.
const STEP: usize = 8 << 10;
/// The maximum memory, in bytes, for the heads of all requests that wait for memory. The reserved
/// memory does not include these heads.
const WAITING_MAX: usize = 2 << 20;
/// The maximum time that a request waits for memory. Most requests finish within milliseconds.
const WAIT_TIME: Duration = Duration::from_secs(3);
/// The interval at which a waiting request checks whether other protocols have released memory.
pub(crate) const WAIT_STEP: Duration = Duration::from_millis(20);

/// The error of a request that currently does not fit in the memory limit. The client can retry in
/// a second.
#[derive(Debug)]
pub(crate) struct Busy;

/// Reserved memory, released on drop.
pub(crate) struct Reservation {
    view: Arc<dyn ServerView>,
    len: usize,
}

impl Reservation {
    pub(crate) fn empty(view: &Arc<dyn ServerView>) -> Self {
        Self { view: Arc::clone(view), len: 0 }
    }

    /// Grows the reservation to at least `len` bytes. Returns false if the gateway, or all
    /// connections of the server together, would exceed their memory limit.
    pub(crate) fn grow_to(&mut self, len: usize) -> bool {
        self.grow_for(Purpose::Body, len)
    }

    /// Grows the reservation to at least `len` bytes. Returns false if the gateway would exceed the
    /// share of `purpose`, or if all connections of the server together would exceed their memory
    /// limit.
    pub(crate) fn grow_for(&mut self, purpose: Purpose, len: usize) -> bool {
        let max = share(&*self.view) / 8 * purpose.eighths();
        let more = len.next_multiple_of(STEP).saturating_sub(self.len);
        let fits = more == 0 || reserve(&*self.view, max, more);
        if fits {
            self.len += more;
        }
        fits
    }

    /// Grows the reservation to at least `len` bytes. Closes idle and slow connections if
    /// necessary.
    ///
    /// # Errors
    /// [`Busy`]: the memory limit is reached, and no connection is idle or slow. The client has to
    /// retry.
    pub(crate) async fn require(&mut self, app: &App, len: usize) -> Result<(), Busy> {
        while !self.grow_to(len) {
            if !app.connections.close_long_idle() {
                return Err(Busy);
            }
            // Yield, so that the task of the closed connection can finish and release its memory.
            yield_now().await;
        }
        Ok(())
    }

    /// Reserves `len` bytes for a new request, whose head already uses `head_len` bytes. Waits
    /// until other requests have released enough memory, and closes slow connections.
    ///
    /// # Errors
    /// [`Busy`]: other requests did not release enough memory within [`WAIT_TIME`], or the heads of
    /// waiting requests take [`WAITING_MAX`] bytes. The client has to retry.
    pub(crate) async fn admit(
        &mut self,
        app: &App,
        len: usize,
        head_len: usize,
    ) -> Result<(), Busy> {
        if self.grow_for(Purpose::Request, len) {
            return Ok(());
        }
        let view = Arc::clone(&self.view);
        let counts = view.web_counts();
        let _waiting = WaitingHead::count(counts, head_len).ok_or(Busy)?;
        let started = Instant::now();
        loop {
            // Watchers may use up the memory for new requests for a long time. If no other request
            // is waiting, this request may also use the memory reserved for bodies.
            let is_alone = counts.waiting() == head_len;
            let purpose = if is_alone { Purpose::Body } else { Purpose::Request };
            if self.grow_for(purpose, len) {
                // Wake the next waiting request: the remaining memory may be enough for that
                // request, too.
                counts.freed().notify_one();
                return Ok(());
            }
            if started.elapsed() >= WAIT_TIME {
                return Err(Busy);
            }
            app.connections.close_slow();
            // A timeout is not an error. Check again even without a notification, because other
            // protocols release memory without one.
            let _ = timeout(WAIT_STEP, counts.freed().notified()).await;
        }
    }
}

/// The purpose of reserved memory. Connections may use only a part of the memory, so that some is
/// left for requests. New requests must leave some of the rest, so that started requests can
/// receive their bodies, send their replies and finish.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    Connection,
    Request,
    Body,
}

impl Purpose {
    fn eighths(self) -> usize {
        match self {
            Self::Connection => 6,
            Self::Request => 7,
            Self::Body => 8,
        }
    }
}

/// A guard that adds the length of a waiting request's head to the total. Dropping it stops
/// counting the head.
struct WaitingHead<'c> {
    counts: &'c WebCounts,
    len: usize,
}

impl<'c> WaitingHead<'c> {
    /// Counts a head of `len` bytes. Returns `None` if the heads of all waiting requests would
    /// exceed [`WAITING_MAX`].
    fn count(counts: &'c WebCounts, len: usize) -> Option<Self> {
        let head = Self { counts, len };
        (counts.count_waiting(len) <= WAITING_MAX).then_some(head)
    }
}

impl Drop for WaitingHead<'_> {
    fn drop(&mut self) {
        self.counts.count_waited(self.len);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.view.release(self.len);
        self.view.web_counts().count_released(self.len);
        self.view.web_counts().freed().notify_one();
    }
}

/// Reserves `more` bytes, or returns false if the gateway would exceed `max`.
fn reserve(view: &dyn ServerView, max: usize, more: usize) -> bool {
    let counts = view.web_counts();
    let fits = counts.count_reserved(more) <= max && view.reserve(more);
    if !fits {
        counts.count_released(more);
    }
    fits
}

/// Returns the memory limit of all gateway connections together, in bytes: half of the memory limit
/// of all connections of the server. Clients of other protocols can use the other half.
pub(crate) fn share(view: &dyn ServerView) -> usize {
    view.connection_memory() / 2
}

/// Reserves memory for `bytes`. The reservation is released when the last reference to the bytes is
/// dropped.
///
/// # Errors
/// [`Busy`]: see [`Reservation::require`].
pub(crate) async fn with_reservation(app: &App, bytes: impl Into<Bytes>) -> Result<Bytes, Busy> {
    let (bytes, mut reserved) = (bytes.into(), Reservation::empty(&app.view));
    reserved.require(app, bytes.len()).await?;
    Ok(with_guard(bytes, reserved))
}

/// Attaches `guard` to `data`. The guard is dropped with the last reference to `data`, or
/// immediately if `data` is empty.
pub(crate) fn with_guard(data: Bytes, guard: impl Send + Sync + 'static) -> Bytes {
    if data.is_empty() {
        return data;
    }
    Bytes::from_owner(GuardedBytes { data, _guard: guard })
}

struct GuardedBytes<T> {
    data: Bytes,
    _guard: T,
}

impl<T> AsRef<[u8]> for GuardedBytes<T> {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}
