//! Says that a process is alive.

use crate::GroupName;
use crate::records::{write_addresses, write_boot};
use crate::wire::{Etcd, number};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use larder_replica::{Addresses, CoordinatorError, Process};
use serde_json::{Value, json};

/// How long a process counts as alive after it has said so, in seconds.
pub const LEASE_SECS: u64 = 2;

/// What says that a process is alive, for as long as it is renewed.
#[derive(Debug)]
pub struct Presence {
    etcd: Etcd,
    live_key: String,
    node_key: String,
    boot: u64,
    addresses: Addresses,
    lease: Option<u64>,
}

impl Presence {
    /// For this process, which is at these addresses.
    #[must_use]
    pub fn new(etcd: Etcd, name: &GroupName, process: &Process, addresses: Addresses) -> Self {
        let key = |kind| format!("{}/{}", name.key(kind), process.node);
        let (live_key, node_key) = (key("live"), key("nodes"));
        Self { etcd, live_key, node_key, boot: process.boot, addresses, lease: None }
    }

    /// Says it now. To be called several times in [`LEASE_SECS`].
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
        // Also if somebody has removed it.
        let live = put(&self.live_key, write_boot(self.boot).as_bytes(), lease);
        let node = put(&self.node_key, &write_addresses(&self.addresses), 0);
        let key = BASE64.encode(&self.live_key);
        let is_said = json!([{
            "target": "LEASE", "result": "EQUAL", "key": key, "lease": lease.to_string(),
        }]);
        self.etcd
            .call("/v3/kv/txn", &json!({"compare": is_said, "failure": [live, node]}))
            .map(drop)
    }

    /// Renews the lease; false if it has ended.
    fn keep(&mut self, lease: u64) -> Result<bool, CoordinatorError> {
        let answer = self.etcd.call("/v3/lease/keepalive", &json!({"ID": lease.to_string()}));
        // It may have been renewed all the same.
        self.lease = Some(lease);
        let answer = answer?;
        let left = answer.get("result").and_then(|result| number(result, "TTL"));
        Ok(left.is_some_and(|left| left > 0))
    }

    /// Says that the process ends.
    ///
    /// # Errors
    /// [`CoordinatorError`]: others find out when the lease has ended.
    pub fn end(&mut self) -> Result<(), CoordinatorError> {
        let Some(lease) = self.lease.take() else { return Ok(()) };
        self.etcd.call("/v3/lease/revoke", &json!({"ID": lease.to_string()})).map(drop)
    }
}

fn put(key: &str, value: &[u8], lease: u64) -> Value {
    let (key, value) = (BASE64.encode(key), BASE64.encode(value));
    json!({"requestPut": {"key": key, "value": value, "lease": lease.to_string()}})
}
