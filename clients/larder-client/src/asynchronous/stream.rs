//! A socket, and how it is opened.

use crate::core::endpoint::address::Address;
use crate::core::endpoint::resolution::{Place, share};
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

/// After this time, connecting to a unix socket whose queue was full is tried again.
const QUEUE_PAUSE: Duration = Duration::from_millis(5);

/// A connected socket.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: Socket,
    /// Each use of it is over at once.
    tls: Option<Box<Mutex<Session>>>,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// # Errors
    /// `Connect`: the server can't be reached until the deadline. If none of its addresses can be connected to, its name
    /// is looked up again in the background. `Login`.
    pub(crate) async fn connect(place: &Arc<Place>, deadline: Instant) -> Result<Self, ErrorKind> {
        let connected = match &place.address {
            Address::Unix(path) => connect_unix(path, deadline).await.map(Socket::Unix),
            Address::Host(host, port) => {
                connect_tcp(place, host, *port, deadline).await.map(Socket::Tcp)
            }
        };
        let socket = connected.map_err(ErrorKind::connect)?;
        let mut entering = place.entry.begin()?;
        while let Some(readiness) = entering.proceed(&mut &socket)? {
            let interest = match readiness {
                Readiness::Read => Interest::READABLE,
                Readiness::Write => Interest::WRITABLE,
                Readiness::Both => Interest::READABLE.add(Interest::WRITABLE),
            };
            match timeout_at(deadline, socket.ready(interest)).await {
                Ok(ready) => ready.map_err(ErrorKind::connect)?,
                Err(_) => return Err(entering.late()),
            };
        }
        let tls = entering.session().map(|session| Box::new(Mutex::new(*session)));
        Ok(Self { socket, tls })
    }

    fn session(&self) -> Option<MutexGuard<'_, Session>> {
        // Nothing in it panics while it is locked.
        self.tls.as_ref().map(|tls| tls.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads what there is.
    ///
    /// # Errors
    /// `WouldBlock`; or the connection failed.
    pub(crate) fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        match self.session() {
            Some(mut tls) => tls.read(&mut &self.socket, into),
            None => (&self.socket).read(into),
        }
    }

    /// Sends what there is room for. After `WouldBlock`, the same bytes are the first ones of the next call.
    ///
    /// # Errors
    /// `WouldBlock`; or the connection failed.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.session() {
            Some(mut tls) => tls.write(&mut &self.socket, bytes),
            None => (&self.socket).write(bytes),
        }
    }

    /// Waits until it is worth trying.
    ///
    /// # Errors
    /// The runtime has ended.
    pub(crate) async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        let has_input = self.session().is_some_and(|mut tls| tls.has_input());
        if interest.is_readable() && has_input {
            return Ok(Ready::READABLE);
        }
        self.socket.ready(interest).await
    }

    /// Whether there is nothing to be read, not even the end, and the runtime of the socket has not ended. It asks the
    /// system, as what the runtime knows may be old.
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

    /// Whether nobody would ever say that it is ready.
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
    place: &Arc<Place>,
    host: &str,
    port: u16,
    deadline: Instant,
) -> io::Result<TcpStream> {
    if place.addresses().is_empty() {
        let looked_up = timeout_at(deadline, tokio::net::lookup_host((host, port))).await??;
        place.resolve(looked_up.collect());
    }
    let addresses = place.addresses();
    let mut last = io::Error::from(io::ErrorKind::TimedOut);
    for (n, address) in addresses.iter().copied().enumerate() {
        let now = Instant::now();
        let time = share(deadline.saturating_duration_since(now), addresses.len() - n);
        match timeout_at(now + time, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                if n > 0 {
                    place.prefer(address);
                }
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Ok(Err(error)) => last = error,
            Err(elapsed) => last = elapsed.into(),
        }
    }
    resolve_again(place, host, port);
    Err(last)
}

/// Looks the name up again, in a task of its own: that may take longer than any deadline.
fn resolve_again(place: &Arc<Place>, host: &str, port: u16) {
    if !place.begins_look_up(std::time::Instant::now()) {
        return;
    }
    let (place, host) = (Arc::clone(place), host.to_owned());
    tokio::spawn(async move {
        if let Ok(addresses) = tokio::net::lookup_host((host, port)).await {
            let addresses: Vec<SocketAddr> = addresses.collect();
            place.resolve(addresses);
        }
    });
}

/// While the server's queue is full, the system refuses at once, and connecting is tried again.
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
