//! The accepting thread, which all drivers share. It also changes the server's phase when a signal
//! or a command requests a change.

use super::dispatch::{Accepted, LOG_INTERVAL, Workers};
use crate::net::entry::Service;
use crate::net::listener::Listener;
use crate::process::life_cycle::{self, Phase};
use crate::process::systemd::{self, Watchdog};
use crate::server::Server;
use larder_protocol::reply;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use rustls::ServerConfig;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// After a failed `accept`, for example because no file descriptor is free, the thread waits this
/// long before it accepts again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// The maximum time that a graceful shutdown waits for connections to close.
const DRAIN_MAX: Duration = Duration::from_secs(10);
/// The token of the waker. The tokens of listeners start at 0.
const WAKER: Token = Token(usize::MAX);

/// Accepts connections and dispatches them to `workers` until the server stops. Then waits for the
/// workers to stop.
pub(super) fn serve(
    server: &Server,
    mut workers: impl Workers,
    listeners: Vec<Listener>,
    wakeups: UnixStream,
) -> io::Result<()> {
    let accepted = accept(server, &mut workers, listeners, wakeups);
    enter(server, Phase::Ended, &workers)?;
    workers.join();
    accepted
}

fn accept(
    server: &Server,
    workers: &mut impl Workers,
    listeners: Vec<Listener>,
    wakeups: UnixStream,
) -> io::Result<()> {
    let mut poll = Poll::new()?;
    for (index, listener) in listeners.iter().enumerate() {
        watch(&poll, listener, Token(index))?;
    }
    watch(&poll, &wakeups, WAKER)?;
    let mut events = Events::with_capacity(64);
    let mut paused = false;
    let mut watchdog = Watchdog::ready();
    loop {
        let timeout = if paused { Some(ACCEPT_PAUSE) } else { watchdog.interval() };
        match poll.poll(&mut events, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            polled => polled?,
        }
        watchdog.notify(server.stall_time());
        let mut all = std::mem::take(&mut paused);
        if events.iter().any(|event| event.token() == WAKER) {
            life_cycle::drain(&mut &wakeups);
            let phase = server.life.handle_requests(|| server.reload());
            if let Some(group) = server.node.group.as_ref().filter(|_| phase != Phase::Serving) {
                group.transfer_leadership(None, false);
            }
            match phase {
                // A closing connection may have caused this wake, so the server may be able to
                // accept connections from the listen backlogs. Try all listeners: events are
                // edge-triggered, so those connections cause no new event.
                Phase::Serving => all = true,
                Phase::Draining => break,
                Phase::Ended => {
                    systemd::stopping();
                    return Ok(());
                }
            }
        }
        let ready = events.iter().map(|event| event.token().0);
        let ready: Vec<usize> = if all { (0..listeners.len()).collect() } else { ready.collect() };
        for listener in ready.into_iter().filter_map(|index| listeners.get(index)) {
            paused |= !accept_all(server, listener, workers);
        }
    }
    // This is memcached's message.
    tracing::warn!("Gracefully stopping");
    systemd::stopping();
    drop(listeners);
    drain(server, workers, &mut poll, &wakeups, &mut watchdog)
}

/// Registers `source` for read events. These report input or new connections. Closing `source` ends
/// the registration.
fn watch(poll: &Poll, source: &impl AsFd, token: Token) -> io::Result<()> {
    let fd = source.as_fd().as_raw_fd();
    poll.registry().register(&mut SourceFd(&fd), token, Interest::READABLE)
}

/// Waits until the workers have closed their connections. Returns early after [`DRAIN_MAX`], or
/// when a quick stop is requested.
fn drain(
    server: &Server,
    workers: &impl Workers,
    poll: &mut Poll,
    wakeups: &UnixStream,
    watchdog: &mut Watchdog,
) -> io::Result<()> {
    enter(server, Phase::Draining, workers)?;
    let start = Instant::now();
    let mut events = Events::with_capacity(1);
    while server.connections.current.load(Ordering::Relaxed) > 0 && start.elapsed() < DRAIN_MAX {
        match poll.poll(&mut events, Some(LOG_INTERVAL)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => life_cycle::drain(&mut &*wakeups),
        }
        watchdog.notify(server.stall_time());
        if server.life.handle_requests(|| server.reload()) == Phase::Ended {
            break;
        }
    }
    Ok(())
}

fn enter(server: &Server, phase: Phase, workers: &impl Workers) -> io::Result<()> {
    server.life.enter(phase);
    workers.wake_all()
}

/// Accepts the connections in a listener's backlog while [`Server::accepts`] returns true. Returns
/// false if the server cannot accept connections now, for example because no file descriptor is
/// free.
fn accept_all(server: &Server, listener: &Listener, workers: &mut impl Workers) -> bool {
    while server.accepts() {
        match listener.accept() {
            Ok((mut stream, peer)) => {
                server.gate.set_exhausted(false);
                match server.admit(peer, &listener.name()) {
                    Some(info) => {
                        let (tls, service) = (server.tls_at(listener), listener.service());
                        workers.dispatch(Accepted { stream, info, tls, service });
                    }
                    // One write is enough, because the message fits in the socket's empty send
                    // buffer. If the write fails, the peer only sees the connection close.
                    None => drop(stream.write(match listener.service() {
                        Service::Memcached { .. } => reply::TOO_MANY_CONNECTIONS,
                        Service::Resp { .. } => reply::resp::TOO_MANY_CONNECTIONS,
                    })),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                server.gate.set_exhausted(false);
                return true;
            }
            Err(error) if is_peers(&error) => (),
            Err(error) => {
                server.gate.set_exhausted(true);
                server.warnings.accept.warn(|| {
                    format!(
                        "accepting connections: {error}; raise the limit of open files (ulimit -n), or \
                         lower -c. The server retries until it succeeds"
                    )
                });
                return false;
            }
        }
    }
    true
}

/// Returns whether an error of `accept` concerns only one connection. If so, accepting can
/// continue.
fn is_peers(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

impl Server {
    /// Returns the TLS configuration of a new connection at `listener`, or `None` for plaintext.
    fn tls_at(&self, listener: &Listener) -> Option<Arc<ServerConfig>> {
        self.access.tls.as_ref()?.configuration(listener.security())
    }
}
