//! The resolved addresses of a server.

use crate::core::endpoint::address::Address;
use crate::core::endpoint::handshake::HandshakeConfig;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The minimum time between two lookups of a name after failed connections.
const RESOLVE_PAUSE: Duration = Duration::from_secs(1);

/// A server's address, resolved socket addresses and handshake settings.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) address: Address,
    pub(crate) handshake: HandshakeConfig,
    resolved: Mutex<Resolved>,
}

#[derive(Debug)]
struct Resolved {
    addresses: Vec<SocketAddr>,
    /// The time at which the last lookup of the host name started. `None` before the first lookup.
    at: Option<Instant>,
}

impl Endpoint {
    /// Creates an endpoint. If `addresses` is empty, the client still has to resolve the name.
    pub(crate) fn new(address: Address, addresses: Vec<SocketAddr>) -> Self {
        let at = (!addresses.is_empty()).then(Instant::now);
        let resolved = Mutex::new(Resolved { addresses, at });
        Self { address, handshake: HandshakeConfig::default(), resolved }
    }

    pub(crate) fn with_handshake(self, handshake: HandshakeConfig) -> Self {
        Self { handshake, ..self }
    }

    fn resolved(&self) -> MutexGuard<'_, Resolved> {
        // Each change leaves the state consistent, so a poisoned lock is safe to use.
        self.resolved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the socket addresses in the order of connection attempts.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.resolved().addresses.clone()
    }

    /// Moves a socket address to the front, so that the next connection attempt tries it first.
    pub(crate) fn prefer(&self, address: SocketAddr) {
        self.resolved().addresses.sort_by_key(|other| *other != address);
    }

    /// Returns true if the caller must resolve the name again. The function returns true at most
    /// once per [`RESOLVE_PAUSE`]. If the function returns true, the pause restarts at `now`.
    pub(crate) fn starts_lookup(&self, now: Instant) -> bool {
        let mut resolved = self.resolved();
        let starts =
            resolved.at.is_none_or(|at| now.saturating_duration_since(at) >= RESOLVE_PAUSE);
        if starts {
            resolved.at = Some(now);
        }
        starts
    }

    /// Replaces the socket addresses after a lookup.
    pub(crate) fn resolve(&self, addresses: Vec<SocketAddr>) {
        self.resolved().addresses = addresses;
    }
}

/// Returns the time limit for connecting to the next of `left` untried addresses. Each of these
/// addresses gets an equal share of `time`, because an unresponsive address must leave time for the
/// others.
pub(crate) fn share(time: Duration, left: usize) -> Duration {
    time / u32::try_from(left.max(1)).unwrap_or(u32::MAX)
}
