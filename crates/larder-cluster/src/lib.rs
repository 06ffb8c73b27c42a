//! A server's connections to other servers. With `--follow`, the server follows a leader, and with
//! `--replicate-on`, it sends its changes to followers. With `--cluster`, it also takes part in
//! elections of its group, forwards requests to the owners of their keys, and migrates slots
//! between groups. `larder-replica` makes the decisions. This crate contains the sockets and
//! threads.
//!
//! ```text
//!  accept.rs ──▶ replication/  a leader's and a follower's side of the stream
//!           ├──▶ forward/      requests from and to other nodes
//!           ├──▶ migration/    import and export of slots
//!           └──▶ peers/        connections: dial, handshake, TLS
//!  group/       membership, election, topology and shard map, which etcd keeps
//! ```
#![forbid(unsafe_code)]

mod accept;
mod error;
mod forward;
mod group;
mod migration;
mod node;
mod peers;
mod replication;
mod threads;

pub use forward::{Forwarders, SessionHost};
pub use group::{Group, GroupConfig, MembershipError, Topology, addresses};
pub use node::{Node, NodeConfig};
pub use peers::{Credentials, NodeTls, NodeTlsFiles};
pub use replication::{
    FollowerStats, FollowerStatus, LinkStats, LinkStatus, ReplicatedCache, ReplicationStatus,
    SyncTotals,
};
pub use threads::{JoinError, NodeThreads};
