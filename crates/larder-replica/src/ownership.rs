//! Which slots a leader answers for, and how they get from one leader to another, without I/O.
//!
//! ```text
//!  leader that has them (Ownership)                 leader that takes them over (Taken)
//!                     ◀──── asks for them, after it has seen the map as it is
//!  give_up: answers nothing about them
//!  says that everything is sent ────▶ ending: replaces the map as it was then, if both still lead
//!  note_map: they are the other group's
//!  or, if that does not come: end_giving, replaces the map by the same one, take_back
//! ```

use crate::{Move, Process, Record, Revision, SlotMap, SlotSet};

/// Which slots a leader answers for: those that the map says to be its group's, without those that it has given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ownership {
    group: String,
    map: Option<SlotMap>,
    revision: Revision,
    /// Slots that this leader has given up though the map does not say so yet.
    given: Option<Given>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Given {
    slots: SlotSet,
    to: String,
    /// The leadership in which they were given up.
    leads_since: u32,
    /// The other group may still take them over.
    is_open: bool,
}

impl Ownership {
    /// For a member of this group, which has all slots as long as it knows no map.
    #[must_use]
    pub fn new(group: &str) -> Self {
        Self { group: group.to_owned(), map: None, revision: 0, given: None }
    }

    /// The group that this is a member of.
    #[must_use]
    pub fn group(&self) -> &str {
        &self.group
    }

    /// The map, if there is one.
    #[must_use]
    pub fn map(&self) -> Option<&SlotMap> {
        self.map.as_ref()
    }

    /// The map's number.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The slots that the map says to be this group's, also if they were given up.
    #[must_use]
    pub fn slots(&self) -> SlotSet {
        self.map.as_ref().map_or_else(SlotSet::all, |map| map.slots_of(&self.group))
    }

    /// The group that is asked for a slot: that of the map, or the one to which this leader has given the slot up. `None` if
    /// there is no map: this group has all slots.
    #[must_use]
    pub fn owner_of(&self, slot: u16) -> Option<&str> {
        let owner = self.map.as_ref()?.owner_of(slot)?;
        let is_given = |given: &&Given| owner == self.group && given.slots.contains(slot);
        Some(self.given.as_ref().filter(is_given).map_or(owner, |given| given.to.as_str()))
    }

    /// Takes in the map as it is, which is no older than the one before. How many slots are another group's now that were
    /// given up.
    pub fn note_map(&mut self, map: SlotMap, revision: Revision) -> usize {
        (self.map, self.revision) = (Some(map), revision);
        let own = self.slots();
        self.given
            .take_if(|given| own.common(&given.slots).is_empty())
            .map_or(0, |given| given.slots.len())
    }

    /// This leader answers nothing about these slots from here on. False if it does not have them all, or has given up
    /// some already.
    pub fn give_up(&mut self, slots: &SlotSet, to: &str, leads_since: u32) -> bool {
        let has_all = self.map.is_some() && self.slots().includes(slots);
        let can = has_all && self.given.is_none();
        if can {
            let (slots, to) = (slots.clone(), to.to_owned());
            self.given = Some(Given { slots, to, leads_since, is_open: true });
        }
        can
    }

    /// The other group has taken the slots over that were given up, or will not.
    pub fn end_giving(&mut self) {
        if let Some(given) = &mut self.given {
            given.is_open = false;
        }
    }

    /// Forgets what was given up in another leadership than this one: nobody can take it over any more, because the
    /// group's record is another one. Whether there was something.
    pub fn forget_earlier(&mut self, leads_since: Option<u32>) -> bool {
        // Whoever has given slots up may know of a later leadership than who asks here.
        let is_earlier =
            |given: &mut Given| leads_since.is_none_or(|since| since > given.leads_since);
        self.given.take_if(is_earlier).is_some()
    }

    /// Whether slots were given up that the other group does not take over: the map has to be replaced before they can be
    /// answered for again.
    #[must_use]
    pub fn has_given_in_vain(&self) -> bool {
        self.given.as_ref().is_some_and(|given| !given.is_open)
    }

    /// The map was replaced by this one, so that nobody can take the slots over any more that were given up.
    pub fn take_back(&mut self, map: SlotMap, revision: Revision) {
        self.given = None;
        self.note_map(map, revision);
    }
}

/// Slots whose items are all here, and which their leader has given up.
#[derive(Clone, Copy, Debug)]
pub struct Taken<'a> {
    /// Which, from whom, and to which group.
    pub done: &'a Move,
    /// The number of the map from before they were given up.
    pub asked: Revision,
    /// Who has given them up, and in which epoch.
    pub giver: (&'a Process, u32),
    /// Who has them now, and in which epoch.
    pub taker: (&'a Process, u32),
}

/// What becomes of a move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The map says so already.
    Done,
    /// It is to be replaced by this map, if it and the records of both groups still have the numbers that they have now.
    Replace(SlotMap, [(String, Revision); 2]),
    /// It can't be finished any more.
    Refused(&'static str),
}

impl Taken<'_> {
    /// What is to be done, with the map and the records of the groups as they are.
    #[must_use]
    pub fn ending<'r>(
        &self,
        (map, revision): (&SlotMap, Revision),
        record_of: impl Fn(&str) -> Option<(&'r Record, Revision)>,
    ) -> Ending {
        let Move { from, to, slots } = self.done;
        if revision != self.asked {
            let is_done = map.slots_of(to).includes(slots);
            return if is_done {
                Ending::Done
            } else {
                Ending::Refused("the map has changed meanwhile")
            };
        }
        let leads = |group: &String, (process, epoch): (&Process, u32)| {
            let (record, revision) = record_of(group)?;
            let is_same = record.leader == *process && record.epoch == epoch;
            is_same.then(|| (group.clone(), revision))
        };
        let (Some(from), Some(to)) = (leads(from, self.giver), leads(to, self.taker)) else {
            return Ending::Refused("one of the two leaders is replaced");
        };
        let mut after = map.clone();
        after.finish(self.done);
        Ending::Replace(after, [from, to])
    }
}
