//! The nodes, their messages and requests to the coordinator, and the state of the simulation.

use crate::seeds::Random;
use larder_replica::{
    Command, ElectionPromise, GroupView, Member, Millis, Process, Record, Revision,
};
use std::collections::{BTreeMap, BTreeSet};

pub(super) const NODES: usize = 3;
/// The length of the phase with faults, in milliseconds.
pub(super) const FAULTS: u64 = 20_000;
/// Exactly one leader must answer requests within this time after the faults, in milliseconds.
pub(super) const RECOVERY: u64 = 3000;
/// All members must be in sync within this time after `RECOVERY`, in milliseconds.
pub(super) const QUIET: u64 = 3000;
/// The duration of one step, in milliseconds.
pub(super) const STEP: u64 = 10;

// The constants below repeat constants of crates on which these tests cannot depend. Change a
// constant and its repetition together. Constants of `member/mod.rs` are not repeated here, because
// the real state machine uses them itself. All are in milliseconds.

/// The timeout of a request to the coordinator. It lies between the limits of `TimeLimits::NODE`
/// (`client/calls.rs` of `larder-etcd`): 400 for a request, and 700 for a call.
pub(super) const REQUEST_TIMEOUT: u64 = 600;
/// The lifetime of a lease at the coordinator. Equal to `LEASE_SECS` (`presence.rs` of
/// `larder-etcd`).
pub(super) const LEASE: u64 = 2000;
/// The interval between lease renewals. Derived from `LEASE_RENEWAL_INTERVAL`
/// (`group/coordination.rs` of `larder-cluster`): 600 ms, plus 100 ms for the request.
pub(super) const LEASE_RENEWAL_INTERVAL: u64 = 700;
/// The age at which a renewal no longer shows whether the coordinator has changed. Equal to
/// `RENEWAL_AGE_MAX` (`group/membership.rs` of `larder-cluster`).
pub(super) const RENEWAL_AGE_MAX: u64 = 1300;
/// The interval between heartbeats. Equal to `HEARTBEAT_INTERVAL` (`peers/heartbeat.rs` of
/// `larder-cluster`).
pub(super) const HEARTBEAT_INTERVAL: u64 = 100;
/// The interval between attempts to connect to a leader. Derived from `RECONNECT_PAUSE_MIN`
/// (`replication/follower.rs` of `larder-cluster`): 50 ms, plus 10 ms for the attempt.
pub(super) const CONNECT_INTERVAL: u64 = 60;
/// A connection over a cut link is closed at this age. Equal to `LEADER_SILENCE_TIMEOUT`
/// (`replication/follower.rs` of `larder-cluster`), but counts from the start of the connection.
pub(super) const LEADER_SILENCE_TIMEOUT: u64 = 3000;
/// The duration of a sync, counted from the start of the connection.
pub(super) const SYNC_TIME: u64 = 300;

pub(super) enum Answer {
    Read(GroupView),
    Swapped(Option<Revision>),
}

/// The revision of the record, and the live processes. In etcd, the revision of the whole store
/// stands for both.
pub(super) type CoordinatorState = (Revision, BTreeMap<String, u64>);

/// A request to the coordinator.
pub(super) struct PendingRequest {
    pub(super) command: Command,
    pub(super) arrives: u64,
    pub(super) answer: Option<(u64, Answer)>,
    pub(super) times_out: u64,
}

