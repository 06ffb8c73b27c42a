//! Which group of a cluster has which keys: a map of slots, which the coordinator keeps.

use larder_protocol::{SLOTS, slot};
use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::str::FromStr;

const WORDS: usize = SLOTS as usize / 64;

/// Some of the slots.
#[derive(Clone, PartialEq, Eq)]
pub struct SlotSet(Box<[u64; WORDS]>);

impl Default for SlotSet {
    fn default() -> Self {
        Self(Box::new([0; WORDS]))
    }
}

impl SlotSet {
    /// The bytes of [`SlotSet::to_bytes`].
    pub const BYTES: usize = WORDS * 8;

    /// All slots.
    #[must_use]
    pub fn all() -> Self {
        Self(Box::new([u64::MAX; WORDS]))
    }

    /// Whether a slot is one of them.
    #[must_use]
    pub fn contains(&self, slot: u16) -> bool {
        let word = self.0.get(usize::from(slot / 64)).copied().unwrap_or_default();
        word >> (slot % 64) & 1 == 1
    }

    /// Whether the slot of a key is one of them.
    #[must_use]
    pub fn has_key(&self, key: &[u8]) -> bool {
        self.contains(slot(key))
    }

    /// Adds a slot. Slots from [`SLOTS`] on do not exist.
    pub fn insert(&mut self, slot: u16) {
        if let Some(word) = self.0.get_mut(usize::from(slot / 64)) {
            *word |= 1 << (slot % 64);
        }
    }

    /// Adds those of another set.
    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(&*other.0).for_each(|(word, other)| *word |= other);
    }

    /// Removes those of another set.
    pub fn remove(&mut self, other: &Self) {
        self.0.iter_mut().zip(&*other.0).for_each(|(word, other)| *word &= !other);
    }

    /// Those that are also in another set.
    #[must_use]
    pub fn common(&self, other: &Self) -> Self {
        let mut common = self.clone();
        common.0.iter_mut().zip(&*other.0).for_each(|(word, other)| *word &= other);
        common
    }

    /// Whether all of another set are among them.
    #[must_use]
    pub fn includes(&self, other: &Self) -> bool {
        self.0.iter().zip(&*other.0).all(|(word, other)| other & !word == 0)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Them, in order.
    pub fn iter(&self) -> impl Iterator<Item = u16> {
        (0..SLOTS).filter(|slot| self.contains(*slot))
    }

    /// A bit for each slot, the first one lowest.
    pub fn to_bytes(&self) -> impl Iterator<Item = u8> {
        self.0.iter().flat_map(|word| word.to_le_bytes())
    }

    /// What [`SlotSet::to_bytes`] has made of a set.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let mut set = Self::default();
        let (words, _) = bytes.as_chunks();
        set.0.iter_mut().zip(words).for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
        set
    }

    /// Takes out the last ones, so many of them.
    fn take_last(&mut self, count: usize) -> Self {
        let left = self.len().saturating_sub(count);
        let taken: Self = self.iter().skip(left).collect();
        self.remove(&taken);
        taken
    }
}

impl FromIterator<u16> for SlotSet {
    fn from_iter<I: IntoIterator<Item = u16>>(slots: I) -> Self {
        let mut set = Self::default();
        slots.into_iter().for_each(|slot| set.insert(slot));
        set
    }
}

/// As ranges: `0-1023,2048`.
impl Display for SlotSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut slot, mut separator) = (0, "");
        while slot < SLOTS {
            let end = (slot..SLOTS).find(|slot| !self.contains(*slot)).unwrap_or(SLOTS);
            match end - slot {
                0 => (),
                1 => write!(f, "{separator}{slot}")?,
                _ => write!(f, "{separator}{slot}-{}", end - 1)?,
            }
            if end > slot {
                separator = ",";
            }
            slot = end + 1;
        }
        Ok(())
    }
}

impl fmt::Debug for SlotSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

