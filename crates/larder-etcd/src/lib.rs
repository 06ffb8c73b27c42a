//! The coordinator of a cluster: etcd, through its JSON gateway (etcd 3.3 or later).
//!
//! ```text
//! /larder/1/CLUSTER/groups/GROUP         the record: the leader and the members in sync
//! /larder/1/CLUSTER/live/GROUP/NODE      the incarnation of a live process, under its lease
//! /larder/1/CLUSTER/nodes/GROUP/NODE     the addresses of a node
//! /larder/1/CLUSTER/settings/GROUP       settings by operators
//! /larder/1/CLUSTER/transfer/GROUP       a request for a leadership transfer, under a lease of some seconds
//! /larder/1/CLUSTER/discovery            the list of servers for clients
//! /larder/1/CLUSTER/map                  the shard map
//! ```
//! Values are JSON, apart from those under `live`, which are 16 hexadecimal digits. etcd stores no
//! items.
//!
//! | file | contents |
//! |---|---|
//! | `settings.rs`, `client.rs`, `login.rs` | options, the client of etcd, and its login |
//! | `counters.rs` | counters of calls, for statistics |
//! | `records.rs` | the encoding of values |
//! | `group.rs` | the record of a group, and requests of operators |
//! | `survey.rs` | all keys of a cluster, for operators |
//! | `presence.rs` | the lease of a process |
//! | `discovery.rs` | the list of servers for clients |
//! | `shard_map.rs` | the shard map |
#![forbid(unsafe_code)]

mod client;
mod counters;
mod discovery;
mod group;
mod keys;
mod login;
mod presence;
mod records;
mod settings;
mod shard_map;
mod survey;

pub use client::{Etcd, TimeLimits};
pub use counters::EtcdCounters;
pub use discovery::{Discovery, DiscoveryKeeper};
pub use group::{EtcdGroup, Forgotten, TRANSFER_REQUEST_SECS, groups};
pub use login::Login;
pub use presence::{LEASE_SECS, NameConflict, Presence, PresenceError};
pub use settings::{EtcdOptions, EtcdSettings, SettingsError};
pub use shard_map::{EtcdShardMap, LeaderView, ShardMapView};
pub use survey::{ClusterSurvey, MalformedKey, ValueKind, survey};

/// The names of a group and of its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupName {
    /// The name of the cluster (`--cluster`).
    pub cluster: String,
    /// The name of the group in the cluster (`--group`).
    pub group: String,
}

impl GroupName {
    fn key(&self, kind: &str) -> String {
        format!("{}{kind}/{}", cluster_key(&self.cluster), self.group)
    }
}

fn cluster_key(cluster: &str) -> String {
    format!("/larder/1/{cluster}/")
}
