//! The cluster as this node knows it: the groups that own slots, and their leaders.

use crate::peers::Stop;
use larder_etcd::{LeaderView, ShardMapView};
use larder_protocol::{SLOTS, slot};
use larder_replica::{Migration, Ownership, Revision, ShardMap, SlotSet};
use larder_session::{Group as Number, GroupMap};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A map that was read longer ago may be out of date.
const CURRENT: Duration = Duration::from_millis(1500);
/// How often waiters check whether the node shuts down.
const SLICE: Duration = Duration::from_millis(100);

/// The cluster as it was last seen.
#[derive(Debug)]
pub struct Topology {
    /// For each slot the number of the group that owns it.
    owners: Box<[AtomicU16]>,
    /// Whether other groups own slots, or are to import some.
    is_divided: AtomicBool,
    /// Rises when slots get to other groups.
    version: AtomicU64,
    /// Slots that this leader has imported and exported.
    imported: AtomicU64,
    exported: AtomicU64,
    known: Mutex<Known>,
    /// The topology has changed.
    changed: Condvar,
    /// The map is to be read at once.
    due: Condvar,
}

#[derive(Debug)]
struct Known {
    /// The groups by their numbers here: this server's own is the first.
    names: Vec<String>,
    /// The map, and the slots that this leader has released.
    ownership: Ownership,
    leaders: BTreeMap<String, LeaderView>,
    /// The groups that own slots or are to import some.
    groups: Vec<Number>,
    /// When the request was sent whose answer this is.
    looked: Option<Instant>,
    is_due: bool,
}

impl Known {
    fn names_group(&self, group: &str) -> bool {
        let mut named =
            self.ownership.map().into_iter().flat_map(|map| map.owners().chain(map.targets()));
        named.any(|(name, _)| name == group)
    }
}

