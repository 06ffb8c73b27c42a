//! This node's view of the cluster: the groups that own slots, and their leaders.

use crate::peers::Stop;
use larder_etcd::{LeaderView, ShardMapView};
use larder_operations::Tracker;
use larder_protocol::{SLOTS, slot};
use larder_replica::{Migration, Ownership, Revision, ShardMap, SlotSet};
use larder_session::{GroupIndex, GroupMap};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A map of this age or older no longer counts as current.
pub(super) const MAP_AGE_MAX: Duration = Duration::from_millis(1500);
/// The age at which a read of the map is due. Reads of the group, and renewals of the lease, happen
/// at shorter intervals and show that nothing has changed, so this age means that they are late.
const MAP_RENEWAL_AGE: Duration = Duration::from_millis(800);
/// The interval at which waiting threads check whether the node shuts down.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The last known state of the cluster.
#[derive(Debug)]
pub struct Topology {
    /// Maps each slot to the local number of the group that receives requests for it.
    owners: Box<[AtomicU16]>,
    /// Whether other groups own slots, or will import some.
    is_divided: AtomicBool,
    /// The version of `owners` and `is_divided`. It is incremented before and after each change
    /// to them, so it is odd during a change, as in a seqlock.
    version: AtomicU64,
    /// The revision of the map; 0 before the first read.
    map_revision: AtomicU64,
    /// The number of slots that this node has imported.
    imported: AtomicU64,
    /// The number of slots that this node has exported.
    exported: AtomicU64,
    known: Mutex<TopologyState>,
    /// Notified when the topology has changed.
    changed: Condvar,
    /// Notified when a read of the map is due.
    due: Condvar,
    /// Tracks the items that clients have cached.
    tracker: Arc<Tracker>,
}

#[derive(Debug)]
struct TopologyState {
    /// The names of all groups that any map so far has listed. The index is the local number of the
    /// group. The local group has the number 0.
    names: Vec<String>,
    /// The map, and the slots that this node released while it led.
    ownership: Ownership,
    leaders: BTreeMap<String, LeaderView>,
    /// The groups that own slots, or will import some.
    groups: Vec<GroupIndex>,
    /// The send time of the last read that returned a map; `None` before the first such read.
    read_at: Option<Instant>,
    /// The time of the last attempt to read the map; `None` before the first attempt.
    tried_at: Option<Instant>,
    /// The revision of etcd at the last read; `None` before the first read, after a read without a
    /// map, and after a failed read of the group.
    etcd_revision: Option<Revision>,
    is_due: bool,
}

impl TopologyState {
    fn names_group(&self, group: &str) -> bool {
        let mut names =
            self.ownership.map().into_iter().flat_map(|map| map.owners().chain(map.targets()));
        names.any(|(name, _)| name == group)
    }
}

impl Topology {
    /// Creates the topology for a member of the group `own`.
    pub(crate) fn new(own: &str, tracker: &Arc<Tracker>) -> Self {
        Self {
            owners: (0..SLOTS).map(|_| AtomicU16::new(GroupIndex::OWN.0)).collect(),
            is_divided: AtomicBool::new(false),
            version: AtomicU64::new(0),
            map_revision: AtomicU64::new(0),
            imported: AtomicU64::new(0),
            exported: AtomicU64::new(0),
            known: Mutex::new(TopologyState {
                names: vec![own.to_owned()],
                ownership: Ownership::new(own),
                leaders: BTreeMap::new(),
                groups: vec![GroupIndex::OWN],
                read_at: None,
                tried_at: None,
                etcd_revision: None,
                is_due: true,
            }),
            changed: Condvar::new(),
            due: Condvar::new(),
            tracker: Arc::clone(tracker),
        }
    }

    fn known(&self) -> MutexGuard<'_, TopologyState> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the shard map for sessions, or `None` while the local group owns all slots and no
    /// other group will import any.
    pub fn shard_map(&self) -> Option<&dyn GroupMap> {
        self.is_divided.load(Ordering::Acquire).then_some(self)
    }

    fn owner(&self, slot: u16) -> GroupIndex {
        let owner = self.owners.get(usize::from(slot));
        owner.map_or(GroupIndex::OWN, |owner| GroupIndex(owner.load(Ordering::Acquire)))
    }

    /// Returns whether this node's group owns one of these slots, and this node has not released
    /// it.
    pub(crate) fn has_one_of(&self, slots: &SlotSet) -> bool {
        slots.iter().any(|slot| self.owner(slot) == GroupIndex::OWN)
    }

