//! Which group of a cluster has which keys, as its leaders and operators read and change it.

use crate::cluster_key;
use crate::records::{read_addresses, read_map, read_record, write_map};
use crate::wire::{Etcd, KeyValue, Range};
use larder_replica::{CoordinatorError, Record, Revision, SlotMap};
use std::collections::BTreeMap;

/// The map of a cluster in etcd.
#[derive(Debug)]
pub struct EtcdMap {
    etcd: Etcd,
    cluster: String,
}

/// The map, and the groups, as they were at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapView {
    /// The map, if there is one.
    pub map: Option<SlotMap>,
    /// Its number.
    pub revision: Revision,
    /// Who leads the groups that have a leader, by their names.
    pub leaders: BTreeMap<String, LeaderView>,
}

/// Who leads a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderView {
    /// The group's record.
    pub record: Record,
    /// Its number.
    pub revision: Revision,
    /// Where members of other groups find the leader, if it has said so.
    pub address: Option<String>,
}

impl EtcdMap {
    /// For this cluster.
    #[must_use]
    pub fn new(etcd: Etcd, cluster: String) -> Self {
        Self { etcd, cluster }
    }

    fn key(&self, what: &str) -> String {
        format!("{}{what}", cluster_key(&self.cluster))
    }

    /// The map, and who leads the groups. A record that can't be read is left out.
    ///
    /// # Errors
    /// [`CoordinatorError`].
    pub fn look(&mut self) -> Result<MapView, CoordinatorError> {
        let under = |kind| Range::Under(self.key(kind));
        let ranges = [Range::One(self.key("map")), under("groups/"), under("nodes/")];
        let mut answers = self.etcd.read(&ranges)?.into_iter();
        let mut next = || answers.next().unwrap_or_default();
        let (map, records, nodes) = (next().pop(), next(), next());
        let revision = map.as_ref().map_or(0, |map| map.revision);
        let map = map
            .map(|map| read_map(&map.value).ok_or_else(|| CoordinatorError::malformed(&map.key)))
            .transpose()?;
        let leaders = records
            .iter()
            .filter_map(|record| Some((record.name().to_owned(), leader(record, &nodes)?)));
        Ok(MapView { map, revision, leaders: leaders.collect() })
    }

    /// Replaces the map if its number is still `revision` (0: if there is none), and if the records of these groups still
    /// have these numbers. The map's new number; `None` if something has changed.
    ///
    /// # Errors
    /// [`CoordinatorError`]: whether it was replaced is not known.
    pub fn swap(
        &mut self,
        revision: Revision,
        map: &SlotMap,
        records: &[(&str, Revision)],
    ) -> Result<Option<Revision>, CoordinatorError> {
        let key = |group: &str| self.key(&format!("groups/{group}"));
        let records: Vec<(String, Revision)> =
            records.iter().map(|(group, number)| (key(group), *number)).collect();
        self.etcd.replace_while(&self.key("map"), revision, &write_map(map), &records)
    }
}

fn leader(record: &KeyValue, nodes: &[KeyValue]) -> Option<LeaderView> {
    let (group, revision) = (record.name(), record.revision);
    let record = read_record(&record.value)?;
    let is_leader = |node: &&KeyValue| node.folder() == group && node.name() == record.leader.node;
    let node = nodes.iter().find(is_leader);
    let address = node.and_then(|node| read_addresses(&node.value)).map(|of| of.members);
    Some(LeaderView { record, revision, address })
}
