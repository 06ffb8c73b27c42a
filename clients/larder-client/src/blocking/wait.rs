//! How a thread waits for a socket or for another thread.

use crate::error::ErrorKind;
use crate::waiter::{Interrupted, Readiness, Waiter, Waiting};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// What threads do while they wait: block, or what a [`Waiter`] says.
#[derive(Clone, Debug)]
pub(crate) struct Wait(pub(crate) Option<Arc<dyn Waiter>>);

impl Wait {
    /// Whether reads of a socket may block the thread until their timeout.
    pub(crate) fn may_block(&self) -> bool {
        self.0.is_none()
    }

    /// Waits until a socket is ready. Returns what it is ready for, which may be nothing yet.
    ///
    /// # Errors
    /// `Timeout`, `Interrupted`, or the system refuses it.
    pub(crate) fn for_socket(
        &self,
        socket: &impl AsFd,
        readiness: Readiness,
        deadline: Instant,
    ) -> Result<PollFlags, ErrorKind> {
        self.for_socket_unless(|| false, socket, readiness, deadline)
    }

    /// The same, unless a call that the waiter makes itself ends what is waited for.
    ///
    /// # Errors
    /// As above.
    pub(crate) fn for_socket_unless(
        &self,
        is_over: impl Fn() -> bool + Sync,
        socket: &impl AsFd,
        readiness: Readiness,
        deadline: Instant,
    ) -> Result<PollFlags, ErrorKind> {
        let wanted = match readiness {
            Readiness::Read => PollFlags::POLLIN,
            Readiness::Write => PollFlags::POLLOUT,
            Readiness::Both => PollFlags::POLLIN | PollFlags::POLLOUT,
        };
        let fd = socket.as_fd();
        let mut ready = Ok(PollFlags::empty());
        let mut look = |time: Duration| {
            if is_over() {
                return true;
            }
            // Rounded up: a millisecond that is not over yet is no reason to go round and round.
            let millis = time.as_micros().div_ceil(1000);
            let time = PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX);
            let mut polled = [PollFd::new(fd, wanted)];
            ready = match poll(&mut polled, time) {
                Ok(_) => {
                    let [polled] = polled;
                    Ok(polled.revents().unwrap_or(PollFlags::empty()))
                }
                // A signal: the caller asks again.
                Err(Errno::EINTR) => Ok(PollFlags::empty()),
                Err(error) => Err(ErrorKind::Io(Arc::new(error.into()))),
            };
            !ready.as_ref().is_ok_and(PollFlags::is_empty)
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::Timeout);
        }
        match &self.0 {
            None => {
                look(left);
            }
            Some(waiter) => {
                let mut waiting = Waiting { socket: Some((fd, readiness)), look: &mut look };
                waiter.wait(&mut waiting, left).map_err(|Interrupted| ErrorKind::Interrupted)?;
            }
        }
        ready
    }

    /// Waits until this thread is unparked, at most for `time`. It may return earlier.
    ///
    /// # Errors
    /// `Interrupted`.
    pub(crate) fn park(
        &self,
        time: Duration,
        is_over: impl Fn() -> bool + Sync,
    ) -> Result<(), ErrorKind> {
        match &self.0 {
            None => thread::park_timeout(time),
            Some(waiter) => {
                let mut look = |time| {
                    // What has woken the thread may have been taken by a call that the waiter has made.
                    if !is_over() {
                        thread::park_timeout(time);
                    }
                    is_over()
                };
                waiter
                    .wait(&mut Waiting { socket: None, look: &mut look }, time)
                    .map_err(|Interrupted| ErrorKind::Interrupted)?;
            }
        }
        Ok(())
    }
}
