//! Opens connections: sockets with or without TLS.

use crate::core::endpoint::address::Address;
use crate::core::endpoint::resolution::{Endpoint, share};
use crate::core::endpoint::tls::Session;
use crate::core::link::Transfer;
use crate::error::ErrorKind;
use crate::waiter::Readiness;
use socket2::SockRef;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{Interest, Ready};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, sleep, timeout_at};

/// The pause between attempts to connect to a unix socket whose backlog is full.
const QUEUE_PAUSE: Duration = Duration::from_millis(5);

/// A connected socket.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: Socket,
    /// The TLS session. A caller locks the session only during nonblocking operations.
    tls: Option<Box<Mutex<Session>>>,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Connects to an endpoint and completes the handshake.
    ///
    /// # Errors
    /// `Connect`: no connection was established by the deadline, or the handshake failed. If no
    /// address of a name accepts the connection, a task resolves the name again. `Login`: the
    /// server refused the login.
    pub(crate) async fn connect(
        endpoint: &Arc<Endpoint>,
        deadline: Instant,
    ) -> Result<Self, ErrorKind> {
        let connected = match &endpoint.address {
            Address::Unix(path) => connect_unix(path, deadline).await.map(Socket::Unix),
            Address::Host(host, port) => {
                connect_tcp(endpoint, host, *port, deadline).await.map(Socket::Tcp)
            }
        };
        let socket = connected.map_err(ErrorKind::connect)?;
        let mut handshake = endpoint.handshake.start()?;
        while let Some(readiness) = handshake.poll(&mut &socket)? {
            let interest = match readiness {
                Readiness::Read => Interest::READABLE,
                Readiness::Write => Interest::WRITABLE,
                Readiness::Both => Interest::READABLE.add(Interest::WRITABLE),
            };
            match timeout_at(deadline, socket.ready(interest)).await {
                Ok(ready) => ready.map_err(ErrorKind::connect)?,
                Err(_) => return Err(handshake.timeout_error()),
            };
        }
        let tls = handshake.session().map(|session| Box::new(Mutex::new(*session)));
        Ok(Self { socket, tls })
    }

    fn session(&self) -> Option<MutexGuard<'_, Session>> {
        // No code panics while it holds this lock, so the lock is never poisoned.
        self.tls.as_ref().map(|tls| tls.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads available data.
    ///
    /// # Errors
    /// `WouldBlock`: retry when the socket is readable. Other errors: the connection failed.
    pub(crate) fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        match self.session() {
            Some(mut tls) => tls.read(&mut &self.socket, into),
            None => (&self.socket).read(into),
        }
    }

    /// Sends as many bytes as the socket accepts, and returns their number. After `WouldBlock`, the
    /// next call must pass the same bytes again.
    ///
    /// # Errors
    /// `WouldBlock`: retry when the socket is writable. Other errors: the connection failed.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.session() {
            Some(mut tls) => tls.write(&mut &self.socket, bytes),
            None => (&self.socket).write(bytes),
        }
    }

    /// Waits until the socket may be ready. Returns at once if `interest` includes reading and TLS
    /// has buffered plaintext.
    ///
    /// # Errors
    /// The runtime has shut down.
    pub(crate) async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        let has_input = self.session().is_some_and(|mut tls| tls.has_input());
        if interest.is_readable() && has_input {
            return Ok(Ready::READABLE);
        }
        self.socket.ready(interest).await
    }

    /// Returns whether the connection is open and has no unread input, and the socket's runtime has
    /// not shut down. Queries the system, because the readiness that Tokio caches may be outdated.
    ///
    /// # Errors
    /// The connection failed.
    pub(crate) fn is_quiet(&self) -> io::Result<bool> {
        if self.socket.has_lost_runtime() {
            return Ok(false);
        }
        let socket = match &self.socket {
            Socket::Tcp(stream) => SockRef::from(stream),
            Socket::Unix(stream) => SockRef::from(stream),
        };
        if let Some(mut tls) = self.session() {
            return tls.is_quiet(&mut &*socket);
        }
        match socket.peek(&mut [MaybeUninit::uninit()]) {
            Ok(_) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
            Err(error) => Err(error),
        }
    }
}

impl Transfer for Stream {
    fn is_quiet(&mut self) -> io::Result<bool> {
        Self::is_quiet(self)
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Self::try_write(self, bytes)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(mut tls) = self.session() {
            tls.close(&mut &self.socket);
        }
    }
}

impl Socket {
    async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        match self {
            Self::Tcp(stream) => stream.ready(interest).await,
            Self::Unix(stream) => stream.ready(interest).await,
        }
    }

    /// Returns whether the runtime has shut down. The socket then never becomes ready.
    fn has_lost_runtime(&self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        let ready = match self {
            Self::Tcp(stream) => stream.poll_read_ready(&mut context),
            Self::Unix(stream) => stream.poll_read_ready(&mut context),
        };
        matches!(ready, Poll::Ready(Err(_)))
    }
}

impl Read for &Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.try_read(into),
            Socket::Unix(stream) => stream.try_read(into),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.try_write(bytes),
            Socket::Unix(stream) => stream.try_write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

async fn connect_tcp(
    endpoint: &Arc<Endpoint>,
    host: &str,
    port: u16,
    deadline: Instant,
) -> io::Result<TcpStream> {
    if endpoint.addresses().is_empty() {
        let looked_up = timeout_at(deadline, tokio::net::lookup_host((host, port))).await??;
        endpoint.resolve(looked_up.collect());
    }
    let addresses = endpoint.addresses();
    let mut last = io::Error::from(io::ErrorKind::TimedOut);
    for (n, address) in addresses.iter().copied().enumerate() {
        let now = Instant::now();
        let time = share(deadline.saturating_duration_since(now), addresses.len() - n);
        match timeout_at(now + time, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                if n > 0 {
                    endpoint.prefer(address);
                }
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Ok(Err(error)) => last = error,
            Err(elapsed) => last = elapsed.into(),
        }
    }
    resolve_again(endpoint, host, port);
    Err(last)
}

/// Resolves the name again in a task, because a lookup may take longer than the time that the call
/// has left.
fn resolve_again(endpoint: &Arc<Endpoint>, host: &str, port: u16) {
    if !endpoint.starts_lookup(std::time::Instant::now()) {
        return;
    }
    let (endpoint, host) = (Arc::clone(endpoint), host.to_owned());
    tokio::spawn(async move {
        if let Ok(addresses) = tokio::net::lookup_host((host, port)).await {
            let addresses: Vec<SocketAddr> = addresses.collect();
            endpoint.resolve(addresses);
        }
    });
}

/// Connects to a unix socket. While the server's backlog is full, a nonblocking connect fails at
/// once, so the function retries until the deadline.
async fn connect_unix(path: &Path, deadline: Instant) -> io::Result<UnixStream> {
    loop {
        match UnixStream::connect(path).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => (),
            connected => return connected,
        }
        if Instant::now() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        sleep(QUEUE_PAUSE).await;
    }
}
