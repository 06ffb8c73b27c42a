//! A socket, with or without TLS, and how a thread uses it.

use super::connect::connect;
use super::wait::Wait;
use crate::core::endpoint::resolution::Place;
use crate::core::endpoint::tls::Session;
use crate::core::link::Transfer;
use crate::core::outcome::Trouble;
use crate::error::ErrorKind;
use crate::metrics::OpenConnection;
use crate::waiter::Readiness;
use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::{MsgFlags, recv};
use socket2::Socket;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The timeout of a socket is only set again if it is off by more than this.
const TIMEOUT_SLACK: Duration = Duration::from_millis(2);

/// Shorter timeouts of a socket could be rounded to zero, which is none.
const TIMEOUT_MIN: Duration = Duration::from_millis(1);

/// Sends what there is room for, without waiting for more. A server that is gone is an error, and no signal.
#[cfg(not(target_vendor = "apple"))]
const AT_ONCE: MsgFlags = MsgFlags::MSG_DONTWAIT.union(MsgFlags::MSG_NOSIGNAL);
#[cfg(target_vendor = "apple")]
const AT_ONCE: MsgFlags = MsgFlags::MSG_DONTWAIT;

/// A connected socket, when it is to be closed, and what counts it as open.
pub(crate) type Opened = (Stream, Option<Instant>, OpenConnection);

/// A connected socket.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: Arc<Socket>,
    tls: Option<Box<Session>>,
    timeout: ReadTimeout,
    wait: Wait,
}

/// The timeout that a socket has for reads.
#[derive(Debug, Default)]
pub(crate) struct ReadTimeout(Option<Duration>);

/// A socket that does what can be done without waiting.
struct AtOnce<'s>(&'s Socket);

impl Read for AtOnce<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(recv(self.0.as_raw_fd(), into, MsgFlags::MSG_DONTWAIT)?)
    }
}

impl Write for AtOnce<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A timeout of the socket would not do: that of a unix socket is for each part of what is written.
        self.0.send_with_flags(bytes, AT_ONCE.bits())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream {
    /// # Errors
    /// `Connect`: the server can't be reached until the deadline; `Login`, `Interrupted`.
    pub(crate) fn connect(
        place: &Arc<Place>,
        deadline: Instant,
        wait: &Wait,
    ) -> Result<Self, ErrorKind> {
        let socket = connect(place, deadline, wait)?;
        let mut entering = place.entry.begin()?;
        while let Some(readiness) = entering.proceed(&mut AtOnce(&socket))? {
            match wait.for_socket(&socket, readiness, deadline) {
                Err(ErrorKind::Timeout) => return Err(entering.late()),
                waited => waited?,
            };
        }
        let (tls, timeout) = (entering.session(), ReadTimeout::default());
        Ok(Self { socket: Arc::new(socket), tls, timeout, wait: wait.clone() })
    }

    /// The socket, for those who wait for it while others use the stream.
    pub(crate) fn socket(&self) -> &Arc<Socket> {
        &self.socket
    }

    /// Whether what is read of the socket is what the server says.
    pub(crate) fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    /// Whether there is nothing to be read, not even the end.
    ///
    /// # Errors
    /// The connection failed.
    pub(crate) fn is_quiet(&mut self) -> io::Result<bool> {
        if let Some(tls) = &mut self.tls {
            return tls.is_quiet(&mut AtOnce(&self.socket));
        }
        let look = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        match self.socket.recv_with_flags(&mut [MaybeUninit::uninit()], look.bits()) {
            Ok(_) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Sends what there is room for. After `WouldBlock`, the same bytes are the first ones of the next call.
    ///
    /// # Errors
    /// `WouldBlock`; or the connection failed.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut socket = AtOnce(&self.socket);
        match &mut self.tls {
            Some(tls) => tls.write(&mut socket, bytes),
            None => socket.write(bytes),
        }
    }

    /// Waits until the socket is ready to be read or written. Returns what it is ready for, which may be nothing yet.
    ///
    /// # Errors
    /// As [`Wait::for_socket`].
    pub(crate) fn wait(&self, deadline: Instant) -> Result<PollFlags, Trouble> {
        self.wait.for_socket(&self.socket, Readiness::Both, deadline).map_err(Trouble::Lost)
    }

    /// Reads what there is.
    ///
    /// # Errors
    /// `WouldBlock`; or the connection failed.
    pub(crate) fn read_at_once(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut socket = AtOnce(&self.socket);
        match &mut self.tls {
            Some(tls) => tls.read(&mut socket, into),
            None => socket.read(into),
        }
    }

    /// Reads what there is, or waits for it if that `may_wait` and there is time left. `None`: there may be something after
    /// a while.
    ///
    /// # Errors
    /// The connection failed, or the deadline is over.
    pub(crate) fn read(
        &mut self,
        into: &mut [u8],
        left: Duration,
        may_wait: bool,
    ) -> Result<Option<usize>, Trouble> {
        let may_block = may_wait && !left.is_zero() && self.tls.is_none() && self.wait.may_block();
        let read = if may_block {
            self.timeout.receive(&self.socket, into, left)
        } else {
            self.read_at_once(into)
        };
        match read {
            Ok(len) => Ok(Some(len)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if may_wait {
                    let ready =
                        self.wait.for_socket(&self.socket, Readiness::Read, Instant::now() + left);
                    ready.map_err(Trouble::Lost)?;
                }
                Ok(None)
            }
            Err(error) => Err(Trouble::io(error)),
        }
    }
}

impl Transfer for Stream {
    fn is_quiet(&mut self) -> io::Result<bool> {
        Self::is_quiet(self)
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Self::send(self, bytes)
    }
}

impl ReadTimeout {
    /// Waits for what there is to be read of a socket, and reads it.
    ///
    /// # Errors
    /// `TimedOut`, perhaps a little before the time is over; or the connection failed.
    pub(crate) fn receive(
        &mut self,
        socket: &Socket,
        into: &mut [u8],
        left: Duration,
    ) -> io::Result<usize> {
        self.set(socket, left)?;
        recv(socket.as_raw_fd(), into, MsgFlags::empty()).map_err(|error| match error {
            Errno::EAGAIN => io::ErrorKind::TimedOut.into(),
            error => error.into(),
        })
    }

    /// Sets the socket's timeout to what is left until the deadline. That is a system call, which most calls do not
    /// need: they have the same time left as the one before.
    fn set(&mut self, socket: &Socket, left: Duration) -> io::Result<()> {
        if self.0.is_some_and(|timeout| timeout.abs_diff(left) <= TIMEOUT_SLACK) {
            return Ok(());
        }
        let timeout = left.max(TIMEOUT_MIN);
        socket.set_read_timeout(Some(timeout))?;
        self.0 = Some(timeout);
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.close(&mut AtOnce(&self.socket));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::{Domain, Type};

    #[test]
    fn a_socket_always_has_a_timeout() {
        let (socket, _peer) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
        for nanos in 0..10_000 {
            ReadTimeout::default().set(&socket, Duration::from_nanos(nanos)).unwrap();
            assert!(socket.read_timeout().unwrap().is_some(), "{nanos} ns");
        }
    }
}
