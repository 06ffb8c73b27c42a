//! The model of the coordinator: it stores the shard map and the records of the groups.

use super::number;
use larder_replica::{Record, Revision, ShardMap};

/// The coordinator's data.
#[derive(Clone)]
pub(super) struct Coordinator {
    pub(super) last: Revision,
    pub(super) map: (ShardMap, Revision),
    pub(super) groups: Vec<GroupState>,
}

/// The coordinator's state for one group.
#[derive(Clone)]
pub(super) struct GroupState {
    pub(super) record: Record,
    pub(super) revision: Revision,
    /// The epoch in which the current leadership started.
    pub(super) since: u32,
    /// The end of the leader's lease.
    pub(super) until: u64,
    /// The end of the CAS values that the leader may draw without the coordinator. All members in
    /// the record have acknowledged this end.
    pub(super) cas_end_of_members: u64,
}

pub(super) type GroupView = ((ShardMap, Revision), Vec<(Record, Revision)>);

#[derive(Clone)]
pub(super) enum Request {
    Read,
    Swap(Revision, ShardMap, Vec<(String, Revision)>),
}

pub(super) enum Answer {
    Read(GroupView),
    /// The new revision of the map, if it was replaced.
    Swapped(Option<Revision>),
}

impl Coordinator {
    pub(super) fn next(&mut self) -> Revision {
        self.last += 1;
        self.last
    }

    pub(super) fn answer(&mut self, request: &Request) -> Answer {
        match request {
            Request::Read => {
                let records = self
                    .groups
                    .iter()
                    .map(|group_state| (group_state.record.clone(), group_state.revision));
                Answer::Read((self.map.clone(), records.collect()))
            }
            Request::Swap(revision, map, records) => {
                let is_same = |(group, revision): &(String, Revision)| {
                    self.groups[number(group)].revision == *revision
                };
                let can_swap = self.map.1 == *revision && records.iter().all(is_same);
                Answer::Swapped(can_swap.then(|| {
                    let revision = self.next();
                    self.map = (map.clone(), revision);
                    revision
                }))
            }
        }
    }
}
