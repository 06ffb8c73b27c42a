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

/// The map, and some groups, as they were at one time.
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

    /// The map, and who leads these groups.
    ///
    /// # Errors
    /// [`CoordinatorError`].
    pub fn look(&mut self, groups: &[String]) -> Result<MapView, CoordinatorError> {
        let of_groups = groups.iter().flat_map(|group| {
            let record = Range::One(self.key(&format!("groups/{group}")));
            [record, Range::Under(self.key(&format!("nodes/{group}/")))]
        });
        let ranges: Vec<Range> =
            std::iter::once(Range::One(self.key("map"))).chain(of_groups).collect();
        let mut answers = self.etcd.read(&ranges)?.into_iter();
        let map = answers.next().unwrap_or_default().pop();
        let revision = map.as_ref().map_or(0, |map| map.revision);
        let map = map
            .map(|map| read_map(&map.value).ok_or_else(|| CoordinatorError::malformed(&map.key)))
            .transpose()?;
        let mut leaders = BTreeMap::new();
        for group in groups {
            let (record, nodes) = (answers.next(), answers.next().unwrap_or_default());
            if let Some(record) = record.and_then(|mut record| record.pop()) {
                leaders.insert(group.clone(), leader(&record, &nodes)?);
            }
        }
        Ok(MapView { map, revision, leaders })
    }

    /// Replaces the map if its number is still `revision` (0: if there is none), and if the record of a group still has
    /// this number, where one is given. The map's new number; `None` if something has changed.
    ///
    /// # Errors
    /// [`CoordinatorError`]: whether it was replaced is not known.
    pub fn swap(
        &mut self,
        revision: Revision,
        map: &SlotMap,
        record: Option<(&str, Revision)>,
    ) -> Result<Option<Revision>, CoordinatorError> {
        let record = record.map(|(group, number)| (self.key(&format!("groups/{group}")), number));
        self.etcd.replace_while(&self.key("map"), revision, &write_map(map), record)
    }
}

fn leader(record: &KeyValue, nodes: &[KeyValue]) -> Result<LeaderView, CoordinatorError> {
    let revision = record.revision;
    let record =
        read_record(&record.value).ok_or_else(|| CoordinatorError::malformed(&record.key))?;
    let node = nodes.iter().find(|node| node.name() == record.leader.node);
    let address = node.and_then(|node| read_addresses(&node.value)).map(|of| of.members);
    Ok(LeaderView { record, revision, address })
}
