//! What followers have acknowledged, and which answers wait for that.
//!
//! A leader says whose acknowledgements count ([`Acknowledgements::require`]). The answers of a batch wait until all of
//! those have what the batch has written to its handle's journal. Each of these functions takes one lock for a short
//! time; under [`AckMode::None`] nothing waits, and none is called.

use super::ring::ChangeKind;
use crate::AckState;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

/// How long answers wait. Then nobody can say whether their changes will last.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Which changes wait for acknowledgements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum AckMode {
    /// None.
    #[default]
    None,
    /// Those after which nobody may find the item as it was: removals, invalidations, empty values, and flushes.
    Deletes,
    /// All.
    Writes,
}

impl AckMode {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::None, Self::Deletes, Self::Writes];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Deletes => "deletes",
            Self::Writes => "writes",
        }
    }

    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// What has to be acknowledged before answers are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckPosition {
    /// The number of the handle's journal, and where the last change ends in it.
    pub(super) journal: usize,
    pub(super) offset: u64,
    /// The flushes that took effect before it.
    pub(super) generation: u64,
    /// The term of the leader, and the number of the position.
    term: u64,
    number: u64,
}

/// What the followers of a cache have acknowledged.
#[derive(Debug, Default)]
pub struct Acknowledgements {
    mode: AtomicU8,
    /// Batches whose answers had to wait, and those whose answers were never sent.
    holds: AtomicU64,
    lost: AtomicU64,
    /// The number of the last flush that a handle has made.
    flushes: AtomicU64,
    /// That of the state, for those who have no time for the lock.
    term: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Rises when the leader is deposed: what waited then is never acknowledged.
    term: u64,
    /// By the number of the follower's process.
    followers: HashMap<u64, Follower>,
    waiting: Vec<Waiting>,
    /// How many positions there were.
    positions: u64,
    /// Those that have waited for too long.
    late: HashSet<u64>,
}

#[derive(Debug)]
struct Waiting {
    position: AckPosition,
    waker: Waker,
    /// When it was first seen to wait.
    since: Option<Instant>,
}

#[derive(Debug, Default)]
struct Follower {
    offsets: Vec<u64>,
    generation: u64,
}

impl Follower {
    fn has(&self, position: &AckPosition) -> bool {
        let offset = self.offsets.get(position.journal).copied().unwrap_or_default();
        offset >= position.offset && self.generation >= position.generation
    }
}

impl State {
    fn is_given(&self, position: &AckPosition) -> bool {
        self.followers.values().all(|follower| follower.has(position))
    }

    /// Wakes those whose wait is over.
    fn wake(&mut self) {
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|Waiting { position, waker, .. }| {
            let is_over = position.term != self.term
                || self.late.contains(&position.number)
                || self.is_given(position);
            if is_over {
                waker.wake_by_ref();
            }
            !is_over
        });
        self.waiting = waiting;
    }
}

impl Acknowledgements {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says which changes wait.
    pub fn set_mode(&self, mode: AckMode) {
        self.mode.store(mode as u8, Ordering::Relaxed);
    }

    /// Whether a change of this kind waits.
    #[inline]
    pub(super) fn waits_for(&self, kind: ChangeKind) -> bool {
        let mode = self.mode.load(Ordering::Relaxed);
        mode == AckMode::Writes as u8
            || mode == AckMode::Deletes as u8 && kind == ChangeKind::Removal
    }

    /// The term of the leader, to be read before a batch asks whether it may be answered here.
    pub(super) fn term(&self) -> u64 {
        self.term.load(Ordering::Acquire)
    }

    /// The position that answers of a batch depend on, which began in this term.
    #[cold]
    pub(super) fn position(
        &self,
        term: u64,
        (journal, offset): (usize, u64),
        generation: u64,
    ) -> AckPosition {
        let mut state = self.lock();
        state.positions += 1;
        let number = state.positions;
        AckPosition { journal, offset, generation, term, number }
    }