    /// Returns whether the map is younger than both `within` and [`MAP_AGE_MAX`].
    pub(crate) fn is_current(&self, within: Duration) -> bool {
        let read_at = self.known().read_at;
        read_at.is_some_and(|read_at| read_at.elapsed() < within.min(MAP_AGE_MAX))
    }

    /// Returns the map and its revision; `None` and 0 before the first map.
    pub(crate) fn map(&self) -> (Option<ShardMap>, Revision) {
        let ownership = &self.known().ownership;
        (ownership.map().cloned(), ownership.revision())
    }

    /// Returns the revision of the map; 0 before the first read.
    pub(crate) fn map_revision(&self) -> Revision {
        self.map_revision.load(Ordering::Acquire)
    }

    /// Returns the next planned migration, or `None` if none is planned or this node has no map
    /// yet.
    pub(crate) fn next_migration(&self) -> Option<Migration> {
        self.known().ownership.map()?.next_migration()
    }

    /// Returns whether this node has released slots, or the next planned migration is an import by
    /// its group.
    pub(crate) fn is_migrating(&self) -> bool {
        let ownership = &self.known().ownership;
        let next = ownership.map().and_then(ShardMap::next_migration);
        ownership.has_release() || next.is_some_and(|next| next.to == ownership.group())
    }

    /// Returns the number of slots with a planned migration.
    pub fn slots_moving(&self) -> usize {
        let known = self.known();
        let targets = known.ownership.map().into_iter().flat_map(ShardMap::targets);
        targets.map(|(_, slots)| slots.len()).sum()
    }

    /// Counts slots that this node has imported.
    pub(crate) fn note_imported(&self, slots: usize) {
        self.imported.fetch_add(slots as u64, Ordering::Relaxed);
    }

    /// Returns the number of slots that this node has imported.
    pub fn imported(&self) -> u64 {
        self.imported.load(Ordering::Relaxed)
    }

    /// Returns the number of slots that this node has exported.
    pub fn exported(&self) -> u64 {
        self.exported.load(Ordering::Relaxed)
    }

    /// Returns whether a group owns slots, or will import some.
    pub(crate) fn knows(&self, group: &str) -> bool {
        self.known().names_group(group)
    }

    /// Returns the leader of another group, or `None` if it is unknown, or if the group neither
    /// owns nor will import slots.
    pub(crate) fn leader(&self, group: &str) -> Option<LeaderView> {
        // Ignore a group without slots, because its nodes may have shut down.
        let known = self.known();
        known.leaders.get(group).filter(|_| known.names_group(group)).cloned()
    }

    /// Returns the local numbers and the names of the other groups that any map so far has listed,
    /// without the first `skipped` of them.
    pub(crate) fn others(&self, skipped: usize) -> Vec<(GroupIndex, String)> {
        let names = &self.known().names;
        let others = names.iter().enumerate().skip(1 + skipped);
        others.map(|(n, name)| (number(n), name.clone())).collect()
    }

    /// Updates the map and the leaders. `requested_at` is the time at which they were requested
    /// from etcd.
    pub(crate) fn note(&self, requested_at: Instant, view: ShardMapView) {
        let mut known = self.known();
        known.leaders = view.leaders;
        known.etcd_revision = view.map.is_some().then_some(view.etcd_revision);
        if let Some(map) = view.map {
            known.read_at = Some(requested_at);
            self.update_map(&mut known, map, view.revision);
        }
        self.publish(&mut known);
        drop(known);
        self.changed.notify_all();
    }

    /// Records the revision of etcd that a read of the group returned, or `None` if the read
    /// failed. etcd had this revision at `requested_at` or later. If the map was read at the same
    /// revision, no key has changed since, so the map counts as read at `requested_at`. If the
    /// revision is later, requests a read of the map. After a failed read, an equal revision does
    /// not confirm the map: etcd may have been restored from a backup.
    pub(crate) fn note_etcd_revision(&self, requested_at: Instant, revision: Option<Revision>) {
        let mut known = self.known();
        match (known.etcd_revision, revision) {
            (_, None) => known.etcd_revision = None,
            (Some(seen), Some(revision)) if seen == revision => {
                known.read_at = known.read_at.max(Some(requested_at));
                drop(known);
                self.changed.notify_all();
            }
            // The map was read after this revision, so the revision neither confirms the map nor
            // requires a read.
            (Some(seen), Some(revision)) if seen > revision => (),
            _ => {
                known.is_due = true;
                self.due.notify_all();
            }
        }
    }

