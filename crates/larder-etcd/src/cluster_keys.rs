//! A replica of all keys of a cluster, for which etcd sends only the changes.
//!
//! A read requests the keys with a revision above that of the last read, and etcd also returns the
//! number `n` of all keys. Each key in etcd has either been written since the last read, so the reply
//! has it, or it has the same value as at the last read, so the replica has it. So the replica with
//! the keys of the reply contains all keys in etcd, with their values. If it has `n` keys, it has no
//! others. If it has more, some were deleted, and a complete read follows. No sequence of changes
//! between two reads is missed: a key that was deleted and written again is in the reply, too.

use crate::client::Etcd;
use crate::client::requests::{KeyValue, Range};
use crate::cluster_key;
use larder_replica::{CoordinatorError, Revision};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The maximum time between two complete reads. They are necessary only if etcd has lost its data,
/// and has reached the revision of the replica again before the next read.
const COMPLETE_READ_INTERVAL: Duration = Duration::from_secs(60);

/// A replica of all keys of a cluster.
#[derive(Debug)]
pub struct ClusterKeys {
    prefix: String,
    keys: BTreeMap<String, KeyValue>,
    /// The revision of etcd at the last read.
    revision: Revision,
    /// The time of the last complete read; `None` if the next read must be complete.
    complete_at: Option<Instant>,
    complete_reads: u64,
}

impl ClusterKeys {
    /// Creates an empty replica. The first [`Self::update`] reads all keys.
    pub(crate) fn new(cluster: &str) -> Self {
        let (prefix, keys) = (cluster_key(cluster), BTreeMap::new());
        Self { prefix, keys, revision: 0, complete_at: None, complete_reads: 0 }
    }

    /// Reads the changes since the last call. After an error the replica is as it was before.
    pub(crate) fn update(&mut self, etcd: &mut Etcd) -> Result<(), CoordinatorError> {
        let is_recent = |at: Instant| at.elapsed() < COMPLETE_READ_INTERVAL;
        if self.complete_at.is_some_and(is_recent) && self.read_changes(etcd)? {
            return Ok(());
        }
        self.complete_at = None;
        let requested_at = Instant::now();
        let all = Range::Under(self.prefix.clone());
        let Changes { keys, revision, .. } = read(etcd, &all)?;
        self.keys = keys.into_iter().map(|one| (one.key.clone(), one)).collect();
        (self.revision, self.complete_at) = (revision, Some(requested_at));
        self.complete_reads += 1;
        Ok(())
    }

    /// Returns false if all keys must be read: some were deleted, or etcd has lost its last
    /// revisions.
    fn read_changes(&mut self, etcd: &mut Etcd) -> Result<bool, CoordinatorError> {
        let since = Range::ChangedUnder(self.prefix.clone(), self.revision + 1);
        let Changes { keys, count, revision } = read(etcd, &since)?;
        let added = keys.iter().filter(|one| !self.keys.contains_key(&one.key)).count();
        if (self.keys.len() + added) as u64 != count || revision < self.revision {
            return Ok(false);
        }
        self.keys.extend(keys.into_iter().map(|one| (one.key.clone(), one)));
        self.revision = revision;
        Ok(true)
    }

    /// Returns the revision of etcd at the last read.
    pub(crate) fn revision(&self) -> Revision {
        self.revision
    }

    /// Returns the number of complete reads.
    #[must_use]
    pub fn complete_reads(&self) -> u64 {
        self.complete_reads
    }

    /// Returns the key with this name after the prefix of the cluster.
    pub(crate) fn get(&self, name: &str) -> Option<&KeyValue> {
        self.keys.get(&format!("{}{name}", self.prefix))
    }

    /// Returns the keys of this kind, which is the part after the prefix of the cluster.
    pub(crate) fn of_kind(&self, kind: &str) -> impl Iterator<Item = &KeyValue> {
        let start = format!("{}{kind}/", self.prefix);
        let below = self.keys.range(start.clone()..);
        below.map(|(_, one)| one).take_while(move |one| one.key.starts_with(&start))
    }
}

/// The reply to a read of a range.
struct Changes {
    keys: Vec<KeyValue>,
    /// The number of all keys in the range.
    count: u64,
    revision: Revision,
}

fn read(etcd: &mut Etcd, range: &Range) -> Result<Changes, CoordinatorError> {
    let done = etcd.transact(&[], &[range.request()], &[])?;
    let missing = CoordinatorError::MalformedReply("the keys of the cluster");
    let reply = (done.ranges.into_iter().next(), done.counts.first());
    let (Some(keys), Some(&count)) = reply else { return Err(missing) };
    Ok(Changes { keys, count, revision: done.revision })
}
