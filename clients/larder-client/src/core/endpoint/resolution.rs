//! What the name of a server means at the moment.

use crate::core::endpoint::address::Address;
use crate::core::endpoint::handshake::Entry;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A name is resolved again, after connections to its addresses failed, at most so often.
const RESOLVE_PAUSE: Duration = Duration::from_secs(1);

/// An address, what its name means, and what is done on a connection to it before it is used.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) address: Address,
    pub(crate) entry: Entry,
    resolved: Mutex<Resolved>,
}

#[derive(Debug)]
struct Resolved {
    addresses: Vec<SocketAddr>,
    at: Option<Instant>,
}

impl Place {
    /// A name that was not resolved yet has no addresses.
    pub(crate) fn new(address: Address, addresses: Vec<SocketAddr>) -> Self {
        let at = (!addresses.is_empty()).then(Instant::now);
        let resolved = Mutex::new(Resolved { addresses, at });
        Self { address, entry: Entry::default(), resolved }
    }

    pub(crate) fn with(self, entry: Entry) -> Self {
        Self { entry, ..self }
    }

    fn resolved(&self) -> MutexGuard<'_, Resolved> {
        // Each change of it is whole before anything can panic.
        self.resolved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In the order in which they are tried.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.resolved().addresses.clone()
    }

    /// Makes an address the first one that is tried.
    pub(crate) fn prefer(&self, address: SocketAddr) {
        self.resolved().addresses.sort_by_key(|other| *other != address);
    }

    /// Whether the name is to be resolved again. Whoever is told so does it.
    pub(crate) fn begins_look_up(&self, now: Instant) -> bool {
        let mut resolved = self.resolved();
        let begins =
            resolved.at.is_none_or(|at| now.saturating_duration_since(at) >= RESOLVE_PAUSE);
        if begins {
            resolved.at = Some(now);
        }
        begins
    }

    /// Notes what the name means now.
    pub(crate) fn resolve(&self, addresses: Vec<SocketAddr>) {
        self.resolved().addresses = addresses;
    }
}

/// The time that the first of `left` addresses gets of what is left: one that does not answer leaves time for the
/// others.
pub(crate) fn share(time: Duration, left: usize) -> Duration {
    time / u32::try_from(left.max(1)).unwrap_or(u32::MAX)
}