    /// Notes that the renewal of a lease has shown this revision of etcd. If the map was read at this
    /// revision, its age makes no further read due for [`MAP_RENEWAL_AGE`] from now.
    pub(super) fn note_unchanged(&self, revision: Revision) {
        let mut known = self.known();
        if known.etcd_revision == Some(revision) {
            known.tried_at = Some(Instant::now());
        }
    }

    /// Returns whether the last read of the map has found a map, and no read of the group has
    /// failed since.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.known().etcd_revision.is_some()
    }

    /// Records an attempt to read the map. For [`MAP_RENEWAL_AGE`] from now, no further read is due
    /// because of the map's age.
    pub(crate) fn note_attempt(&self) {
        self.known().tried_at = Some(Instant::now());
    }

    /// Updates the map after a swap by this node.
    pub(crate) fn note_map(&self, map: ShardMap, revision: Revision) {
        let mut known = self.known();
        self.update_map(&mut known, map, revision);
        self.publish(&mut known);
        drop(known);
        self.changed.notify_all();
    }

    /// Releases slots to another group: this leader answers no more requests for them. Returns
    /// false and does nothing if there is no map, if the local group does not own all of the slots,
    /// or if there is an earlier release.
    pub(crate) fn release(&self, slots: &SlotSet, to: &str, leadership_epoch: u32) -> bool {
        let mut known = self.known();
        let is_released = known.ownership.release(slots, to, leadership_epoch);
        if is_released {
            self.publish(&mut known);
        }
        is_released
    }

    /// Records that the export of released slots has ended, with or without success. Requests a
    /// read of the map.
    pub(crate) fn end_release(&self) {
        self.known().ownership.close_release();
        self.read_soon();
    }

    /// Returns whether the export of released slots has ended although this group still owns some
    /// of them in the map. The map must be replaced before this node answers for the slots again.
    ///
    /// First drops a release of an earlier leadership than `leadership_epoch`, or any release if
    /// this node does not lead (`None`).
    pub(crate) fn has_unused_release(&self, leadership_epoch: Option<u32>) -> bool {
        let mut known = self.known();
        if known.ownership.forget_earlier_release(leadership_epoch) {
            self.publish(&mut known);
        }
        known.ownership.has_failed_release()
    }

    /// Returns the slots that this group owns in the map, including released ones.
    pub fn own_slots(&self) -> SlotSet {
        self.known().ownership.slots()
    }

    /// Revokes a release. The caller has already written `map` to etcd with a new revision. The
    /// importing group can therefore no longer take the slots over: its swap requires the earlier
    /// revision.
    pub(crate) fn revoke_release(&self, map: ShardMap, revision: Revision) {
        let mut known = self.known();
        known.ownership.revoke_release(map, revision);
        self.publish(&mut known);
        drop(known);
        self.changed.notify_all();
    }

    fn update_map(&self, state: &mut TopologyState, map: ShardMap, revision: Revision) {
        let has_changed = state.ownership.map().is_some_and(|before| *before != map);
        let exported = state.ownership.update_map(map, revision);
        self.exported.fetch_add(exported as u64, Ordering::Relaxed);
        if has_changed {
            // Requests that were under way at the release of these slots may have read items that
            // the new owner has changed since.
            self.tracker.note_flush();
        }
    }

    fn publish(&self, known: &mut TopologyState) {
        let TopologyState { names, ownership, groups, .. } = known;
        let Some(map) = ownership.map() else { return };
        let mut number_of = |name: &str| {
            let found = names.iter().position(|known| known == name);
            number(found.unwrap_or_else(|| {
                names.push(name.to_owned());
                names.len() - 1
            }))
        };
        *groups = map.owners().map(|(name, _)| number_of(name)).collect();
        let owner_of = |slot| ownership.owner_of(slot).map_or(GroupIndex::OWN, &mut number_of);
        let owners: Vec<GroupIndex> = (0..SLOTS).map(owner_of).collect();
        groups.extend(map.targets().map(|(name, _)| number_of(name)));
        groups.sort_unstable();
        groups.dedup();
        let is_divided = *groups != [GroupIndex::OWN];
        let mut both = self.owners.iter().zip(&owners);
        let has_changed = both.any(|(stored, owner)| stored.load(Ordering::Relaxed) != owner.0);
        if has_changed || self.is_divided.load(Ordering::Relaxed) != is_divided {
            // A session that reads owners during the change sees a different version afterwards.
            self.version.fetch_add(1, Ordering::AcqRel);
            self.owners
                .iter()
                .zip(&owners)
                .for_each(|(stored, owner)| stored.store(owner.0, Ordering::Release));
            self.is_divided.store(is_divided, Ordering::Release);
            self.version.fetch_add(1, Ordering::AcqRel);
            // Report a change of all items, because the new owners do not know which items the
            // clients have cached.
            self.tracker.note_flush();
        }
        // Store the revision last: a flush that is sent with this revision must have been sent by the
        // new map.
        self.map_revision.store(ownership.revision(), Ordering::Release);
    }

    /// Requests a read of the map, and wakes the thread that waits in [`Self::wait_until_due`].
    pub(crate) fn read_soon(&self) {
        self.known().is_due = true;
        self.due.notify_all();
    }

    /// Waits for at most `time` until a read of the map is due. A read is due if it was requested,
    /// or if both the map and the last attempt are too old. Clears the request. Returns whether a
    /// read is due.
    pub(crate) fn wait_until_due(&self, time: Duration) -> bool {
        let start = Instant::now();
        let mut known = self.known();
        loop {
            let last = known.read_at.max(known.tried_at);
            let age = last.map_or(MAP_RENEWAL_AGE, |last| last.elapsed());
            if std::mem::take(&mut known.is_due) || age >= MAP_RENEWAL_AGE {
                return true;
            }
            let left = time.saturating_sub(start.elapsed()).min(MAP_RENEWAL_AGE - age);
            if left.is_zero() {
                return false;
            }
            let waited = self.due.wait_timeout(known, left);
            known = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for a map that this node requested from etcd after the time `after`. Returns false if
    /// the node shuts down, or if `continues` returns false.
    pub(crate) fn wait_for_map(
        &self,
        after: Instant,
        stop: &Stop,
        continues: impl Fn() -> bool,
    ) -> bool {
        let is_old = |known: &mut TopologyState| {
            known.ownership.map().is_none() || known.read_at.is_none_or(|read_at| read_at < after)
        };
        while !stop.is_set() && continues() {
            self.read_soon();
            let (mut known, _) = self
                .changed
                .wait_timeout_while(self.known(), STOP_POLL_INTERVAL, is_old)
                .unwrap_or_else(PoisonError::into_inner);
            if !is_old(&mut known) {
                return true;
            }
        }
        false
    }

    /// Waits up to `time` for a change of the topology.
    pub(crate) fn wait(&self, time: Duration) {
        let _ = self.changed.wait_timeout(self.known(), time);
    }
}

/// Returns the number for the group at this index in `names`. Returns `u16::MAX` for an index that
/// does not fit in a `u16`.
fn number(position: usize) -> GroupIndex {
    GroupIndex(u16::try_from(position).unwrap_or(u16::MAX))
}

impl GroupMap for Topology {
    fn group_of(&self, key: &[u8]) -> GroupIndex {
        self.owner(slot(key))
    }

    fn groups(&self) -> Vec<GroupIndex> {
        self.known().groups.clone()
    }

    fn version(&self) -> u64 {
        loop {
            let version = self.version.load(Ordering::Acquire);
            if version.is_multiple_of(2) {
                return version;
            }
            // The version is odd while the owners change, so wait for the end of the change.
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_operations::{Invalidation, SubscriptionOptions};
    use std::task::Waker;

    fn view(map: &ShardMap, revision: Revision) -> ShardMapView {
        ShardMapView { map: Some(map.clone()), revision, ..ShardMapView::default() }
    }

    #[test]
    fn released_slots_are_not_served_until_the_release_is_revoked() {
        let topology = Topology::new("0", &Arc::new(Tracker::new(1 << 20)));
        let mut map = ShardMap::single_group("0");
        topology.note(Instant::now(), view(&map, 1));
        assert!(topology.shard_map().is_none());
        map.plan_migration("1", Some(100)).unwrap();
        topology.note(Instant::now(), view(&map, 2));
        let group_map = topology.shard_map().expect("another group will import slots");
        assert_eq!(group_map.groups(), [GroupIndex(0), GroupIndex(1)]);
        let next = topology.next_migration().unwrap();
        let before = group_map.version();
        assert!(topology.release(&next.slots, "1", 7));
        assert!(!topology.release(&next.slots, "1", 7), "a second release is refused");
        assert!(group_map.version() > before && !topology.has_one_of(&next.slots));
        // A new revision with an equal map does not revoke the release.
        topology.note(Instant::now(), view(&map, 2));
        assert!(!topology.has_one_of(&next.slots) && !topology.has_unused_release(Some(7)));
        topology.end_release();
        assert!(!topology.has_one_of(&next.slots) && topology.has_unused_release(Some(7)));
        topology.revoke_release(map.clone(), 3);
        assert!(topology.has_one_of(&next.slots) && !topology.has_unused_release(Some(7)));
        // A release is valid only in the leadership that has made it.
        assert!(topology.release(&next.slots, "1", 7));
        assert!(!topology.has_unused_release(Some(8)) && topology.has_one_of(&next.slots));
        assert!(topology.release(&next.slots, "1", 8));
        topology.end_release();
        map.finish(&next);
        topology.note(Instant::now(), view(&map, 4));
        assert!(!topology.has_unused_release(Some(8)) && !topology.has_one_of(&next.slots));
    }

    #[test]
    fn a_read_at_the_revision_of_the_map_renews_it_and_a_later_revision_requests_a_read() {
        let topology = Topology::new("0", &Arc::new(Tracker::new(1 << 20)));
        let map = ShardMap::single_group("0");
        let seen_at = |etcd_revision| ShardMapView { etcd_revision, ..view(&map, 1) };
        let is_due = || topology.wait_until_due(Duration::ZERO);
        let now = Instant::now();
        let old = now.checked_sub(MAP_RENEWAL_AGE).unwrap();
        assert!(is_due(), "there is no map");
        topology.note_etcd_revision(now, Some(0));
        assert!(
            !topology.is_current(Duration::MAX),
            "the revision of an absent map proves nothing"
        );
        topology.note(old, ShardMapView { etcd_revision: 7, ..ShardMapView::default() });
        topology.note_etcd_revision(now, Some(7));
        assert!(is_due() && !topology.is_current(Duration::MAX), "etcd has no map");
        topology.note(old, seen_at(7));
        assert!(is_due(), "the map is old");
        topology.note_etcd_revision(now, Some(7));
        assert!(!is_due() && topology.is_current(MAP_RENEWAL_AGE), "nothing has changed");
        // A late reply must not make the map count as older, and an earlier revision of etcd must
        // have no effect.
        topology.note_etcd_revision(old, Some(7));
        topology.note_etcd_revision(now, Some(6));
        assert!(!is_due() && topology.is_current(MAP_RENEWAL_AGE));
        topology.note_etcd_revision(now, Some(8));
        assert!(is_due() && !is_due(), "a key has changed");
        topology.note(old, seen_at(8));
        topology.note_etcd_revision(now, Some(7));
        assert!(is_due() && !topology.is_current(MAP_RENEWAL_AGE), "the map is old");
        topology.note(old, seen_at(8));
        topology.note_etcd_revision(now, None);
        assert!(!topology.is_confirmed());
        topology.note_etcd_revision(now, Some(8));
        let is_current = topology.is_current(MAP_RENEWAL_AGE);
        assert!(is_due() && !is_current, "after a failed read, an equal revision proves nothing");
        // A failed attempt delays the next attempt.
        topology.note_attempt();
        assert!(!is_due());
    }

    #[test]
    fn clients_drop_their_copies_when_slots_get_another_owner() {
        let tracker = Arc::new(Tracker::new(1 << 20));
        let topology = Topology::new("0", &tracker);
        let reader = SubscriptionOptions { connection: 1, receiver: 1, ..Default::default() };
        let _reader = tracker.subscribe(reader, Vec::new());
        let next = || tracker.inbox(1).next(|| Waker::noop().clone());
        let mut map = ShardMap::single_group("0");
        topology.note(Instant::now(), view(&map, 1));
        topology.note(Instant::now(), view(&map, 2));
        assert_eq!(next(), None);
        map.plan_migration("1", Some(100)).unwrap();
        topology.note(Instant::now(), view(&map, 3));
        assert_eq!(next(), Some(Invalidation::All), "another group will own slots");
        let migration = topology.next_migration().unwrap();
        assert!(topology.release(&migration.slots, "1", 7));
        assert_eq!(next(), Some(Invalidation::All), "the release");
        map.finish(&migration);
        topology.note_map(map.clone(), 4);
        assert_eq!(next(), Some(Invalidation::All), "the new map");
        topology.note(Instant::now(), view(&map, 4));
        assert_eq!(next(), None);
    }
}