/// A text is no set of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("slots are written as ranges of numbers below {SLOTS}: 0-1023,2048")]
pub struct SlotsError;

impl FromStr for SlotSet {
    type Err = SlotsError;

    fn from_str(text: &str) -> Result<Self, SlotsError> {
        let mut set = Self::default();
        for range in text.split(',').filter(|range| !range.is_empty()) {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let number = |text: &str| text.parse().ok().filter(|slot| *slot < SLOTS);
            let first: u16 = number(first).ok_or(SlotsError)?;
            let last = number(last).filter(|last| *last >= first).ok_or(SlotsError)?;
            (first..=last).for_each(|slot| set.insert(slot));
        }
        Ok(set)
    }
}

/// Which group has which slots, and which are to move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotMap {
    /// Each slot belongs to one group.
    slots: BTreeMap<String, SlotSet>,
    /// Those that are to move to a group, which has none of them yet.
    moves: BTreeMap<String, SlotSet>,
}

/// Slots that are to move from one group to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// Who has them.
    pub from: String,
    /// Who is to have them.
    pub to: String,
    /// Which ones.
    pub slots: SlotSet,
}

/// Why slots can't be moved as somebody wants it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Other moves are not done.
    #[error("{0} slots are still to move to {1}: wait until they have, or cancel that")]
    UnderWay(usize, String),
    /// There are not as many.
    #[error("other groups can give {0} slots: each keeps one")]
    TooMany(usize),
    /// The group has enough, or none that could move.
    #[error("there is nothing to move")]
    Nothing,
    /// Nobody else could have them.
    #[error("no other group has slots: move some to another group first")]
    NoOther,
}

impl SlotMap {
    /// One group has all slots.
    #[must_use]
    pub fn of_one(group: &str) -> Self {
        let slots = BTreeMap::from([(group.to_owned(), SlotSet::all())]);
        Self { slots, moves: BTreeMap::new() }
    }

    /// A map from its parts; `None` if a slot does not belong to exactly one group, or would move to the group that has
    /// it, or to two.
    #[must_use]
    pub fn new(slots: BTreeMap<String, SlotSet>, moves: BTreeMap<String, SlotSet>) -> Option<Self> {
        let sum = |sets: &BTreeMap<String, SlotSet>| sets.values().map(SlotSet::len).sum();
        let union = |sets: &BTreeMap<String, SlotSet>| {
            sets.values().fold(SlotSet::default(), |mut all, set| {
                all.add(set);
                all
            })
        };
        let (owned, moved): (usize, usize) = (sum(&slots), sum(&moves));
        let is_whole = owned == usize::from(SLOTS) && union(&slots).len() == owned;
        let is_once = union(&moves).len() == moved;
        let stays = |(group, set): (&String, &SlotSet)| {
            slots.get(group).is_some_and(|own| !own.common(set).is_empty())
        };
        let is_right = is_whole && is_once && !moves.iter().any(stays);
        let keep_full = |sets: BTreeMap<String, SlotSet>| {
            sets.into_iter().filter(|(_, set)| !set.is_empty()).collect()
        };
        is_right.then(|| Self { slots: keep_full(slots), moves: keep_full(moves) })
    }

    /// The groups that have slots, by name.
    pub fn owners(&self) -> impl Iterator<Item = (&str, &SlotSet)> {
        self.slots.iter().map(|(group, slots)| (group.as_str(), slots))
    }

    /// The group that has a slot; every slot below [`SLOTS`] has one.
    #[must_use]
    pub fn owner_of(&self, slot: u16) -> Option<&str> {
        self.owners().find_map(|(group, slots)| slots.contains(slot).then_some(group))
    }

    /// The groups that are to get slots.
    pub fn targets(&self) -> impl Iterator<Item = (&str, &SlotSet)> {
        self.moves.iter().map(|(group, slots)| (group.as_str(), slots))
    }

    /// The slots that a group has.
    #[must_use]
    pub fn slots_of(&self, group: &str) -> SlotSet {
        self.slots.get(group).cloned().unwrap_or_default()
    }

