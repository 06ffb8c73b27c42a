//! A member of a group (`--cluster`): who leads is decided by `larder_replica::Member`, and kept in etcd. Here are its
//! threads and sockets.
//!
//! ```text
//!  etcd ◀──▶ coordinate.rs ──▶ Group ◀── the stream's beats and acknowledgements (replication/)
//!                               │ role, and until when this server may answer
//!        sessions ◀─────────────┤
//!           │ requests          ▼
//!   gateway ┴──▶ forward.rs ──▶ the leader: answer.rs, or those of the groups that have other keys (topology.rs)
//! ```

mod answer;
#[cfg(feature = "metrics")]
mod ask;
mod coordinate;
mod forward;
mod group;
mod map;
mod topology;

pub(crate) use answer::Answerer;
#[cfg(feature = "metrics")]
pub(crate) use ask::ToGroup;
pub(crate) use coordinate::Coordination;
pub use coordinate::read_settings;
pub(crate) use forward::{HelloMe, OwnGroup, Ways};
pub use group::addresses;
pub(crate) use group::{Group, boot_millis};
pub(crate) use map::{Giver, MapKeeper, Unfinished};
