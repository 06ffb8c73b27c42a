//! A member of a group (`--cluster`): who leads is decided by `larder_replica::Member`, and kept in etcd. Here are its
//! threads and sockets.
//!
//! ```text
//!  etcd ◀──▶ coordinate.rs ──▶ Group ◀── the stream's beats and acknowledgements (replication/)
//!                               │ role, and until when this server may answer
//!        sessions ◀─────────────┤
//!           │ requests          ▼
//!           └──▶ forward.rs ──▶ the leader: answer.rs
//! ```

mod answer;
mod coordinate;
mod forward;
mod group;

pub(crate) use answer::Answerer;
pub(crate) use coordinate::Coordination;
pub use coordinate::read_settings;
pub(crate) use forward::Forwarder;
pub use group::addresses;
pub(crate) use group::{Group, boot_millis};
