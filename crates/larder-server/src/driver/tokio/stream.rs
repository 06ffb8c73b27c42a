//! A stream that Tokio watches and nobody else reads.
//!
//! An event is cleared when it is reported. The turn after it continues until the kernel has no more
//! input, or asks for another turn; later input is another event. So a short read is the last one,
//! and no system call is needed to learn that there is no input.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{SockRef, Socket};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll, ready};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// A stream socket of any family. Tokio's type for those of TCP watches all of them alike, and they
/// are read and written as what they are. (`AsyncFd` would say so better, but can't be made without
/// `unsafe`.)
pub(super) struct Stream(TcpStream);

impl Stream {
    /// Registers a socket that never blocks with the runtime.
    pub(super) fn new(socket: Socket) -> io::Result<Self> {
        TcpStream::from_std(OwnedFd::from(socket).into()).map(Self)
    }

    /// The socket, for reading and writing.
    pub(super) fn socket(&self) -> SockRef<'_> {
        SockRef::from(&self.0)
    }

    /// Waits for something to read.
    pub(super) fn poll_input(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.0.poll_read_ready(cx))?;
        self.use_up(Interest::READABLE);
        Poll::Ready(Ok(()))
    }

    /// Waits for room to write.
    pub(super) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.0.poll_write_ready(cx))?;
        self.use_up(Interest::WRITABLE);
        Poll::Ready(Ok(()))
    }

    /// Waits for the stream to fail, because its peer has disconnected.
    pub(super) fn poll_failure(&self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if ready!(self.poll_room(cx)).is_err() || self.has_failed() {
                return Poll::Ready(());
            }
        }
    }

    fn has_failed(&self) -> bool {
        let mut asked = [PollFd::new(self.0.as_fd(), PollFlags::empty())];
        let failed = PollFlags::POLLERR | PollFlags::POLLHUP;
        // A stream whose state cannot be read has failed, too.
        poll(&mut asked, PollTimeout::ZERO).is_err()
            || asked.iter().filter_map(PollFd::revents).any(|events| events.intersects(failed))
    }

    /// Tokio forgets an event when it is told that there was nothing behind it, unless another has
    /// come in the meantime.
    fn use_up(&self, interest: Interest) {
        // It is told back what it was told.
        let _ = self.0.try_io(interest, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
    }
}
