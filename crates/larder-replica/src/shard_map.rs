//! The shard map of a cluster states which group owns each slot. The coordinator stores the map.

use crate::slot_set::SlotSet;
use larder_protocol::SLOTS;
use std::collections::BTreeMap;

/// The owner of each slot, and the planned migrations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardMap {
    /// The slots of each group. Every slot is in exactly one set; no set is empty.
    slots: BTreeMap<String, SlotSet>,
    /// The slots that will migrate to each group. A slot is in at most one set, and never in the
    /// set of its owner.
    migrations: BTreeMap<String, SlotSet>,
}

/// A planned move of slots between two groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migration {
    /// The exporting group, which owns the slots.
    pub from: String,
    /// The importing group.
    pub to: String,
    /// The slots that move, with their items.
    pub slots: SlotSet,
}

/// The reason why migrations cannot be planned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Earlier migrations are not complete: this number of slots must still move to this group.
    #[error("{0} slots have not moved to {1} yet: wait for that, or cancel it")]
    InProgress(usize, String),
    /// The other groups can export only this number of slots, fewer than requested.
    #[error("other groups can export at most {0} slots, because each keeps one")]
    TooMany(usize),
    /// The plan would contain no slots: the requested number is 0, the group already has its share,
    /// or the group to drain has no slots.
    #[error("no slots need to move")]
    Nothing,
    /// No other group owns slots, so no group can import the slots of the group to drain.
    #[error("no other group has slots: move some to another group first")]
    NoOtherGroup,
}

impl ShardMap {
    /// Creates the map of a cluster with one group, which owns all slots.
    #[must_use]
    pub fn single_group(group: &str) -> Self {
        let slots = BTreeMap::from([(group.to_owned(), SlotSet::all())]);
        Self { slots, migrations: BTreeMap::new() }
    }

    /// Builds a map from its parts. Returns `None` if a slot does not belong to exactly one group,
    /// migrates to its own group, or migrates to two groups.
    #[must_use]
    pub fn new(
        slots: BTreeMap<String, SlotSet>,
        migrations: BTreeMap<String, SlotSet>,
    ) -> Option<Self> {
        let sum = |sets: &BTreeMap<String, SlotSet>| sets.values().map(SlotSet::len).sum();
        let union = |sets: &BTreeMap<String, SlotSet>| {
            sets.values().fold(SlotSet::default(), |mut all, set| {
                all.add(set);
                all
            })
        };
        let (owned, moved): (usize, usize) = (sum(&slots), sum(&migrations));
        let is_whole = owned == usize::from(SLOTS) && union(&slots).len() == owned;
        let is_once = union(&migrations).len() == moved;
        let stays = |(group, set): (&String, &SlotSet)| {
            slots.get(group).is_some_and(|own| !own.common(set).is_empty())
        };
        let is_valid = is_whole && is_once && !migrations.iter().any(stays);
        let keep_full = |sets: BTreeMap<String, SlotSet>| {
            sets.into_iter().filter(|(_, set)| !set.is_empty()).collect()
        };
        is_valid.then(|| Self { slots: keep_full(slots), migrations: keep_full(migrations) })
    }

    /// Returns each group that owns slots, with its slots, ordered by group name.
    pub fn owners(&self) -> impl Iterator<Item = (&str, &SlotSet)> {
        self.slots.iter().map(|(group, slots)| (group.as_str(), slots))
    }

    /// Returns the owner of a slot. Every slot below [`SLOTS`] has one.
    #[must_use]
    pub fn owner_of(&self, slot: u16) -> Option<&str> {
        self.owners().find_map(|(group, slots)| slots.contains(slot).then_some(group))
    }

    /// Returns each group that will import slots, with these slots, ordered by group name.
    pub fn targets(&self) -> impl Iterator<Item = (&str, &SlotSet)> {
        self.migrations.iter().map(|(group, slots)| (group.as_str(), slots))
    }

    /// Returns the slots that a group owns.
    #[must_use]
    pub fn slots_of(&self, group: &str) -> SlotSet {
        self.slots.get(group).cloned().unwrap_or_default()
    }

    /// Returns the next migration, or `None` if none is planned. A cluster runs one migration at a
    /// time.
    #[must_use]
    pub fn next_migration(&self) -> Option<Migration> {
        let (to, wanted) = self.migrations.first_key_value()?;
        self.slots.iter().find_map(|(from, slots)| {
            let slots = slots.common(wanted);
            (!slots.is_empty()).then(|| Migration { from: from.clone(), to: to.clone(), slots })
        })
    }

    /// Makes a migration's importing group the owner of its slots.
    pub fn finish(&mut self, Migration { from, to, slots }: &Migration) {
        if let Some(owned) = self.slots.get_mut(from) {
            owned.remove(slots);
        }
        self.slots.entry(to.clone()).or_default().add(slots);
        if let Some(wanted) = self.migrations.get_mut(to) {
            wanted.remove(slots);
        }
        self.slots.retain(|_, slots| !slots.is_empty());
        self.migrations.retain(|_, slots| !slots.is_empty());
    }

    /// Cancels all planned migrations. Returns the number of slots that were to migrate.
    pub fn cancel(&mut self) -> usize {
        let migrations = std::mem::take(&mut self.migrations);
        migrations.values().map(SlotSet::len).sum()
    }

    fn check_no_migration(&self) -> Result<(), PlanError> {
        match self.migrations.first_key_value() {
            Some((to, slots)) => Err(PlanError::InProgress(slots.len(), to.clone())),
            None => Ok(()),
        }
    }

