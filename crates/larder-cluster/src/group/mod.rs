//! A member of a group (`--cluster`): `larder_replica::Member` decides who leads, and etcd keeps the record. Here are
//! the threads and the state that they share.
//!
//! ```text
//!  etcd ◀──▶ coordination.rs ──▶ Group (membership.rs) ◀── heartbeats and acknowledgements (replication/)
//!       ◀──▶ shard_map.rs ─────▶ Topology (topology.rs)
//! ```

mod coordination;
mod membership;
mod shard_map;
mod topology;

pub(crate) use coordination::Coordination;
pub use membership::{Group, GroupConfig, addresses};
pub(crate) use shard_map::{ExportingLeader, ShardMapKeeper, Unfinished};
pub use topology::Topology;
