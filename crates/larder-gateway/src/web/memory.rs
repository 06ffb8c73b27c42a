//! Memory of connections, requests and answers. It counts towards the memory limit of all connections of the server.

use super::app::App;
use crate::server_view::ServerView;
use bytes::Bytes;
use std::sync::Arc;
use tokio::task::yield_now;

/// Reservations grow in steps of this many bytes.
const STEP: usize = 16 << 10;

/// There is currently no memory for a request. The client can retry in a second.
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

    /// Grows the reservation to at least `len` bytes. Returns false if the gateway, or all connections of the server
    /// together, would exceed their memory limit.
    pub(crate) fn grow_to(&mut self, len: usize) -> bool {
        let more = len.next_multiple_of(STEP).saturating_sub(self.len);
        let fits = more == 0 || reserve(&*self.view, more);
        if fits {
            self.len += more;
        }
        fits
    }

    /// Grows the reservation to at least `len` bytes. Closes idle and slow connections if necessary.
    ///
    /// # Errors
    /// [`Busy`]: there is no memory, and no connection is idle or slow. The client has to retry.
    pub(crate) async fn require(&mut self, app: &App, len: usize) -> Result<(), Busy> {
        while !self.grow_to(len) {
            if !app.connections.close_one() {
                return Err(Busy);
            }
            // Let the task of the closed connection end, which releases its memory.
            yield_now().await;
        }
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.view.release(self.len);
        self.view.web_counts().count_released(self.len);
    }
}

/// Reserves `more` bytes, or returns false. The gateway may use half of the connections' memory: the clients of other
/// protocols have the rest.
fn reserve(view: &dyn ServerView, more: usize) -> bool {
    let counts = view.web_counts();
    let fits = counts.count_reserved(more) <= share(view) && view.reserve(more);
    if !fits {
        counts.count_released(more);
    }
    fits
}

/// Returns the memory limit of all gateway connections together, in bytes.
pub(crate) fn share(view: &dyn ServerView) -> usize {
    view.connection_memory() / 2
}

/// Reserves memory for `bytes`. The reservation is released when the last reference to the bytes is dropped.
///
/// # Errors
/// [`Busy`]: see [`Reservation::require`].
pub(crate) async fn with_reservation(app: &App, bytes: impl Into<Bytes>) -> Result<Bytes, Busy> {
    let (bytes, mut reserved) = (bytes.into(), Reservation::empty(&app.view));
    reserved.require(app, bytes.len()).await?;
    Ok(with_guard(bytes, reserved))
}

/// Attaches `guard` to `data`. The guard is dropped with the last reference to the data; immediately if `data` is
/// empty.
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
