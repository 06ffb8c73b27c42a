//! The open connections of peers for one purpose. Each peer process has at most one: a later
//! connection permanently closes the earlier one.

use crate::error::{LocalError, PeerError};
use larder_store::Fence;
use larder_support::clock::boot_millis;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Maps the incarnation of each peer process to the number and the fence of its open connection.
type OpenLinks = Arc<Mutex<HashMap<u64, (u64, Arc<Fence>)>>>;

/// The open connections for one purpose.
#[derive(Default)]
pub(crate) struct LinkRegistry(OpenLinks);

/// An open connection. Dropping it closes its fence.
pub(crate) struct AdmittedLink {
    open: OpenLinks,
    peer: u64,
    number: u64,
    /// Limits the time in which forwarded requests may change items. A later connection from the
    /// peer closes the fence. On connections without forwarded requests, the fence only shows that
    /// a later connection exists.
    pub(crate) fence: Arc<Fence>,
}

impl LinkRegistry {
    /// Admits a connection of the process with the incarnation `peer`, and closes the fence of its
    /// earlier connection. Call this before the peer learns that its connection is accepted: from
    /// then on, the peer assumes that the earlier connection has ended.
    ///
    /// # Errors
    /// The process has opened a connection with a higher number, so it has given up this
    /// connection.
    pub(crate) fn admit(&self, peer: u64, number: u64) -> Result<AdmittedLink, PeerError> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if open.get(&peer).is_some_and(|(later, _)| *later > number) {
            return Err(LocalError::Obsolete.into());
        }
        let fence = Arc::new(Fence::new(boot_millis));
        if let Some((_, earlier)) = open.insert(peer, (number, Arc::clone(&fence))) {
            earlier.close();
        }
        Ok(AdmittedLink { open: Arc::clone(&self.0), peer, number, fence })
    }
}

impl AdmittedLink {
    /// Returns whether the fence accepts further leases. The fence does so if the peer has no later
    /// connection for the same purpose, and no change arrived on this connection after the end of
    /// its lease.
    pub(crate) fn is_current(&self) -> bool {
        !self.fence.is_closed()
    }
}

impl Drop for AdmittedLink {
    fn drop(&mut self) {
        self.fence.close();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.get(&self.peer).is_some_and(|(number, _)| *number == self.number) {
            open.remove(&self.peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_connection_of_a_process_closes_the_earlier_one_for_good() {
        let registry = LinkRegistry::default();
        let (first, other) = (registry.admit(7, 1).unwrap(), registry.admit(8, 1).unwrap());
        first.fence.extend(u64::MAX);
        assert!(first.fence.is_open());
        let second = registry.admit(7, 3).unwrap();
        first.fence.extend(u64::MAX);
        assert!(first.fence.is_closed() && !second.fence.is_closed() && !other.fence.is_closed());
        drop(first);
        assert!(registry.admit(7, 2).is_err(), "its handshake was late");
        drop(second);
        assert!(registry.admit(7, 2).is_ok());
    }
}
