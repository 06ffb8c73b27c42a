//! Hooks into the waits of blocking calls. The binding for an interpreter with a global lock uses
//! these hooks to release the lock during a wait.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Replaces the waits of [`blocking::Client`](crate::blocking::Client). A waiter runs on the
/// calling thread.
pub trait Waiter: fmt::Debug + Send + Sync {
    /// Waits up to `time` for [`WaitCondition::poll`] to return true. The function may return
    /// earlier, because the client calls it again if time is left.
    ///
    /// # Errors
    /// [`Interrupted`]: the client aborts the call.
    fn wait(&self, waiting: &mut WaitCondition<'_>, time: Duration) -> Result<(), Interrupted>;
}

/// The error of a [`Waiter`] that ends a wait early. The call fails with
/// [`ErrorKind::Interrupted`](crate::ErrorKind).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted;

/// The condition that a [`Waiter`] waits for.
pub struct WaitCondition<'w> {
    pub(crate) socket: Option<(BorrowedFd<'w>, Readiness)>,
    pub(crate) poll_condition: &'w mut (dyn FnMut(Duration) -> bool + Send),
}

/// The socket readiness to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// The socket is readable.
    Read,
    /// The socket is writable.
    Write,
    /// The socket is readable or writable.
    Both,
}

impl WaitCondition<'_> {
    /// Returns the socket and the readiness to wait for, or `None` if the call waits for another
    /// thread.
    #[must_use]
    pub fn socket(&self) -> Option<(BorrowedFd<'_>, Readiness)> {
        self.socket
    }

    /// Blocks the thread for up to `time`, and returns whether the wait is over. May return early.
    /// Only the thread of the call may call this function.
    pub fn poll(&mut self, time: Duration) -> bool {
        (self.poll_condition)(time)
    }
}

impl fmt::Debug for WaitCondition<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitCondition").field("socket", &self.socket).finish_non_exhaustive()
    }
}
