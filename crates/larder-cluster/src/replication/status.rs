//! The status of replication, for `stats replication` and Redis's `INFO` and `ROLE`.

use larder_replica::{
    Applier, ApplierCounts, ElectionPromise, Millis, SenderCounts, SentWatermark,
};
use larder_store::erased;
use larder_store::journal::Journals;
use larder_support::clock::boot_millis;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The maximum number of unacknowledged heartbeats to track: one minute of heartbeats. Further
/// heartbeats are not tracked.
const HEARTBEATS_MAX: usize = 600;

/// The maximum number of unacknowledged watermarks to track. A further watermark replaces the
/// newest.
const WATERMARKS_MAX: usize = 1024;
/// The maximum number of unacknowledged batches to track. Further batches are merged into the last.
const BATCHES_MAX: usize = 1024;

/// A node's followers, and its link to a leader.
#[derive(Debug, Default)]
pub struct ReplicationStatus {
    followers: Mutex<Vec<Arc<FollowerStatus>>>,
    /// The totals over followers' connections that have ended. Lock order: `followers` before this
    /// mutex.
    ended: Mutex<SyncTotals>,
    /// The number of follower connections so far.
    admitted: AtomicU64,
    /// The number of connections that failed in the handshake or were refused: see
    /// [`PeerError::counts_as_refused`](crate::error::PeerError::counts_as_refused).
    pub(crate) refused: AtomicU64,
    /// The link to a leader; `None` without `--follow` and `--cluster`, because this node then
    /// never follows.
    pub link: Option<LinkStatus>,
    /// The journals whose changes followers receive; unset without `--replicate-on`.
    journals: OnceLock<Arc<Journals>>,
}

/// Totals over all follower connections, including connections that have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncTotals {
    /// The number of started full syncs.
    pub full_syncs: u64,
    /// The number of journal overruns.
    pub overruns: u64,
}

impl SyncTotals {
    fn add(&mut self, counts: SenderCounts) {
        self.full_syncs += counts.full_syncs;
        self.overruns += counts.overruns;
    }
}

impl ReplicationStatus {
    pub(crate) fn new(is_follower: bool) -> Self {
        let link = is_follower.then(LinkStatus::default);
        Self { link, ..Self::default() }
    }

    /// Returns the number of follower connections so far.
    pub fn admitted(&self) -> u64 {
        self.admitted.load(Relaxed)
    }

    /// Returns the number of connections that failed in the handshake or were refused. Excludes
    /// members that mistake this node for the leader of their group, and imports that this node
    /// refuses after the handshake for a reason other than the maximum number of migrations.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Returns the connected followers in the order in which they connected.
    pub fn followers(&self) -> Vec<Arc<FollowerStatus>> {
        self.followers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the journals whose changes followers receive.
    pub(crate) fn set_journals(&self, journals: &Arc<Journals>) {
        let _ = self.journals.set(Arc::clone(journals));
    }

    /// Returns the total number of bytes written to the journals; `None` without `--replicate-on`.
    pub fn journal_offset(&self) -> Option<u64> {
        self.journals.get().map(|journals| journals.ends().iter().sum())
    }

    /// Adds a follower unless `max` followers are connected. Returns whether it was added.
    pub(crate) fn add(&self, follower: Arc<FollowerStatus>, max: usize) -> bool {
        let mut followers = self.followers.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = followers.len() < max;
        if has_room {
            self.admitted.fetch_add(1, Relaxed);
            followers.push(follower);
        }
        has_room
    }

    pub(crate) fn remove(&self, follower: &Arc<FollowerStatus>) {
        let mut followers = self.followers.lock().unwrap_or_else(PoisonError::into_inner);
        let before = followers.len();
        followers.retain(|other| !Arc::ptr_eq(other, follower));
        if followers.len() < before {
            let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
            ended.add(follower.stats().counts);
        }
    }

    /// Returns the totals of all followers, including those that have disconnected.
    pub fn sync_totals(&self) -> SyncTotals {
        let followers = self.followers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut totals = *self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        followers.iter().for_each(|follower| totals.add(follower.stats().counts));
        totals
    }
}

/// The leader's view of a follower.
#[derive(Debug, Default)]
pub struct FollowerStatus {
    /// For a member of a group, its node name. For other followers, the first address at which the
    /// follower serves clients.
    pub name: String,
    /// The address from which the follower has connected.
    pub address: String,
    state: Mutex<FollowerState>,
}

#[derive(Clone, Debug, Default)]
struct FollowerState {
    stats: FollowerStats,
    /// The batches that the follower has not acknowledged yet: for each one, its number and the
    /// number of item states in it.
    batches: VecDeque<(u64, u64)>,
    /// The heartbeats that the follower has not acknowledged yet, with their numbers.
    heartbeats: VecDeque<(u64, SentHeartbeat)>,
    /// The watermarks that the follower has not acknowledged yet.
    watermarks: VecDeque<SentWatermark>,
    /// The time between the last acknowledged heartbeat and its acknowledgement.
    round_trip: Duration,
}

/// A heartbeat that was sent.
#[derive(Clone, Copy, Debug)]
struct SentHeartbeat {
    /// The send time, for the round trip.
    at: Instant,
    /// The send time on the clock of election promises.
    boot_millis: Millis,
    /// The age of the oldest unsent change when the heartbeat was sent, in milliseconds.
    behind: Millis,
    /// The end of the CAS range in the heartbeat.
    cas_end: u64,
}

/// The progress of a follower since its previous acknowledgement.
#[derive(Debug, Default)]
pub(crate) struct AckProgress {
    /// The send time of the last acknowledged heartbeat, and the end of its CAS range. `None` if
    /// the acknowledgement covers no further heartbeat.
    pub(crate) heartbeat: Option<ElectionPromise>,
    /// The time up to which the follower has all changes. `None` if the acknowledgement covers no
    /// further heartbeat.
    pub(crate) synced_until: Option<Millis>,
    /// The last acknowledged watermark. `None` if the acknowledgement covers no further watermark.
    pub(crate) watermark: Option<SentWatermark>,
}

/// A follower's values for statistics.
#[derive(Clone, Copy, Debug, Default)]
pub struct FollowerStats {
    /// The counters of the stream.
    pub counts: SenderCounts,
    /// Whether a full sync is under way.
    pub is_full_syncing: bool,
    /// The number of journal bytes that the follower's sender has not read yet.
    pub lag_bytes: u64,
    /// The number of changes that are unsent, or sent but not acknowledged.
    pub lag_keys: u64,
    /// The upper bound of the replication lag.
    pub lag: Duration,
    /// The number of sent bytes.
    pub sent_bytes: u64,
}

impl FollowerStatus {
    pub(crate) fn new(name: String, address: String) -> Self {
        Self { name, address, state: Mutex::default() }
    }

