//! Drivers move bytes between sockets and sessions, without interpreting them.
//!
//! With every driver, the main thread accepts connections (`acceptor.rs`). Each worker thread has a
//! worker context (`worker.rs`) with its engine handle, buffers and counters. A driver decides when
//! to poll a connection and when to do maintenance.

mod acceptor;
mod dispatch;
mod per_core;
mod tokio;
mod worker;

use crate::net::listener::Listener;
use crate::net::udp;
use crate::options::Runtime;
use crate::server::Server;
use larder_store::cache::Cache;
use std::io;
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, PoisonError};

/// The sockets for clients, and the receiving end of the life cycle's waker.
pub struct Sockets {
    /// TCP and unix sockets.
    pub listeners: Vec<Listener>,
    /// UDP sockets.
    pub udp: Vec<UdpSocket>,
    /// The receiving end of the life cycle's waker. It becomes readable when a change of phase or a
    /// reload is requested, and when a connection closes while the gate is closed.
    pub wakeups: UnixStream,
}

/// Serves clients until the server stops.
///
/// The default runtime is generic over the engine of `cache`. The Tokio runtimes use the server's
/// type-erased cache.
///
/// # Errors
/// The system cannot create a thread or an event queue.
pub fn run<C: Cache>(
    server: &Arc<Server>,
    cache: &C,
    Sockets { listeners, udp, wakeups }: Sockets,
) -> io::Result<()> {
    if server.options.runtime != Runtime::PerCore {
        return run_tokio(server, Sockets { listeners, udp, wakeups });
    }
    let workers = per_core::start(server, cache, shares(udp, server.options.threads))?;
    acceptor::serve(server, workers, listeners, wakeups)
}

/// Runs a Tokio runtime. This function is not generic, so it is compiled only once, in this crate.
fn run_tokio(server: &Arc<Server>, Sockets { listeners, udp, wakeups }: Sockets) -> io::Result<()> {
    let workers = if server.options.runtime == Runtime::TokioCurrentThread {
        tokio::start_each(server, &server.cache, shares(udp, server.options.threads))?
    } else {
        tokio::start_all(server, &server.cache, udp)?
    };
    acceptor::serve(server, workers, listeners, wakeups)
}

/// Calls [`run`] with the server's type-erased cache. This instance of `run` is compiled only once,
/// in this crate.
///
/// # Errors
/// See [`run`].
pub fn run_any(server: &Arc<Server>, sockets: Sockets) -> io::Result<()> {
    run(server, &server.cache, sockets)
}

/// Distributes the UDP sockets among the threads, round-robin. Returns one list per thread.
fn shares(udp: Vec<UdpSocket>, threads: usize) -> Vec<Vec<UdpSocket>> {
    let mut shares: Vec<Vec<UdpSocket>> = (0..threads).map(|_| Vec::new()).collect();
    for (index, socket) in udp.into_iter().enumerate() {
        shares[index % threads].push(socket);
    }
    shares
}

impl Server {
    /// Records the listeners for `stats conns`, where their IDs start at 1. Call this before
    /// accepting connections.
    pub fn note_listeners(&self, listeners: &[Listener], udp: &[UdpSocket]) {
        let mut names = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        *names = listeners.iter().map(Listener::name).chain(udp.iter().map(udp::name)).collect();
        self.connections.reserve_ids(names.len() as u64);
    }

    /// Returns the addresses of all listeners, in memcached's format.
    #[must_use]
    pub fn listening(&self) -> Vec<String> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
