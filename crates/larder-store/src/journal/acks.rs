//! The acknowledgements of followers, and the replies that wait for them.
//!
//! A leader selects the followers whose acknowledgements count ([`Acknowledgements::require`]). The
//! [`AckMode`] determines which changes must be acknowledged. The replies of a batch wait until all
//! selected followers have acknowledged these changes of the batch. One lock protects the followers
//! and the waiting positions, and each function holds it for a short time. Under [`AckMode::None`],
//! a batch does not take the lock.
//!
//! While slots are exported, changes can be paced ([`Acknowledgements::start_pacing`]): the replies
//! of a batch also wait until the exporter has sent the batch's changes, but for at most
//! `PACE_ROUNDS` rounds.

use super::ring::ChangeKind;
use crate::AckState;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

/// The maximum time that replies wait. After this time, the replies are never sent, because it is
/// unknown whether their changes will last.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// A paced change waits for at most this many exporter rounds.
pub(super) const PACE_ROUNDS: u64 = 25;

/// The flag in [`Acknowledgements::mode`] that is set while changes are paced.
const PACED: u8 = 0x80;

/// Which changes wait for acknowledgements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum AckMode {
    /// No change.
    #[default]
    None,
    /// Changes after which no lookup may find the old item: removals, invalidations, empty values,
    /// stores that expire immediately, and flushes that take effect immediately.
    Deletes,
    /// All changes except delayed flushes.
    Writes,
}

impl AckMode {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::None, Self::Deletes, Self::Writes];

    /// Returns the name of the mode.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Deletes => "deletes",
            Self::Writes => "writes",
        }
    }

    /// Returns the mode with this name, or `None` if no mode has this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// The position that must be acknowledged before replies are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckPosition {
    /// The number of the handle's journal.
    pub(super) journal: usize,
    /// The journal offset that the followers must have acknowledged; 0 if only a flush waits.
    pub(super) offset: u64,
    /// The number of flushes that the followers must have applied; 0 if no flush waits.
    pub(super) generation: u64,
    /// The offset up to which the exporter must have sent the journal, and the round after which
    /// the batch no longer waits for the exporter. `None` if the batch is not paced.
    paced: Option<(u64, u64)>,
    /// The term in which the batch started.
    term: u64,
    /// A number that identifies the position.
    number: u64,
}

/// The acknowledgements of a cache's followers.
#[derive(Debug, Default)]
pub struct Acknowledgements {
    /// The [`AckMode`], and the flag [`PACED`].
    mode: AtomicU8,
    /// The number of batches whose replies had to wait.
    holds: AtomicU64,
    /// The number of batches whose replies were never sent.
    lost: AtomicU64,
    /// The flush generation after the last flush by a handle.
    flushes: AtomicU64,
    /// A copy of [`State::term`] that is read without the lock.
    term: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The current term. It rises when the leader is deposed. Later acknowledgements do not count
    /// for positions of earlier terms.
    term: u64,
    /// The followers that replies wait for, keyed by the number of the follower's process.
    followers: HashMap<u64, Follower>,
    /// The waiting positions, sorted by number.
    waiting: Vec<Waiting>,
    /// The number of positions created so far.
    positions: u64,
    /// The number of positions created before the current term.
    positions_before: u64,
    /// The numbers of late positions from this and the previous term: they have waited too long and
    /// were not yet reported as lost.
    late: HashSet<u64>,
    /// For each exporter that paces changes, keyed by its number: the offsets up to which the
    /// exporter has sent the journals.
    pacers: BTreeMap<u64, Vec<u64>>,
    /// How often pacing was started.
    pacer_count: u64,
    /// The number of pacing rounds so far.
    rounds: u64,
    /// The previous term, and the number of its last position, if no position was waiting when that
    /// term ended. Replies that depend on these positions may still be sent in the current term.
    acknowledged: Option<(u64, u64)>,
}

#[derive(Debug)]
struct Waiting {
    position: AckPosition,
    /// The waker of the batch, or `None` before the batch has called
    /// [`Acknowledgements::state_of`].
    waker: Option<Waker>,
    /// The time at which [`Acknowledgements::end_late`] first found the position waiting, or `None`
    /// before that call.
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
    fn is_satisfied(&self, position: &AckPosition) -> bool {
        self.followers.values().all(|follower| follower.has(position)) && self.is_sent(position)
    }

    /// Returns whether the exporter has sent the position's paced changes, or has ended so many
    /// rounds that the position no longer waits.
    fn is_sent(&self, position: &AckPosition) -> bool {
        let Some((offset, until)) = position.paced else { return true };
        let has_sent =
            |sent: &Vec<u64>| sent.get(position.journal).copied().unwrap_or_default() >= offset;
        self.rounds >= until || self.pacers.values().all(has_sent)
    }

