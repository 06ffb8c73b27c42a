//! What a coordinator keeps of a group: who leads it, who has the same items, and who is alive.

use larder_store::journal::AckMode;
use std::collections::BTreeMap;

/// A node's process: a node that starts again has another boot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process {
    /// The name of the node.
    pub node: String,
    /// Drawn at random when the process started.
    pub boot: u64,
}

/// The record of a group. Whoever changes it replaces it as it was read, so each decision is one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Rises with each leader, from 1.
    pub epoch: u32,
    /// Who leads.
    pub leader: Process,
    /// Who has all items, the leader among them: one of these leads next.
    pub in_sync: Vec<Process>,
}

/// The highest epoch: it has 15 bits of each CAS value.
pub const EPOCH_MAX: u32 = 32_767;

/// The number of a change of a record, by which the coordinator tells whether it is as it was read; 0 if there is
/// none.
pub type Revision = u64;

/// The addresses of a node, each `HOST:PORT`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// For clients that speak memcached's protocols; none if there is no such listener.
    pub clients: Option<String>,
    /// For members of the group.
    pub members: String,
}

/// A group as a coordinator has shown it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// The record, if there is one.
    pub record: Option<Record>,
    /// Its number.
    pub revision: Revision,
    /// The nodes whose processes have said of late that they are alive.
    pub live: BTreeMap<String, u64>,
    /// Where nodes are, also those that are not alive.
    pub addresses: BTreeMap<String, Addresses>,
    /// What operators want.
    pub wishes: Wishes,
}

/// What operators want of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Which changes wait for acknowledgements, whatever the nodes were given.
    pub ack: Option<AckMode>,
    /// The leader is to hand over.
    pub hand_over: Option<HandOverWish>,
}

/// The wish that a leader hands over. It is forgotten after a few seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandOverWish {
    /// Tells it from others.
    pub number: Revision,
    /// The leader that is meant: the one of this epoch.
    pub epoch: u32,
    /// Who is to lead next; anybody in sync, if nobody is named.
    pub to: Option<String>,
}

impl View {
    /// Whether a process has said of late that it is alive.
    #[must_use]
    pub fn is_live(&self, process: &Process) -> bool {
        self.live.get(&process.node) == Some(&process.boot)
    }

    /// Whether another process of its node has taken the place of one.
    #[must_use]
    pub fn is_replaced(&self, process: &Process) -> bool {
        self.live.get(&process.node).is_some_and(|boot| *boot != process.boot)
    }
}

/// Why a coordinator did not do what it was asked. What it was asked may have been done all the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CoordinatorError(pub String);

impl CoordinatorError {
    /// The value of a key can't be read.
    #[must_use]
    pub fn malformed(key: &str) -> Self {
        Self(format!("the value of {key} is not what it should be"))
    }
}

/// Keeps the records of groups: any store that can compare and swap, and whose reads show all that was written
/// before they began.
pub trait Coordinator {
    /// Shows the group as it is.
    ///
    /// # Errors
    /// [`CoordinatorError`]: it can't be reached, or it has lost too many of its members.
    fn look(&mut self) -> Result<View, CoordinatorError>;

    /// Replaces the record if its number is still `revision`. The record's new number; `None` if somebody else has
    /// replaced it.
    ///
    /// # Errors
    /// [`CoordinatorError`]: whether it was replaced is not known.
    fn swap(
        &mut self,
        revision: Revision,
        record: &Record,
    ) -> Result<Option<Revision>, CoordinatorError>;
}