    /// Whether a position is acknowledged; if not, `waker` is called once something becomes of it.
    #[cold]
    pub(super) fn state_of(&self, position: &AckPosition, waker: &Waker) -> AckState {
        let mut state = self.lock();
        if position.term != state.term || state.late.remove(&position.number) {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return AckState::Lost;
        }
        if state.is_given(position) {
            return AckState::Acknowledged;
        }
        match state.waiting.iter_mut().find(|waiting| waiting.position == *position) {
            Some(known) => known.waker.clone_from(waker),
            None => {
                let (position, waker) = (*position, waker.clone());
                state.waiting.push(Waiting { position, waker, since: None });
                self.holds.fetch_add(1, Ordering::Relaxed);
            }
        }
        AckState::Pending
    }

    /// From now on answers wait also for this follower, which has acknowledged nothing yet.
    pub fn require(&self, follower: u64) {
        self.lock().followers.entry(follower).or_default();
    }

    /// Whether answers wait for this follower.
    #[must_use]
    pub fn requires(&self, follower: u64) -> bool {
        self.lock().followers.contains_key(&follower)
    }

    /// Answers wait for those followers alone that are to be kept.
    pub fn retain(&self, is_kept: impl Fn(u64) -> bool) {
        let mut state = self.lock();
        let before = state.followers.len();
        state.followers.retain(|follower, _| is_kept(*follower));
        if state.followers.len() < before {
            state.wake();
        }
    }

    /// A follower has everything up to these offsets, and has followed so many flushes.
    pub fn note(&self, follower: u64, offsets: &[u64], generation: u64) {
        let mut state = self.lock();
        let Some(known) = state.followers.get_mut(&follower) else { return };
        known.offsets.clear();
        known.offsets.extend_from_slice(offsets);
        known.generation = generation;
        if !state.waiting.is_empty() {
            state.wake();
        }
    }

    /// Notes that a handle has flushed all items, and how many flushes there were then.
    pub(super) fn note_flush(&self, generation: u64) {
        self.flushes.fetch_max(generation, Ordering::Relaxed);
    }

    /// Whether a follower has everything up to these offsets, and all flushes that handles have made.
    #[must_use]
    pub fn has_passed(&self, follower: u64, offsets: &[u64]) -> bool {
        let flushes = self.flushes.load(Ordering::Relaxed);
        self.lock().followers.get(&follower).is_some_and(|known| {
            known.generation >= flushes
                && offsets.iter().enumerate().all(|(journal, offset)| {
                    known.offsets.get(journal).copied().unwrap_or_default() >= *offset
                })
        })
    }

    /// Whether all that answers wait for have that.
    #[must_use]
    pub fn all_have_passed(&self, offsets: &[u64]) -> bool {
        let followers: Vec<u64> = self.lock().followers.keys().copied().collect();
        followers.into_iter().all(|follower| self.has_passed(follower, offsets))
    }

    /// This cache is no leader's any more: what waits is never acknowledged, and nobody's acknowledgement counts.
    pub fn abandon(&self) {
        let mut state = self.lock();
        state.term += 1;
        self.term.store(state.term, Ordering::Release);
        state.followers.clear();
        state.wake();
        state.late.clear();
    }

    /// Ends waits that last for too long. To be called several times a second.
    pub fn end_late(&self, now: Instant) {
        let State { waiting, late, .. } = &mut *self.lock();
        waiting.retain_mut(|Waiting { position, waker, since }| {
            let since = *since.get_or_insert(now);
            let is_late = now.saturating_duration_since(since) > WAIT_MAX;
            if is_late {
                late.insert(position.number);
                waker.wake_by_ref();
            }
            !is_late
        });
    }

    /// Batches whose answers had to wait so far.
    #[must_use]
    pub fn holds(&self) -> u64 {
        self.holds.load(Ordering::Relaxed)
    }

    /// Batches whose answers were never sent.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    #[derive(Default)]
    struct Calls(AtomicUsize);