    /// Wakes the batches whose wait is over, and removes them from `waiting`.
    fn wake(&mut self) {
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|Waiting { position, waker, .. }| {
            let is_over = position.term != self.term || self.is_satisfied(position);
            if is_over {
                waker.iter().for_each(Waker::wake_by_ref);
            }
            !is_over
        });
        self.waiting = waiting;
    }

    /// Returns whether the position was acknowledged before its term ended.
    fn was_acknowledged(&self, position: &AckPosition) -> bool {
        self.acknowledged
            .is_some_and(|(term, last)| position.term == term && position.number <= last)
    }
}

impl Acknowledgements {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets which changes wait for acknowledgements.
    pub fn set_mode(&self, mode: AckMode) {
        let _state = self.lock();
        let paced = self.mode.load(Ordering::Relaxed) & PACED;
        self.mode.store(mode as u8 | paced, Ordering::Relaxed);
    }

    /// Returns whether a change of this kind waits for followers, and whether it is paced.
    #[inline]
    pub(super) fn waits_for(&self, kind: ChangeKind) -> (bool, bool) {
        let mode = self.mode.load(Ordering::Relaxed);
        let (mode, is_paced) = (mode & !PACED, mode & PACED != 0);
        let waits = mode == AckMode::Writes as u8
            || mode == AckMode::Deletes as u8 && kind == ChangeKind::Removal;
        (waits, is_paced)
    }

    /// Starts to pace changes for one exporter. Returns its number, for the methods below.
    pub fn start_pacing(&self) -> u64 {
        let mut state = self.lock();
        state.pacer_count += 1;
        let number = state.pacer_count;
        state.pacers.insert(number, Vec::new());
        self.mode.fetch_or(PACED, Ordering::Relaxed);
        number
    }

    /// Records that an exporter has sent the journals up to these offsets.
    pub fn note_exported(&self, pacer: u64, offsets: &[u64]) {
        let mut state = self.lock();
        let Some(sent) = state.pacers.get_mut(&pacer) else { return };
        sent.clear();
        sent.extend_from_slice(offsets);
        state.wake();
    }

    /// Starts the next pacing round. Positions that have waited for 25 rounds no longer wait for
    /// exporters. Each exporter calls this function at regular intervals. Only the calls of the
    /// oldest exporter count.
    pub fn end_pacing_round(&self, pacer: u64) {
        let mut state = self.lock();
        if state.pacers.keys().next() == Some(&pacer) {
            state.rounds += 1;
            state.wake();
        }
    }

    /// Stops pacing changes for one exporter.
    pub fn stop_pacing(&self, pacer: u64) {
        let mut state = self.lock();
        state.pacers.remove(&pacer);
        if state.pacers.is_empty() {
            self.mode.fetch_and(!PACED, Ordering::Relaxed);
        }
        state.wake();
    }

    /// Returns the current term. A batch reads the term before it checks whether this process may
    /// send the batch's replies.
    pub(super) fn term(&self) -> u64 {
        self.term.load(Ordering::Acquire)
    }

    /// Creates the position on which the replies of a batch depend. The caller creates it within
    /// the batch, so that [`Self::has_waiting`] includes the replies of all batches that have
    /// ended. The batch started in `term`. Its last change that waits for acknowledgements ends at
    /// `offset` of the handle's journal. `generation` is the number of flushes, counted after the
    /// batch's last flush. The last paced change ends at `paced`.
    #[cold]
    pub(super) fn position(
        &self,
        term: u64,
        (journal, offset): (usize, u64),
        generation: u64,
        paced: Option<u64>,
    ) -> AckPosition {
        let mut state = self.lock();
        state.positions += 1;
        let number = state.positions;
        let paced = paced.map(|offset| (offset, state.rounds + PACE_ROUNDS));
        let position = AckPosition { journal, offset, generation, paced, term, number };
        if term == state.term && !state.is_satisfied(&position) {
            state.waiting.push(Waiting { position, waker: None, since: None });
        }
        position
    }

