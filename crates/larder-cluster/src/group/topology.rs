//! What this server knows of the whole cluster: which group has which keys, and who leads the other groups.

use crate::peers::Stop;
use larder_etcd::{LeaderView, MapView};
use larder_protocol::{SLOTS, slot};
use larder_replica::{Move, Ownership, Revision, SlotMap, SlotSet};
use larder_session::{Division, Group as Number};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A map that was read so long ago may not be the one that there is.
const CURRENT: Duration = Duration::from_millis(1500);
/// How often waiters look whether the server ends.
const SLICE: Duration = Duration::from_millis(100);

/// The cluster as it was last seen.
#[derive(Debug)]
pub struct Topology {
    /// For each slot the number of the group that has it.
    owners: Box<[AtomicU16]>,
    /// Other groups have keys, or are to get some.
    is_divided: AtomicBool,
    /// Rises when slots get to other groups.
    version: AtomicU64,
    /// Slots that this leader has taken over, and those that it has given to others.
    taken: AtomicU64,
    given: AtomicU64,
    known: Mutex<Known>,
    /// Something is known anew.
    changed: Condvar,
    /// The map is to be looked at.
    wanted: Condvar,
}

#[derive(Debug)]
struct Known {
    /// The groups by their numbers here: this server's own is the first.
    names: Vec<String>,
    /// What the map says, and what this leader has given up.
    ownership: Ownership,
    leaders: BTreeMap<String, LeaderView>,
    /// Those that have slots or are to get some.
    groups: Vec<Number>,
    /// When the question was sent whose answer this is.
    looked: Option<Instant>,
    is_wanted: bool,
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
            taken: AtomicU64::new(0),
            given: AtomicU64::new(0),
            known: Mutex::new(Known {
                names: vec![own.to_owned()],
                ownership: Ownership::new(own),
                leaders: BTreeMap::new(),
                groups: vec![Number::OWN],
                looked: None,
                is_wanted: true,
            }),
            changed: Condvar::new(),
            wanted: Condvar::new(),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How keys are divided among groups, if they are.
    pub fn division(&self) -> Option<&dyn Division> {
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
    pub(crate) fn map(&self) -> (Option<SlotMap>, Revision) {
        let ownership = &self.known().ownership;
        (ownership.map().cloned(), ownership.revision())
    }

    /// The next move, if there is one.
    pub(crate) fn next_move(&self) -> Option<Move> {
        self.known().ownership.map()?.next_move()
    }

    /// How many slots are to move.
    pub fn slots_moving(&self) -> usize {
        let known = self.known();
        let targets = known.ownership.map().into_iter().flat_map(SlotMap::targets);
        targets.map(|(_, slots)| slots.len()).sum()
    }

    /// This leader has taken so many slots over.
    pub(crate) fn note_taken(&self, slots: usize) {
        self.taken.fetch_add(slots as u64, Ordering::Relaxed);
    }

    /// Slots that this server has taken over so far.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Slots that this server has given to other groups so far.
    pub fn given(&self) -> u64 {
        self.given.load(Ordering::Relaxed)
    }

    /// Whether a group has slots, or is to get some.
    pub(crate) fn knows(&self, group: &str) -> bool {
        self.known().names_group(group)
    }

    /// Who leads another group.
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

    /// Takes in the map and the leaders as they are, for which it was asked at this time.
    pub(crate) fn note(&self, asked: Instant, view: MapView) {
        let mut known = self.known();
        known.leaders = view.leaders;
        if let Some(map) = view.map {
            known.looked = Some(asked);
            self.count_given(known.ownership.note_map(map, view.revision));
        }
        self.publish(&mut known);
        drop(known);
        self.changed.notify_all();
    }

    /// The map is this one from here on, by a swap of this server's.
    pub(crate) fn note_map(&self, map: SlotMap, revision: Revision) {
        let mut known = self.known();
        self.count_given(known.ownership.note_map(map, revision));
        self.publish(&mut known);
        drop(known);
        self.changed.notify_all();
    }

    /// This leader answers nothing about these slots from here on. Whether it has them.
    pub(crate) fn give_up(&self, slots: &SlotSet, to: &str, leads_since: u32) -> bool {
        let mut known = self.known();
        let can = known.ownership.give_up(slots, to, leads_since);
        if can {
            self.publish(&mut known);
        }
        can
    }

    /// The other group has taken the slots over that were given up, or will not.
    pub(crate) fn end_giving(&self) {
        self.known().ownership.end_giving();
        self.look_soon();
    }

    /// Whether slots were given up that the other group has not taken over: the map has to be replaced before they can be
    /// answered for again. `leads_since`: the leadership of this server. If it is another one, nobody can get them any
    /// more.
    pub(crate) fn has_given_in_vain(&self, leads_since: Option<u32>) -> bool {
        let mut known = self.known();
        if known.ownership.forget_earlier(leads_since) {
            self.publish(&mut known);
        }
        known.ownership.has_given_in_vain()
    }

    /// The slots that the map says to be this group's, also if they were given up.
    pub fn own_slots(&self) -> SlotSet {
        self.known().ownership.slots()
    }

    /// Nobody can get the slots any more that were given up.
    pub(crate) fn take_back(&self, map: SlotMap, revision: Revision) {
        let mut known = self.known();
        known.ownership.take_back(map, revision);
        self.publish(&mut known);
        drop(known);
        self.changed.notify_all();
    }

    fn count_given(&self, slots: usize) {
        self.given.fetch_add(slots as u64, Ordering::Relaxed);
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
            // Whoever reads meanwhile finds another version afterwards.
            self.version.fetch_add(1, Ordering::AcqRel);
            self.owners
                .iter()
                .zip(&owners)
                .for_each(|(was, is)| was.store(is.0, Ordering::Release));
            self.is_divided.store(is_divided, Ordering::Release);
            self.version.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Has the map looked at at once.
    pub(crate) fn look_soon(&self) {
        self.known().is_wanted = true;
        self.wanted.notify_all();
    }

    /// Waits until the map is to be looked at, or for this time.
    pub(crate) fn wait_until_wanted(&self, time: Duration) {
        let is_idle = |known: &mut Known| !known.is_wanted;
        let waited = self.wanted.wait_timeout_while(self.known(), time, is_idle);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_wanted = false;
    }

    /// Waits until there is a map for which was asked after this time. False if the server ends, or `goes_on` says so.
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
            self.look_soon();
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

    /// Waits until something is known anew, or for this time.
    pub(crate) fn wait(&self, time: Duration) {
        let _ = self.changed.wait_timeout(self.known(), time);
    }
}

/// There are at most as many groups as slots, and as many that are to get some.
fn number(position: usize) -> Number {
    Number(u16::try_from(position).unwrap_or(u16::MAX))
}

impl Division for Topology {
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

    fn view(map: &SlotMap, revision: Revision) -> MapView {
        MapView { map: Some(map.clone()), revision, ..MapView::default() }
    }

    #[test]
    fn what_was_given_up_is_not_answered_for_until_it_is_taken_back() {
        let topology = Topology::new("0");
        let mut map = SlotMap::of_one("0");
        topology.note(Instant::now(), view(&map, 1));
        assert!(topology.division().is_none());
        map.plan_move("1", Some(100)).unwrap();
        topology.note(Instant::now(), view(&map, 2));
        let division = topology.division().expect("all groups are flushed from here on");
        assert_eq!(division.groups(), [Number(0), Number(1)]);
        let next = topology.next_move().unwrap();
        let before = division.version();
        assert!(topology.give_up(&next.slots, "1", 7));
        assert!(!topology.give_up(&next.slots, "1", 7), "once");
        assert!(division.version() > before && !topology.has_one_of(&next.slots));
        // A map that was read before is none that gives them back.
        topology.note(Instant::now(), view(&map, 2));
        assert!(!topology.has_one_of(&next.slots) && !topology.has_given_in_vain(Some(7)));
        topology.end_giving();
        assert!(!topology.has_one_of(&next.slots) && topology.has_given_in_vain(Some(7)));
        topology.take_back(map.clone(), 3);
        assert!(topology.has_one_of(&next.slots) && !topology.has_given_in_vain(Some(7)));
        // Another leadership has nothing given up.
        assert!(topology.give_up(&next.slots, "1", 7));
        assert!(!topology.has_given_in_vain(Some(8)) && topology.has_one_of(&next.slots));
        assert!(topology.give_up(&next.slots, "1", 8));
        topology.end_giving();
        map.finish(&next);
        topology.note(Instant::now(), view(&map, 4));
        assert!(!topology.has_given_in_vain(Some(8)) && !topology.has_one_of(&next.slots));
    }
}
