//! Plans slot migrations between groups, and waits until the group leaders have migrated the slots.

use super::options::{ClusterArguments, POLL_INTERVAL, message, slot_count};
use super::progress::{MoveState, MoveWatch};
use larder_etcd::{EtcdShardMap, groups};
use larder_replica::{GroupView, PlanError, ShardMap};
use std::collections::BTreeMap;
use std::io::Write;
use std::time::Instant;

/// The maximum number of attempts of [`Cluster::change`] to replace the shard map. An attempt fails
/// if another command or a leader replaces the map at the same time.
const SWAPS_MAX: usize = 10;

/// The moves that a command plans.
#[derive(Clone, Copy, Debug)]
pub(super) enum MovePlan<'a> {
    /// Moves this number of slots to the group. `None` moves as many slots as the group needs for
    /// an even share.
    MoveTo(&'a str, Option<usize>),
    /// Moves all slots of the group to other groups.
    Drain(&'a str),
}

/// Plans moves. If `waits` is true, waits until the moves are done. Prints the plan, the progress
/// and the outcome.
pub(super) fn run_moves(
    at: &ClusterArguments,
    plan: &MovePlan<'_>,
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
    writeln!(out, "{} will move {}", slot_count(count), plan.direction()).map_err(message)?;
    if !waits {
        return Ok(());
    }
    let map = cluster.wait_for_moves(&map, out)?;
    writeln!(out, "{}", plan.outcome(&map)).map_err(message)
}

/// Cancels all planned moves, and prints how many slots are no longer planned to move.
pub(super) fn cancel_moves(at: &ClusterArguments, out: &mut impl Write) -> Result<(), String> {
    let (_, cancelled) = Cluster::new(at)?.change(|map| Ok(map.cancel()))?;
    let printed = match cancelled {
        0 => writeln!(out, "no moves are planned"),
        count => writeln!(out, "cancelled the moves of {}", slot_count(count)),
    };
    printed.map_err(message)
}

impl MovePlan<'_> {
    fn add_to(&self, map: &mut ShardMap) -> Result<usize, PlanError> {
        match *self {
            Self::MoveTo(group, count) => map.plan_migration(group, count),
            Self::Drain(group) => map.plan_drain(group),
        }
    }

    /// Returns whether the plan is to drain a group that exists and already has no slots.
    fn is_drained(&self, map: &ShardMap, groups: &BTreeMap<String, GroupView>) -> bool {
        matches!(*self, Self::Drain(group) if groups.contains_key(group) && map.slots_of(group).is_empty())
    }

    fn direction(&self) -> String {
        match *self {
            Self::MoveTo(group, _) => format!("to group {group}"),
            Self::Drain(group) => format!("away from group {group}"),
        }
    }

    /// Returns the message that the command prints when the moves are done, or if no moves are
    /// needed.
    fn outcome(&self, map: &ShardMap) -> String {
        match *self {
            Self::MoveTo(group, _) => {
                format!("group {group} has {}", slot_count(map.slots_of(group).len()))
            }
            Self::Drain(group) => format!("group {group} has no slots and can be stopped"),
        }
    }

    /// Returns the message of a planning error. Most messages contain a remedy.
    fn refusal(&self, map: &ShardMap, error: &PlanError) -> String {
        match (error, *self) {
            (PlanError::InProgress(count, group), _) => {
                let have = if *count == 1 { "has" } else { "have" };
                format!(
                    "{} {have} yet to move to group {group}: wait for them, or use cancel-moves",
                    slot_count(*count)
                )
            }
            (PlanError::TooMany(count), _) => format!(
                "the other groups can give {} at most, because each keeps one: lower --count, or drain a group",
                slot_count(*count)
            ),
            (PlanError::Nothing, Self::MoveTo(group, _)) => {
                let has = slot_count(map.slots_of(group).len());
                format!("group {group} has {has}, an even share or more: set --count")
            }
            (PlanError::Nothing, Self::Drain(group)) => {
                format!("no group {group}: `larder cluster status` shows all groups")
            }
            (PlanError::NoOtherGroup, _) => message(error),
        }
    }
}

/// Checks that a group has a live leader. Only a live leader can import slots.
///
/// # Errors
/// A message with a remedy if the group has no live leader.
fn check_leader(group: &str, view: Option<&GroupView>) -> Result<(), String> {
    match view.and_then(|view| view.record.as_ref().map(|record| (view, record))) {
        None => Err(format!("group {group} has no leader to import slots: start its nodes first")),
        Some((view, record)) if !view.is_live(&record.leader) => Err(format!(
            "leader {} of group {group} is not alive, and only a live leader can import slots: wait for a new leader",
            record.leader.node
        )),
        Some(_) => Ok(()),
    }
}

/// The shard map of a cluster in etcd.
struct Cluster {
    name: String,
    map: EtcdShardMap,
}

impl Cluster {
    fn new(at: &ClusterArguments) -> Result<Self, String> {
        let name = at.cluster.clone();
        Ok(Self { map: EtcdShardMap::new(at.etcd()?, name.clone()), name })
    }

    /// Applies `change` to the shard map in etcd. Writes nothing if `change` leaves the map
    /// unchanged. Returns the new map and the result of `change`. If another command or a leader
    /// replaces the map between the read and the write, applies `change` to the new map.
    ///
    /// # Errors
    /// The error of `change`, or a message if etcd failed, there is no map, or other processes
    /// replaced the map [`SWAPS_MAX`] times.
    fn change<T>(
        &mut self,
        change: impl Fn(&mut ShardMap) -> Result<T, String>,
    ) -> Result<(ShardMap, T), String> {
        for _ in 0..SWAPS_MAX {
            let current = self.map.read().map_err(message)?;
            let old = current.map.ok_or_else(|| self.no_map())?;
            let mut new = old.clone();
            let changed = change(&mut new)?;
            if new == old {
                return Ok((new, changed));
            }
            let swapped = self.map.swap(current.revision, &new, &[]).map_err(|error| {
                format!("{error}. The change may have taken effect: check the cluster's status")
            })?;
            if swapped.is_some() {
                return Ok((new, changed));
            }
        }
        Err(format!("other commands replaced the shard map {SWAPS_MAX} times: retry"))
    }

    /// Waits until the moves that `map` plans are done. Prints the progress, and returns the final
    /// map.
    ///
    /// # Errors
    /// A message if the moves were cancelled, all reads of the map failed for some time, or the map
    /// no longer exists.
    fn wait_for_moves(&mut self, map: &ShardMap, out: &mut impl Write) -> Result<ShardMap, String> {
        let mut watch = MoveWatch::new(map, Instant::now());
        loop {
            match self.map.read() {
                Err(error) => watch.handle_failure(Instant::now(), &error.to_string())?,
                Ok(current) => {
                    let map = current.map.ok_or_else(|| self.no_map())?;
                    match watch.handle_map(Instant::now(), &map)? {
                        MoveState::Done => return Ok(map),
                        MoveState::InProgress(None) => (),
                        MoveState::InProgress(Some(text)) => {
                            writeln!(out, "{text}").map_err(message)?;
                        }
                    }
                }
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn no_map(&self) -> String {
        format!("cluster {} has no shard map yet: its first leader creates one", self.name)
    }
}
