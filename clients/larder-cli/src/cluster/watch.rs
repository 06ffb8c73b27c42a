//! What is said about planned moves while they are carried out. Nothing here asks etcd or reads a clock.

use super::options::slot_count;
use larder_replica::{ShardMap, SlotSet};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// After how long without progress it is said where to look for the reason.
const STALL_TIME: Duration = Duration::from_secs(10);
/// For how long etcd may fail without a break.
const ETCD_FAILURE_MAX: Duration = Duration::from_secs(10);

/// Compares maps of slots with the moves that were planned.
#[derive(Debug)]
pub(super) struct MoveWatch {
    /// The slots that are to move, by the group that is to get them.
    planned: BTreeMap<String, SlotSet>,
    /// How many of them had not moved when the map was last read.
    left: usize,
    /// When that number changed.
    changed: Instant,
    has_warned: bool,
    /// When the map was last read.
    last_read: Instant,
}

/// How far the moves are.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MoveState {
    /// Some slots are left to move, and this is to be said.
    UnderWay(Option<String>),
    /// All slots have moved.
    Done,
}

impl MoveWatch {
    /// For the moves of a map in which they have just been planned.
    pub(super) fn new(map: &ShardMap, now: Instant) -> Self {
        let planned: BTreeMap<String, SlotSet> =
            map.targets().map(|(group, slots)| (group.to_owned(), slots.clone())).collect();
        let left = planned.values().map(SlotSet::len).sum();
        Self { planned, left, changed: now, has_warned: false, last_read: now }
    }

    /// The map as it is now.
    ///
    /// # Errors
    /// A message if planned slots neither have moved nor are to move any more.
    pub(super) fn handle_map(&mut self, now: Instant, map: &ShardMap) -> Result<MoveState, String> {
        self.last_read = now;
        let (moved, left) = self.count(map);
        let planned: usize = self.planned.values().map(SlotSet::len).sum();
        if moved + left < planned {
            return Err(format!(
                "the moves have been cancelled: {moved} of {} moved; the status of the cluster shows who has which slots",
                slot_count(planned)
            ));
        }
        if left == 0 {
            return Ok(MoveState::Done);
        }
        if left != self.left {
            (self.left, self.changed) = (left, now);
            let are = if left == 1 { "is" } else { "are" };
            return Ok(MoveState::UnderWay(Some(format!("{} {are} left", slot_count(left)))));
        }
        let is_stalled = !self.has_warned && now.duration_since(self.changed) >= STALL_TIME;
        self.has_warned |= is_stalled;
        Ok(MoveState::UnderWay(is_stalled.then(|| stall_message(map))))
    }

    /// The map can't be read now.
    ///
    /// # Errors
    /// A message if that has been so for too long.
    pub(super) fn handle_failure(&self, now: Instant, error: &str) -> Result<(), String> {
        if now.duration_since(self.last_read) < ETCD_FAILURE_MAX {
            return Ok(());
        }
        let secs = ETCD_FAILURE_MAX.as_secs();
        Err(format!(
            "the map has not been readable for {secs} seconds: {error}. The moves stay planned: the status of the cluster \
             shows how far they are"
        ))
    }

    /// How many of the planned slots have moved, and how many are still to move.
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
    let whose = map.next_migration().map_or_else(
        || "both groups".to_owned(),
        |next| format!("groups {} and {}", next.from, next.to),
    );
    format!("nothing has moved for {secs} seconds: the logs of the leaders of {whose} say why")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Group 2 is to get slots from groups 0 and 1, which have 2048 each.
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
    fn each_change_is_said_until_all_have_moved() {
        let (mut map, now) = (planned(), Instant::now());
        let mut watch = MoveWatch::new(&map, now);
        assert_eq!(watch.handle_map(now, &map), Ok(MoveState::UnderWay(None)));
        finish_next(&mut map);
        let text = format!("{} slots are left", map.next_migration().unwrap().slots.len());
        assert_eq!(watch.handle_map(now, &map), Ok(MoveState::UnderWay(Some(text))));
        assert_eq!(watch.handle_map(now, &map), Ok(MoveState::UnderWay(None)));
        finish_next(&mut map);
        assert_eq!(watch.handle_map(now, &map), Ok(MoveState::Done));
        // The next plan is not this one's.
        map.plan_migration("3", None).unwrap();
        assert_eq!(watch.handle_map(now, &map), Ok(MoveState::Done));
    }

    #[test]
    fn a_cancelled_move_is_an_error_also_when_another_one_is_planned() {
        let (mut map, now) = (planned(), Instant::now());
        let mut watch = MoveWatch::new(&map, now);
        finish_next(&mut map);
        let moved = map.slots_of("2").len();
        map.cancel();
        let said = format!("the moves have been cancelled: {moved} of 1365 slots moved");
        let error = watch.handle_map(now, &map).unwrap_err();
        assert!(error.starts_with(&said), "{error}");
        map.plan_migration("2", Some(1)).unwrap();
        assert!(watch.handle_map(now, &map).is_err());
    }

    #[test]
    fn a_stall_is_said_once() {
        let (mut map, begun) = (planned(), Instant::now());
        let mut watch = MoveWatch::new(&map, begun);
        let mut at = |secs: f32, map: &ShardMap| match watch
            .handle_map(begun + Duration::from_secs_f32(secs), map)
            .unwrap()
        {
            MoveState::UnderWay(text) => text.unwrap_or_default(),
            MoveState::Done => "done".to_owned(),
        };
        assert_eq!(at(9.9, &map), "");
        finish_next(&mut map);
        assert!(at(9.95, &map).ends_with(" are left"));
        assert_eq!(at(19.9, &map), "");
        let text =
            "nothing has moved for 10 seconds: the logs of the leaders of groups 1 and 2 say why";
        assert_eq!(at(20.0, &map), text);
        assert_eq!(at(60.0, &map), "");
    }

    #[test]
    fn only_continuous_failure_ends_the_wait() {
        let (map, begun) = (planned(), Instant::now());
        let mut watch = MoveWatch::new(&map, begun);
        let at = |secs| begun + Duration::from_secs(secs);
        assert_eq!(watch.handle_failure(at(9), "away"), Ok(()));
        watch.handle_map(at(9), &map).unwrap();
        assert_eq!(watch.handle_failure(at(18), "away"), Ok(()));
        assert!(watch.handle_failure(at(19), "away").unwrap_err().contains(": away."));
    }
}
