//! The forwarders to all groups.

use super::forwarder::{Forwarder, ForwarderShared};
use super::pending::lock;
use super::route::RemoteRoute;
use larder_session::{Conversation, GroupIndex, Route};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The forwarders to the leaders of all groups.
#[derive(Debug, Default)]
pub struct Forwarders {
    local: Forwarder,
    others: Mutex<BTreeMap<GroupIndex, Forwarder>>,
}

impl Forwarders {
    /// Returns the forwarder to the leader of a group.
    pub(crate) fn forwarder_of(&self, group: GroupIndex) -> Forwarder {
        if group == GroupIndex::OWN {
            return self.local.clone();
        }
        lock(&self.others).entry(group).or_default().clone()
    }

    /// Opens a route for a new conversation with the leader of a group.
    pub fn open(&self, group: GroupIndex, conversation: Conversation) -> Box<dyn Route> {
        Box::new(RemoteRoute::new(self.forwarder_of(group), conversation))
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
