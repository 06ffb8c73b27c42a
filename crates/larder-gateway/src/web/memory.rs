//! Memory for what requests bring and answers take, which is counted with that of all connections of the server.

use super::app::App;
use crate::server_view::ServerView;
use bytes::Bytes;
use std::sync::Arc;
use tokio::task::yield_now;

/// Memory is counted in steps of so many bytes.
const STEP: usize = 16 << 10;

/// There is no memory for a request now; there may be some in a second.
#[derive(Debug)]
pub(crate) struct Busy;

/// Counted memory, until it is dropped.
pub(crate) struct Reservation {
    view: Arc<dyn ServerView>,
    len: usize,
}

impl Reservation {
    pub(crate) fn empty(view: &Arc<dyn ServerView>) -> Self {
        Self { view: Arc::clone(view), len: 0 }
    }

    /// Counts this many bytes in all; false if there are not so many for connections.
    pub(crate) fn grow_to(&mut self, len: usize) -> bool {
        let more = len.next_multiple_of(STEP).saturating_sub(self.len);
        let fits = more == 0 || reserve(&*self.view, more);
        if fits {
            self.len += more;
        }
        fits
    }

    /// The same, if need be after an idle or a slow peer was disconnected.
    ///
    /// # Errors
    /// [`Busy`]: nobody is idle or slow, so the request has to come again.
    pub(crate) async fn require(&mut self, app: &App, len: usize) -> Result<(), Busy> {
        while !self.grow_to(len) {
            if !app.connections.close_one() {
                return Err(Busy);
            }
            // The task that was told to end does so.
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

/// Counts memory, of which the gateway may have a half: the clients of other protocols have the rest.
fn reserve(view: &dyn ServerView, more: usize) -> bool {
    let counts = view.web_counts();
    let fits = counts.count_reserved(more) <= share(view) && view.reserve(more);
    if !fits {
        counts.count_released(more);
    }
    fits
}

/// The memory that all connections of the gateway may have together, in bytes.
pub(crate) fn share(view: &dyn ServerView) -> usize {
    view.connection_memory() / 2
}

/// The bytes, with their memory counted, if need be after an idle or a slow peer was disconnected.
///
/// # Errors
/// [`Busy`].
pub(crate) async fn with_reservation(app: &App, bytes: impl Into<Bytes>) -> Result<Bytes, Busy> {
    let (bytes, mut reserved) = (bytes.into(), Reservation::empty(&app.view));
    reserved.require(app, bytes.len()).await?;
    Ok(with_guard(bytes, reserved))
}

/// The same bytes, with something that is dropped with the last of them.
pub(crate) fn with_guard(data: Bytes, what: impl Send + Sync + 'static) -> Bytes {
    if data.is_empty() {
        return data;
    }
    Bytes::from_owner(GuardedBytes { data, _what: what })
}

struct GuardedBytes<T> {
    data: Bytes,
    _what: T,
}

impl<T> AsRef<[u8]> for GuardedBytes<T> {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}
