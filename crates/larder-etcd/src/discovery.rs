//! The list of servers for clients (`config get cluster`).

use crate::client::Etcd;
use crate::client::requests::KeyValue;
use crate::cluster_key;
use crate::cluster_keys::ClusterKeys;
use crate::records::read_addresses;
use larder_replica::{CoordinatorError, Revision};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long a server without a lease stays in the list. Clients redistribute keys when the list
/// changes, so a short restart must not change it.
const ABSENCE_MAX: Duration = Duration::from_secs(10);

/// The list of servers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Discovery {
    /// The version of the list. Each change increments it. It wraps from 2³¹ - 1 to 0.
    pub version: u32,
    /// The sorted addresses for clients, as `HOST:PORT`.
    pub servers: Vec<String>,
}

impl Discovery {
    /// Returns the list in etcd, or an empty list if etcd has no list or a malformed one.
    #[must_use]
    pub fn listed(keys: &ClusterKeys) -> Self {
        decode(keys.get("discovery")).0
    }
}

/// Reads and updates the list. The leader of each group updates it. The other nodes only read it.
#[derive(Debug)]
pub struct DiscoveryKeeper {
    etcd: Etcd,
    cluster: String,
    /// Maps each node's address for clients to the time at which an update last found the node's
    /// lease.
    seen: BTreeMap<String, Instant>,
    started: Instant,
}

impl DiscoveryKeeper {
    /// Creates the keeper for a cluster.
    #[must_use]
    pub fn new(etcd: Etcd, cluster: String) -> Self {
        Self { etcd, cluster, seen: BTreeMap::new(), started: Instant::now() }
    }

    fn key(&self) -> String {
        format!("{}discovery", cluster_key(&self.cluster))
    }

    /// Computes the list from the nodes and their leases in `keys`. If it differs from the list in
    /// etcd, also returns the revision of that list, for [`Self::write`].
    pub fn compute(&mut self, keys: &ClusterKeys) -> (Discovery, Option<Revision>) {
        let (list, revision) = decode(keys.get("discovery"));
        let live: BTreeSet<_> = keys.of_kind("live").filter_map(KeyValue::member).collect();
        let now = Instant::now();
        let mut servers = BTreeSet::new();
        for node in keys.of_kind("nodes") {
            let address = read_addresses(&node.value).and_then(|addresses| addresses.clients);
            let (Some(address), Some(member)) = (address, node.member()) else { continue };
            if live.contains(&member) {
                self.seen.insert(address.clone(), now);
            }
            let seen = self.seen.get(&address).copied();
            // A new keeper assumes that the listed servers had their leases when it started.
            let absent_since =
                seen.or_else(|| list.servers.contains(&address).then_some(self.started));
            if absent_since.is_some_and(|since| now.duration_since(since) < ABSENCE_MAX) {
                servers.insert(address);
            }
        }
        let servers: Vec<String> = servers.into_iter().collect();
        if servers == list.servers {
            return (list, None);
        }
        // Limit the version to 31 bits, because clients parse it as a signed 32-bit number.
        (Discovery { version: (list.version + 1) & 0x7fff_ffff, servers }, Some(revision))
    }

    /// Writes a list if the list in etcd has this revision. Returns false if another leader has
    /// changed the list: etcd then keeps the list of that leader.
    ///
    /// # Errors
    /// [`CoordinatorError`]: the list may have been written.
    pub fn write(
        &mut self,
        list: &Discovery,
        revision: Revision,
    ) -> Result<bool, CoordinatorError> {
        let text = serde_json::to_vec(list).unwrap_or_default();
        Ok(self.etcd.replace(&self.key(), revision, &text)?.is_some())
    }
}

/// Returns the list and its revision. The list is empty if it is absent or malformed.
fn decode(listed: Option<&KeyValue>) -> (Discovery, u64) {
    let list = listed.and_then(|listed| serde_json::from_slice(&listed.value).ok());
    (list.unwrap_or_default(), listed.map_or(0, |listed| listed.revision))
}