    /// The next move: one is done after the other.
    #[must_use]
    pub fn next_move(&self) -> Option<Move> {
        let (to, wanted) = self.moves.first_key_value()?;
        self.slots.iter().find_map(|(from, slots)| {
            let slots = slots.common(wanted);
            (!slots.is_empty()).then(|| Move { from: from.clone(), to: to.clone(), slots })
        })
    }

    /// A move is done.
    pub fn finish(&mut self, Move { from, to, slots }: &Move) {
        if let Some(of) = self.slots.get_mut(from) {
            of.remove(slots);
        }
        self.slots.entry(to.clone()).or_default().add(slots);
        if let Some(wanted) = self.moves.get_mut(to) {
            wanted.remove(slots);
        }
        self.slots.retain(|_, slots| !slots.is_empty());
        self.moves.retain(|_, slots| !slots.is_empty());
    }

    /// Has nothing move any more. How many slots would have moved.
    pub fn cancel(&mut self) -> usize {
        let moves = std::mem::take(&mut self.moves);
        moves.values().map(SlotSet::len).sum()
    }

    fn plan(&self) -> Result<(), PlanError> {
        match self.moves.first_key_value() {
            Some((to, slots)) => Err(PlanError::UnderWay(slots.len(), to.clone())),
            None => Ok(()),
        }
    }

