//! The coordinator of a cluster: etcd, through its JSON gateway (etcd 3.3 or later).
//!
//! ```text
//! /larder/1/CLUSTER/identity             the identity of the cluster, and a fingerprint of its secret
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
//! | `client/` | the client of etcd, its options, login, requests and counters |
//! | `cluster_keys.rs` | a replica of all keys of a cluster |
//! | `history.rs` | repairs with earlier values |
//! | `identity.rs`, `identity_finder.rs` | the identity of a cluster |
//! | `records.rs` | the encoding of values |
//! | `group.rs` | the record of a group, and requests of operators |
//! | `survey.rs` | all keys of a cluster, for operators |
//! | `presence.rs` | the lease of a process |
//! | `discovery.rs` | the list of servers for clients |
//! | `shard_map.rs` | the shard map |
#![forbid(unsafe_code)]

mod client;
mod cluster_keys;
mod discovery;
mod group;
mod history;
mod identity;
mod identity_finder;
mod keys;
mod presence;
mod records;
mod shard_map;
mod survey;

pub use client::{Etcd, EtcdCounters, EtcdOptions, EtcdSettings, Login, SettingsError, TimeLimits};
pub use cluster_keys::ClusterKeys;
pub use discovery::{Discovery, DiscoveryKeeper};
pub use group::{EtcdGroup, Forgotten, TRANSFER_REQUEST_SECS, groups};
pub use identity::ClusterIdentity;
pub use identity_finder::{
    IdentityError, IdentityFinder, OtherSecret, SecretReplaced, replace_secret,
};
pub use presence::{LEASE_SECS, NameConflict, Presence, PresenceError};
pub use shard_map::{EtcdShardMap, LeaderView, ShardMapView, shown_map};
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
