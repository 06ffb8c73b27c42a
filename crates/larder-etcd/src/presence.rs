//! The lease of a live process at the coordinator.

use crate::GroupName;
use crate::client::{Etcd, KeyValue, Range, number};
use crate::records::{read_addresses, read_incarnation, write_addresses, write_incarnation};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use larder_replica::{Addresses, CoordinatorError, Process};
use serde_json::{Value, json};
use std::fmt;
use std::time::Duration;

/// The lifetime of a lease without a renewal, in seconds. The simulation (`tests/it/election.rs` of
/// `larder-replica`) has a copy, `LEASE`.
pub const LEASE_SECS: u64 = 2;

/// The lease of a process, and the keys of its node: `live`, under the lease, and `nodes`, which
/// outlives the lease. The process never replaces the keys of another live process.
#[derive(Debug)]
pub struct Presence {
    etcd: Etcd,
    live_key: String,
    node_key: String,
    incarnation: u64,
    addresses: Addresses,
    lease: Option<u64>,
}

/// A renewal has failed.
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
    /// The key of the process in etcd.
    key: String,
    incarnation: Option<u64>,
    /// The address for other nodes; `None` if it is unknown.
    address: Option<String>,
    /// The lifetime of its lease, in seconds.
    lease_secs: u64,
}

impl NameConflict {
    /// Returns the time after which the key is gone if the process has ended.
    #[must_use]
    pub fn lease_time(&self) -> Duration {
        Duration::from_secs(self.lease_secs)
    }
}

impl fmt::Display for NameConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let incarnation = write_incarnation(self.incarnation.unwrap_or_default());
        let address = self.address.as_deref().unwrap_or("an unknown address");
        write!(f, "{}: process {incarnation} at {address} has this name and is live", self.key)
    }
}

impl Presence {
    /// Creates the presence of a process with these addresses. The first [`Self::renew`] writes it.
    #[must_use]
    pub fn new(etcd: Etcd, name: &GroupName, process: &Process, addresses: Addresses) -> Self {
        let key = |kind| format!("{}/{}", name.key(kind), process.node);
        let (live_key, node_key) = (key("live"), key("nodes"));
        Self { etcd, live_key, node_key, incarnation: process.incarnation, addresses, lease: None }
    }

    /// Renews the lease, or requests a new one if it has expired. Writes both keys if `live` does
    /// not exist, or if one of them has another value or another lease of this process. Must be
    /// called several times in [`LEASE_SECS`] seconds.
    ///
    /// # Errors
    /// [`PresenceError`]. If the name is taken, nothing is written.
    pub fn renew(&mut self) -> Result<(), PresenceError> {
        let kept = match self.lease.take() {
            Some(lease) => self.keep(lease)?.then_some(lease),
            None => None,
        };
        let lease = match kept {
            Some(lease) => lease,
            None => self.etcd.grant(LEASE_SECS)?,
        };
        self.lease = Some(lease);
        let value = write_addresses(&self.addresses);
        let present = [
            compare(&self.live_key, "LEASE", json!({"lease": lease.to_string()})),
            compare(&self.node_key, "VALUE", json!({"value": BASE64.encode(&value)})),
        ];
        let read = [&self.live_key, &self.node_key].map(|key| Range::One(key.clone()).request());
        let body = json!({"compare": present, "failure": read});
        let Some(mut found) = self.etcd.transact(&body)?.failure else { return Ok(()) };
        let node = found.pop().unwrap_or_default();
        let live = found.pop().unwrap_or_default().pop();
        // An operator has removed a key, the lease has expired, or this is the first renewal.
        let own = write_incarnation(self.incarnation);
        if let Some(live) = live.as_ref().filter(|live| live.value != own.as_bytes()) {
            return Err(PresenceError::NameConflict(self.conflict_with(live, node.first())?));
        }
        let revision = live.map_or(0, |live| live.revision);
        let unchanged =
            compare(&self.live_key, "MOD", json!({"mod_revision": revision.to_string()}));
        let puts = [put(&self.live_key, own.as_bytes(), lease), put(&self.node_key, &value, 0)];
        // If another process has written the key in between, the next renewal finds it.
        self.etcd.transact(&json!({"compare": [unchanged], "success": puts}))?;
        Ok(())
    }

    fn conflict_with(
        &mut self,
        live: &KeyValue,
        node: Option<&KeyValue>,
    ) -> Result<NameConflict, CoordinatorError> {
        let id = json!({"ID": live.lease.to_string()});
        let lease = self.etcd.call("/v3/lease/timetolive", &id)?;
        Ok(NameConflict {
            key: live.key.clone(),
            incarnation: read_incarnation(&live.value),
            address: node.and_then(|node| read_addresses(&node.value)).map(|of| of.members),
            // etcd raises short lifetimes to one and a half election timeouts.
            lease_secs: number(&lease, "grantedTTL").unwrap_or(LEASE_SECS),
        })
    }

    /// Renews the lease. Returns false if it has expired.
    fn keep(&mut self, lease: u64) -> Result<bool, CoordinatorError> {
        let answer = self.etcd.call("/v3/lease/keepalive", &json!({"ID": lease.to_string()}));
        // Keep the lease after an error, too, because etcd may have renewed it.
        self.lease = Some(lease);
        let answer = answer?;
        let left = answer.get("result").and_then(|result| number(result, "TTL"));
        Ok(left.is_some_and(|left| left > 0))
    }

    /// Revokes the lease, because the process shuts down.
    ///
    /// # Errors
    /// [`CoordinatorError`]: the lease may remain until it expires.
    pub fn revoke(&mut self) -> Result<(), CoordinatorError> {
        let Some(lease) = self.lease.take() else { return Ok(()) };
        self.etcd.call("/v3/lease/revoke", &json!({"ID": lease.to_string()})).map(drop)
    }
}

fn put(key: &str, value: &[u8], lease: u64) -> Value {
    let (key, value) = (BASE64.encode(key), BASE64.encode(value));
    json!({"requestPut": {"key": key, "value": value, "lease": lease.to_string()}})
}

/// Returns a comparison of a transaction. `operand` is the field with the expected value.
fn compare(key: &str, target: &str, operand: Value) -> Value {
    let mut comparison = json!({"target": target, "result": "EQUAL", "key": BASE64.encode(key)});
    if let (Some(comparison), Value::Object(operand)) = (comparison.as_object_mut(), operand) {
        comparison.extend(operand);
    }
    comparison
}
