//! A group, as its members read and change it.

use crate::records::{read_addresses, read_boot, read_record, write_record};
use crate::wire::{Etcd, KeyValue, Range};
use crate::{GroupName, cluster_key};
use larder_replica::{Coordinator, CoordinatorError, Record, Revision, View};
use std::collections::{BTreeMap, BTreeSet};

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
}

impl Coordinator for EtcdGroup {
    fn look(&mut self) -> Result<View, CoordinatorError> {
        let under = |kind| Range::Under(format!("{}/", self.name.key(kind)));
        let ranges = [Range::One(self.name.key("groups")), under("live"), under("nodes")];
        let mut answers = self.etcd.read(&ranges)?.into_iter();
        let mut next = || answers.next().unwrap_or_default();
        let (record, live, nodes) = (next(), next(), next());
        view(record.first(), live.iter(), nodes.iter())
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
    let under = |kind| Range::Under(format!("{}{kind}/", cluster_key(cluster)));
    let mut answers = etcd.read(&[under("groups"), under("live"), under("nodes")])?.into_iter();
    let mut next = || answers.next().unwrap_or_default();
    let (records, live, nodes) = (next(), next(), next());
    let names = records.iter().map(KeyValue::name).chain(nodes.iter().map(KeyValue::folder));
    let names: BTreeSet<&str> = names.collect();
    let of_group = |name: &str| {
        let record = records.iter().find(|record| record.name() == name);
        let is_of = |one: &&KeyValue| one.folder() == name;
        let view = view(record, live.iter().filter(is_of), nodes.iter().filter(is_of))?;
        Ok((name.to_owned(), view))
    };
    names.into_iter().map(of_group).collect()
}

fn view<'k>(
    record: Option<&KeyValue>,
    live: impl Iterator<Item = &'k KeyValue>,
    nodes: impl Iterator<Item = &'k KeyValue>,
) -> Result<View, CoordinatorError> {
    let revision = record.map_or(0, |record| record.revision);
    let malformed =
        |key: &str| CoordinatorError(format!("the value of {key} in etcd is no record"));
    let record = record
        .map(|record| read_record(&record.value).ok_or_else(|| malformed(&record.key)))
        .transpose()?;
    let live = live.filter_map(|one| Some((one.name().to_owned(), read_boot(&one.value)?)));
    let addresses =
        nodes.filter_map(|one| Some((one.name().to_owned(), read_addresses(&one.value)?)));
    Ok(View { record, revision, live: live.collect(), addresses: addresses.collect() })
}
