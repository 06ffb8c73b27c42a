//! Plans moves of slots between groups, and waits until the leaders of the groups have carried them out.

use super::options::{LOOKS, Where, message, slot_count};
use super::watch::{MoveState, MoveWatch};
use larder_etcd::{EtcdShardMap, groups};
use larder_replica::{GroupView, PlanError, ShardMap};
use std::collections::BTreeMap;
use std::io::Write;
use std::time::Instant;

/// How often a map is changed anew that somebody else has changed meanwhile.
const SWAPS_MAX: usize = 10;

/// What is to move.
#[derive(Clone, Copy, Debug)]
pub(super) enum Plan<'a> {
    /// Slots to this group: so many, or as many as it lacks of an even share.
    MoveTo(&'a str, Option<usize>),
    /// All slots of this group to others.
    Drain(&'a str),
}

/// Plans moves, and waits until they are done if that is wanted.
pub(super) fn carry_out(
    at: &Where,
    plan: &Plan<'_>,
    waits: bool,
    out: &mut impl Write,
) -> Result<(), String> {
    let groups = groups(&mut at.etcd()?, &at.cluster).map_err(message)?;
    let mut cluster = Cluster::new(at)?;
    let planned = cluster.change(|map| {
        let count = match plan.add_to(map) {
            Err(PlanError::Nothing) if plan.is_drained(map, &groups) => 0,
            planned => planned.map_err(|error| plan.refusal(map, &error))?,
        };
        map.targets().try_for_each(|(group, _)| check_leader(group, groups.get(group)))?;
        Ok(count)
    })?;
    let (map, count) = planned;
    if count == 0 {
        return writeln!(out, "{}", plan.outcome(&map)).map_err(message);
    }
    let are = if count == 1 { "is" } else { "are" };
    writeln!(out, "{} {are} to move {}", slot_count(count), plan.direction()).map_err(message)?;
    if !waits {
        return Ok(());
    }
    let map = cluster.wait_for_moves(&map, out)?;
    writeln!(out, "{}", plan.outcome(&map)).map_err(message)
}

/// Has all slots stay where they are.
pub(super) fn cancel_moves(at: &Where, out: &mut impl Write) -> Result<(), String> {
    let (_, cancelled) = Cluster::new(at)?.change(|map| Ok(map.cancel()))?;
    let said = match cancelled {
        0 => writeln!(out, "no slots were to move"),
        1 => writeln!(out, "1 slot stays where it is"),
        count => writeln!(out, "{count} slots stay where they are"),
    };
    said.map_err(message)
}

impl Plan<'_> {
    fn add_to(&self, map: &mut ShardMap) -> Result<usize, PlanError> {
        match *self {
            Self::MoveTo(group, count) => map.plan_migration(group, count),
            Self::Drain(group) => map.plan_drain(group),
        }
    }

    /// Whether a group of the cluster that is to be drained has no slots.
    fn is_drained(&self, map: &ShardMap, groups: &BTreeMap<String, GroupView>) -> bool {
        matches!(*self, Self::Drain(group) if groups.contains_key(group) && map.slots_of(group).is_empty())
    }

    fn direction(&self) -> String {
        match *self {
            Self::MoveTo(group, _) => format!("to group {group}"),
            Self::Drain(group) => format!("away from group {group}"),
        }
    }

    /// What a map shows when the moves are done.
    fn outcome(&self, map: &ShardMap) -> String {
        match *self {
            Self::MoveTo(group, _) => {
                format!("group {group} has {}", slot_count(map.slots_of(group).len()))
            }
            Self::Drain(group) => format!("group {group} has no slots, and can be stopped"),
        }
    }

    /// Why the moves can't be planned, and what to do about it.
    fn refusal(&self, map: &ShardMap, error: &PlanError) -> String {
        match (error, *self) {
            (PlanError::InProgress(count, group), _) => {
                let are = if *count == 1 { "is" } else { "are" };
                format!(
                    "{} {are} still to move to group {group}: wait until that is done, or use cancel-moves",
                    slot_count(*count)
                )
            }
            (PlanError::TooMany(count), _) => format!(
                "the other groups can give {} at most, as each keeps one: give a lower --count, or drain a group",
                slot_count(*count)
            ),
            (PlanError::Nothing, Self::MoveTo(group, _)) => {
                let has = slot_count(map.slots_of(group).len());
                format!("group {group} has {has}, an even share or more: give it more with --count")
            }
            (PlanError::Nothing, Self::Drain(group)) => {
                format!("there is no group {group}: look for its name in the status of the cluster")
            }
            (PlanError::NoOtherGroup, _) => message(error),
        }
    }
}

/// A group gets slots by its leader only.
fn check_leader(group: &str, view: Option<&GroupView>) -> Result<(), String> {
    match view.and_then(|view| view.record.as_ref().map(|record| (view, record))) {
        None => Err(format!(
            "group {group} has no leader, which would move the slots: start its nodes first"
        )),
        Some((view, record)) if !view.is_live(&record.leader) => Err(format!(
            "{}, the leader of group {group}, is away, and nobody else can move the slots: wait until the group has a \
             leader that is alive",
            record.leader.node
        )),
        Some(_) => Ok(()),
    }
}

/// The map of a cluster.
struct Cluster {
    name: String,
    map: EtcdShardMap,
}

impl Cluster {
    fn new(at: &Where) -> Result<Self, String> {
        let name = at.cluster.clone();
        Ok(Self { map: EtcdShardMap::new(at.etcd()?, name.clone()), name })
    }

    /// Replaces the map by a changed one, unless the change leaves it as it was. The new map, and what the change
    /// returned; the change is made anew if somebody else was faster.
    fn change<T>(
        &mut self,
        change: impl Fn(&mut ShardMap) -> Result<T, String>,
    ) -> Result<(ShardMap, T), String> {
        for _ in 0..SWAPS_MAX {
            let seen = self.map.read().map_err(message)?;
            let old = seen.map.ok_or_else(|| self.no_map())?;
            let mut new = old.clone();
            let changed = change(&mut new)?;
            if new == old {
                return Ok((new, changed));
            }
            let swapped = self.map.swap(seen.revision, &new, &[]).map_err(|error| {
                format!("{error}. It may have taken effect: look at the status of the cluster")
            })?;
            if swapped.is_some() {
                return Ok((new, changed));
            }
        }
        Err("others have changed the map again and again meanwhile: try again".to_owned())
    }

    /// Waits until the moves of a map are done, and says how far they are. The map as it is then.
    fn wait_for_moves(&mut self, map: &ShardMap, out: &mut impl Write) -> Result<ShardMap, String> {
        let mut watch = MoveWatch::new(map, Instant::now());
        loop {
            match self.map.read() {
                Err(error) => watch.handle_failure(Instant::now(), &error.to_string())?,
                Ok(seen) => {
                    let map = seen.map.ok_or_else(|| self.no_map())?;
                    match watch.handle_map(Instant::now(), &map)? {
                        MoveState::Done => return Ok(map),
                        MoveState::UnderWay(None) => (),
                        MoveState::UnderWay(Some(text)) => {
                            writeln!(out, "{text}").map_err(message)?;
                        }
                    }
                }
            }
            std::thread::sleep(LOOKS);
        }
    }

    fn no_map(&self) -> String {
        format!("cluster {} has no map yet: its first leader makes one", self.name)
    }
}
