//! The lease of a live process at the coordinator.

use crate::GroupName;
use crate::client::requests::{
    KeyValue, Range, comparison, has_revision, has_value, number, put_request,
};
use crate::client::{Etcd, revision};
use crate::records::{read_addresses, read_incarnation, write_addresses, write_incarnation};
use larder_replica::{Addresses, CoordinatorError, Process, Revision};
use serde_json::json;
use std::fmt;
use std::time::Duration;

/// The lifetime of a lease without a renewal, in seconds. The election simulation of
/// `larder-replica` (`tests/it/election/nodes.rs`) repeats this value as `LEASE`.
pub const LEASE_SECS: u64 = 2;

/// The lease of a process, and the keys of its node. The key `live` is attached to the lease. The
/// key `nodes` outlives the lease. The process never replaces the keys of another live process.
#[derive(Debug)]
pub struct Presence {
    etcd: Etcd,
    live_key: String,
    node_key: String,
    incarnation: u64,
    addresses: Addresses,
    lease: Option<u64>,
    /// Whether both keys were written under this lease, or were found in etcd.
    is_written: bool,
}

/// The reason why a renewal has failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PresenceError {
    /// A request to etcd has failed.
    #[error(transparent)]
    Coordinator(#[from] CoordinatorError),
    /// Another live process has the name of this node.
    #[error("{0}")]
    NameConflict(NameConflict),
}

/// Another live process that has the name of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameConflict {
    /// The `live` key of the process in etcd.
    key: String,
    incarnation: u64,
    /// The process's address for other nodes; `None` if it is unknown.
    address: Option<String>,
    /// The lifetime of the process's lease, in seconds.
    lease_secs: u64,
}

impl NameConflict {
    /// Returns the lifetime of the process's lease. If the process has ended, its key disappears
    /// within this time.
    #[must_use]
    pub fn lease_time(&self) -> Duration {
        Duration::from_secs(self.lease_secs)
    }
}

impl fmt::Display for NameConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let incarnation = write_incarnation(self.incarnation);
        let address = self.address.as_deref().unwrap_or("an unknown address");
        write!(f, "{}: process {incarnation} at {address} has this name and is live", self.key)
    }
}

impl Presence {
    /// Creates the presence of a process with these addresses. The first [`Self::renew`] writes its
    /// keys.
    #[must_use]
    pub fn new(etcd: Etcd, name: &GroupName, process: &Process, addresses: Addresses) -> Self {
        let key = |kind| format!("{}/{}", name.key(kind), process.node);
        let (live_key, node_key) = (key("live"), key("nodes"));
        let incarnation = process.incarnation;
        Self { etcd, live_key, node_key, incarnation, addresses, lease: None, is_written: false }
    }

    /// Renews the lease, or requests a new one if it has expired. With a new lease, or if
    /// `must_check` is true, writes both keys if either is missing or has changed. Call this
    /// several times within [`LEASE_SECS`] seconds. Returns a revision that the etcd server had
    /// during the call.
    ///
    /// # Errors
    /// [`PresenceError`]. After a name conflict, nothing was written.
    pub fn renew(&mut self, must_check: bool) -> Result<Revision, PresenceError> {
        let kept = match self.lease.take() {
            Some(lease) => self.keep(lease)?.map(|revision| (lease, revision)),
            None => None,
        };
        let lease = match kept {
            Some((_, revision)) if self.is_written && !must_check => return Ok(revision),
            Some((lease, _)) => lease,
            None => self.etcd.grant(LEASE_SECS)?,
        };
        (self.lease, self.is_written) = (Some(lease), false);
        let own = write_incarnation(self.incarnation);
        let addresses = write_addresses(&self.addresses);
        let reads = [&self.live_key, &self.node_key].map(|key| Range::One(key.clone()).request());
        let puts = [
            put_request(&self.live_key, own.as_bytes(), lease),
            put_request(&self.node_key, &addresses, 0),
        ];
        let mut comparisons = vec![
            comparison(&self.live_key, "LEASE", "lease", lease.to_string()),
            has_value(&self.node_key, &addresses),
        ];
        let mut writes = &puts[..0];
        loop {
            let done = self.etcd.transact(&comparisons, writes, &reads)?;
            if done.has_succeeded {
                self.is_written = true;
                return Ok(done.revision);
            }
            // The lease is new, or an operator or another process has changed a key.
            let mut found = done.ranges.into_iter().map(|keys| keys.into_iter().next());
            let (live, node) = (found.next().flatten(), found.next().flatten());
            if let Some(live) = &live
                && let Some(other) = self.other_process(live)
            {
                return Err(PresenceError::NameConflict(self.conflict(other, live, node)?));
            }
            comparisons = vec![has_revision(&self.live_key, live.map_or(0, |live| live.revision))];
            writes = &puts;
        }
    }

    /// Returns the incarnation of the other process that has written `live`. Returns `None` if this
    /// process has written `live`. Also returns `None` if `live` is malformed or has no lease,
    /// because no process writes such a value.
    fn other_process(&self, live: &KeyValue) -> Option<u64> {
        let incarnation = read_incarnation(&live.value)?;
        (live.lease != 0 && incarnation != self.incarnation).then_some(incarnation)
    }

    fn conflict(
        &mut self,
        incarnation: u64,
        live: &KeyValue,
        node: Option<KeyValue>,
    ) -> Result<NameConflict, CoordinatorError> {
        let id = json!({"ID": live.lease.to_string()});
        let lease = self.etcd.call("/v3/lease/timetolive", &id)?;
        Ok(NameConflict {
            key: live.key.clone(),
            incarnation,
            address: node
                .and_then(|node| read_addresses(&node.value))
                .map(|addresses| addresses.members),
            // Use the granted lifetime, because etcd extends lifetimes shorter than one and a half
            // election timeouts.
            lease_secs: number(&lease, "grantedTTL").unwrap_or(LEASE_SECS),
        })
    }

    /// Renews the lease. Returns the revision of etcd, or `None` if the lease has expired.
    fn keep(&mut self, lease: u64) -> Result<Option<Revision>, CoordinatorError> {
        let answer = self.etcd.call("/v3/lease/keepalive", &json!({"ID": lease.to_string()}));
        // Retain the lease even after an error, because etcd may have renewed it.
        self.lease = Some(lease);
        let answer = answer?;
        let result = answer.get("result").unwrap_or(&answer);
        let is_kept = number(result, "TTL").is_some_and(|left| left > 0);
        is_kept.then(|| revision(result)).transpose()
    }

    /// Revokes the lease when the process shuts down.
    ///
    /// # Errors
    /// [`CoordinatorError`]: the lease may remain until it expires.
    pub fn revoke(&mut self) -> Result<(), CoordinatorError> {
        let Some(lease) = self.lease.take() else { return Ok(()) };
        self.etcd.call("/v3/lease/revoke", &json!({"ID": lease.to_string()})).map(drop)
    }
}