pub(super) struct Node {
    pub(super) name: String,
    /// The rate of the clock, in thousandths of real time.
    pub(super) pace: u64,
    /// The value of the clock at the start of the simulation, in milliseconds.
    pub(super) offset: u64,
    pub(super) member: Option<Member>,
    pub(super) request: Option<PendingRequest>,
    pub(super) paused_until: u64,
    pub(super) next_heartbeat: u64,
    pub(super) next_lease: u64,
    /// The coordinator's state in the last read.
    pub(super) read_state: Option<CoordinatorState>,
    /// The time of the last renewal of the lease, and the coordinator's state at that time. `None`
    /// if the node has not renewed the lease since it started, or if its last attempt failed.
    pub(super) renewed: Option<(u64, CoordinatorState)>,
    /// The connection to the leader.
    pub(super) connected: Option<Connection>,
    pub(super) next_connect: u64,
    /// The changes that the node has.
    pub(super) changes: Changes,
    /// The followers of this node while it leads.
    pub(super) followers: BTreeMap<Process, FollowerState>,
    /// The leadership for which the node is ready started in this epoch.
    pub(super) ready_epoch: Option<u32>,
    /// The first CAS value that the process has not drawn.
    pub(super) next_cas: u64,
}

pub(super) struct World {
    pub(super) random: Random,
    /// After this time without a leader, any member may stand for election.
    pub(super) unclean_after: Option<Millis>,
    /// Whether a member that was not in sync was elected after `unclean_after`.
    pub(super) was_unclean: bool,
    pub(super) time: u64,
    pub(super) nodes: Vec<Node>,
    pub(super) record: Option<Record>,
    pub(super) revision: Revision,
    /// Maps each replaced leader to the time at which it was replaced.
    pub(super) deposed: BTreeMap<Process, u64>,
    /// Maps each member to the epoch of the leader that received its last promise, and to a time
    /// before which it must not replace this leader. This time is slightly before the end of the
    /// promise, even on the fastest clock.
    pub(super) promised: BTreeMap<Process, (u32, u64)>,
    pub(super) leases: BTreeMap<String, (u64, u64)>,
    pub(super) is_coordinator_down: bool,
    /// Whether the link of each node to the coordinator is cut.
    pub(super) is_coordinator_cut: [bool; NODES],
    /// Whether the link from one node (first index) to another (second index) is cut.
    pub(super) is_cut: [[bool; NODES]; NODES],
    pub(super) messages: Vec<(u64, usize, usize, Message)>,
    pub(super) next_change: u64,
    pub(super) acknowledged: Changes,
    /// The CAS values that leaders have drawn, as a map from the start of each interval to its end.
    pub(super) drawn: BTreeMap<u64, u64>,
    /// A second failure that stops a new leader soon after its election: the time, and the node.
    pub(super) second_failure: Option<(u64, usize)>,
    /// Swaps that have timed out but will still take effect, each with the time of its effect.
    pub(super) strays: Vec<(u64, usize, Command)>,
    pub(super) trace: u64,
}

impl Node {
    pub(super) fn clock(&self, time: u64) -> Millis {
        self.offset + time * self.pace / 1000
    }

    pub(super) fn process(&self) -> Option<Process> {
        self.member.as_ref().map(|member| member.me().clone())
    }
}

pub(super) type Changes = BTreeSet<u64>;

/// A follower's connection to a leader.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) leader: Process,
    /// The time at which the connection started. It identifies the connection.
    pub(super) since: u64,
    pub(super) is_full_sync: bool,
    pub(super) has_started: bool,
}

/// The state that a leader has for a follower.
#[derive(Default)]
pub(super) struct FollowerState {
    /// The start time of the follower's last connection.
    pub(super) since: u64,
    pub(super) is_full_sync: bool,
    /// The changes that the follower has acknowledged.
    pub(super) changes: Changes,
    /// The changes that the leader had when its replies started to wait for the follower, after the
    /// follower's sync.
    pub(super) ends: Option<Changes>,
    pub(super) has_joined: bool,
}

pub(super) enum Message {
    Heartbeat {
        leader: Process,
        sent: Millis,
        /// The leader's changes; `None` while the leader waits until the follower is no longer in
        /// sync.
        changes: Option<Changes>,
        cas_end: u64,
    },
    Ack {
        member: Process,
        /// The start time of the follower's connection.
        since: u64,
        /// The send time of the heartbeat, and the follower's changes; `None` during a sync.
        synced: Option<(Millis, Changes)>,
        promise: Option<ElectionPromise>,
    },
}
