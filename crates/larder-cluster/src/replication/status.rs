//! The status of replication, for `stats replication` and Redis's `INFO` and `ROLE`.

use larder_replica::{Applier, ApplierCounts, Millis, SenderCounts, SentWatermark};
use larder_store::erased;
use larder_store::journal::Journals;
use larder_support::clock::boot_millis;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Heartbeats that can be under way before older ones are forgotten: those of a minute.
const HEARTBEATS_MAX: usize = 600;

/// Reaches that can be under way before those in between are forgotten.
const WATERMARKS_MAX: usize = 1024;

/// The followers of a node, and its link to a leader.
#[derive(Debug, Default)]
pub struct ReplicationStatus {
    followers: Mutex<Vec<Arc<FollowerStatus>>>,
    /// Followers that have connected so far, and those that were refused.
    admitted: AtomicU64,
    pub(crate) refused: AtomicU64,
    /// The link to the leader, if there is one.
    pub link: Option<LinkStatus>,
    /// The journals that followers receive, with `--replicate-on`.
    journals: OnceLock<Arc<Journals>>,
}

impl ReplicationStatus {
    pub(crate) fn new(is_follower: bool) -> Self {
        let link = is_follower.then(LinkStatus::default);
        Self { link, ..Self::default() }
    }

    /// Followers that have connected so far.
    pub fn admitted(&self) -> u64 {
        self.admitted.load(Relaxed)
    }

    /// Peers that were refused so far.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// The followers that are connected, in the order in which they came.
    pub fn followers(&self) -> Vec<Arc<FollowerStatus>> {
        self.followers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Followers are sent what these journals name.
    pub(crate) fn set_journals(&self, journals: &Arc<Journals>) {
        let _ = self.journals.set(Arc::clone(journals));
    }

    /// The bytes that were ever written to the journals; `None` without `--replicate-on`.
    pub fn journal_offset(&self) -> Option<u64> {
        self.journals.get().map(|journals| journals.ends().iter().sum())
    }

    /// Adds a follower, unless there are `max` already.
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
        followers.retain(|other| !Arc::ptr_eq(other, follower));
    }
}

/// A follower, as its leader sees it.
#[derive(Debug, Default)]
pub struct FollowerStatus {
    /// The first address at which it serves clients, or the name of its node.
    pub name: String,
    /// The address that it connects from.
    pub address: String,
    state: Mutex<FollowerState>,
}

#[derive(Clone, Debug, Default)]
struct FollowerState {
    shown: FollowerShown,
    /// Batches with their changes, and heartbeats with their times, that are not acknowledged.
    batches: VecDeque<(u64, u64)>,
    heartbeats: VecDeque<(u64, Sent)>,
    /// Its position once it has acknowledged each watermark.
    watermarks: VecDeque<SentWatermark>,
    /// How long the last acknowledged heartbeat was under way.
    round_trip: Duration,
}

/// When a heartbeat was sent, on two clocks: that of latencies, and that of promises.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Instant,
    boot_millis: Millis,
    /// How old the oldest change was that was not sent before it, in milliseconds.
    behind: Millis,
}

/// The news in an acknowledgement.
#[derive(Debug, Default)]
pub(crate) struct Acked {
    /// When the last heartbeat was sent, if it was acknowledged just now.
    pub(crate) sent: Option<Millis>,
    /// The time up to which it has all changes, if that is known better than before.
    pub(crate) synced_until: Option<Millis>,
    /// Its position, if that is further than before.
    pub(crate) watermark: Option<SentWatermark>,
}

/// The values of a follower for statistics.
#[derive(Clone, Copy, Debug, Default)]
pub struct FollowerShown {
    /// Counts of the stream.
    pub counts: SenderCounts,
    /// Whether it is sent a full copy.
    pub is_full_syncing: bool,
    /// Bytes of the journals that it was not sent yet.
    pub lag_bytes: u64,
    /// Changes that were not sent, or not acknowledged.
    pub lag_keys: u64,
    /// How far it may be behind.
    pub lag: Duration,
    /// Bytes that it was sent.
    pub sent_bytes: u64,
}

impl FollowerStatus {
    pub(crate) fn new(name: String, address: String) -> Self {
        Self { name, address, state: Mutex::default() }
    }

    /// Notes what the sender has done; `lag_keys` are the changes that it has not sent.
    pub(crate) fn note(&self, shown: FollowerShown, batch: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = state.shown.counts.states;
        let states = shown.counts.states - before.min(shown.counts.states);
        if states > 0 {
            state.batches.push_back((batch, states));
        }
        state.shown = shown;
    }

