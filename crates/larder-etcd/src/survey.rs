//! Reads all keys of a cluster for operators' commands. Reports malformed keys and values, and
//! still returns the others.

use crate::client::Etcd;
use crate::client::requests::{KeyValue, Range};
use crate::cluster_key;
use crate::identity;
use crate::keys::ClusterKey;
use crate::records::{read_ack, read_addresses, read_incarnation, read_map, read_record};
use larder_replica::{CoordinatorError, GroupView, ShardMap};
use std::collections::BTreeMap;
use std::fmt;

/// The state of a cluster in etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterSurvey {
    /// Maps group names to views of the groups. The views have no transfer requests. A view omits
    /// malformed values as if etcd did not have them.
    pub groups: BTreeMap<String, GroupView>,
    /// The shard map; `None` if it is absent or malformed.
    pub map: Option<ShardMap>,
    /// The malformed keys, and the keys with malformed values, in ascending order.
    pub faults: Vec<MalformedKey>,
}

/// A malformed key, or a key with a malformed value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MalformedKey {
    /// The key. Invalid UTF-8 is replaced.
    pub key: String,
    /// The kind of value that the key should have.
    pub kind: ValueKind,
    /// The group that the key names; `None` if the key names no group.
    pub group: Option<String>,
    /// The node that the key names; `None` if the key names no node.
    pub node: Option<String>,
}

/// The kind of a value in etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// The identity of the cluster.
    Identity,
    /// The record of a group.
    Record,
    /// The incarnation of a live process.
    Incarnation,
    /// The addresses of a node.
    Addresses,
    /// The settings of a group.
    Settings,
    /// The shard map.
    ShardMap,
    /// An unknown kind: the key itself is malformed.
    Unknown,
}

impl fmt::Display for MalformedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            ValueKind::Unknown => write!(f, "unexpected key {:?} in etcd", self.key),
            _ => write!(f, "malformed value of {} in etcd", self.key),
        }
    }
}

/// Reads all keys of a cluster.
///
/// # Errors
/// [`CoordinatorError`]: etcd did not answer.
pub fn survey(etcd: &mut Etcd, cluster: &str) -> Result<ClusterSurvey, CoordinatorError> {
    let prefix = cluster_key(cluster);
    let answers = etcd.read(&[Range::Under(prefix.clone())])?;
    let mut survey = ClusterSurvey::default();
    for one in answers.iter().flatten() {
        survey.add(one);
    }
    Ok(survey)
}

impl ClusterSurvey {
    fn add(&mut self, one: &KeyValue) {
        let (kind, group, node, is_valid) = match ClusterKey::parse(&one.key) {
            Some(ClusterKey::Record { group }) => {
                (ValueKind::Record, Some(group), None, self.add_record(group, one))
            }
            Some(ClusterKey::Settings { group }) => {
                (ValueKind::Settings, Some(group), None, self.add_settings(group, one))
            }
            Some(ClusterKey::Live { group, node }) => {
                (ValueKind::Incarnation, Some(group), Some(node), self.add_live(group, node, one))
            }
            Some(ClusterKey::Node { group, node }) => {
                (ValueKind::Addresses, Some(group), Some(node), self.add_node(group, node, one))
            }
            Some(ClusterKey::Identity) => {
                (ValueKind::Identity, None, None, identity::is_valid(&one.value))
            }
            Some(ClusterKey::Map) => {
                self.map = read_map(&one.value);
                (ValueKind::ShardMap, None, None, self.map.is_some())
            }
            Some(ClusterKey::Discovery | ClusterKey::Transfer) => return,
            None => (ValueKind::Unknown, None, None, false),
        };
        if !is_valid {
            let (group, node) = (group.map(str::to_owned), node.map(str::to_owned));
            self.faults.push(MalformedKey { key: one.key.clone(), kind, group, node });
        }
    }

    fn group(&mut self, name: &str) -> &mut GroupView {
        self.groups.entry(name.to_owned()).or_default()
    }

    fn add_record(&mut self, group: &str, one: &KeyValue) -> bool {
        let view = self.group(group);
        (view.record, view.revision) = (read_record(&one.value), one.revision);
        view.record.is_some()
    }

    fn add_settings(&mut self, group: &str, one: &KeyValue) -> bool {
        let view = self.group(group);
        view.requests.ack = read_ack(&one.value);
        view.requests.ack.is_some()
    }

    fn add_live(&mut self, group: &str, node: &str, one: &KeyValue) -> bool {
        let incarnation = read_incarnation(&one.value);
        if let Some(incarnation) = incarnation {
            self.group(group).live.insert(node.to_owned(), incarnation);
        }
        incarnation.is_some()
    }

    fn add_node(&mut self, group: &str, node: &str, one: &KeyValue) -> bool {
        let view = self.group(group);
        let addresses = read_addresses(&one.value);
        let is_valid = addresses.is_some();
        view.addresses.extend(addresses.map(|addresses| (node.to_owned(), addresses)));
        is_valid
    }
}
