//! Waits of blocking calls: for a socket, or for another thread.

use crate::error::ErrorKind;
use crate::waiter::{Interrupted, Readiness, WaitCondition, Waiter};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How calls wait: with a [`Waiter`], or, if `None`, by blocking the thread.
#[derive(Clone, Debug)]
pub(crate) struct Wait(pub(crate) Option<Arc<dyn Waiter>>);

impl Wait {
    /// Returns whether reads may block the thread until the socket's timeout.
    pub(crate) fn may_block(&self) -> bool {
        self.0.is_none()
    }

    /// Waits until a socket is ready. Returns its readiness, which is empty if the wait ended
    /// early.
    ///
    /// # Errors
    /// `Timeout`: the deadline has passed. `Interrupted`: a waiter ended the call. Other errors:
    /// the system's error.
    pub(crate) fn for_socket(
        &self,
        socket: &impl AsFd,
        readiness: Readiness,
        deadline: Instant,
    ) -> Result<PollFlags, ErrorKind> {
        self.for_socket_unless(|| false, socket, readiness, deadline)
    }

    /// Like [`Wait::for_socket`], but also ends when `is_over` returns true. Checks `is_over`
    /// before each poll of the socket, because a nested call of the waiter may have received the
    /// reply.
    ///
    /// # Errors
    /// Like [`Wait::for_socket`].
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
        let mut poll_condition = |time: Duration| {
            if is_over() {
                return true;
            }
            // Rounds up, because rounding down would cause a busy loop with a timeout of 0 during
            // the last millisecond.
            let millis = time.as_micros().div_ceil(1000);
            let time = PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX);
            let mut polled = [PollFd::new(fd, wanted)];
            ready = match poll(&mut polled, time) {
                Ok(_) => {
                    let [polled] = polled;
                    Ok(polled.revents().unwrap_or(PollFlags::empty()))
                }
                // A signal has interrupted the poll, so the caller waits again.
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
                poll_condition(left);
            }
            Some(waiter) => {
                let mut waiting = WaitCondition {
                    socket: Some((fd, readiness)),
                    poll_condition: &mut poll_condition,
                };
                waiter.wait(&mut waiting, left).map_err(|Interrupted| ErrorKind::Interrupted)?;
            }
        }
        ready
    }

    /// Waits until this thread is unparked, but at most for `time`. May return earlier. With a
    /// [`Waiter`], also returns when `is_over` returns true.
    ///
    /// # Errors
    /// `Interrupted`: the waiter ended the call.
    pub(crate) fn park(
        &self,
        time: Duration,
        is_over: impl Fn() -> bool + Sync,
    ) -> Result<(), ErrorKind> {
        match &self.0 {
            None => thread::park_timeout(time),
            Some(waiter) => {
                let mut poll_condition = |time| {
                    // Checks the condition first, because a nested call of the waiter may have
                    // consumed the unpark token.
                    if !is_over() {
                        thread::park_timeout(time);
                    }
                    is_over()
                };
                waiter
                    .wait(
                        &mut WaitCondition { socket: None, poll_condition: &mut poll_condition },
                        time,
                    )
                    .map_err(|Interrupted| ErrorKind::Interrupted)?;
            }
        }
        Ok(())
    }
}