    impl Wake for Calls {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn all_that_are_required_have_to_have_it() {
        let (acks, calls) = (Acknowledgements::default(), Arc::new(Calls::default()));
        let waker = Waker::from(Arc::clone(&calls));
        let position = acks.position(0, (1, 10), 2);
        assert_eq!(acks.state_of(&position, &waker), AckState::Acknowledged, "nobody is required");
        acks.require(7);
        acks.require(8);
        assert_eq!(acks.state_of(&position, &waker), AckState::Pending);
        acks.note(9, &[99, 99], 9);
        for (offsets, generation) in [(&[99][..], 2), (&[0, 9], 2), (&[0, 10], 1), (&[0, 10], 2)] {
            assert_eq!(acks.state_of(&position, &waker), AckState::Pending, "{offsets:?}");
            acks.note(7, offsets, generation);
        }
        assert_eq!(calls.0.load(Ordering::Relaxed), 0);
        acks.note(8, &[0, 11], 3);
        assert_eq!(calls.0.load(Ordering::Relaxed), 1);
        assert_eq!(acks.state_of(&position, &waker), AckState::Acknowledged);
        assert_eq!(acks.holds(), 1);
    }

    #[test]
    fn who_leaves_is_not_waited_for() {
        let (acks, calls) = (Acknowledgements::default(), Arc::new(Calls::default()));
        let waker = Waker::from(Arc::clone(&calls));
        acks.require(7);
        let position = acks.position(acks.term(), (0, 1), 0);
        assert_eq!(acks.state_of(&position, &waker), AckState::Pending);
        acks.retain(|follower| follower == 7);
        assert_eq!(calls.0.load(Ordering::Relaxed), 0);
        acks.retain(|_| false);
        assert_eq!(calls.0.load(Ordering::Relaxed), 1);
        assert_eq!(acks.state_of(&position, &waker), AckState::Acknowledged);
    }

    #[test]
    fn what_waits_when_a_leader_is_deposed_is_never_answered() {
        let (acks, calls) = (Acknowledgements::default(), Arc::new(Calls::default()));
        let waker = Waker::from(Arc::clone(&calls));
        acks.require(7);
        let position = acks.position(acks.term(), (0, 1), 0);
        assert_eq!(acks.state_of(&position, &waker), AckState::Pending);
        acks.abandon();
        assert_eq!(calls.0.load(Ordering::Relaxed), 1);
        assert_eq!(acks.state_of(&position, &waker), AckState::Lost);
        // Nor is that of a batch that began before.
        let position = acks.position(0, (0, 1), 0);
        assert_eq!(acks.state_of(&position, &waker), AckState::Lost);
        let position = acks.position(acks.term(), (0, 1), 0);
        assert_eq!(acks.state_of(&position, &waker), AckState::Acknowledged);
    }

    #[test]
    fn nobody_waits_for_ever() {
        let (acks, calls) = (Acknowledgements::default(), Arc::new(Calls::default()));
        let waker = Waker::from(Arc::clone(&calls));
        acks.require(7);
        let position = acks.position(acks.term(), (0, 1), 0);
        assert_eq!(acks.state_of(&position, &waker), AckState::Pending);
        #[expect(clippy::disallowed_methods, reason = "a test")]
        let now = Instant::now();
        acks.end_late(now);
        acks.end_late(now + WAIT_MAX);
        assert_eq!(acks.state_of(&position, &waker), AckState::Pending);
        acks.end_late(now + WAIT_MAX + Duration::from_millis(1));
        assert_eq!(calls.0.load(Ordering::Relaxed), 1);
        assert_eq!(acks.state_of(&position, &waker), AckState::Lost);
        assert_eq!((acks.holds(), acks.lost()), (1, 1));
    }

    #[test]
    fn modes_say_what_waits() {
        let acks = Acknowledgements::default();
        for (mode, removals, others) in [
            (AckMode::None, false, false),
            (AckMode::Deletes, true, false),
            (AckMode::Writes, true, true),
        ] {
            acks.set_mode(mode);
            assert_eq!(acks.waits_for(ChangeKind::Removal), removals, "{mode:?}");
            assert_eq!(acks.waits_for(ChangeKind::Other), others, "{mode:?}");
        }
    }
}