    pub(crate) fn note_heartbeat(&self, number: u64, behind: Millis) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.heartbeats.len() < HEARTBEATS_MAX {
            let sent = Sent { at: Instant::now(), boot_millis: boot_millis(), behind };
            state.heartbeats.push_back((number, sent));
        }
    }

    /// Notes its position once it has acknowledged the frames that are about to be sent.
    pub(crate) fn note_watermarks(&self, watermarks: Vec<SentWatermark>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for watermark in watermarks {
            if state.watermarks.len() >= WATERMARKS_MAX {
                // The last of them is enough.
                state.watermarks.pop_back();
            }
            state.watermarks.push_back(watermark);
        }
    }

    /// Notes what was acknowledged.
    pub(crate) fn note_ack(&self, (batch, heartbeat, acked_number): (u64, u64, u64)) -> Acked {
        let mut acked = Acked::default();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.batches.front().is_some_and(|(number, _)| *number <= batch) {
            state.batches.pop_front();
        }
        while let Some((number, sent)) = state.heartbeats.front().copied()
            && number <= heartbeat
        {
            state.round_trip = sent.at.elapsed();
            acked.sent = Some(sent.boot_millis);
            acked.synced_until = Some(sent.boot_millis.saturating_sub(sent.behind));
            state.heartbeats.pop_front();
        }
        while state.watermarks.front().is_some_and(|watermark| watermark.number <= acked_number) {
            acked.watermark = state.watermarks.pop_front();
        }
        acked
    }

    /// The values of the statistics.
    pub fn shown(&self) -> FollowerShown {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut shown = state.shown;
        shown.lag_keys += state.batches.iter().map(|(_, states)| states).sum::<u64>();
        let under_way =
            state.heartbeats.front().map_or(Duration::ZERO, |(_, sent)| sent.at.elapsed());
        shown.lag += state.round_trip.max(under_way);
        shown
    }
}

/// The link to a leader, as its follower sees it.
#[derive(Debug, Default)]
pub struct LinkStatus {
    state: Mutex<LinkState>,
}

#[derive(Clone, Debug, Default)]
struct LinkState {
    shown: LinkShown,
    /// When the leader last said how far it was behind.
    heard: Option<Instant>,
    is_connected: bool,
    /// When the last connection ended.
    lost: Option<Instant>,
}

/// The values of the link for statistics.
#[derive(Clone, Debug, Default)]
pub struct LinkShown {
    /// `connecting`, `copying` or `following`.
    pub state: &'static str,
    /// Whether there is everything that the leader had at some time.
    pub is_synced: bool,
    /// How far the copy may be behind; `None` without one.
    pub lag: Option<Duration>,
    behind: Duration,
    /// How many bytes of the leader's journals it has the changes of; `None` without a copy.
    pub offset: Option<u64>,
    /// How long ago the leader was last heard of.
    pub silence: Option<Duration>,
    /// How long ago the last connection ended.
    pub down: Option<Duration>,
    /// Counts of the stream.
    pub counts: ApplierCounts,
    /// Connections to the leader so far.
    pub connections: u64,
    /// Bytes that came from the leader.
    pub received_bytes: u64,
    /// Why there is no connection.
    pub error: String,
}

impl LinkStatus {
    pub(crate) fn note_connected(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_connected = true;
        state.shown.connections += 1;
        state.shown.error.clear();
    }

    pub(crate) fn note_lost(&self, error: &str) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut state.is_connected) {
            state.lost = Some(Instant::now());
        }
        error.clone_into(&mut state.shown.error);
    }

    /// Notes what an applier has done, and what it was told. `bytes` have come since the last call.
    pub(crate) fn note(&self, applier: &Applier<erased::Handle>, bytes: usize) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(behind) = applier.lag_ms() {
            state.heard = Some(Instant::now());
            state.shown.behind = Duration::from_millis(behind.into());
        }
        let shown = &mut state.shown;
        (shown.counts, shown.is_synced) = (applier.counts(), applier.is_synced());
        shown.offset = applier.offset();
        shown.received_bytes += bytes as u64;
    }

    /// The values of the statistics.
    pub fn shown(&self) -> LinkShown {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut shown = state.shown.clone();
        shown.state = match (state.is_connected, shown.is_synced) {
            (false, _) => "connecting",
            (true, false) => "copying",
            (true, true) => "following",
        };
        let heard = state.heard.filter(|_| shown.is_synced);
        shown.lag = heard.map(|heard| heard.elapsed() + shown.behind);
        shown.silence = state.heard.map(|heard| heard.elapsed());
        shown.down = state.lost.map(|lost| lost.elapsed());
        shown
    }
}
