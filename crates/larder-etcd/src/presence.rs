//! The lease of a live process at the coordinator.

use crate::GroupName;
use crate::client::{Etcd, number};
use crate::records::{write_addresses, write_incarnation};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use larder_replica::{Addresses, CoordinatorError, Process};
use serde_json::{Value, json};

/// The lifetime of a lease without a renewal, in seconds. The simulation (`tests/it/election.rs` of
/// `larder-replica`) has a copy, `LEASE`.
pub const LEASE_SECS: u64 = 2;

/// The lease of a process, and the keys of its node: `live`, under the lease, and `nodes`, which
/// outlives the lease.
#[derive(Debug)]
pub struct Presence {
    etcd: Etcd,
    live_key: String,
    node_key: String,
    incarnation: u64,
    addresses: Addresses,
    lease: Option<u64>,
}

impl Presence {
    /// Creates the presence of a process with these addresses. The first [`Self::renew`] writes it.
    #[must_use]
    pub fn new(etcd: Etcd, name: &GroupName, process: &Process, addresses: Addresses) -> Self {
        let key = |kind| format!("{}/{}", name.key(kind), process.node);
        let (live_key, node_key) = (key("live"), key("nodes"));
        Self { etcd, live_key, node_key, incarnation: process.incarnation, addresses, lease: None }
    }

    /// Renews the lease, or requests a new one if it has expired. Writes both keys if the key
    /// `live` does not belong to this lease. Must be called several times in [`LEASE_SECS`]
    /// seconds.
    ///
    /// # Errors
    /// [`CoordinatorError`].
    pub fn renew(&mut self) -> Result<(), CoordinatorError> {
        let kept = match self.lease.take() {
            Some(lease) => self.keep(lease)?.then_some(lease),
            None => None,
        };
        let lease = match kept {
            Some(lease) => lease,
            None => self.etcd.grant(LEASE_SECS)?,
        };
        self.lease = Some(lease);
        // Write the keys if the lease is new, or if an operator has removed `live`.
        let live = put(&self.live_key, write_incarnation(self.incarnation).as_bytes(), lease);
        let node = put(&self.node_key, &write_addresses(&self.addresses), 0);
        let key = BASE64.encode(&self.live_key);
        let is_written = json!([{
            "target": "LEASE", "result": "EQUAL", "key": key, "lease": lease.to_string(),
        }]);
        self.etcd
            .call("/v3/kv/txn", &json!({"compare": is_written, "failure": [live, node]}))
            .map(drop)
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