impl Topology {
    /// For a member of the group of this name.
    pub(crate) fn new(own: &str) -> Self {
        Self {
            owners: (0..SLOTS).map(|_| AtomicU16::new(Number::OWN.0)).collect(),
            is_divided: AtomicBool::new(false),
            version: AtomicU64::new(0),
            imported: AtomicU64::new(0),
            exported: AtomicU64::new(0),
            known: Mutex::new(Known {
                names: vec![own.to_owned()],
                ownership: Ownership::new(own),
                leaders: BTreeMap::new(),
                groups: vec![Number::OWN],
                looked: None,
                is_due: true,
            }),
            changed: Condvar::new(),
            due: Condvar::new(),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shard map for sessions; `None` while one group owns all slots.
    pub fn shard_map(&self) -> Option<&dyn GroupMap> {
        self.is_divided.load(Ordering::Acquire).then_some(self)
    }

    fn owner(&self, slot: u16) -> Number {
        let owner = self.owners.get(usize::from(slot));
        owner.map_or(Number::OWN, |owner| Number(owner.load(Ordering::Acquire)))
    }

    /// Whether this server's group has one of these slots.
    pub(crate) fn has_one_of(&self, slots: &SlotSet) -> bool {
        slots.iter().any(|slot| self.owner(slot) == Number::OWN)
    }

    /// Whether the map was looked at within this time, and [`CURRENT`].
    pub(crate) fn is_current(&self, within: Duration) -> bool {
        let looked = self.known().looked;
        looked.is_some_and(|looked| looked.elapsed() < within.min(CURRENT))
    }

    /// The map, and its number.
    pub(crate) fn map(&self) -> (Option<ShardMap>, Revision) {
        let ownership = &self.known().ownership;
        (ownership.map().cloned(), ownership.revision())
    }

    /// The next move, if there is one.
    pub(crate) fn next_migration(&self) -> Option<Migration> {
        self.known().ownership.map()?.next_migration()
    }

    /// How many slots are to move.
    pub fn slots_moving(&self) -> usize {
        let known = self.known();
        let targets = known.ownership.map().into_iter().flat_map(ShardMap::targets);
        targets.map(|(_, slots)| slots.len()).sum()
    }

    /// Counts slots that this leader has imported.
    pub(crate) fn note_imported(&self, slots: usize) {
        self.imported.fetch_add(slots as u64, Ordering::Relaxed);
    }

    /// Slots that this node has imported so far.
    pub fn imported(&self) -> u64 {
        self.imported.load(Ordering::Relaxed)
    }

    /// Slots that this node has exported to other groups so far.
    pub fn exported(&self) -> u64 {
        self.exported.load(Ordering::Relaxed)
    }

    /// Whether a group has slots, or is to get some.
    pub(crate) fn knows(&self, group: &str) -> bool {
        self.known().names_group(group)
    }

    /// The leader of another group.
    pub(crate) fn leader(&self, group: &str) -> Option<LeaderView> {
        // One without slots may have ended.
        let known = self.known();
        known.leaders.get(group).filter(|_| known.names_group(group)).cloned()
    }

    /// The other groups, by their numbers here.
    pub(crate) fn others(&self) -> Vec<(Number, String)> {
        let numbers = 0..self.known().names.len();
        numbers
            .zip(&self.known().names)
            .skip(1)
            .map(|(n, name)| (number(n), name.clone()))
            .collect()
    }

    /// Notes the map and the leaders, which were requested at this time.
    pub(crate) fn note(&self, asked: Instant, view: ShardMapView) {
        let mut known = self.known();
        known.leaders = view.leaders;
        if let Some(map) = view.map {
            known.looked = Some(asked);
            self.count_exported(known.ownership.update_map(map, view.revision));
        }
        self.publish(&mut known);
        drop(known);
        self.changed.notify_all();
    }

    /// The map is this one from here on, by a swap of this server's.
    pub(crate) fn note_map(&self, map: ShardMap, revision: Revision) {
        let mut known = self.known();
        self.count_exported(known.ownership.update_map(map, revision));
        self.publish(&mut known);
        drop(known);
        self.changed.notify_all();
    }

    /// Releases slots to another group: this leader does not answer requests for them any more. Returns whether it owned
    /// them.
    pub(crate) fn release(&self, slots: &SlotSet, to: &str, leads_since: u32) -> bool {
        let mut known = self.known();
        let can = known.ownership.release(slots, to, leads_since);
        if can {
            self.publish(&mut known);
        }
        can
    }

    /// The other group has imported the released slots, or will not.
    pub(crate) fn end_release(&self) {
        self.known().ownership.close_release();
        self.read_soon();
    }

    /// Whether slots were released that the other group has not imported: the map must be replaced before this node answers
    /// for them again. `leads_since` is the leadership of this node: a release of an earlier one is void.
    pub(crate) fn has_unused_release(&self, leads_since: Option<u32>) -> bool {
        let mut known = self.known();
        if known.ownership.forget_earlier_release(leads_since) {
            self.publish(&mut known);
        }
        known.ownership.has_failed_release()
    }

    /// The slots that the map assigns to this group, released ones included.
    pub fn own_slots(&self) -> SlotSet {
        self.known().ownership.slots()
    }

    /// Revokes a release: the map has been replaced, so that the other group cannot import the slots any more.
    pub(crate) fn revoke_release(&self, map: ShardMap, revision: Revision) {
        let mut known = self.known();
        known.ownership.revoke_release(map, revision);
        self.publish(&mut known);
        drop(known);
        self.changed.notify_all();
    }

    fn count_exported(&self, slots: usize) {
        self.exported.fetch_add(slots as u64, Ordering::Relaxed);
    }

    fn publish(&self, known: &mut Known) {
        let Known { names, ownership, groups, .. } = known;
        let Some(map) = ownership.map() else { return };
        let mut number_of = |name: &str| {
            let found = names.iter().position(|known| known == name);
            number(found.unwrap_or_else(|| {
                names.push(name.to_owned());
                names.len() - 1
            }))
        };
        *groups = map.owners().map(|(name, _)| number_of(name)).collect();
        let owner_of = |slot| ownership.owner_of(slot).map_or(Number::OWN, &mut number_of);
        let owners: Vec<Number> = (0..SLOTS).map(owner_of).collect();
        groups.extend(map.targets().map(|(name, _)| number_of(name)));
        groups.sort_unstable();
        groups.dedup();
        let is_divided = *groups != [Number::OWN];
        let mut both = self.owners.iter().zip(&owners);
        let has_changed = both.any(|(was, is)| was.load(Ordering::Relaxed) != is.0);
        if has_changed || self.is_divided.load(Ordering::Relaxed) != is_divided {
            // A session that reads while this changes finds another version afterwards.
            self.version.fetch_add(1, Ordering::AcqRel);
            self.owners
                .iter()
                .zip(&owners)
                .for_each(|(was, is)| was.store(is.0, Ordering::Release));
            self.is_divided.store(is_divided, Ordering::Release);
            self.version.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Requests a read of the map at once.
    pub(crate) fn read_soon(&self) {
        self.known().is_due = true;
        self.due.notify_all();
    }

    /// Waits until a read of the map is requested, or for this time.
    pub(crate) fn wait_until_due(&self, time: Duration) {
        let is_idle = |known: &mut Known| !known.is_due;
        let waited = self.due.wait_timeout_while(self.known(), time, is_idle);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_due = false;
    }

    /// Waits for a map that was requested after this time. Returns false if the node shuts down, or `goes_on` does.
    pub(crate) fn wait_for_map(
        &self,
        after: Instant,
        stop: &Stop,
        goes_on: impl Fn() -> bool,
    ) -> bool {
        let is_old = |known: &mut Known| {
            known.ownership.map().is_none() || known.looked.is_none_or(|looked| looked < after)
        };
        while !stop.is_set() && goes_on() {
            self.read_soon();
            let (mut known, _) = self
                .changed
                .wait_timeout_while(self.known(), SLICE, is_old)
                .unwrap_or_else(PoisonError::into_inner);
            if !is_old(&mut known) {
                return true;
            }
        }
        false
    }

    /// Waits for a change, or for this time.
    pub(crate) fn wait(&self, time: Duration) {
        let _ = self.changed.wait_timeout(self.known(), time);
    }
}

/// There are at most as many groups as slots, and as many that are to get some.
fn number(position: usize) -> Number {
    Number(u16::try_from(position).unwrap_or(u16::MAX))
}

impl GroupMap for Topology {
    fn group_of(&self, key: &[u8]) -> Number {
        self.owner(slot(key))
    }

    fn groups(&self) -> Vec<Number> {
        self.known().groups.clone()
    }

    fn version(&self) -> u64 {
        loop {
            let version = self.version.load(Ordering::Acquire);
            if version.is_multiple_of(2) {
                return version;
            }
            // Slots get to other groups at this moment.
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(map: &ShardMap, revision: Revision) -> ShardMapView {
        ShardMapView { map: Some(map.clone()), revision, ..ShardMapView::default() }
    }

    #[test]
    fn released_slots_are_not_served_until_the_release_is_revoked() {
        let topology = Topology::new("0");
        let mut map = ShardMap::single_group("0");
        topology.note(Instant::now(), view(&map, 1));
        assert!(topology.shard_map().is_none());
        map.plan_migration("1", Some(100)).unwrap();
        topology.note(Instant::now(), view(&map, 2));
        let division = topology.shard_map().expect("all groups are flushed from here on");
        assert_eq!(division.groups(), [Number(0), Number(1)]);
        let next = topology.next_migration().unwrap();
        let before = division.version();
        assert!(topology.release(&next.slots, "1", 7));
        assert!(!topology.release(&next.slots, "1", 7), "once");
        assert!(division.version() > before && !topology.has_one_of(&next.slots));
        // A map that was read before does not revoke the release.
        topology.note(Instant::now(), view(&map, 2));
        assert!(!topology.has_one_of(&next.slots) && !topology.has_unused_release(Some(7)));
        topology.end_release();
        assert!(!topology.has_one_of(&next.slots) && topology.has_unused_release(Some(7)));
        topology.revoke_release(map.clone(), 3);
        assert!(topology.has_one_of(&next.slots) && !topology.has_unused_release(Some(7)));
        // Another leadership has released nothing.
        assert!(topology.release(&next.slots, "1", 7));
        assert!(!topology.has_unused_release(Some(8)) && topology.has_one_of(&next.slots));
        assert!(topology.release(&next.slots, "1", 8));
        topology.end_release();
        map.finish(&next);
        topology.note(Instant::now(), view(&map, 4));
        assert!(!topology.has_unused_release(Some(8)) && !topology.has_one_of(&next.slots));
    }
}
