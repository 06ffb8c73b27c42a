//! The state of nodes, and of the connections between them.

use super::WATCHED;
use super::coordinator::{Answer, Request};
use larder_replica::{Migration, Ownership, Process, Revision};
use std::collections::VecDeque;

/// The purpose of a request to the coordinator.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Read the map. The value identifies the leadership in which the node sent the request; `None`
    /// if it did not lead.
    Refresh(Option<u32>),
    RevokeRelease,
    /// Make earlier swaps fail: read the map, then replace it with an equal one.
    SupersedeSwaps,
    StartImport,
    RequestRelease,
    FinishImport,
}

pub(super) struct Call {
    pub(super) request: Request,
    pub(super) purpose: Purpose,
    pub(super) answer: Option<Answer>,
}

pub(super) struct Node {
    pub(super) group: usize,
    pub(super) process: Process,
    pub(super) ownership: Ownership,
    pub(super) leadership_epoch: Option<u32>,
    pub(super) ready: Option<u32>,
    /// The first CAS value that the node has not drawn, and the end of the values that it may draw.
    pub(super) next_cas: u64,
    pub(super) cas_end: u64,
    pub(super) serves_until: u64,
    pub(super) paused_until: u64,
    /// For each slot in `WATCHED`, the value of its key.
    pub(super) items: [Option<u64>; WATCHED.len()],
    /// The slot of the write under way, as an index into `WATCHED`.
    pub(super) batch: Option<usize>,
    /// The request under way; a node has at most one.
    pub(super) call: Option<Call>,
    pub(super) import: Option<Import>,
    pub(super) has_pending_swap: bool,
}

/// The state of an import.
pub(super) struct Import {
    pub(super) planned: Migration,
    pub(super) leadership: u32,
    /// The index of the connection in `World::links`, the exporting leader, and the leader's epoch.
    /// `None` before there is a connection.
    pub(super) link: Option<(usize, Process, u32)>,
    pub(super) has_items: bool,
    /// The revision of the map that the importer read before it requested the release. `None`
    /// before this request.
    pub(super) revision: Option<Revision>,
    /// The CAS value of the barrier, if it has arrived.
    pub(super) barrier: Option<u64>,
    /// Whether a swap has timed out, and may still take effect.
    pub(super) has_pending_swap: bool,
}

pub(super) enum Message {
    Item(usize, Option<u64>),
    SyncEnd,
    /// The barrier, with a CAS value above all values that the exporter has drawn.
    Barrier(u64),
}

/// A connection from an importing leader to the exporting leader.
pub(super) struct Link {
    pub(super) exporter: usize,
    pub(super) leadership: u32,
    pub(super) planned: Migration,
    pub(super) sent: VecDeque<Message>,
    pub(super) is_release_requested: bool,
    pub(super) has_released: bool,
    pub(super) has_sent_barrier: bool,
    /// Whether the importer has abandoned the connection.
    pub(super) has_importer_left: bool,
    /// Whether the exporter has closed the connection.
    pub(super) is_closed: bool,
}

/// The last acknowledged change of a key, with its CAS value.
#[derive(Clone, Copy, Default)]
pub(super) struct Acknowledged {
    pub(super) change: u64,
    pub(super) is_removed: bool,
    pub(super) cas: u64,
}

impl Acknowledged {
    pub(super) fn value(&self) -> Option<u64> {
        (!self.is_removed).then_some(self.change)
    }
}
