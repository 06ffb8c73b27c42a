//! A group, as its members read and change it.

use crate::GroupName;
use crate::records::{read_addresses, read_boot, read_record, write_record};
use crate::wire::{Etcd, Range};
use larder_replica::{Coordinator, CoordinatorError, Record, Revision, View};

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
        let (record, live, nodes) = (next().pop(), next(), next());
        let revision = record.as_ref().map_or(0, |record| record.revision);
        let record = record
            .map(|record| {
                read_record(&record.value).ok_or_else(|| {
                    CoordinatorError(format!("the value of {} in etcd is no record", record.key))
                })
            })
            .transpose()?;
        let live =
            live.iter().filter_map(|one| Some((one.name().to_owned(), read_boot(&one.value)?)));
        let addresses = nodes
            .iter()
            .filter_map(|one| Some((one.name().to_owned(), read_addresses(&one.value)?)));
        Ok(View { record, revision, live: live.collect(), addresses: addresses.collect() })
    }

    fn swap(
        &mut self,
        revision: Revision,
        record: &Record,
    ) -> Result<Option<Revision>, CoordinatorError> {
        self.etcd.replace(&self.name.key("groups"), revision, &write_record(record))
    }
}
