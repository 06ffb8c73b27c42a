//! A member of a group (`--cluster`): its threads, and their shared state. `larder_replica::Member`
//! makes the decisions, and etcd stores the record of the group.
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
pub(crate) use shard_map::{ExportingLeader, FinishError, ShardMapKeeper};
pub use topology::Topology;
