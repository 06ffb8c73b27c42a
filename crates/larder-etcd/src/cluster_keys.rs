//! A replica of all keys of a cluster, for which etcd sends only the changes.
//!
//! A read requests the keys with a later revision than the last read, and etcd also returns the
//! number `n` of all keys. If a key in etcd was written since the last read, the reply contains it.
//! Otherwise, the key has the same value as at the last read, and the replica contains it already.
//! After the replica has stored the keys of the reply, it therefore contains all keys in etcd with
//! their current values. If it then has `n` keys, it contains no other keys. If it has more, some
//! keys were deleted in etcd, and a complete read follows. No change between two reads is missed: a
//! key that was deleted and written again is in the reply, too.
//!
//! Until that complete read, the replica may have a value that was replaced before its key was
//! deleted. A node that used such an earlier shard map would remove the items of slots that it has
//! imported. So each read also requests the map itself.
//!
//! This reasoning holds only within one history of revisions. An etcd that was restored from a
//! backup has another history. A complete read therefore also follows a failed request, and
//! complete reads repeat at an interval. Their times are random, so that the nodes do not all read
//! at the same time.

use crate::client::Etcd;
use crate::client::requests::{KeyValue, Range};
use crate::cluster_key;
use larder_replica::{CoordinatorError, Revision};
use std::collections::BTreeMap;
use std::ops::Range as TimeRange;
use std::time::{Duration, Instant};

/// The limits of the random time from a complete read to the next one, in seconds.
const COMPLETE_READ_SECS: TimeRange<f64> = 45.0..75.0;
/// The limits of the random time from a deletion or a failed request to the complete read that
/// follows it, in seconds.
const SOON_SECS: TimeRange<f64> = 0.0..2.0;

/// A replica of all keys of a cluster.
#[derive(Debug)]
pub struct ClusterKeys {
    prefix: String,
    keys: BTreeMap<String, KeyValue>,
    /// The number of keys in etcd that the replica lacks because each has the same name in the
    /// replica as another key. The replacement of invalid UTF-8 can make names equal.
    equal_names: u64,
    /// The revision of etcd at the last read.
    revision: Revision,
    /// The time of the last read; `None` before the first read.
    read_at: Option<Instant>,
    /// The time of the next complete read; `None` before the first complete read.
    complete_due: Option<Instant>,
    complete_reads: u64,
}

impl ClusterKeys {
    /// Creates an empty replica. The first [`Self::update`] reads all keys.
    pub(crate) fn new(cluster: &str) -> Self {
        Self {
            prefix: cluster_key(cluster),
            keys: BTreeMap::new(),
            equal_names: 0,
            revision: 0,
            read_at: None,
            complete_due: None,
            complete_reads: 0,
        }
    }

    /// Reads the changes since the last call, or all keys if a complete read is due. After an
    /// error, the replica is unchanged.
    pub(crate) fn update(&mut self, etcd: &mut Etcd) -> Result<(), CoordinatorError> {
        let (requested_at, failures) = (Instant::now(), etcd.failures());
        if self.complete_due.is_none() || self.is_due() || !self.read_changes(etcd)? {
            self.read_all(etcd).inspect_err(|_| {
                self.complete_due = self.complete_due.map(|_| after(SOON_SECS));
            })?;
        } else if etcd.failures() != failures {
            self.read_all_soon();
        }
        self.read_at = Some(requested_at);
        Ok(())
    }

    fn read_all(&mut self, etcd: &mut Etcd) -> Result<(), CoordinatorError> {
        let all = Range::Under(self.prefix.clone());
        let Changes { keys, count, revision, .. } = self.read(etcd, &all)?;
        self.keys = keys.into_iter().map(|one| (one.key.clone(), one)).collect();
        self.equal_names = count.saturating_sub(self.keys.len() as u64);
        (self.revision, self.complete_due) = (revision, Some(after(COMPLETE_READ_SECS)));
        self.complete_reads += 1;
        Ok(())
    }

    /// Reads the changes. Returns false if etcd has lost its last revisions.
    fn read_changes(&mut self, etcd: &mut Etcd) -> Result<bool, CoordinatorError> {
        let since = Range::ChangedUnder(self.prefix.clone(), self.revision + 1);
        let changes = self.read(etcd, &since).inspect_err(|_| self.read_all_soon());
        let Changes { keys, map, count, revision } = changes?;
        if revision < self.revision {
            return Ok(false);
        }
        self.keys.remove(&self.map_key());
        self.keys.extend(keys.into_iter().chain(map).map(|one| (one.key.clone(), one)));
        self.revision = revision;
        if self.keys.len() as u64 + self.equal_names != count {
            self.read_all_soon();
        }
        Ok(true)
    }

    fn read(&self, etcd: &mut Etcd, range: &Range) -> Result<Changes, CoordinatorError> {
        let map = Range::One(self.map_key());
        let done = etcd.transact(&[], &[range.request(), map.request()], &[])?;
        let missing = CoordinatorError::MalformedReply("the keys of the cluster");
        let mut ranges = done.ranges.into_iter();
        let reply = (ranges.next(), ranges.next(), done.counts.first());
        let (Some(keys), Some(map), Some(&count)) = reply else { return Err(missing) };
        Ok(Changes { keys, map: map.into_iter().next(), count, revision: done.revision })
    }

    fn map_key(&self) -> String {
        format!("{}map", self.prefix)
    }

    /// Plans a complete read, because the replica may have keys or values that etcd does not have.
    pub(crate) fn read_all_soon(&mut self) {
        let soon = after(SOON_SECS);
        self.complete_due = self.complete_due.map(|due| due.min(soon));
    }

    /// Makes the next read complete.
    pub(crate) fn read_all_next(&mut self) {
        self.complete_due = None;
    }

    /// Returns whether a complete read is due.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.complete_due.is_some_and(|due| due <= Instant::now())
    }

    /// Returns whether the last read was requested within this time.
    #[must_use]
    pub fn is_younger(&self, than: Duration) -> bool {
        self.read_at.is_some_and(|read_at| read_at.elapsed() < than)
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

    /// Returns the key whose name after the cluster's prefix is `name`.
    pub(crate) fn get(&self, name: &str) -> Option<&KeyValue> {
        self.keys.get(&format!("{}{name}", self.prefix))
    }

    /// Returns the keys of the kind `kind`, which is the first part of a key's name after the
    /// cluster's prefix.
    pub(crate) fn of_kind(&self, kind: &str) -> impl Iterator<Item = &KeyValue> {
        let start = format!("{}{kind}/", self.prefix);
        let below = self.keys.range(start.clone()..);
        below.map(|(_, one)| one).take_while(move |one| one.key.starts_with(&start))
    }
}

/// Returns a random time from now, within these limits in seconds.
fn after(seconds: TimeRange<f64>) -> Instant {
    Instant::now() + Duration::from_secs_f64(rand::random_range(seconds))
}

/// The reply to a read of a range.
struct Changes {
    keys: Vec<KeyValue>,
    /// The shard map, if etcd has one.
    map: Option<KeyValue>,
    /// The number of all keys in the range.
    count: u64,
    revision: Revision,
}
