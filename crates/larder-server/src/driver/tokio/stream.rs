//! A stream registered with Tokio, read by one task.
//!
//! A reported event is cleared before the task polls the connection, so input that arrives later
//! causes another event. A poll can therefore stop after a short read, without a further system
//! call that returns "would block".

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{SockRef, Socket};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll, ready};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// A stream socket of any address family.
///
/// Tokio's `TcpStream` reports events for sockets of any family. Reads and writes use the socket
/// directly. (`AsyncFd` would be the usual type, but registering it requires `unsafe`.)
pub(super) struct Stream(TcpStream);

impl Stream {
    /// Registers a non-blocking socket with the runtime.
    pub(super) fn new(socket: Socket) -> io::Result<Self> {
        TcpStream::from_std(OwnedFd::from(socket).into()).map(Self)
    }

    /// Returns the socket, for reading and writing.
    pub(super) fn socket(&self) -> SockRef<'_> {
        SockRef::from(&self.0)
    }

    /// Waits until the socket is readable, and clears the event.
    pub(super) fn poll_input(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.0.poll_read_ready(cx))?;
        self.clear(Interest::READABLE);
        Poll::Ready(Ok(()))
    }

    /// Waits until the socket is writable, and clears the event.
    pub(super) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.0.poll_write_ready(cx))?;
        self.clear(Interest::WRITABLE);
        Poll::Ready(Ok(()))
    }

    /// Waits until the stream has failed because the peer has disconnected. Clears write events.
    pub(super) fn poll_failure(&self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if ready!(self.poll_room(cx)).is_err() || self.has_failed() {
                return Poll::Ready(());
            }
        }
    }

    fn has_failed(&self) -> bool {
        let mut polled = [PollFd::new(self.0.as_fd(), PollFlags::empty())];
        let failed = PollFlags::POLLERR | PollFlags::POLLHUP;
        // An error of poll counts as a failed stream.
        poll(&mut polled, PollTimeout::ZERO).is_err()
            || polled.iter().filter_map(PollFd::revents).any(|events| events.intersects(failed))
    }

    /// Clears an event, unless another one has arrived since Tokio reported it.
    fn clear(&self, interest: Interest) {
        // Tokio clears readiness when the operation returns `WouldBlock`, and try_io returns the
        // same error.
        let _ = self.0.try_io(interest, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
    }
}
