//! Connecting sockets.

use super::wait::Wait;
use crate::core::endpoint::address::Address;
use crate::core::endpoint::resolution::{Endpoint, share};
use crate::error::ErrorKind;
use crate::waiter::Readiness;
use nix::errno::Errno;
use nix::poll::PollFlags;
use socket2::{Domain, SockAddr, Socket, Type};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The pause between attempts to connect to a unix socket whose backlog is full.
const QUEUE_PAUSE: Duration = Duration::from_millis(5);

/// Tries an endpoint's addresses in order. Connects to the first address that accepts.
///
/// # Errors
/// `Connect`: no address accepted the connection by the deadline. Unless the endpoint is a unix
/// socket, a new thread then resolves the name again, at most once per second. `Interrupted`: a
/// waiter ended the call.
pub(crate) fn connect(
    endpoint: &Arc<Endpoint>,
    deadline: Instant,
    wait: &Wait,
) -> Result<Socket, ErrorKind> {
    if let Address::Unix(path) = &endpoint.address {
        return connect_unix(path, deadline, wait);
    }
    let addresses = endpoint.addresses();
    let mut last = timed_out();
    for (n, address) in addresses.iter().copied().enumerate() {
        let now = Instant::now();
        let time = share(deadline.saturating_duration_since(now), addresses.len() - n);
        match connect_tcp(address, now + time, wait) {
            Ok(socket) => {
                if n > 0 {
                    endpoint.prefer(address);
                }
                return Ok(socket);
            }
            Err(ErrorKind::Interrupted) => return Err(ErrorKind::Interrupted),
            Err(error) => last = error,
        }
    }
    resolve_again(endpoint);
    Err(last)
}

fn failed(error: io::Error) -> ErrorKind {
    ErrorKind::Connect(Arc::new(error))
}

fn timed_out() -> ErrorKind {
    failed(io::ErrorKind::TimedOut.into())
}

fn connect_tcp(address: SocketAddr, deadline: Instant, wait: &Wait) -> Result<Socket, ErrorKind> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).map_err(failed)?;
    socket.set_nonblocking(true).and_then(|()| socket.set_tcp_nodelay(true)).map_err(failed)?;
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() == Some(Errno::EINPROGRESS as i32) => {
            let mut ready = PollFlags::empty();
            while ready.is_empty() {
                ready = wait.for_socket(&socket, Readiness::Write, deadline).map_err(|kind| {
                    if matches!(kind, ErrorKind::Timeout) { timed_out() } else { kind }
                })?;
            }
            if let Some(error) = socket.take_error().map_err(failed)? {
                return Err(failed(error));
            }
        }
        connected => connected.map_err(failed)?,
    }
    socket.set_nonblocking(false).map_err(failed)?;
    Ok(socket)
}

/// Connects to a unix socket. While the server's backlog is full, a nonblocking connect fails at
/// once, so the function retries until the deadline.
fn connect_unix(path: &Path, deadline: Instant, wait: &Wait) -> Result<Socket, ErrorKind> {
    let address = SockAddr::unix(path).map_err(failed)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).map_err(failed)?;
    socket.set_nonblocking(true).map_err(failed)?;
    loop {
        match socket.connect(&address) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => (),
            connected => {
                let blocking = connected.and_then(|()| socket.set_nonblocking(false));
                return blocking.map(|()| socket).map_err(failed);
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(timed_out());
        }
        wait.park(left.min(QUEUE_PAUSE), || false)?;
    }
}

/// Resolves the name again in a new thread, because a lookup may take longer than the time that the
/// call has left.
fn resolve_again(endpoint: &Arc<Endpoint>) {
    if !endpoint.starts_lookup(Instant::now()) {
        return;
    }
    let endpoint = Arc::clone(endpoint);
    let lookup = move || {
        if let Ok(addresses) = resolve(&endpoint.address) {
            endpoint.resolve(addresses);
        }
    };
    // If the thread cannot be spawned, the addresses stay as they are.
    drop(std::thread::Builder::new().name("larder-resolve".to_owned()).spawn(lookup));
}

/// Resolves the socket addresses of a server. Returns an empty list for a unix socket.
///
/// # Errors
/// The name cannot be resolved.
pub(crate) fn resolve(address: &Address) -> io::Result<Vec<SocketAddr>> {
    match address {
        Address::Host(host, port) => Ok((host.as_str(), *port).to_socket_addrs()?.collect()),
        Address::Unix(_) => Ok(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{PollFd, poll};
    use std::net::TcpListener;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixListener;

    const TIME: Duration = Duration::from_secs(2);

    /// Fills the backlog of a server that never accepts connections.
    fn fill(address: &SockAddr) -> Vec<Socket> {
        let connect = || {
            let socket = Socket::new(address.domain(), Type::STREAM, None)?;
            socket.set_nonblocking(true)?;
            match socket.connect(address) {
                // Wait for a TCP connection, because opening it may take time. Opening a unix
                // connection succeeds or fails at once.
                Err(error) if error.raw_os_error() == Some(Errno::EINPROGRESS as i32) => {
                    let mut polled = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
                    match poll(&mut polled, 100_u16) {
                        Ok(1) => Ok(socket),
                        _ => Err(io::ErrorKind::WouldBlock.into()),
                    }
                }
                connected => connected.map(|()| socket),
            }
        };
        std::iter::from_fn(|| connect().ok()).take(1000).collect()
    }

    #[test]
    fn an_unresponsive_address_leaves_time_for_the_next_one() {
        let [full, good] = ["127.0.0.1:0"; 2].map(|any| TcpListener::bind(any).unwrap());
        socket2::SockRef::from(&full).listen(1).unwrap();
        let addresses = vec![full.local_addr().unwrap(), good.local_addr().unwrap()];
        let _queue = fill(&addresses[0].into());
        let name = Address::Host("two".to_owned(), 1);
        let endpoint = Arc::new(Endpoint::new(name, addresses.clone()));
        for _ in 0..2 {
            let start_time = Instant::now();
            let socket = connect(&endpoint, start_time + TIME, &Wait(None)).unwrap();
            assert!(start_time.elapsed() < TIME);
            assert_eq!(socket.peer_addr().unwrap().as_socket(), Some(addresses[1]));
        }
        assert_eq!(endpoint.addresses(), [addresses[1], addresses[0]]);
    }

    #[test]
    fn connecting_waits_while_the_backlog_of_a_unix_socket_is_full() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        socket2::SockRef::from(&listener).listen(1).unwrap();
        let queue = fill(&SockAddr::unix(&path).unwrap());
        let endpoint = Arc::new(Endpoint::new(Address::Unix(path), Vec::new()));
        let start_time = Instant::now();
        let error =
            connect(&endpoint, start_time + Duration::from_millis(50), &Wait(None)).unwrap_err();
        assert!(
            matches!(error, ErrorKind::Connect(error) if error.kind() == io::ErrorKind::TimedOut)
        );
        assert!(start_time.elapsed() >= Duration::from_millis(50));
        std::thread::scope(|scope| {
            scope.spawn(|| queue.iter().for_each(|_| drop(listener.accept())));
            connect(&endpoint, start_time + Duration::from_secs(60), &Wait(None)).unwrap();
        });
    }
}