    /// Plans to move slots to a group from those that have the most: as many as it needs for an even share, or `count`.
    /// How many those are.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn plan_move(&mut self, to: &str, count: Option<usize>) -> Result<usize, PlanError> {
        self.plan()?;
        let mut others = self.slots.clone();
        let own = others.remove(to).unwrap_or_default().len();
        let share = usize::from(SLOTS) / (others.len() + 1);
        let count = count.unwrap_or_else(|| share.saturating_sub(own));
        let could = usize::from(SLOTS) - own - others.len();
        if count > could {
            return Err(PlanError::TooMany(could));
        }
        // Each slot comes from who has the most at that time.
        let mut left: BTreeMap<&String, usize> =
            others.iter().map(|(group, slots)| (group, slots.len())).collect();
        for _ in 0..count {
            if let Some(most) = left.values_mut().max() {
                *most -= 1;
            }
        }
        let mut moving = SlotSet::default();
        for (group, left) in left {
            let mut slots = self.slots_of(group);
            let surplus = slots.len() - left;
            moving.add(&slots.take_last(surplus));
        }
        self.note_plan(to, moving)
    }

    /// Plans to move all slots of a group to the others, most to those that have the fewest. How many those are.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn plan_drain(&mut self, from: &str) -> Result<usize, PlanError> {
        self.plan()?;
        let mut others = self.slots.clone();
        let Some(mut moving) = others.remove(from) else { return Err(PlanError::Nothing) };
        if others.is_empty() {
            return Err(PlanError::NoOther);
        }
        let (count, before) = (moving.len(), others.clone());
        let mut after: BTreeMap<&String, usize> =
            others.iter().map(|(group, slots)| (group, slots.len())).collect();
        for _ in 0..count {
            if let Some(fewest) = after.values_mut().min() {
                *fewest += 1;
            }
        }
        for (group, after) in after {
            let more = after - before.get(group).map_or(0, SlotSet::len);
            let slots = moving.take_last(more);
            self.note_plan(group, slots).or_else(|error| match error {
                PlanError::Nothing => Ok(0),
                error => Err(error),
            })?;
        }
        Ok(count)
    }

    fn note_plan(&mut self, to: &str, slots: SlotSet) -> Result<usize, PlanError> {
        if slots.is_empty() {
            return Err(PlanError::Nothing);
        }
        let count = slots.len();
        self.moves.insert(to.to_owned(), slots);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(map: &SlotMap) -> Vec<(String, usize)> {
        map.owners().map(|(group, slots)| (group.to_owned(), slots.len())).collect()
    }

    fn carry_out(map: &mut SlotMap) -> usize {
        let mut moved = 0;
        while let Some(next) = map.next_move() {
            moved += next.slots.len();
            map.finish(&next);
            let SlotMap { slots, moves } = map.clone();
            assert_eq!(SlotMap::new(slots, moves).as_ref(), Some(&*map));
        }
        moved
    }

    #[test]
    fn groups_get_even_shares_and_only_what_has_to_move_does() {
        let mut map = SlotMap::of_one("0");
        for groups in 2..=5_usize {
            let name = (groups - 1).to_string();
            let planned = map.plan_move(&name, None).unwrap();
            assert_eq!(planned, 4096 / groups);
            assert_eq!(carry_out(&mut map), planned);
            let sizes = sizes(&map);
            assert_eq!(sizes.len(), groups);
            assert!(sizes.iter().all(|(_, size)| size.abs_diff(4096 / groups) <= 1), "{sizes:?}");
        }
        assert_eq!(map.plan_move("4", None), Err(PlanError::Nothing));
        let of_two = map.slots_of("2").len();
        assert_eq!(map.plan_drain("2"), Ok(of_two));
        assert!(matches!(map.plan_drain("3"), Err(PlanError::UnderWay(..))));
        assert_eq!(carry_out(&mut map), of_two);
        assert!(sizes(&map).iter().all(|(group, size)| group != "2" && *size == 1024));
    }

    #[test]
    fn what_can_not_be_is_refused() {
        let mut map = SlotMap::of_one("0");
        assert_eq!(map.plan_drain("0"), Err(PlanError::NoOther));
        assert_eq!(map.plan_drain("1"), Err(PlanError::Nothing));
        assert_eq!(map.plan_move("0", None), Err(PlanError::Nothing));
        assert_eq!(map.plan_move("1", Some(0)), Err(PlanError::Nothing));
        assert_eq!(map.plan_move("1", Some(4096)), Err(PlanError::TooMany(4095)));
        assert_eq!(map.plan_move("1", Some(4095)), Ok(4095));
        assert_eq!(map.plan_move("2", Some(1)), Err(PlanError::UnderWay(4095, "1".to_owned())));
        assert_eq!(map.cancel(), 4095);
        assert_eq!(map, SlotMap::of_one("0"));
        let set = |text: &str| text.parse::<SlotSet>().unwrap();
        let of = |slots: &[(&str, &str)]| -> BTreeMap<String, SlotSet> {
            slots.iter().map(|(group, slots)| ((*group).to_owned(), set(slots))).collect()
        };
        let none = BTreeMap::new();
        assert!(SlotMap::new(of(&[("0", "0-4094")]), none.clone()).is_none());
        assert!(SlotMap::new(of(&[("0", "0-4095"), ("1", "7")]), none.clone()).is_none());
        assert!(SlotMap::new(of(&[("0", "0-4095")]), of(&[("0", "7")])).is_none());
        assert!(SlotMap::new(of(&[("0", "0-4095")]), of(&[("1", "7"), ("2", "7")])).is_none());
        assert!(SlotMap::new(of(&[("0", "0-6,8-4095"), ("1", "7")]), of(&[("1", "8")])).is_some());
    }

    #[test]
    fn sets_are_written_as_ranges() {
        for text in ["", "0", "0-4095", "0-1,3,63-64,4095", "7-8"] {
            let set: SlotSet = text.parse().unwrap();
            assert_eq!(set.to_string(), text);
            let bytes: Vec<u8> = set.to_bytes().collect();
            assert_eq!(SlotSet::from_bytes(bytes.as_slice().try_into().unwrap()), set);
            assert_eq!(set.iter().collect::<SlotSet>(), set);
        }
        for text in ["4096", "5-3", "x", "-", "1-", "0-4096"] {
            assert_eq!(text.parse::<SlotSet>(), Err(SlotsError), "{text}");
        }
    }
}
