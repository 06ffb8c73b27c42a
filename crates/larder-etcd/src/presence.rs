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
        if let Some(lease) = self.lease {
            let answer =
                self.etcd.call("/v3/lease/keepalive", &json!({"ID": lease.to_string()}))?;
            let left = answer.get("result").and_then(|result| number(result, "TTL"));
            if left.is_some_and(|left| left > 0) {
                return Ok(());
            }
            self.lease = None;
        }
        let answer = self.etcd.call("/v3/lease/grant", &json!({"TTL": LEASE_SECS}))?;
        let lease = number(&answer, "ID")
            .ok_or_else(|| CoordinatorError("etcd grants no lease".to_owned()))?;
        let put = |key: &str, value: &[u8], lease: u64| {
            let (key, value) = (BASE64.encode(key), BASE64.encode(value));
            json!({"requestPut": {"key": key, "value": value, "lease": lease.to_string()}})
        };
        let live = put(&self.live_key, write_boot(self.boot).as_bytes(), lease);
        let node = put(&self.node_key, &write_addresses(&self.addresses), 0);
        let _: Value = self.etcd.call("/v3/kv/txn", &json!({"success": [live, node]}))?;
        self.lease = Some(lease);
        Ok(())
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
