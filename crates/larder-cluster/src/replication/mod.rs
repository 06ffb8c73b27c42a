//! Replication: a leader sends its items and changes to followers (`--replicate-on`). A follower
//! stores the items and changes of its leader (`--follow`, `--cluster`).
//!
//! A leader has two threads for each follower. One sends and has its own handle to the cache, and
//! the other reads acknowledgements. A follower has one thread.

mod acks;
mod follower;
mod journal_waker;
mod leader;
mod role;
mod status;

pub(crate) use acks::FollowingMember;
pub(crate) use follower::Follower;
pub(crate) use journal_waker::JournalWaker;
pub(crate) use leader::Leader;
pub use leader::ReplicatedCache;
pub use status::{
    FollowerStats, FollowerStatus, LinkStats, LinkStatus, ReplicationStatus, SyncTotals,
};
