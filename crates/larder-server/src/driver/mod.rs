//! Drivers move bytes between sockets and sessions, and do not interpret them.
//!
//! Under every driver the main thread accepts connections (`acceptor.rs`), and each worker thread has a
//! worker context (`worker.rs`): its engine handle, its buffers, its counters, and what it does at each
//! turn of a connection. A driver decides when a turn or maintenance is due.

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

/// The sockets of clients, and the other end of the life cycle's waker.
pub struct Sockets {
    /// TCP and Unix sockets.
    pub listeners: Vec<Listener>,
    /// UDP sockets.
    pub udp: Vec<UdpSocket>,
    /// Becomes readable when the phase of the life cycle changes.
    pub wakeups: UnixStream,
}

/// Serves until the end of the server's life cycle.
///
/// The default runtime is compiled for the engine of `cache`. Tokio's use the server's cache, which hides its engine.
///
/// # Errors
/// The system has no threads or event queues for it.
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

/// Tokio's runtimes. This function is not generic, so it is compiled once, in this crate.
fn run_tokio(server: &Arc<Server>, Sockets { listeners, udp, wakeups }: Sockets) -> io::Result<()> {
    let workers = if server.options.runtime == Runtime::TokioCurrentThread {
        tokio::start_each(server, &server.cache, shares(udp, server.options.threads))?
    } else {
        tokio::start_all(server, &server.cache, udp)?
    };
    acceptor::serve(server, workers, listeners, wakeups)
}

/// [`run`] with the server's cache, which hides its engine. This function is compiled once, in this crate.
///
/// # Errors
/// Those of [`run`].
pub fn run_any(server: &Arc<Server>, sockets: Sockets) -> io::Result<()> {
    run(server, &server.cache, sockets)
}

/// Distributes the UDP sockets among the threads.
fn shares(udp: Vec<UdpSocket>, threads: usize) -> Vec<Vec<UdpSocket>> {
    let mut shares: Vec<Vec<UdpSocket>> = (0..threads).map(|_| Vec::new()).collect();
    for (index, socket) in udp.into_iter().enumerate() {
        shares[index % threads].push(socket);
    }
    shares
}

impl Server {
    /// Notes the listeners for `stats conns`, where they have the numbers from 1: to be called before
    /// any connection is accepted.
    pub fn note_listeners(&self, listeners: &[Listener], udp: &[UdpSocket]) {
        let mut names = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        *names = listeners.iter().map(Listener::name).chain(udp.iter().map(udp::name)).collect();
        self.connections.reserve_ids(names.len() as u64);
    }

    /// Addresses that are listened on, in memcached's form.
    #[must_use]
    pub fn listening(&self) -> Vec<String> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