    /// Updates the sender's values. `stats.lag_keys` must be the number of unsent changes, and
    /// `batch` the number of the last batch.
    pub(crate) fn note(&self, stats: FollowerStats, batch: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = state.stats.counts.states;
        let states = stats.counts.states - before.min(stats.counts.states);
        let is_full = state.batches.len() >= BATCHES_MAX;
        match state.batches.back_mut().filter(|_| is_full) {
            // Merge the batches: the states of both stay unacknowledged until the later batch is
            // acknowledged.
            Some(last) => *last = (batch, last.1 + states),
            None if states > 0 => state.batches.push_back((batch, states)),
            None => (),
        }
        state.stats = stats;
    }

    pub(crate) fn note_heartbeat(&self, number: u64, behind: Millis, cas_end: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.heartbeats.len() < HEARTBEATS_MAX {
            let (at, boot_millis) = (Instant::now(), boot_millis());
            let sent = SentHeartbeat { at, boot_millis, behind, cas_end };
            state.heartbeats.push_back((number, sent));
        }
    }

    /// Adds watermarks. Call this before they are sent.
    pub(crate) fn note_watermarks(&self, watermarks: Vec<SentWatermark>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for watermark in watermarks {
            if state.watermarks.len() >= WATERMARKS_MAX {
                // Drop the newest watermark: the next one includes it.
                state.watermarks.pop_back();
            }
            state.watermarks.push_back(watermark);
        }
    }

    /// Handles an acknowledgement. Returns the progress since the last one.
    pub(crate) fn note_ack(
        &self,
        (batch, heartbeat, acked_number): (u64, u64, u64),
    ) -> AckProgress {
        let mut acked = AckProgress::default();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.batches.front().is_some_and(|(number, _)| *number <= batch) {
            state.batches.pop_front();
        }
        while let Some((number, sent)) = state.heartbeats.front().copied()
            && number <= heartbeat
        {
            state.round_trip = sent.at.elapsed();
            acked.heartbeat =
                Some(ElectionPromise { sent: sent.boot_millis, cas_end: sent.cas_end });
            acked.synced_until = Some(sent.boot_millis.saturating_sub(sent.behind));
            state.heartbeats.pop_front();
        }
        while state.watermarks.front().is_some_and(|watermark| watermark.number <= acked_number) {
            acked.watermark = state.watermarks.pop_front();
        }
        acked
    }

