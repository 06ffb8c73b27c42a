//! The slots for which a leader answers requests, and the migration protocol between two leaders,
//! without I/O.
//!
//! ```text
//!  exporting leader (Ownership)                      importing leader (FinishedImport)
//!                            ◀── ReleaseSlots ────── after it has read revision R of the map
//!  release: answers no more requests for the slots
//!                            ─── Barrier ──────────▶ completion: replaces revision R of the map, if both still lead
//!  update_map: the other group owns the slots
//!
//!  if the import fails: close_release, replaces the map by an equal one, revoke_release
//! ```
//! The swap of the completion and the swap before `revoke_release` exclude each other, because both
//! replace the same revision. So the exporting leader never answers for slots that the importing
//! group owns.

use crate::{Migration, Process, Record, Revision, ShardMap, SlotSet};

/// The slots for which a leader answers requests: its group's slots in the map, except for the
/// slots that it has released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ownership {
    group: String,
    map: Option<ShardMap>,
    revision: Revision,
    /// The current release by this leader. It ends when the map gives all of its slots to other
    /// groups, or when it is revoked or dropped.
    release: Option<Release>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Release {
    slots: SlotSet,
    to: String,
    /// The epoch in which the leadership that released the slots started.
    leadership_epoch: u32,
    /// Whether the export is under way. After the export, a new map or
    /// [`Ownership::revoke_release`] ends the release.
    is_open: bool,
}

impl Ownership {
    /// Creates the state for a member of the group. Until the first map, the group owns all slots.
    #[must_use]
    pub fn new(group: &str) -> Self {
        Self { group: group.to_owned(), map: None, revision: 0, release: None }
    }

    /// Returns the group of this node.
    #[must_use]
    pub fn group(&self) -> &str {
        &self.group
    }

    /// Returns the last known map, or `None` before the first.
    #[must_use]
    pub fn map(&self) -> Option<&ShardMap> {
        self.map.as_ref()
    }

    /// Returns the revision of the last known map, or 0 before the first.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Returns the slots of this group in the map, including released slots. Returns all slots
    /// before the first map.
    #[must_use]
    pub fn slots(&self) -> SlotSet {
        self.map.as_ref().map_or_else(SlotSet::all, |map| map.slots_of(&self.group))
    }

    /// Returns the group that should receive requests for a slot: the importing group if this
    /// leader has released the slot, and otherwise the owner in the map. Returns `None` before the
    /// first map. Until then, this group owns all slots.
    #[must_use]
    pub fn owner_of(&self, slot: u16) -> Option<&str> {
        let owner = self.map.as_ref()?.owner_of(slot)?;
        let is_released = |release: &&Release| owner == self.group && release.slots.contains(slot);
        let release = self.release.as_ref().filter(is_released);
        Some(release.map_or(owner, |release| release.to.as_str()))
    }

    /// Replaces the map with a later one. If the new map gives all released slots to other groups,
    /// drops the release and returns the number of its slots. Otherwise returns 0.
    pub fn update_map(&mut self, map: ShardMap, revision: Revision) -> usize {
        (self.map, self.revision) = (Some(map), revision);
        let own = self.slots();
        self.release
            .take_if(|release| own.common(&release.slots).is_empty())
            .map_or(0, |release| release.slots.len())
    }

    /// Releases slots to another group. This leader then answers no more requests for them. Does
    /// nothing and returns false if there is no map, if this leader's group does not own all of the
    /// slots, or if there is an earlier release.
    pub fn release(&mut self, slots: &SlotSet, to: &str, leadership_epoch: u32) -> bool {
        let has_all = self.map.is_some() && self.slots().includes(slots);
        let can_release = has_all && self.release.is_none();
        if can_release {
            let (slots, to) = (slots.clone(), to.to_owned());
            self.release = Some(Release { slots, to, leadership_epoch, is_open: true });
        }
        can_release
    }

    /// Records that the export of the released slots has ended, with or without success.
    pub fn close_release(&mut self) {
        if let Some(release) = &mut self.release {
            release.is_open = false;
        }
    }

    /// Drops the release if it was made in an earlier leadership than `leadership_epoch`, or if
    /// this node does not lead (`None`). Returns whether it dropped the release. The importing
    /// group cannot complete such a release: its swap compares this group's record, and that record
    /// has changed.
    pub fn forget_earlier_release(&mut self, leadership_epoch: Option<u32>) -> bool {
        // If `leadership_epoch` is older than the leadership in which this node released the slots,
        // the release stays.
        let is_earlier = |release: &mut Release| {
            leadership_epoch.is_none_or(|since| since > release.leadership_epoch)
        };
        self.release.take_if(is_earlier).is_some()
    }

    /// Returns whether there is a release that the map does not reflect yet.
    #[must_use]
    pub fn has_release(&self) -> bool {
        self.release.is_some()
    }

    /// Returns whether an export has ended although this group still owns some of the released
    /// slots in the map. The map must be replaced before this leader may answer for the slots
    /// again.
    #[must_use]
    pub fn has_failed_release(&self) -> bool {
        self.release.as_ref().is_some_and(|release| !release.is_open)
    }

    /// Revokes the release: this leader answers for the slots again. The caller must already have
    /// written `map` to the coordinator, as a replacement for the revision that the importing
    /// group's swap would replace. That swap then fails.
    pub fn revoke_release(&mut self, map: ShardMap, revision: Revision) {
        self.release = None;
        self.update_map(map, revision);
    }
}

/// A migration that is complete except for the swap of the map: the importing leader has all items,
/// and the exporting leader has released the slots.
#[derive(Clone, Copy, Debug)]
pub struct FinishedImport<'a> {
    /// The slots, and the names of both groups.
    pub migration: &'a Migration,
    /// The revision of the map that the importer read before it requested the release.
    pub revision: Revision,
    /// The leader that has released the slots, and its epoch.
    pub exporter: (&'a Process, u32),
    /// The leader that has imported the slots, and its epoch.
    pub importer: (&'a Process, u32),
}

/// The last step of a migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Completion {
    /// The map already has the new owner.
    AlreadyDone,
    /// Replace the map with this one, on condition that the map and the records of these two groups
    /// still have the revisions that were read.
    ReplaceMap(ShardMap, [(String, Revision); 2]),
    /// The migration has failed, with the reason.
    Refused(&'static str),
}

impl FinishedImport<'_> {
    /// Decides the last step. The arguments must come from one consistent read of the map and the
    /// groups' records.
    #[must_use]
    pub fn completion<'r>(
        &self,
        (map, revision): (&ShardMap, Revision),
        record_of: impl Fn(&str) -> Option<(&'r Record, Revision)>,
    ) -> Completion {
        let Migration { from, to, slots } = self.migration;
        if revision != self.revision {
            let is_done = map.slots_of(to).includes(slots);
            return if is_done {
                Completion::AlreadyDone
            } else {
                Completion::Refused("the shard map has changed")
            };
        }
        let leads = |group: &String, (process, epoch): (&Process, u32)| {
            let (record, revision) = record_of(group)?;
            let is_same = record.leader == *process && record.epoch == epoch;
            is_same.then(|| (group.clone(), revision))
        };
        let (Some(from), Some(to)) = (leads(from, self.exporter), leads(to, self.importer)) else {
            return Completion::Refused("the leader of one of the two groups has changed");
        };
        let mut after = map.clone();
        after.finish(self.migration);
        Completion::ReplaceMap(after, [from, to])
    }
}
