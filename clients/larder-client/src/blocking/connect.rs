//! Opening a socket to a server.

use super::wait::Wait;
use crate::core::endpoint::address::Address;
use crate::core::endpoint::resolution::{Place, share};
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

/// After this time, connecting to a unix socket whose queue was full is tried again.
const QUEUE_PAUSE: Duration = Duration::from_millis(5);

/// A connected socket.
///
/// # Errors
/// `Connect`: none of the addresses can be connected to until the deadline. The name is looked up again in the
/// background. `Interrupted`.
pub(crate) fn connect(
    place: &Arc<Place>,
    deadline: Instant,
    wait: &Wait,
) -> Result<Socket, ErrorKind> {
    if let Address::Unix(path) = &place.address {
        return connect_unix(path, deadline, wait);
    }
    let addresses = place.addresses();
    let mut last = timed_out();
    for (n, address) in addresses.iter().copied().enumerate() {
        let now = Instant::now();
        let time = share(deadline.saturating_duration_since(now), addresses.len() - n);
        match connect_tcp(address, now + time, wait) {
            Ok(socket) => {
                if n > 0 {
                    place.prefer(address);
                }
                return Ok(socket);
            }
            Err(ErrorKind::Interrupted) => return Err(ErrorKind::Interrupted),
            Err(error) => last = error,
        }
    }
    resolve_again(place);
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

/// A unix socket cannot wait for a connection without blocking: while the server's queue is full, the system refuses at
/// once, and connecting is tried again.
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

/// Looks the name up again, in a thread of its own: that may take longer than any deadline.
fn resolve_again(place: &Arc<Place>) {
    if !place.begins_look_up(Instant::now()) {
        return;
    }
    let place = Arc::clone(place);
    let look_up = move || {
        if let Ok(addresses) = resolve(&place.address) {
            place.resolve(addresses);
        }
    };
    // Without a thread, the addresses stay what they are.
    drop(std::thread::Builder::new().name("larder-resolve".to_owned()).spawn(look_up));
}

/// What a name means.
///
/// # Errors
/// There is no such name.
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

    /// Connects to a server that accepts nothing until its queue is full.
    fn fill(address: &SockAddr) -> Vec<Socket> {
        let connect = || {
            let socket = Socket::new(address.domain(), Type::STREAM, None)?;
            socket.set_nonblocking(true)?;
            match socket.connect(address) {
                // A connection over TCP takes its time; that of a unix socket is there at once or not at all.
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
    fn an_address_that_does_not_answer_leaves_time_for_the_next_one() {
        let [full, good] = ["127.0.0.1:0"; 2].map(|any| TcpListener::bind(any).unwrap());
        socket2::SockRef::from(&full).listen(1).unwrap();
        let addresses = vec![full.local_addr().unwrap(), good.local_addr().unwrap()];
        let _queue = fill(&addresses[0].into());
        let name = Address::Host("two".to_owned(), 1);
        let place = Arc::new(Place::new(name, addresses.clone()));
        for _ in 0..2 {
            let begun = Instant::now();
            let socket = connect(&place, begun + TIME, &Wait(None)).unwrap();
            assert!(begun.elapsed() < TIME);
            assert_eq!(socket.peer_addr().unwrap().as_socket(), Some(addresses[1]));
        }
        assert_eq!(place.addresses(), [addresses[1], addresses[0]]);
    }

    #[test]
    fn a_unix_socket_with_a_full_queue_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        socket2::SockRef::from(&listener).listen(1).unwrap();
        let queue = fill(&SockAddr::unix(&path).unwrap());
        let place = Arc::new(Place::new(Address::Unix(path), Vec::new()));
        let begun = Instant::now();
        let error = connect(&place, begun + Duration::from_millis(50), &Wait(None)).unwrap_err();
        assert!(
            matches!(error, ErrorKind::Connect(error) if error.kind() == io::ErrorKind::TimedOut)
        );
        assert!(begun.elapsed() >= Duration::from_millis(50));
        std::thread::scope(|scope| {
            scope.spawn(|| queue.iter().for_each(|_| drop(listener.accept())));
            connect(&place, begun + Duration::from_secs(60), &Wait(None)).unwrap();
        });
    }
}
