//! Keeps the records of groups in etcd, through its JSON gateway, which etcd has had since 3.3.
//!
//! ```text
//! /larder/1/CLUSTER/groups/GROUP         who leads, and who has all items
//! /larder/1/CLUSTER/live/GROUP/NODE      the process that is alive, for as long as its lease is renewed
//! /larder/1/CLUSTER/nodes/GROUP/NODE     addresses
//! /larder/1/CLUSTER/settings/GROUP       what operators have set
//! /larder/1/CLUSTER/hand-over/GROUP      that the leader is to hand over, for some seconds
//! /larder/1/CLUSTER/discovery            the servers that clients are told of
//! /larder/1/CLUSTER/map                  which group has which slots, and which are to move
//! ```
//! Values are JSON. Items never pass through etcd. `settings.rs` and `wire.rs` are how etcd is spoken to, `group.rs`
//! and `presence.rs` what a member needs, `discovery.rs` the list for clients, `map.rs` the map of slots, and `records.rs` what values look like.
#![forbid(unsafe_code)]

mod discovery;
mod group;
mod map;
mod presence;
mod records;
mod settings;
mod wire;

pub use discovery::{Discovery, DiscoveryKeeper};
pub use group::{EtcdGroup, HAND_OVER_SECS, groups};
pub use map::{EtcdMap, LeaderView, MapView};
pub use presence::{LEASE_SECS, Presence};
pub use settings::{EtcdFiles, EtcdSettings, SettingsError};
pub use wire::Etcd;

/// The names of a cluster and of one of its groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupName {
    /// The cluster.
    pub cluster: String,
    /// The group.
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
