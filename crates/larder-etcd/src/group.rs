//! A group, as its members read and change it.

use crate::records::{
    read_ack, read_addresses, read_boot, read_hand_over, read_record, write_hand_over,
    write_record, write_settings,
};
use crate::wire::{Etcd, KeyValue, Range};
use crate::{GroupName, cluster_key};
use larder_replica::{AckMode, Coordinator, CoordinatorError, Record, Revision, View, Wishes};
use std::collections::{BTreeMap, BTreeSet};

/// How long a leader is asked to hand over, in seconds.
pub const HAND_OVER_SECS: u64 = 5;

/// A group in etcd.
#[derive(Debug)]
pub struct EtcdGroup {
    etcd: Etcd,
    name: GroupName,
}

impl EtcdGroup {
    /// The group of this name.
    #[must_use]
    pub fn new(etcd: Etcd, name: GroupName) -> Self {
        Self { etcd, name }
    }

    /// Says which changes of the group wait for acknowledgements, whatever its nodes were given.
    ///
    /// # Errors
    /// [`CoordinatorError`].
    pub fn set_ack(&mut self, ack: AckMode) -> Result<(), CoordinatorError> {
        self.etcd.put(&self.name.key("settings"), &write_settings(ack), None)
    }

    /// Asks the leader of this epoch to hand over, to the node of this name if there is one. It is asked for
    /// [`HAND_OVER_SECS`].
    ///
    /// # Errors
    /// [`CoordinatorError`].
    pub fn ask_to_hand_over(
        &mut self,
        epoch: u32,
        to: Option<String>,
    ) -> Result<(), CoordinatorError> {
        let wish = write_hand_over(epoch, to);
        self.etcd.put(&self.name.key("hand-over"), &wish, Some(HAND_OVER_SECS))
    }
}

impl Coordinator for EtcdGroup {
    fn look(&mut self) -> Result<View, CoordinatorError> {
        let under = |kind| Range::Under(format!("{}/", self.name.key(kind)));
        let one = |kind| Range::One(self.name.key(kind));
        let ranges =
            [one("groups"), under("live"), under("nodes"), one("settings"), one("hand-over")];
        let mut answers = self.etcd.read(&ranges)?.into_iter();
        let mut next = || answers.next().unwrap_or_default();
        let (record, live, nodes) = (next(), next(), next());
        let wishes = wishes(next().first(), next().first());
        Ok(View { wishes, ..view(record.first(), live.iter(), nodes.iter())? })
    }

    fn swap(
        &mut self,
        revision: Revision,
        record: &Record,
    ) -> Result<Option<Revision>, CoordinatorError> {
        self.etcd.replace(&self.name.key("groups"), revision, &write_record(record))
    }
}

/// All groups of a cluster, by their names.
///
/// # Errors
/// [`CoordinatorError`].
pub fn groups(etcd: &mut Etcd, cluster: &str) -> Result<BTreeMap<String, View>, CoordinatorError> {
    let ranges = ["groups", "live", "nodes", "settings"]
        .map(|kind| Range::Under(format!("{}{kind}/", cluster_key(cluster))));
    let mut answers = etcd.read(&ranges)?.into_iter();
    let mut next = || answers.next().unwrap_or_default();
    let (records, live, nodes, settings) = (next(), next(), next(), next());
    let names = records.iter().map(KeyValue::name).chain(nodes.iter().map(KeyValue::folder));
    let names: BTreeSet<&str> = names.collect();
    let of_group = |name: &str| {
        let record = records.iter().find(|record| record.name() == name);
        let is_of = |one: &&KeyValue| one.folder() == name;
        let view = view(record, live.iter().filter(is_of), nodes.iter().filter(is_of))?;
        let wishes = wishes(settings.iter().find(|one| one.name() == name), None);
        Ok((name.to_owned(), View { wishes, ..view }))
    };
    names.into_iter().map(of_group).collect()
}

fn view<'k>(
    record: Option<&KeyValue>,
    live: impl Iterator<Item = &'k KeyValue>,
    nodes: impl Iterator<Item = &'k KeyValue>,
) -> Result<View, CoordinatorError> {
    let revision = record.map_or(0, |record| record.revision);
    let record = record
        .map(|record| {
            read_record(&record.value).ok_or_else(|| CoordinatorError::malformed(&record.key))
        })
        .transpose()?;
    let live = live.filter_map(|one| Some((one.name().to_owned(), read_boot(&one.value)?)));
    let addresses =
        nodes.filter_map(|one| Some((one.name().to_owned(), read_addresses(&one.value)?)));
    let (live, addresses) = (live.collect(), addresses.collect());
    Ok(View { record, revision, live, addresses, wishes: Wishes::default() })
}

fn wishes(settings: Option<&KeyValue>, hand_over: Option<&KeyValue>) -> Wishes {
    Wishes {
        ack: settings.and_then(|one| read_ack(&one.value)),
        hand_over: hand_over.and_then(|one| read_hand_over(&one.value, one.revision)),
    }
}
