//! A group's state in the coordinator: its leader, the members in sync, and the live processes.

use crate::time::Millis;
use larder_store::journal::AckMode;
use std::collections::BTreeMap;

/// A process of a node. A restart of the node changes `incarnation`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process {
    /// The name of the node.
    pub node: String,
    /// A random number that the process chose when it started.
    pub incarnation: u64,
}

/// The record of a group. Every change of the record is one compare-and-swap on its revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The fencing epoch, at least 1. It rises with each change of leader.
    pub epoch: u32,
    /// The process that leads. After a restart, the same node runs another process.
    pub leader: Process,
    /// The members in sync, including the leader. Other members may stand for election only if all
    /// members in sync have lost their items, or after `unclean_after`.
    pub in_sync: Vec<Process>,
    /// The CAS values that the leader may draw.
    pub cas: CasRange,
    /// The leader's [`MemberSettings::unclean_after`](crate::MemberSettings), which applies to all
    /// members.
    pub unclean_after: Option<Millis>,
}

/// The minimum number of CAS values in a reservation.
pub const CAS_RANGE_LEN_MIN: u64 = 1 << 20;
/// The exclusive upper bound of all CAS values. JSON parsers that use doubles lose precision above
/// this value.
pub const CAS_END: u64 = 1 << 53;

/// The CAS values that a leader may draw: at least `from`, and below `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CasRange {
    /// The first value; at least 1.
    pub from: u64,
    /// The exclusive end; at least `from`, and at most [`CAS_END`].
    pub to: u64,
}

impl CasRange {
    /// Returns the range of minimum length that starts at this value. Clamps both bounds to valid
    /// values.
    #[must_use]
    pub fn starting_at(from: u64) -> Self {
        let from = from.clamp(1, CAS_END);
        Self { from, to: (from + CAS_RANGE_LEN_MIN).min(CAS_END) }
    }

    /// Returns whether the bounds are valid.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        (1..=self.to).contains(&self.from) && self.to <= CAS_END
    }
}

impl Record {
    /// Returns whether the fields have valid values.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        (1..=EPOCH_MAX).contains(&self.epoch) && self.cas.is_valid()
    }
}

/// The maximum epoch. A record with a higher epoch is malformed.
pub const EPOCH_MAX: u32 = i32::MAX as u32;

/// The revision of a value at the coordinator, for compare-and-swap; 0 if there is no value.
pub type Revision = u64;

/// The addresses of a node, each `HOST:PORT`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// The address for clients: `--advertise`, or the first TCP listener if that option is not set;
    /// `None` without either.
    pub clients: Option<String>,
    /// The address for other nodes of the cluster.
    pub members: String,
}

/// A consistent read of a group from the coordinator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupView {
    /// The record, if there is one.
    pub record: Option<Record>,
    /// The revision of the record.
    pub revision: Revision,
    /// Maps each node that has a lease to the incarnation of its process.
    pub live: BTreeMap<String, u64>,
    /// Maps each node that has ever joined to its addresses.
    pub addresses: BTreeMap<String, Addresses>,
    /// The operator's requests, which the coordinator stores.
    pub requests: OperatorRequests,
}

/// An operator's requests to a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperatorRequests {
    /// The operator's choice of the changes that wait for acknowledgements. `None` selects the
    /// leader's `--ack` option.
    pub ack: Option<AckMode>,
    /// The pending request for a leadership transfer, if there is one.
    pub transfer: Option<TransferRequest>,
}

/// A request for a leadership transfer. It expires after a few seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferRequest {
    /// The revision at which the request was written. It identifies the request.
    pub number: Revision,
    /// The epoch of the leader that must transfer its leadership. Other leaders ignore the request.
    pub epoch: u32,
    /// The node that must lead next. `None` permits any member in sync.
    pub to: Option<String>,
}

impl GroupView {
    /// Returns whether a process has a lease.
    #[must_use]
    pub fn is_live(&self, process: &Process) -> bool {
        self.live.get(&process.node) == Some(&process.incarnation)
    }

    /// Returns whether another process of the same node has a lease, because the node has
    /// restarted.
    #[must_use]
    pub fn is_replaced(&self, process: &Process) -> bool {
        self.live.get(&process.node).is_some_and(|incarnation| *incarnation != process.incarnation)
    }
}

/// A failed request to the coordinator. A failed change may still take effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoordinatorError {
    /// No server is configured.
    #[error("no server of the coordinator is configured")]
    NoServer,
    /// A server did not reply, or refused the request.
    #[error("{server}: {reason}")]
    Failed {
        /// The server's name and address, for error messages.
        server: String,
        /// The error message from the server or the operating system.
        reason: String,
    },
    /// The process has not logged in at the coordinator yet.
    #[error("the login at the coordinator has not ended yet")]
    LoginPending,
    /// The process has not found the identity of its cluster yet.
    #[error("the identity of the cluster is not known yet")]
    IdentityPending,
    /// The coordinator has another cluster with the same name: the identity stored under this key
    /// has changed.
    #[error("another cluster has this name: the identity in {0} has changed")]
    OtherCluster(String),
    /// A server's reply lacks this part.
    #[error("malformed reply of the coordinator: {0} is missing")]
    MalformedReply(&'static str),
    /// The key of the cluster's identity was lost again just after it was restored.
    #[error("the key {0} was lost again after this server had restored it")]
    IdentityLost(String),
    /// The value of this key has an invalid format.
    #[error("malformed value of the key {0}")]
    MalformedValue(String),
    /// Another process has changed the shard map between the read and the write.
    #[error("the shard map has changed; retrying")]
    MapChanged,
}

/// A store for the records of groups. Any store with linearizable reads and compare-and-swap is
/// suitable.
pub trait Coordinator {
    /// Reads the group.
    ///
    /// # Errors
    /// [`CoordinatorError`]: the coordinator is unreachable, has lost its quorum, or has a
    /// malformed record.
    fn read(&mut self) -> Result<GroupView, CoordinatorError>;

    /// Replaces the record if its revision is `revision`; 0 means that there is no record. Returns
    /// the new revision, or `None` if the record has another revision.
    ///
    /// # Errors
    /// [`CoordinatorError`]: the swap may still take effect.
    fn swap(
        &mut self,
        revision: Revision,
        record: &Record,
    ) -> Result<Option<Revision>, CoordinatorError>;
}