    /// Returns whether replies wait for acknowledgements.
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        !self.lock().waiting.is_empty()
    }

    /// Returns the state of a position. After [`AckState::Pending`], `waker` is called when the
    /// state changes. After [`AckState::Lost`], the caller drops the position: a second call could
    /// return another state.
    #[cold]
    pub(super) fn state_of(&self, position: &AckPosition, waker: &Waker) -> AckState {
        let mut state = self.lock();
        let is_late = !state.late.is_empty() && state.late.remove(&position.number);
        if !is_late && state.was_acknowledged(position) {
            return AckState::Acknowledged;
        }
        if is_late || position.term != state.term {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return AckState::Lost;
        }
        let number = |waiting: &Waiting| waiting.position.number;
        let found = state.waiting.binary_search_by_key(&position.number, number);
        let Ok(found) = found else { return AckState::Acknowledged };
        let waiting = &mut state.waiting[found];
        if waiting.waker.replace(waker.clone()).is_none() {
            self.holds.fetch_add(1, Ordering::Relaxed);
        }
        AckState::Pending
    }

    /// Makes replies wait for this follower, too. If this call adds the follower, the follower
    /// counts as having acknowledged nothing.
    pub fn require(&self, follower: u64) {
        self.lock().followers.entry(follower).or_default();
    }

    /// Returns whether replies wait for this follower.
    #[must_use]
    pub fn requires(&self, follower: u64) -> bool {
        self.lock().followers.contains_key(&follower)
    }

    /// Makes replies wait only for the followers for which `is_kept` is true.
    pub fn retain(&self, is_kept: impl Fn(u64) -> bool) {
        let mut state = self.lock();
        let before = state.followers.len();
        state.followers.retain(|follower, _| is_kept(*follower));
        if state.followers.len() < before {
            state.wake();
        }
    }

    /// Records a follower's acknowledgement: the follower has all journals up to these offsets, and
    /// the effects of `generation` flushes. Has no effect unless replies wait for the follower.
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

    /// Records that a handle has flushed the cache. `generation` is the number of flushes so far.
    pub(super) fn note_flush(&self, generation: u64) {
        self.flushes.fetch_max(generation, Ordering::Relaxed);
    }

    /// Returns whether a follower has all journals up to these offsets, and the effects of all
    /// flushes by handles. Returns false if replies do not wait for the follower.
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

    /// Returns whether all required followers have all journals up to these offsets, and the
    /// effects of all flushes by handles.
    #[must_use]
    pub fn all_have_passed(&self, offsets: &[u64]) -> bool {
        let followers: Vec<u64> = self.lock().followers.keys().copied().collect();
        followers.into_iter().all(|follower| self.has_passed(follower, offsets))
    }

    /// Starts a new term without followers, because this process does not lead any more. All
    /// positions of batches that started in an earlier term are lost. There is one exception: if no
    /// reply waits now, the positions of the term that ends stay acknowledged, except those that
    /// have waited for too long.
    pub fn abandon(&self) {
        let mut state = self.lock();
        let is_all = state.waiting.is_empty();
        state.acknowledged = is_all.then_some((state.term, state.positions));
        state.term += 1;
        self.term.store(state.term, Ordering::Release);
        state.followers.clear();
        state.wake();
        let positions = state.positions;
        let before = std::mem::replace(&mut state.positions_before, positions);
        state.late.retain(|number| *number > before);
    }

    /// Ends waits that have lasted longer than `WAIT_MAX`: their positions are lost. The caller
    /// calls this function several times a second.
    pub fn end_late(&self, now: Instant) {
        let State { waiting, late, .. } = &mut *self.lock();
        waiting.retain_mut(|Waiting { position, waker, since }| {
            let since = *since.get_or_insert(now);
            let is_late = now.saturating_duration_since(since) > WAIT_MAX;
            if is_late {
                late.insert(position.number);
                waker.iter().for_each(Waker::wake_by_ref);
            }
            !is_late
        });
    }

    /// Returns the number of batches so far whose replies had to wait.
    #[must_use]
    pub fn holds(&self) -> u64 {
        self.holds.load(Ordering::Relaxed)
    }

    /// Returns the number of batches whose replies were never sent.
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
    fn every_required_follower_must_acknowledge() {
        let (acks, calls) = (Acknowledgements::default(), Arc::new(Calls::default()));
        let waker = Waker::from(Arc::clone(&calls));
        let position = acks.position(0, (1, 10), 2, None);
        assert_eq!(
            acks.state_of(&position, &waker),
            AckState::Acknowledged,
            "no follower is required"
        );
        acks.require(7);
        acks.require(8);
        let position = acks.position(0, (1, 10), 2, None);
        assert!(acks.has_waiting(), "before the first poll");
        assert_eq!(acks.state_of(&position, &waker), AckState::Pending);
        acks.note(9, &[99, 99], 9);
        for (offsets, generation) in [(&[99][..], 2), (&[0, 9], 2), (&[0, 10], 1), (&[0, 10], 2)] {
            assert_eq!(acks.state_of(&position, &waker), AckState::Pending, "{offsets:?}");
            acks.note(7, offsets, generation);
        }
        assert_eq!(calls.0.load(Ordering::Relaxed), 0);
        acks.note(8, &[0, 11], 3);
        assert_eq!(calls.0.load(Ordering::Relaxed), 1);
        assert!(!acks.has_waiting());
        assert_eq!(acks.state_of(&position, &waker), AckState::Acknowledged);
        assert_eq!(acks.holds(), 1);
    }

    #[test]
    fn a_removed_follower_is_not_waited_for() {
        let (acks, calls) = (Acknowledgements::default(), Arc::new(Calls::default()));
        let waker = Waker::from(Arc::clone(&calls));
        acks.require(7);
        let position = acks.position(acks.term(), (0, 1), 0, None);
        assert_eq!(acks.state_of(&position, &waker), AckState::Pending);
        acks.retain(|follower| follower == 7);
        assert_eq!(calls.0.load(Ordering::Relaxed), 0);
        acks.retain(|_| false);
        assert_eq!(calls.0.load(Ordering::Relaxed), 1);
        assert_eq!(acks.state_of(&position, &waker), AckState::Acknowledged);
    }

    #[test]
    fn replies_that_wait_when_a_leader_is_deposed_are_lost() {
        let (acks, calls) = (Acknowledgements::default(), Arc::new(Calls::default()));
        let waker = Waker::from(Arc::clone(&calls));
        acks.require(7);
        let position = acks.position(acks.term(), (0, 1), 0, None);
        assert_eq!(acks.state_of(&position, &waker), AckState::Pending);
        acks.abandon();
        assert_eq!(calls.0.load(Ordering::Relaxed), 1);
        assert_eq!(acks.state_of(&position, &waker), AckState::Lost);
        // A batch that started before the leader was deposed is lost, even if its position is created
        // afterwards.
        let position = acks.position(0, (0, 1), 0, None);
        assert_eq!(acks.state_of(&position, &waker), AckState::Lost);
        let position = acks.position(acks.term(), (0, 1), 0, None);
        assert_eq!(acks.state_of(&position, &waker), AckState::Acknowledged);
    }

    /// Before a leader transfers its leadership, it waits until no reply is waiting. The thread
    /// that has a reply may be late, and may check the reply's position only after the leadership
    /// has ended.
    #[test]
    fn an_acknowledged_reply_is_released_after_its_leader_was_deposed() {
        let acks = Acknowledgements::default();
        let state = |position| acks.state_of(position, Waker::noop());
        acks.require(7);
        let under_way = acks.term();
        let position = acks.position(acks.term(), (0, 1), 0, None);
        acks.note(7, &[1], 0);
        acks.abandon();
        assert_eq!(state(&position), AckState::Acknowledged);
        let late = acks.position(under_way, (0, 1), 0, None);
        assert_eq!(state(&late), AckState::Lost, "its batch had not ended");
        // In the next term, a reply is still waiting when the leader is deposed, so all replies of
        // that term are lost.
        acks.require(7);
        let first = acks.position(acks.term(), (0, 2), 0, None);
        acks.note(7, &[2], 0);
        let second = acks.position(acks.term(), (0, 3), 0, None);
        acks.abandon();
        assert_eq!((state(&first), state(&second)), (AckState::Lost, AckState::Lost));
        acks.abandon();
        assert_eq!((state(&first), state(&second)), (AckState::Lost, AckState::Lost));
    }

    #[test]
    fn waits_end_after_the_maximum_time() {
        let (acks, calls) = (Acknowledgements::default(), Arc::new(Calls::default()));
        let waker = Waker::from(Arc::clone(&calls));
        acks.require(7);
        let position = acks.position(acks.term(), (0, 1), 0, None);
        assert_eq!(acks.state_of(&position, &waker), AckState::Pending);
        #[expect(clippy::disallowed_methods, reason = "the test chooses the time")]
        let now = Instant::now();
        acks.end_late(now);
        acks.end_late(now + WAIT_MAX);
        assert_eq!(acks.state_of(&position, &waker), AckState::Pending);
        acks.end_late(now + WAIT_MAX + Duration::from_millis(1));
        assert_eq!(calls.0.load(Ordering::Relaxed), 1);
        assert_eq!(acks.state_of(&position, &waker), AckState::Lost);
        assert_eq!((acks.holds(), acks.lost()), (1, 1));
        // The leader is deposed when no reply is waiting. Only then does the thread of a late reply
        // check the position of this reply.
        let late = acks.position(acks.term(), (0, 2), 0, None);
        acks.end_late(now);
        acks.end_late(now + WAIT_MAX + Duration::from_millis(1));
        let given = acks.position(acks.term(), (0, 1), 0, None);
        acks.note(7, &[1], 0);
        acks.abandon();
        assert_eq!(acks.state_of(&late, &waker), AckState::Lost);
        assert_eq!(acks.state_of(&given, &waker), AckState::Acknowledged);
    }

    #[test]
    fn paced_changes_wait_until_they_are_sent_or_for_some_rounds() {
        let (acks, calls) = (Acknowledgements::default(), Arc::new(Calls::default()));
        let waker = Waker::from(Arc::clone(&calls));
        let paced = |offset| acks.position(acks.term(), (1, 0), 0, Some(offset));
        let position = paced(5);
        assert_eq!(acks.state_of(&position, &waker), AckState::Acknowledged, "not paced yet");
        let exporter = acks.start_pacing();
        let position = paced(5);
        assert_eq!(acks.state_of(&position, &waker), AckState::Pending);
        acks.note_exported(exporter, &[9, 4]);
        assert_eq!(acks.state_of(&position, &waker), AckState::Pending);
        acks.note_exported(exporter, &[9, 5]);
        assert_eq!(calls.0.load(Ordering::Relaxed), 1);
        assert_eq!(acks.state_of(&position, &waker), AckState::Acknowledged);
        // The exporter sends nothing, so the change waits for the maximum number of rounds.
        let position = paced(6);
        for round in 0..PACE_ROUNDS {
            assert_eq!(acks.state_of(&position, &waker), AckState::Pending, "{round}");
            acks.end_pacing_round(exporter);
        }
        assert_eq!(calls.0.load(Ordering::Relaxed), 2);
        assert_eq!(acks.state_of(&position, &waker), AckState::Acknowledged);
        // Paced changes still wait for followers.
        acks.require(7);
        let both = acks.position(acks.term(), (1, 6), 0, Some(6));
        acks.note_exported(exporter, &[9, 6]);
        assert_eq!(acks.state_of(&both, &waker), AckState::Pending);
        acks.note(7, &[0, 6], 0);
        assert_eq!(acks.state_of(&both, &waker), AckState::Acknowledged);
        let position = paced(7);
        assert_eq!(acks.state_of(&position, &waker), AckState::Pending);
        acks.stop_pacing(exporter);
        assert_eq!(acks.state_of(&position, &waker), AckState::Acknowledged);
    }

    #[test]
    fn changes_are_paced_until_the_last_exporter_stops() {
        let (acks, waker) = (Acknowledgements::default(), Waker::noop());
        let paced = |offset| acks.position(acks.term(), (0, 0), 0, Some(offset));
        let [first, second] = [acks.start_pacing(), acks.start_pacing()];
        let position = paced(5);
        acks.note_exported(first, &[9]);
        assert_eq!(
            acks.state_of(&position, waker),
            AckState::Pending,
            "the second has not sent it"
        );
        acks.note_exported(second, &[5]);
        assert_eq!(acks.state_of(&position, waker), AckState::Acknowledged);
        // Only the rounds of the first exporter count, so the position waits for `PACE_ROUNDS` of
        // them.
        let position = paced(6);
        for round in 0..PACE_ROUNDS {
            assert_eq!(acks.state_of(&position, waker), AckState::Pending, "{round}");
            acks.end_pacing_round(second);
            acks.end_pacing_round(first);
        }
        assert_eq!(acks.state_of(&position, waker), AckState::Acknowledged);
        let position = paced(7);
        acks.stop_pacing(first);
        acks.end_pacing_round(first);
        assert_eq!(acks.waits_for(ChangeKind::Other), (false, true));
        assert_eq!(acks.state_of(&position, waker), AckState::Pending);
        acks.stop_pacing(second);
        assert_eq!(acks.waits_for(ChangeKind::Other), (false, false));
        assert_eq!(acks.state_of(&position, waker), AckState::Acknowledged);
    }

    #[test]
    fn modes_determine_which_changes_wait() {
        let acks = Acknowledgements::default();
        for (mode, removals, others) in [
            (AckMode::None, false, false),
            (AckMode::Deletes, true, false),
            (AckMode::Writes, true, true),
        ] {
            acks.set_mode(mode);
            let waits = |paced| {
                assert_eq!(acks.waits_for(ChangeKind::Removal), (removals, paced), "{mode:?}");
                assert_eq!(acks.waits_for(ChangeKind::Other), (others, paced), "{mode:?}");
            };
            waits(false);
            let exporter = acks.start_pacing();
            waits(true);
            acks.stop_pacing(exporter);
        }
    }
}
