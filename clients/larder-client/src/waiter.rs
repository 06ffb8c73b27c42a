//! What a thread does while it waits. A language whose interpreter lets one thread run at a time has to let others run
//! meanwhile.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Decides what the calling thread does while it waits, for [`blocking::Client`](crate::blocking::Client).
pub trait Waiter: fmt::Debug + Send + Sync {
    /// Waits until [`Waiting::look`] is true, at most for `time`. It may return earlier: the client asks again if there
    /// is time left.
    ///
    /// # Errors
    /// [`Interrupted`]: the call is to be given up.
    fn wait(&self, waiting: &mut Waiting<'_>, time: Duration) -> Result<(), Interrupted>;
}

/// The waiting was ended by somebody else. The call fails with [`ErrorKind::Interrupted`](crate::ErrorKind).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted;

/// What is waited for.
pub struct Waiting<'w> {
    pub(crate) socket: Option<(BorrowedFd<'w>, Readiness)>,
    pub(crate) look: &'w mut (dyn FnMut(Duration) -> bool + Send),
}

/// What a socket is to be ready for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// A read.
    Read,
    /// A write.
    Write,
    /// Either of them.
    Both,
}

impl Waiting<'_> {
    /// The socket that is waited for. `None` while it is another thread that has to give up its connection.
    #[must_use]
    pub fn socket(&self) -> Option<(BorrowedFd<'_>, Readiness)> {
        self.socket
    }

    /// Whether the waiting is over; waits for that at most for `time`, and blocks the thread meanwhile. It may return
    /// earlier. It has to be called by the thread that waits.
    pub fn look(&mut self, time: Duration) -> bool {
        (self.look)(time)
    }
}

impl fmt::Debug for Waiting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting").field("socket", &self.socket).finish_non_exhaustive()
    }
}
