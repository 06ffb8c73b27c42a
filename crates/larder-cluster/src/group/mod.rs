//! A member of a group (`--cluster`): its threads, and their shared state. `larder_replica::Member`
//! makes the decisions, and etcd stores the record of the group.
//!
//! ```text
//!  etcd ◀──▶ registration.rs     the identity of the cluster, and the lease of the process
//!       ◀──▶ coordination.rs ──▶ Group (membership.rs) ◀── heartbeats and acknowledgements (replication/)
//!       ◀──▶ shard_map.rs ─────▶ Topology (topology.rs)
//! ```

mod coordination;
#[cfg(test)]
mod etcd_load;
mod etcd_log;
mod membership;
mod registration;
mod shard_map;
mod topology;

pub(crate) use coordination::Coordination;
pub(crate) use etcd_log::EtcdLog;
pub use membership::{Group, GroupConfig, addresses};
pub use registration::MembershipError;
pub(crate) use shard_map::{ExportingLeader, FinishError, ShardMapKeeper};
pub use topology::Topology;
