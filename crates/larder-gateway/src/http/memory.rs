//! Memory for what requests bring and answers take, which is counted with that of all connections of the server.

use super::app::App;
use super::problem::Problem;
use crate::server_view::ServerView;
use bytes::Bytes;
use std::sync::Arc;
use tokio::task::yield_now;

/// Memory is counted in steps of so many bytes.
const STEP: usize = 16 << 10;

/// Counted memory, until it is dropped.
pub(super) struct Reserved {
    view: Arc<dyn ServerView>,
    len: usize,
}

impl Reserved {
    pub(super) fn nothing(view: &Arc<dyn ServerView>) -> Self {
        Self { view: Arc::clone(view), len: 0 }
    }

    /// Counts this many bytes in all; false if there are not so many for connections.
    pub(super) fn grow_to(&mut self, len: usize) -> bool {
        let more = len.next_multiple_of(STEP).saturating_sub(self.len);
        let fits = more == 0 || self.view.reserve(more);
        if fits {
            self.len += more;
        }
        fits
    }

    /// The same, if need be after a slow peer was disconnected.
    ///
    /// # Errors
    /// A [`Problem`]: nobody is slow, so the request has to come again.
    pub(super) async fn require(&mut self, app: &App, len: usize) -> Result<(), Problem> {
        while !self.grow_to(len) {
            if !app.connections.close_slow() {
                return Err(Problem::busy());
            }
            // The task that was told to end does so.
            yield_now().await;
        }
        Ok(())
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.view.release(self.len);
    }
}

/// Bytes with the memory that is counted for them.
pub(super) struct Counted {
    pub(super) bytes: Vec<u8>,
    pub(super) _reserved: Reserved,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl From<Counted> for Bytes {
    fn from(counted: Counted) -> Self {
        Self::from_owner(counted)
    }
}
