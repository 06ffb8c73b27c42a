//! The record of a group in etcd, and operators' requests to the group.

use crate::GroupName;
use crate::client::Etcd;
use crate::client::requests::{KeyValue, Range, delete_request, has_revision};
use crate::history::restore;
use crate::records::{
    read_ack, read_addresses, read_incarnation, read_record, read_transfer, write_record,
    write_settings, write_transfer,
};
use crate::survey::{ClusterSurvey, ValueKind, survey};
use larder_replica::{
    AckMode, Coordinator, CoordinatorError, GroupView, OperatorRequests, Record, Revision,
    TRANSFER_TIME_MAX,
};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A read is quick if etcd has answered within this time. Only after a quick read may the next read
/// start with a request for the revision.
const QUICK_READ_MAX: Duration = Duration::from_millis(200);

/// The lifetime of a request for a leadership transfer, in seconds.
pub const TRANSFER_REQUEST_SECS: u64 = 5;

// A request must outlast the transfer that carries it out.
const _: () = assert!(TRANSFER_TIME_MAX < TRANSFER_REQUEST_SECS * 1000);

/// A client for a group's keys in etcd.
#[derive(Debug)]
pub struct EtcdGroup {
    etcd: Etcd,
    name: GroupName,
    /// The result of the last read, and the revision of etcd at that time. `None` before the first
    /// read, and after a failed read.
    last: Option<(Revision, GroupView)>,
    /// Whether the last two reads have shown the same revision of etcd, and the last one was quick.
    is_quiet: bool,
    /// Whether a request of the last read has failed, although the read has succeeded.
    has_failed: bool,
}

impl EtcdGroup {
    /// Creates a client for a group.
    #[must_use]
    pub fn new(etcd: Etcd, name: GroupName) -> Self {
        Self { etcd, name, last: None, is_quiet: false, has_failed: false }
    }

    /// Returns the revision of etcd at the last read; `None` before the first read, and if a
    /// request of the last read has failed.
    #[must_use]
    pub fn read_revision(&self) -> Option<Revision> {
        self.last.as_ref().filter(|_| !self.has_failed).map(|(revision, _)| *revision)
    }

    /// Reads the group, in a call that started at `start`.
    fn read_all(&mut self, start: Instant) -> Result<(Revision, GroupView), CoordinatorError> {
        let under = |kind| Range::Under(format!("{}/", self.name.key(kind)));
        let one = |kind| Range::One(self.name.key(kind));
        let ranges =
            [one("groups"), under("live"), under("nodes"), one("settings"), one("transfer")];
        let (answers, revision) = self.etcd.read_since(start, &ranges)?;
        let mut answers = answers.into_iter();
        let mut next = || answers.next().unwrap_or_default();
        let (record, live, nodes) = (next(), next(), next());
        let requests = requests(next().first(), next().first());
        let view = view(record.first(), live.iter(), nodes.iter())?;
        Ok((revision, GroupView { requests, ..view }))
    }

    /// Sets which changes wait for acknowledgements. The setting overrides `--ack` of the group's
    /// nodes. `None` removes the setting.
    ///
    /// # Errors
    /// [`CoordinatorError`].
    pub fn set_ack(&mut self, ack: Option<AckMode>) -> Result<(), CoordinatorError> {
        let key = self.name.key("settings");
        match ack {
            Some(ack) => self.etcd.put(&key, &write_settings(ack), None),
            None => self.etcd.transact(&[], &[delete_request(&key)], &[]).map(drop),
        }
    }

    /// Replaces a malformed record with the last valid record before it. Returns false if it finds
    /// no valid record.
    ///
    /// # Errors
    /// [`CoordinatorError`]: the record may have been replaced.
    pub fn restore_record(&mut self) -> Result<bool, CoordinatorError> {
        restore(&mut self.etcd, &self.name.key("groups"), |value| read_record(value).is_some())
    }

    /// Requests that the leader of this epoch transfers its leadership to the node `to`, or to any
    /// member in sync if `to` is `None`. The request expires after [`TRANSFER_REQUEST_SECS`].
    ///
    /// # Errors
    /// [`CoordinatorError`].
    pub fn request_transfer(
        &mut self,
        epoch: u32,
        to: Option<String>,
    ) -> Result<(), CoordinatorError> {
        let request = write_transfer(epoch, to);
        self.etcd.put(&self.name.key("transfer"), &request, Some(TRANSFER_REQUEST_SECS))
    }