    /// Returns the current values for statistics. Here, `lag_keys` includes sent changes without an
    /// acknowledgement, and `lag` includes the round-trip time.
    pub fn stats(&self) -> FollowerStats {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stats = state.stats;
        stats.lag_keys += state.batches.iter().map(|(_, states)| states).sum::<u64>();
        let under_way =
            state.heartbeats.front().map_or(Duration::ZERO, |(_, sent)| sent.at.elapsed());
        stats.lag += state.round_trip.max(under_way);
        stats
    }
}

/// The follower's view of the link to its leader.
#[derive(Debug, Default)]
pub struct LinkStatus {
    state: Mutex<LinkState>,
}

#[derive(Clone, Debug, Default)]
struct LinkState {
    stats: LinkStats,
    /// The time at which bytes last arrived from the leader. Bytes that arrive while this
    /// follower's lag is unknown do not count. `None` until the first heartbeat that states the lag
    /// has arrived.
    received_at: Option<Instant>,
    is_connected: bool,
    /// The time at which the last connection ended; `None` if none has ended.
    lost_at: Option<Instant>,
}

/// The link's values for statistics.
#[derive(Clone, Debug, Default)]
pub struct LinkStats {
    /// `connecting`, `syncing` or `following`.
    pub state: &'static str,
    /// Whether this node has the items of the leader, apart from replication lag.
    pub is_synced: bool,
    /// The upper bound of the replication lag; `None` during a sync, or until the first heartbeat
    /// that states the lag has arrived.
    pub lag: Option<Duration>,
    behind: Duration,
    /// The position in the leader's journals up to which this follower has all changes, in bytes:
    /// the sum of the offsets in the last watermark. `None` before the first watermark or during a
    /// sync.
    pub offset: Option<u64>,
    /// The time since bytes last arrived from the leader. Bytes that arrive while this follower's
    /// lag is unknown do not count. `None` until the first heartbeat that states the lag has
    /// arrived.
    pub silence: Option<Duration>,
    /// The time since a connection last ended, even if there is a new one; `None` if none has
    /// ended.
    pub down: Option<Duration>,
    /// The counters of the stream.
    pub counts: ApplierCounts,
    /// The number of connections to the leader so far.
    pub connections: u64,
    /// The number of bytes received from leaders so far.
    pub received_bytes: u64,
    /// The reason why there is no connection. Empty while there is a connection, before the first
    /// failure, or if this node has started to lead.
    pub error: String,
}

impl LinkStatus {
    pub(crate) fn note_connected(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_connected = true;
        state.stats.connections += 1;
        state.stats.error.clear();
    }

    pub(crate) fn note_lost(&self, error: &str) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut state.is_connected) {
            state.lost_at = Some(Instant::now());
        }
        error.clone_into(&mut state.stats.error);
    }

    /// Records that this server leads. A leader has no link and no lag.
    pub(crate) fn note_leading(&self) {
        self.note_lost("");
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.received_at = None;
        state.stats.is_synced = false;
    }

    /// Updates the applier's values. `bytes` is the number of bytes received since the last call.
    pub(crate) fn note(&self, applier: &Applier<erased::Handle>, bytes: usize) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(behind) = applier.lag_ms() {
            state.received_at = Some(Instant::now());
            state.stats.behind = Duration::from_millis(behind.into());
        }
        let stats = &mut state.stats;
        (stats.counts, stats.is_synced) = (applier.counts(), applier.is_synced());
        stats.offset = applier.offset();
        stats.received_bytes += bytes as u64;
    }

    /// Returns the current values for statistics.
    pub fn stats(&self) -> LinkStats {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stats = state.stats.clone();
        stats.state = match (state.is_connected, stats.is_synced) {
            (false, _) => "connecting",
            (true, false) => "syncing",
            (true, true) => "following",
        };
        let received_at = state.received_at.filter(|_| stats.is_synced);
        stats.lag = received_at.map(|received_at| received_at.elapsed() + stats.behind);
        stats.silence = state.received_at.map(|received_at| received_at.elapsed());
        stats.down = state.lost_at.map(|lost_at| lost_at.elapsed());
        stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unacknowledged_batches_take_bounded_memory() {
        let follower = FollowerStatus::new("n".to_owned(), "a".to_owned());
        let batches = 3 * BATCHES_MAX as u64;
        for batch in 1..=batches {
            let counts = SenderCounts { states: 2 * batch, ..SenderCounts::default() };
            follower.note(FollowerStats { counts, ..FollowerStats::default() }, batch);
        }
        assert_eq!(follower.state.lock().unwrap().batches.len(), BATCHES_MAX);
        assert_eq!(follower.stats().lag_keys, 2 * batches);
        follower.note_ack((10, 0, 0));
        assert_eq!(follower.stats().lag_keys, 2 * (batches - 10));
        follower.note_ack((batches - 1, 0, 0));
        assert!(follower.stats().lag_keys > 0);
        follower.note_ack((batches, 0, 0));
        assert_eq!(follower.stats().lag_keys, 0);
    }

    #[test]
    fn totals_include_followers_that_have_disconnected() {
        let status = ReplicationStatus::new(false);
        let connect = |full_syncs, overruns| {
            let follower = Arc::new(FollowerStatus::new("n".to_owned(), "a".to_owned()));
            let counts = SenderCounts { full_syncs, overruns, ..SenderCounts::default() };
            follower.note(FollowerStats { counts, ..FollowerStats::default() }, 1);
            assert!(status.add(Arc::clone(&follower), 9));
            follower
        };
        let (first, _second) = (connect(3, 2), connect(1, 0));
        for _ in 0..2 {
            status.remove(&first);
            assert_eq!(status.sync_totals(), SyncTotals { full_syncs: 4, overruns: 2 });
        }
    }
}
