//! Replication: a leader sends its items and changes to followers (`--replicate-on`), and a follower stores those of
//! its leader (`--follow`, `--cluster`).
//!
//! A leader has two threads for each follower: one that sends, with a handle to the cache of its own, and one that
//! reads what the follower acknowledges. A follower has one thread.

pub(crate) mod follower;
pub(crate) mod leader;
mod role;
mod status;

pub use leader::ReplicatedCache;
pub use status::{FollowerShown, FollowerStatus, LinkShown, LinkStatus, ReplicationStatus};
