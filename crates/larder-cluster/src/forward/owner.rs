//! The forwarder's access to a group: its leader, and events that may change the leader.

use crate::group::Group;
use larder_replica::{Process, Revision, Role};
use std::sync::Arc;

/// A group that owns keys, as seen by its forwarder.
pub(super) trait OwnerGroup: Send + Sync {
    /// Returns the leader of the group, and the leader's address if it is published. Returns `None`
    /// if this node leads, or if the leader is unknown.
    fn leader(&self) -> Option<(Process, Option<String>)>;

    /// Returns whether waiting requests need no connection, because this node can answer them or
    /// the group no longer owns keys.
    fn needs_no_leader(&self) -> bool;

    /// Returns whether this node is transferring its leadership of the group, or was until
    /// recently.
    fn is_transfer_planned(&self) -> bool {
        false
    }

    /// Returns the revision of this node's shard map; 0 if the node has no map yet.
    fn map_revision(&self) -> Revision;

    /// Requests a read of the shard map, because a connection has failed or the peer has refused
    /// requests.
    fn note_failure(&self);
}

/// The local group.
pub(super) struct LocalGroup(pub(super) Arc<Group>);

impl OwnerGroup for LocalGroup {
    fn leader(&self) -> Option<(Process, Option<String>)> {
        let Role::Follower { leader, .. } = self.0.role() else { return None };
        let address = self.0.read(|member| member.view().addresses.get(&leader.node).cloned());
        Some((leader, address.map(|address| address.members)))
    }

    fn needs_no_leader(&self) -> bool {
        self.0.is_serving()
    }

    fn is_transfer_planned(&self) -> bool {
        self.0.is_transfer_planned()
    }

    fn map_revision(&self) -> Revision {
        self.0.topology.map_revision()
    }

    fn note_failure(&self) {
        self.0.topology.read_soon();
    }
}

/// Another group.
pub(super) struct RemoteGroup {
    pub(super) local: Arc<Group>,
    pub(super) name: String,
}

impl OwnerGroup for RemoteGroup {
    fn leader(&self) -> Option<(Process, Option<String>)> {
        let seen = self.local.topology.leader(&self.name)?;
        Some((seen.record.leader, seen.address))
    }

    fn needs_no_leader(&self) -> bool {
        !self.local.topology.knows(&self.name)
    }

    fn map_revision(&self) -> Revision {
        self.local.topology.map_revision()
    }

    fn note_failure(&self) {
        self.local.topology.read_soon();
    }
}
