//! The types for a member's settings, requests and results.

use crate::group::{Process, Record, Revision};
use crate::time::Millis;

/// The behaviour of a leader when neither the coordinator nor every member in sync is reachable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DoubtPolicy {
    /// Refuse requests.
    #[default]
    Stop,
    /// Answer requests. Another leader may answer them, too.
    Serve,
}

/// The settings of a member.
#[derive(Clone, Debug)]
pub struct MemberSettings {
    /// The process of this member.
    pub me: Process,
    /// The behaviour of this member as an isolated leader.
    pub doubt: DoubtPolicy,
    /// How long the group must be without a leader before a member with incomplete data may lead.
    /// The last leader's value, which is in the record, applies. With `None`, such a member leads
    /// only after all members in sync have lost their items, or after the coordinator has lost the
    /// record. It then starts with an empty cache.
    pub unclean_after: Option<Millis>,
}

/// A request to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read the group, and call [`Member::handle_view`](crate::Member::handle_view).
    Read,
    /// Replace the record if it has this revision, and call [`Member::handle_swap`](crate::Member::handle_swap).
    Swap(Revision, Record),
}

/// An election promise, which a member makes in its acknowledgement of a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElectionPromise {
    /// The send time of the heartbeat.
    pub sent: Millis,
    /// The end of the CAS range in the heartbeat: see
    /// [`Member::heartbeat_cas_end`](crate::Member::heartbeat_cas_end).
    pub cas_end: u64,
}

/// The role of a member in its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// The group has no known leader.
    Leaderless,
    /// The member leads.
    Leader {
        /// The epoch of this leader.
        epoch: u32,
        /// Whether this leader lacks the items of the group. If so, it must remove its own items
        /// before it answers requests.
        starts_empty: bool,
    },
    /// The member follows.
    Follower {
        /// The process that this member follows.
        leader: Process,
        /// The leader's epoch.
        epoch: u32,
    },
}

impl Role {
    /// Returns the role's name as reported in statistics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Leaderless => "alone",
            Self::Leader { .. } => "leader",
            Self::Follower { .. } => "follower",
        }
    }
}