    /// Plans to migrate `count` slots to the group `to`, from the groups with the most slots.
    /// Without a `count`, plans as many slots as `to` needs for an even share. Returns the number
    /// of slots.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn plan_migration(&mut self, to: &str, count: Option<usize>) -> Result<usize, PlanError> {
        self.check_no_migration()?;
        let mut others = self.slots.clone();
        let own = others.remove(to).unwrap_or_default().len();
        let share = usize::from(SLOTS) / (others.len() + 1);
        let count = count.unwrap_or_else(|| share.saturating_sub(own));
        let count_max = usize::from(SLOTS) - own - others.len();
        if count > count_max {
            return Err(PlanError::TooMany(count_max));
        }
        // Take each slot from the group with the most remaining slots.
        let mut left: BTreeMap<&String, usize> =
            others.iter().map(|(group, slots)| (group, slots.len())).collect();
        for _ in 0..count {
            if let Some(most) = left.values_mut().max() {
                *most -= 1;
            }
        }
        let mut planned = SlotSet::default();
        for (group, left) in left {
            let mut slots = self.slots_of(group);
            let surplus = slots.len() - left;
            planned.add(&slots.take_last(surplus));
        }
        self.add_plan(to, planned)
    }

    /// Plans to migrate all slots of a group to the other groups. Gives each slot to the group with
    /// the fewest slots at that point. Returns the number of slots.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn plan_drain(&mut self, from: &str) -> Result<usize, PlanError> {
        self.check_no_migration()?;
        let mut others = self.slots.clone();
        let Some(mut draining) = others.remove(from) else { return Err(PlanError::Nothing) };
        if others.is_empty() {
            return Err(PlanError::NoOtherGroup);
        }
        let (count, before) = (draining.len(), others.clone());
        let mut after: BTreeMap<&String, usize> =
            others.iter().map(|(group, slots)| (group, slots.len())).collect();
        for _ in 0..count {
            if let Some(fewest) = after.values_mut().min() {
                *fewest += 1;
            }
        }
        for (group, after) in after {
            let more = after - before.get(group).map_or(0, SlotSet::len);
            let slots = draining.take_last(more);
            self.add_plan(group, slots).or_else(|error| match error {
                PlanError::Nothing => Ok(0),
                error => Err(error),
            })?;
        }
        Ok(count)
    }

    fn add_plan(&mut self, to: &str, slots: SlotSet) -> Result<usize, PlanError> {
        if slots.is_empty() {
            return Err(PlanError::Nothing);
        }
        let count = slots.len();
        self.migrations.insert(to.to_owned(), slots);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(map: &ShardMap) -> Vec<(String, usize)> {
        map.owners().map(|(group, slots)| (group.to_owned(), slots.len())).collect()
    }

    fn carry_out(map: &mut ShardMap) -> usize {
        let mut moved = 0;
        while let Some(next) = map.next_migration() {
            moved += next.slots.len();
            map.finish(&next);
            let ShardMap { slots, migrations } = map.clone();
            assert_eq!(ShardMap::new(slots, migrations).as_ref(), Some(&*map));
        }
        moved
    }

    #[test]
    fn planned_migrations_give_even_shares_with_the_fewest_moves() {
        let mut map = ShardMap::single_group("0");
        for groups in 2..=5_usize {
            let name = (groups - 1).to_string();
            let planned = map.plan_migration(&name, None).unwrap();
            assert_eq!(planned, 4096 / groups);
            assert_eq!(carry_out(&mut map), planned);
            let sizes = sizes(&map);
            assert_eq!(sizes.len(), groups);
            assert!(sizes.iter().all(|(_, size)| size.abs_diff(4096 / groups) <= 1), "{sizes:?}");
        }
        assert_eq!(map.plan_migration("4", None), Err(PlanError::Nothing));
        let of_two = map.slots_of("2").len();
        assert_eq!(map.plan_drain("2"), Ok(of_two));
        assert!(matches!(map.plan_drain("3"), Err(PlanError::InProgress(..))));
        assert_eq!(carry_out(&mut map), of_two);
        assert!(sizes(&map).iter().all(|(group, size)| group != "2" && *size == 1024));
    }

    #[test]
    fn invalid_plans_and_invalid_maps_are_refused() {
        let mut map = ShardMap::single_group("0");
        assert_eq!(map.plan_drain("0"), Err(PlanError::NoOtherGroup));
        assert_eq!(map.plan_drain("1"), Err(PlanError::Nothing));
        assert_eq!(map.plan_migration("0", None), Err(PlanError::Nothing));
        assert_eq!(map.plan_migration("1", Some(0)), Err(PlanError::Nothing));
        assert_eq!(map.plan_migration("1", Some(4096)), Err(PlanError::TooMany(4095)));
        assert_eq!(map.plan_migration("1", Some(4095)), Ok(4095));
        assert_eq!(
            map.plan_migration("2", Some(1)),
            Err(PlanError::InProgress(4095, "1".to_owned()))
        );
        assert_eq!(map.cancel(), 4095);
        assert_eq!(map, ShardMap::single_group("0"));
        let set = |text: &str| text.parse::<SlotSet>().unwrap();
        let of = |slots: &[(&str, &str)]| -> BTreeMap<String, SlotSet> {
            slots.iter().map(|(group, slots)| ((*group).to_owned(), set(slots))).collect()
        };
        let none = BTreeMap::new();
        assert!(ShardMap::new(of(&[("0", "0-4094")]), none.clone()).is_none());
        assert!(ShardMap::new(of(&[("0", "0-4095"), ("1", "7")]), none.clone()).is_none());
        assert!(ShardMap::new(of(&[("0", "0-4095")]), of(&[("0", "7")])).is_none());
        assert!(ShardMap::new(of(&[("0", "0-4095")]), of(&[("1", "7"), ("2", "7")])).is_none());
        assert!(ShardMap::new(of(&[("0", "0-6,8-4095"), ("1", "7")]), of(&[("1", "8")])).is_some());
    }
}
