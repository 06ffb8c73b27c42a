//! A stream that Tokio watches and nobody else reads.
//!
//! An event is used up when it is told. The turn after it goes on until the kernel has no more, or
//! comes back by itself; whatever the kernel has later is another event. So a short read is the last
//! one, and no call is spent to hear that there is nothing.

use crate::connection;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::SockRef;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll, ready};
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

/// A stream of either kind.
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Has the runtime watch a stream.
    pub(super) fn new(stream: connection::Stream) -> io::Result<Self> {
        Ok(match stream {
            connection::Stream::Tcp(stream) => {
                Self::Tcp(TcpStream::from_std(OwnedFd::from(stream).into())?)
            }
            connection::Stream::Unix(stream) => {
                Self::Unix(UnixStream::from_std(OwnedFd::from(stream).into())?)
            }
        })
    }

    /// Waits for something to read.
    pub(super) fn poll_input(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(match self {
            Self::Tcp(stream) => stream.poll_read_ready(cx),
            Self::Unix(stream) => stream.poll_read_ready(cx),
        })?;
        self.use_up(Interest::READABLE);
        Poll::Ready(Ok(()))
    }

    /// Waits for room to write.
    pub(super) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(match self {
            Self::Tcp(stream) => stream.poll_write_ready(cx),
            Self::Unix(stream) => stream.poll_write_ready(cx),
        })?;
        self.use_up(Interest::WRITABLE);
        Poll::Ready(Ok(()))
    }

    /// Waits for the stream to fail: its peer is gone, rather than silent.
    pub(super) fn poll_failure(&self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if ready!(self.poll_room(cx)).is_err() || self.has_failed() {
                return Poll::Ready(());
            }
        }
    }

    fn has_failed(&self) -> bool {
        let socket = self.socket();
        let mut asked = [PollFd::new(socket.as_fd(), PollFlags::empty())];
        let failed = PollFlags::POLLERR | PollFlags::POLLHUP;
        // What can't be asked any more has failed, too.
        poll(&mut asked, PollTimeout::ZERO).is_err()
            || asked.iter().filter_map(PollFd::revents).any(|events| events.intersects(failed))
    }

    /// Tokio forgets an event when it is told that there was nothing behind it, unless another has
    /// come in the meantime.
    fn use_up(&self, interest: Interest) {
        let nothing = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
        // It is told back what it was told.
        let _ = match self {
            Self::Tcp(stream) => stream.try_io(interest, nothing),
            Self::Unix(stream) => stream.try_io(interest, nothing),
        };
    }

    fn socket(&self) -> SockRef<'_> {
        match self {
            Self::Tcp(stream) => SockRef::from(stream),
            Self::Unix(stream) => SockRef::from(stream),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self.socket()).read(buffer)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self.socket()).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
