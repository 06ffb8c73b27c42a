//! Tracks the progress of planned moves. This module does no I/O and reads no clock.

use super::options::slot_count;
use larder_replica::{ShardMap, SlotSet};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The time without progress after which [`MoveWatch::handle_map`] returns a hint.
const STALL_TIME: Duration = Duration::from_secs(10);
/// The time without a successful read of the map after which the wait ends with an error.
const ETCD_FAILURE_MAX: Duration = Duration::from_secs(10);

/// The progress of planned moves, computed from successive shard maps.
#[derive(Debug)]
pub(super) struct MoveWatch {
    /// The planned slots, by destination group.
    planned: BTreeMap<String, SlotSet>,
    /// The number of planned slots that had not moved at the last successful read.
    left: usize,
    /// The time at which `left` last changed, or the start of the wait if `left` has not changed.
    changed: Instant,
    /// Whether [`MoveWatch::handle_map`] has returned the hint about a stall. It returns the hint
    /// only once.
    has_warned: bool,
    /// The time at which the map was last read successfully, or the start of the wait if no read
    /// has succeeded.
    last_read: Instant,
}

/// The state of the moves after a read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MoveState {
    /// Some slots have not moved. The command prints the message, if there is one.
    InProgress(Option<String>),
    /// All planned slots have moved.
    Done,
}

impl MoveWatch {
    /// Creates a watch for all moves that `map` plans.
    pub(super) fn new(map: &ShardMap, now: Instant) -> Self {
        let planned: BTreeMap<String, SlotSet> =
            map.targets().map(|(group, slots)| (group.to_owned(), slots.clone())).collect();
        let left = planned.values().map(SlotSet::len).sum();
        Self { planned, left, changed: now, has_warned: false, last_read: now }
    }

    /// Compares the current map with the plan.
    ///
    /// # Errors
    /// A message if some slots of the plan have not moved and are no longer planned to move.
    pub(super) fn handle_map(&mut self, now: Instant, map: &ShardMap) -> Result<MoveState, String> {
        self.last_read = now;
        let (moved, left) = self.count(map);
        let planned: usize = self.planned.values().map(SlotSet::len).sum();
        if moved + left < planned {
            return Err(format!(
                "the moves were cancelled: {moved} of {} moved; `larder cluster status` shows the owner of each slot",
                slot_count(planned)
            ));
        }
        if left == 0 {
            return Ok(MoveState::Done);
        }
        if left != self.left {
            (self.left, self.changed) = (left, now);
            let text = format!("{} left to move", slot_count(left));
            return Ok(MoveState::InProgress(Some(text)));
        }
        let is_stalled = !self.has_warned && now.duration_since(self.changed) >= STALL_TIME;
        self.has_warned |= is_stalled;
        Ok(MoveState::InProgress(is_stalled.then(|| stall_message(map))))
    }

    /// Handles a failed read of the map. `error` is its message.
    ///
    /// # Errors
    /// A message if all reads have failed for [`ETCD_FAILURE_MAX`].
    pub(super) fn handle_failure(&self, now: Instant, error: &str) -> Result<(), String> {
        if now.duration_since(self.last_read) < ETCD_FAILURE_MAX {
            return Ok(());
        }
        let secs = ETCD_FAILURE_MAX.as_secs();
        Err(format!(
            "the shard map was unreadable for {secs} seconds: {error}. The moves stay planned: `larder cluster status` \
             shows their progress"
        ))
    }

    /// Returns the number of planned slots that have moved, and the number of planned slots that
    /// have not moved.
    fn count(&self, map: &ShardMap) -> (usize, usize) {
        let is_to_move: BTreeMap<&str, &SlotSet> = map.targets().collect();
        let counts = self.planned.iter().map(|(group, planned)| {
            let left = is_to_move.get(group.as_str()).map(|slots| slots.common(planned).len());
            (map.slots_of(group).common(planned).len(), left.unwrap_or_default())
        });
        counts.fold((0, 0), |(moved, left), (more, also)| (moved + more, left + also))
    }
}

