//! The forwarders to all groups.

use super::forwarder::{Forwarder, ForwarderShared};
use super::pending::lock;
use super::route::RemoteRoute;
use larder_operations::Tracker;
use larder_session::{Conversation, GroupIndex, Route};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The forwarders to the leaders of all groups.
#[derive(Debug)]
pub struct Forwarders {
    local: Forwarder,
    others: Mutex<BTreeMap<GroupIndex, Forwarder>>,
    tracker: Arc<Tracker>,
}

impl Forwarders {
    /// Creates the forwarders of a node. `tracker` gets the changes of the items of other groups.
    pub(crate) fn new(tracker: &Arc<Tracker>) -> Self {
        Self { local: Forwarder::default(), others: Mutex::default(), tracker: Arc::clone(tracker) }
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

    /// Requests all changes of the items of other groups if a client has subscribed to prefixes.
    pub fn request_changes(&self) {
        lock(&self.others).values().for_each(Forwarder::request_changes);
    }

    /// Returns the number of forwarded batches so far.
    pub fn forwarded(&self) -> u64 {
        self.sum(|shared| &shared.forwarded)
    }

    /// Returns the number of connections to leaders so far.
    pub fn connections(&self) -> u64 {
        self.sum(|shared| &shared.connections)
    }

    fn sum(&self, of: impl Fn(&ForwarderShared) -> &AtomicU64) -> u64 {
        let others = lock(&self.others);
        let all = std::iter::once(&self.local).chain(others.values());
        all.map(|forwarder| of(&forwarder.0).load(Ordering::Relaxed)).sum()
    }
}
