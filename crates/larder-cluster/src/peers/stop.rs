//! The signal that shuts down the threads of a node.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// A flag that is set once, when the node shuts down. Threads check it and wait for it.
#[derive(Debug)]
pub(crate) struct Stop {
    is_set: AtomicBool,
    /// The other end of `polled`. Setting the flag closes this end, which wakes the thread that
    /// polls sockets. `None` once the flag is set.
    open_end: Mutex<Option<UnixStream>>,
    polled: UnixStream,
    condition: Condvar,
}

impl Stop {
    pub(crate) fn new() -> io::Result<Self> {
        let (end, polled) = UnixStream::pair()?;
        let (open_end, condition) = (Mutex::new(Some(end)), Condvar::new());
        Ok(Self { is_set: AtomicBool::new(false), open_end, polled, condition })
    }

    pub(crate) fn set(&self) {
        self.is_set.store(true, Ordering::Release);
        self.open_end.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.condition.notify_all();
    }

    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// Waits up to `time` for the flag to be set.
    pub(crate) fn wait(&self, time: Duration) {
        let open_end = self.open_end.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.condition.wait_timeout_while(open_end, time, |open_end| open_end.is_some());
    }

    /// Waits until one of the sockets has a connection, or until the flag is set. Returns false if
    /// the flag is set. May return early.
    pub(crate) fn wait_for_connection(&self, sockets: &[TcpListener]) -> bool {
        let sockets = sockets.iter().map(AsFd::as_fd).chain([self.polled.as_fd()]);
        let mut polled: Vec<PollFd<'_>> =
            sockets.map(|socket| PollFd::new(socket, PollFlags::POLLIN)).collect();
        // An error, such as an interruption by a signal, is ignored: the caller finds no connection
        // and waits again.
        let _ = poll(&mut polled, PollTimeout::NONE);
        !self.is_set()
    }
}
