//! A blocking socket, with or without TLS.

use super::connect::connect;
use super::wait::Wait;
use crate::core::endpoint::resolution::Endpoint;
use crate::core::endpoint::tls::Session;
use crate::core::link::Transfer;
use crate::core::outcome::CallFailure;
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

/// The largest tolerated difference between a socket's timeout and the required timeout. The client
/// sets the timeout again only if the difference is larger. This saves a system call for most
/// requests.
const TIMEOUT_SLACK: Duration = Duration::from_millis(2);

/// The shortest socket timeout. The system could round a shorter timeout to zero, and zero means no
/// timeout.
const TIMEOUT_MIN: Duration = Duration::from_millis(1);

/// Flags for sending without blocking. With `MSG_NOSIGNAL`, sending on a closed connection returns
/// an error instead of raising SIGPIPE.
#[cfg(not(target_vendor = "apple"))]
const AT_ONCE: MsgFlags = MsgFlags::MSG_DONTWAIT.union(MsgFlags::MSG_NOSIGNAL);
#[cfg(target_vendor = "apple")]
const AT_ONCE: MsgFlags = MsgFlags::MSG_DONTWAIT;

/// A new connection: its socket, the end of its lifetime, and the guard that counts it as open.
pub(crate) type NewConnection = (Stream, Option<Instant>, OpenConnection);

/// A connected socket.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: Arc<Socket>,
    tls: Option<Box<Session>>,
    timeout: ReadTimeout,
    wait: Wait,
    /// The ID of the process that opened the connection. A forked child must not send on the
    /// connection.
    process: u32,
}

/// The current read timeout of a socket. `None` before the first blocking read.
#[derive(Debug, Default)]
pub(crate) struct ReadTimeout(Option<Duration>);

/// Nonblocking operations on a blocking socket.
struct NonBlockingStream<'s>(&'s Socket);

impl Read for NonBlockingStream<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(recv(self.0.as_raw_fd(), into, MsgFlags::MSG_DONTWAIT)?)
    }
}

impl Write for NonBlockingStream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A blocking write with a timeout (`SO_SNDTIMEO`) is not an alternative: on a unix socket,
        // the system applies the timeout to each part of a large write separately.
        self.0.send_with_flags(bytes, AT_ONCE.bits())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream {
    /// Connects to an endpoint and completes the handshake.
    ///
    /// # Errors
    /// `Connect`: no connection was established by the deadline, or the handshake failed. `Login`:
    /// the server refused the login. `Interrupted`: a waiter ended the call.
    pub(crate) fn connect(
        endpoint: &Arc<Endpoint>,
        deadline: Instant,
        wait: &Wait,
    ) -> Result<Self, ErrorKind> {
        let socket = connect(endpoint, deadline, wait)?;
        let mut handshake = endpoint.handshake.start()?;
        while let Some(readiness) = handshake.poll(&mut NonBlockingStream(&socket))? {
            match wait.for_socket(&socket, readiness, deadline) {
                Err(ErrorKind::Timeout) => return Err(handshake.timeout_error()),
                waited => waited?,
            };
        }
        let (tls, timeout) = (handshake.session(), ReadTimeout::default());
        let process = std::process::id();
        Ok(Self { socket: Arc::new(socket), tls, timeout, wait: wait.clone(), process })
    }

    /// Returns the socket. A thread can wait for its readiness while other threads use the stream.
    pub(crate) fn socket(&self) -> &Arc<Socket> {
        &self.socket
    }

    /// Returns whether the connection is unencrypted.
    pub(crate) fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    /// Returns whether the connection is open and has no unread input.
    ///
    /// # Errors
    /// The connection failed.
    pub(crate) fn is_quiet(&mut self) -> io::Result<bool> {
        if let Some(tls) = &mut self.tls {
            return tls.is_quiet(&mut NonBlockingStream(&self.socket));
        }
        let look = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        match self.socket.recv_with_flags(&mut [MaybeUninit::uninit()], look.bits()) {
            Ok(_) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Sends as many bytes as the socket accepts, and returns their number. After `WouldBlock`, the
    /// next call must pass the same bytes again.
    ///
    /// # Errors
    /// `WouldBlock`: retry when the socket is writable. Other errors: the connection failed.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut socket = NonBlockingStream(&self.socket);
        match &mut self.tls {
            Some(tls) => tls.write(&mut socket, bytes),
            None => socket.write(bytes),
        }
    }

    /// Waits until the socket is readable or writable. Returns its readiness, which may be empty.
    ///
    /// # Errors
    /// Like [`Wait::for_socket`].
    pub(crate) fn wait(&self, deadline: Instant) -> Result<PollFlags, CallFailure> {
        self.wait.for_socket(&self.socket, Readiness::Both, deadline).map_err(CallFailure::Lost)
    }

    /// Reads available data.
    ///
    /// # Errors
    /// `WouldBlock`: retry when the socket is readable. Other errors: the connection failed.
    pub(crate) fn read_at_once(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut socket = NonBlockingStream(&self.socket);
        match &mut self.tls {
            Some(tls) => tls.read(&mut socket, into),
            None => socket.read(into),
        }
    }

    /// Reads data. If no data is available and `may_wait` is true, waits for up to `left`. Returns
    /// `Some(0)` if the server has closed the connection, and `None` if it read no data. After
    /// `None`, the caller tries again.
    ///
    /// # Errors
    /// The connection failed, the time is over, or a waiter interrupted the call.
    pub(crate) fn read(
        &mut self,
        into: &mut [u8],
        left: Duration,
        may_wait: bool,
    ) -> Result<Option<usize>, CallFailure> {
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
                    ready.map_err(CallFailure::Lost)?;
                }
                Ok(None)
            }
            Err(error) => Err(CallFailure::io(error)),
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
    /// Waits up to `left` for data and reads it.
    ///
    /// # Errors
    /// `TimedOut`: no data arrived. The timeout may be up to [`TIMEOUT_SLACK`] early or late. Other
    /// errors: the connection failed.
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

    /// Sets the socket's timeout, unless the current timeout is close enough. Consecutive calls
    /// usually have nearly the same time left, so most calls need no system call.
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
        if let Some(tls) = &mut self.tls
            && self.process == std::process::id()
        {
            tls.close(&mut NonBlockingStream(&self.socket));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::{Domain, Type};

    #[test]
    fn a_socket_always_has_a_read_timeout() {
        let (socket, _peer) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
        for nanos in 0..10_000 {
            ReadTimeout::default().set(&socket, Duration::from_nanos(nanos)).unwrap();
            assert!(socket.read_timeout().unwrap().is_some(), "{nanos} ns");
        }
    }
}