fn stall_message(map: &ShardMap) -> String {
    let secs = STALL_TIME.as_secs();
    let groups = map.next_migration().map_or_else(
        || "both groups".to_owned(),
        |next| format!("groups {} and {}", next.from, next.to),
    );
    format!("no slot has moved for {secs} seconds: see the logs of the leaders of {groups}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a map in which group 2 imports slots from groups 0 and 1, which have 2048 slots
    /// each.
    fn planned() -> ShardMap {
        let mut map = ShardMap::single_group("0");
        map.plan_migration("1", None).unwrap();
        while let Some(next) = map.next_migration() {
            map.finish(&next);
        }
        map.plan_migration("2", None).unwrap();
        map
    }

    fn finish_next(map: &mut ShardMap) {
        let next = map.next_migration().unwrap();
        map.finish(&next);
    }

    #[test]
    fn each_change_is_reported_until_all_slots_have_moved() {
        let (mut map, now) = (planned(), Instant::now());
        let mut watch = MoveWatch::new(&map, now);
        assert_eq!(watch.handle_map(now, &map), Ok(MoveState::InProgress(None)));
        finish_next(&mut map);
        let text = format!("{} slots left to move", map.next_migration().unwrap().slots.len());
        assert_eq!(watch.handle_map(now, &map), Ok(MoveState::InProgress(Some(text))));
        assert_eq!(watch.handle_map(now, &map), Ok(MoveState::InProgress(None)));
        finish_next(&mut map);
        assert_eq!(watch.handle_map(now, &map), Ok(MoveState::Done));
        // The watch ignores the moves of a later plan.
        map.plan_migration("3", None).unwrap();
        assert_eq!(watch.handle_map(now, &map), Ok(MoveState::Done));
    }

    #[test]
    fn cancelled_moves_are_an_error_even_if_others_are_planned() {
        let (mut map, now) = (planned(), Instant::now());
        let mut watch = MoveWatch::new(&map, now);
        finish_next(&mut map);
        let moved = map.slots_of("2").len();
        map.cancel();
        let prefix = format!("the moves were cancelled: {moved} of 1365 slots moved");
        let error = watch.handle_map(now, &map).unwrap_err();
        assert!(error.starts_with(&prefix), "{error}");
        map.plan_migration("2", Some(1)).unwrap();
        assert!(watch.handle_map(now, &map).is_err());
    }

    #[test]
    fn a_stall_is_reported_once() {
        let (mut map, start) = (planned(), Instant::now());
        let mut watch = MoveWatch::new(&map, start);
        let mut at = |secs: f32, map: &ShardMap| match watch
            .handle_map(start + Duration::from_secs_f32(secs), map)
            .unwrap()
        {
            MoveState::InProgress(text) => text.unwrap_or_default(),
            MoveState::Done => "done".to_owned(),
        };
        assert_eq!(at(9.9, &map), "");
        finish_next(&mut map);
        assert!(at(9.95, &map).ends_with(" left to move"));
        assert_eq!(at(19.9, &map), "");
        let text =
            "no slot has moved for 10 seconds: see the logs of the leaders of groups 1 and 2";
        assert_eq!(at(20.0, &map), text);
        assert_eq!(at(60.0, &map), "");
    }

    #[test]
    fn only_uninterrupted_failure_ends_the_wait() {
        let (map, start) = (planned(), Instant::now());
        let mut watch = MoveWatch::new(&map, start);
        let at = |secs| start + Duration::from_secs(secs);
        assert_eq!(watch.handle_failure(at(9), "timeout"), Ok(()));
        watch.handle_map(at(9), &map).unwrap();
        assert_eq!(watch.handle_failure(at(18), "timeout"), Ok(()));
        assert!(watch.handle_failure(at(19), "timeout").unwrap_err().contains(": timeout."));
    }
}