    /// Removes a node's addresses if no process of the node is live and the group's record has this
    /// revision (0: the group has no record).
    ///
    /// # Errors
    /// [`CoordinatorError`]: the addresses may have been removed.
    pub fn forget(
        &mut self,
        node: &str,
        revision: Revision,
    ) -> Result<Forgotten, CoordinatorError> {
        let key = |kind| format!("{}/{node}", self.name.key(kind));
        let comparisons =
            [has_revision(&key("live"), 0), has_revision(&self.name.key("groups"), revision)];
        let node_key = key("nodes");
        let requests = [Range::One(node_key.clone()).request(), delete_request(&node_key)];
        let done = self.etcd.transact(&comparisons, &requests, &[])?;
        Ok(match (done.has_succeeded, done.ranges.iter().flatten().next()) {
            (false, _) => Forgotten::Refused,
            (true, None) => Forgotten::Absent,
            (true, Some(_)) => Forgotten::Removed,
        })
    }
}

/// The result of [`EtcdGroup::forget`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgotten {
    /// etcd had the node's addresses, and has removed them.
    Removed,
    /// etcd did not have the node's addresses.
    Absent,
    /// The node is live, or the record has another revision. Nothing was removed.
    Refused,
}

impl Coordinator for EtcdGroup {
    fn read(&mut self) -> Result<GroupView, CoordinatorError> {
        let (start, failures, last) = (Instant::now(), self.etcd.failures(), self.last.take());
        self.has_failed = false;
        if self.is_quiet
            && let Some((revision, view)) = &last
            && self.etcd.revision(&self.name.key("groups"), QUICK_READ_MAX) == Ok(*revision)
        {
            // No key in etcd has changed. The request for the revision costs etcd half as much as a
            // read of the group.
            let view = view.clone();
            self.last = last;
            return Ok(view);
        }
        // Both requests together have the time limit of one call.
        let (revision, view) = self.read_all(start)?;
        let is_same = last.is_some_and(|(before, _)| before == revision);
        self.is_quiet = is_same && start.elapsed() < QUICK_READ_MAX;
        self.has_failed = self.etcd.failures() != failures;
        self.last = Some((revision, view.clone()));
        Ok(view)
    }

    fn swap(
        &mut self,
        revision: Revision,
        record: &Record,
    ) -> Result<Option<Revision>, CoordinatorError> {
        self.etcd.replace(&self.name.key("groups"), revision, &write_record(record))
    }
}

/// Reads all groups of a cluster, by name. Their views have no transfer requests.
///
/// # Errors
/// [`CoordinatorError`]: etcd did not answer, or the record of a group is malformed.
pub fn groups(
    etcd: &mut Etcd,
    cluster: &str,
) -> Result<BTreeMap<String, GroupView>, CoordinatorError> {
    let ClusterSurvey { groups, faults, .. } = survey(etcd, cluster)?;
    let malformed = faults.into_iter().find(|fault| fault.kind == ValueKind::Record);
    malformed.map_or(Ok(groups), |fault| Err(CoordinatorError::MalformedValue(fault.key)))
}

fn view<'k>(
    record: Option<&KeyValue>,
    live: impl Iterator<Item = &'k KeyValue>,
    nodes: impl Iterator<Item = &'k KeyValue>,
) -> Result<GroupView, CoordinatorError> {
    let revision = record.map_or(0, |record| record.revision);
    let record = record
        .map(|record| {
            let malformed = || CoordinatorError::MalformedValue(record.key.clone());
            read_record(&record.value).ok_or_else(malformed)
        })
        .transpose()?;
    let node = |one: &KeyValue| one.member().map(|(_, node)| node.to_owned());
    let live = live.filter_map(|one| Some((node(one)?, read_incarnation(&one.value)?)));
    let addresses = nodes.filter_map(|one| Some((node(one)?, read_addresses(&one.value)?)));
    let (live, addresses) = (live.collect(), addresses.collect());
    Ok(GroupView { record, revision, live, addresses, requests: OperatorRequests::default() })
}

fn requests(settings: Option<&KeyValue>, transfer: Option<&KeyValue>) -> OperatorRequests {
    OperatorRequests {
        ack: settings.and_then(|one| read_ack(&one.value)),
        transfer: transfer.and_then(|one| read_transfer(&one.value, one.revision)),
    }
}
