//! The forwarders to all groups.

use super::forwarder::{Forwarder, ForwarderShared};
use super::pending::lock;
use super::route::RemoteRoute;
use larder_operations::Tracker;
use larder_session::{Conversation, GroupIndex, Route};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The forwarders to the leaders of all groups.
#[derive(Debug)]
pub struct Forwarders {
    local: Forwarder,
    others: Mutex<BTreeMap<GroupIndex, Forwarder>>,
    tracker: Arc<Tracker>,
    /// The number of sent bytes that sessions retain until the forwarded stores have results.
    sent: AtomicUsize,
}

impl Forwarders {
    /// Creates a node's forwarders. `tracker` receives item changes from other groups.
    pub(crate) fn new(tracker: &Arc<Tracker>) -> Self {
        let (local, others, sent) = Default::default();
        Self { local, others, tracker: Arc::clone(tracker), sent }
    }

    /// Returns the forwarder to the leader of a group.
    pub(crate) fn forwarder_of(&self, group: GroupIndex) -> Forwarder {
        if group == GroupIndex::OWN {
            return self.local.clone();
        }
        let create = || Forwarder::tracking(&self.tracker);
        lock(&self.others).entry(group).or_insert_with(create).clone()
    }

    /// Opens a route for a new conversation with the leader of a group.
    pub fn open(&self, group: GroupIndex, conversation: Conversation) -> Box<dyn Route> {
        Box::new(RemoteRoute::new(self.forwarder_of(group), conversation))
    }

    /// Reserves `more` bytes of memory for the sent part of a forwarded store that already has
    /// `held` bytes reserved. Returns false if the reservations of all stores would exceed `max`.
    /// If no other store has reservations, the call always succeeds.
    pub fn reserve_sent(&self, held: usize, more: usize, max: usize) -> bool {
        let before = self.sent.fetch_add(more, Ordering::Relaxed);
        let fits = before <= held || before + more <= max;
        if !fits {
            self.release_sent(more);
        }
        fits
    }

    /// Releases bytes that [`Self::reserve_sent`] has reserved.
    pub fn release_sent(&self, bytes: usize) {
        self.sent.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns how long a session may retry a request that the group has not executed.
    pub fn retry_time(&self, group: GroupIndex) -> Duration {
        self.forwarder_of(group).retry_time()
    }

    /// Requests all item changes from the other groups if a client has subscribed to prefixes.
    pub fn request_changes(&self) {
        lock(&self.others).values().for_each(Forwarder::request_changes);
    }

    /// Returns the number of forwarded batches so far.
    pub fn forwarded(&self) -> u64 {
        self.sum(|shared| &shared.forwarded)
    }

    /// Returns the number of batches so far that ended without a leader or with a lost connection.
    pub fn failures(&self) -> u64 {
        self.sum(|shared| &shared.failures)
    }

    /// Returns the number of connections that were made to leaders so far.
    pub fn connections(&self) -> u64 {
        self.sum(|shared| &shared.connections)
    }

    fn sum(&self, of: impl Fn(&ForwarderShared) -> &AtomicU64) -> u64 {
        let others = lock(&self.others);
        let all = std::iter::once(&self.local).chain(others.values());
        all.map(|forwarder| of(&forwarder.0).load(Ordering::Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_store_always_gets_memory() {
        let forwarders = Forwarders::new(&Arc::new(Tracker::new(1 << 20)));
        assert!(forwarders.reserve_sent(0, 150, 100), "no other store has memory");
        assert!(forwarders.reserve_sent(150, 1000, 100));
        assert!(!forwarders.reserve_sent(0, 1, 100));
        forwarders.release_sent(1150);
        assert!(forwarders.reserve_sent(0, 60, 100));
        assert!(forwarders.reserve_sent(0, 40, 100), "two stores together have the limit");
        assert!(!forwarders.reserve_sent(40, 1, 100));
        forwarders.release_sent(60);
        assert!(forwarders.reserve_sent(40, 1000, 100));
    }
}
