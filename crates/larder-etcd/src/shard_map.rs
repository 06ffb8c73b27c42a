//! The shard map of a cluster in etcd.

use crate::client::Etcd;
use crate::client::requests::KeyValue;
use crate::cluster_key;
use crate::cluster_keys::ClusterKeys;
use crate::history::{restore, restore_deleted};
use crate::keys::ClusterKey;
use crate::records::{read_addresses, read_map, read_record, write_map};
use larder_replica::{CoordinatorError, Record, Revision, ShardMap};
use std::collections::BTreeMap;

/// A client for a cluster's shard map in etcd.
#[derive(Debug)]
pub struct EtcdShardMap {
    etcd: Etcd,
    cluster: String,
    keys: ClusterKeys,
}

/// The shard map and all leaders, from one consistent read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardMapView {
    /// The map, if etcd has one.
    pub map: Option<ShardMap>,
    /// The revision of the map; 0 if there is none.
    pub revision: Revision,
    /// Maps each group's name to its leader.
    pub leaders: BTreeMap<String, LeaderView>,
    /// The revision of etcd at the read.
    pub etcd_revision: Revision,
}

/// The leader of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderView {
    /// The group's record.
    pub record: Record,
    /// The revision of the record.
    pub revision: Revision,
    /// The leader's address for other nodes, if it is published.
    pub address: Option<String>,
}

impl EtcdShardMap {
    /// Creates a client for the shard map of a cluster.
    #[must_use]
    pub fn new(etcd: Etcd, cluster: String) -> Self {
        let keys = ClusterKeys::new(&cluster);
        Self { etcd, cluster, keys }
    }

    fn key(&self, suffix: &str) -> String {
        format!("{}{suffix}", cluster_key(&self.cluster))
    }

    /// Reads the map and the leaders. Omits groups with a malformed record. etcd sends only the keys
    /// that have changed since the last call.
    ///
    /// # Errors
    /// [`CoordinatorError`]: etcd did not answer, or the map is malformed.
    pub fn read(&mut self) -> Result<ShardMapView, CoordinatorError> {
        self.keys.update(&mut self.etcd)?;
        let malformed = |map: &KeyValue| CoordinatorError::MalformedValue(map.key.clone());
        let found = self.keys.get("map");
        let revision = found.map_or(0, |map| map.revision);
        let map =
            found.map(|map| read_map(&map.value).ok_or_else(|| malformed(map))).transpose()?;
        let leaders = self.keys.of_kind("groups").filter_map(|record| leader(record, &self.keys));
        let etcd_revision = self.keys.revision();
        Ok(ShardMapView { map, revision, leaders: leaders.collect(), etcd_revision })
    }

    /// Plans a complete read, because a request to etcd has failed: etcd may have been restored
    /// from a backup.
    pub fn expect_another_history(&mut self) {
        self.keys.read_all_soon();
    }

    /// Makes the next read return all keys, because etcd has refused a swap.
    pub fn read_all_next(&mut self) {
        self.keys.read_all_next();
    }

    /// Returns the keys of the cluster as of the last [`Self::read`].
    #[must_use]
    pub fn keys(&self) -> &ClusterKeys {
        &self.keys
    }

    /// Replaces a malformed map with the last valid map before it. Returns false if it finds no
    /// valid map.
    ///
    /// # Errors
    /// [`CoordinatorError`]: the map may have been replaced.
    pub fn restore_malformed(&mut self) -> Result<bool, CoordinatorError> {
        let key = self.key("map");
        restore(&mut self.etcd, &key, |value| read_map(value).is_some())
    }

    /// Writes the last map again after it was deleted. etcd had a map at the revision `existed_at`.
    /// Returns false if etcd no longer has the last map.
    ///
    /// # Errors
    /// [`CoordinatorError`]: the map may have been written.
    pub fn restore_deleted(&mut self, existed_at: Revision) -> Result<bool, CoordinatorError> {
        let key = self.key("map");
        restore_deleted(&mut self.etcd, &key, existed_at)
    }

    /// Replaces the map if it has the revision `revision` (0: etcd has no map), and if the records
    /// of the groups in `records` have the given revisions. Returns the new revision, or `None` if
    /// one of these revisions differs.
    ///
    /// # Errors
    /// [`CoordinatorError`]: the map may have been replaced.
    pub fn swap(
        &mut self,
        revision: Revision,
        map: &ShardMap,
        records: &[(&str, Revision)],
    ) -> Result<Option<Revision>, CoordinatorError> {
        let key = |group: &str| self.key(&format!("groups/{group}"));
        let records: Vec<(String, Revision)> =
            records.iter().map(|(group, number)| (key(group), *number)).collect();
        self.etcd.replace_while(&self.key("map"), revision, &write_map(map), &records)
    }
}

/// Returns the map in the text format of its value in etcd.
#[must_use]
pub fn shown_map(map: &ShardMap) -> String {
    String::from_utf8_lossy(&write_map(map)).into_owned()
}

/// Returns the name of the group that a record belongs to, and the group's leader. `None` if the
/// key or the record is malformed.
fn leader(one: &KeyValue, keys: &ClusterKeys) -> Option<(String, LeaderView)> {
    let ClusterKey::Record { group } = ClusterKey::parse(&one.key)? else { return None };
    let (record, revision) = (read_record(&one.value)?, one.revision);
    let node = keys.get(&format!("nodes/{group}/{}", record.leader.node));
    let address =
        node.and_then(|node| read_addresses(&node.value)).map(|addresses| addresses.members);
    Some((group.to_owned(), LeaderView { record, revision, address }))
}
