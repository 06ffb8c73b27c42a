//! The import of slots from another group: receives the items of the slots from that group's
//! leader, requests the release of the slots, and writes the new owner to the shard map.
//!
//! The import thread also removes the items of slots that other groups own. Since one thread does
//! both, it never removes items of an import under way.

use crate::error::{LocalError, PeerError};
use crate::group::{ExportingLeader, FinishError, Group, ShardMapKeeper};
use crate::node::Node;
use crate::peers::{Caller, PeerConnection, PeerStream, Stop, Target, dial, is_silence};
use larder_replica::{
    Applier, CoordinatorError, Frame, Migration, PeerClock, Process, Purpose, Revision, SlotSet,
    StreamError,
};
use larder_store::cache::Cache;
use larder_store::{Batches, Change, HashedKey, Lookups, Now, Updates, WalkState, Walks, erased};
use larder_support::clock::boot_millis;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

/// The interval at which the importer checks for a planned migration, and its pause after a failed
/// import.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// The minimum time between this node's first read of a plan and its request for the release. Nodes
/// that can reach etcd read the map at shorter intervals, so they know the plan when the slots are
/// released.
const PLAN_PROPAGATION_TIME: Duration = Duration::from_secs(2);
/// The time limit for reserving CAS values before the release.
const CAS_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the exporting leader may take to release the slots and send the remaining changes.
/// Requests for the slots wait from the release to the new map, and fail after a second.
const RELEASE_TIMEOUT: Duration = Duration::from_millis(400);
/// The time limit for the followers' acknowledgements after the release.
const RELEASE_ACK_TIMEOUT: Duration = Duration::from_millis(400);
/// The time limit for the followers' acknowledgements before the release.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(2);
/// After this time, a flush has reached all groups or has failed.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// A leader counts as unreachable after this time without received bytes. This time is also the
/// write timeout of the connection.
const EXPORTER_SILENCE_TIMEOUT: Duration = Duration::from_secs(3);
/// The interval at which a waiting read checks whether the migration continues.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The interval at which a waiting import checks its condition.
const TICK: Duration = Duration::from_millis(2);
const READ_LEN: usize = 256 << 10;
/// After importing this many bytes, the importer waits for the followers' acknowledgements.
const BYTES_AHEAD: usize = 4 << 20;
/// After removing this many items, the importer waits for the followers' acknowledgements.
const ITEMS_AHEAD: usize = 1000;
/// The approximate number of items that a walk visits in one batch.
const WALK_ITEMS: usize = 256;

/// Imports the slots that the shard map plans to move to the local group.
pub(crate) struct Importer {
    node: Arc<Node>,
    group: Arc<Group>,
    keeper: Arc<ShardMapKeeper>,
    stop: Arc<Stop>,
    applier: Applier<erased::Handle>,
    state: ImporterState,
}

/// The importer state that outlives an attempt.
#[derive(Default)]
struct ImporterState {
    /// The last known flush generation, the leadership epoch in which it was read, and the time at
    /// which either last changed. `None` before the first leadership.
    flushes: Option<(u64, u32, Instant)>,
    /// Whether etcd has not answered the swap that finishes the last migration. The swap may still
    /// take effect.
    has_pending_swap: bool,
}

/// The reason why an import has failed. The importer retries.
#[derive(Debug, thiserror::Error)]
enum ImportError {
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// A flush may not have reached the exporting group yet.
    #[error("a flush may not have reached the exporting group yet; retrying")]
    RecentFlush,
    #[error("a delayed flush is pending")]
    FlushPending,
    #[error("all items were flushed during the import")]
    Flushed,
    #[error("the shard map does not plan this migration any more")]
    NotPlanned,
    #[error("the exporting group has no leader")]
    NoLeader,
    #[error("this node has no journals: give --replicate-on")]
    NoJournals,
    #[error("the exporting leader was replaced")]
    LeaderReplaced,
    #[error("the epoch of the exporting leader differs from the record in etcd")]
    EpochMismatch,
    #[error("reserving CAS values in etcd timed out")]
    CasTimeout,
    #[error("the exporting leader has closed the connection")]
    Closed,
    #[error("the exporting leader sends nothing")]
    Silent,
    #[error("the exporting leader did not release the slots in time")]
    ReleaseTimeout,
    #[error("the followers did not receive the items in time")]
    FollowersTimeout,
    #[error(transparent)]
    Etcd(#[from] CoordinatorError),
    #[error(transparent)]
    Finish(#[from] FinishError),
}

impl From<LocalError> for ImportError {
    fn from(error: LocalError) -> Self {
        Self::Peer(error.into())
    }
}

impl From<io::Error> for ImportError {
    fn from(error: io::Error) -> Self {
        Self::Peer(error.into())
    }
}

impl From<StreamError> for ImportError {
    fn from(error: StreamError) -> Self {
        Self::Peer(error.into())
    }
}

impl Importer {
    pub(crate) fn new(
        node: &Arc<Node>,
        group: &Arc<Group>,
        keeper: &Arc<ShardMapKeeper>,
        stop: &Arc<Stop>,
    ) -> Self {
        Self {
            node: Arc::clone(node),
            group: Arc::clone(group),
            keeper: Arc::clone(keeper),
            stop: Arc::clone(stop),
            applier: Applier::for_import(node.cache.engine()),
            state: ImporterState::default(),
        }
    }

    /// Imports planned slots while this node leads, until the node shuts down. If no import is
    /// planned, removes the items of slots that other groups own.
    pub(crate) fn run(mut self) {
        let (mut seen, mut cleaned, mut last_error) = (None, None, String::new());
        while !self.stop.is_set() {
            self.group.topology.wait(RETRY_INTERVAL);
            let Some(leadership) = self.group.ready_leadership() else { continue };
            self.note_flushes(leadership);
            let planned = self.group.topology.next_migration();
            let planned = planned.filter(|planned| planned.to == self.group.name.group);
            let Some(planned) = planned else {
                (seen, last_error) = (None, String::new());
                let state = (leadership, self.group.topology.own_slots());
                if cleaned.as_ref() != Some(&state) && self.remove_foreign(leadership) {
                    cleaned = Some(state);
                }
                continue;
            };
            let known_since = match &seen {
                Some((migration, since)) if *migration == planned => *since,
                _ => Instant::now(),
            };
            seen = Some((planned.clone(), known_since));
            cleaned = None;
            match self.import(&planned, leadership, known_since) {
                Ok(()) => {
                    let count = planned.slots.len();
                    self.group.topology.note_imported(count);
                    tracing::info!("imported {count} slots from group {}", planned.from);
                }
                Err(error) => {
                    let error = error.to_string();
                    if error != last_error {
                        let (count, from) = (planned.slots.len(), &planned.from);
                        tracing::warn!(
                            "cannot import {count} slots from group {from} yet, retrying: {error}"
                        );
                        last_error = error;
                    }
                    self.stop.wait(RETRY_INTERVAL);
                }
            }
        }
    }

    /// Updates the last known flush generation.
    fn note_flushes(&mut self, leadership: u32) {
        let flushes = self.applier.engine().flush_generation();
        if self
            .state
            .flushes
            .is_none_or(|(generation, epoch, _)| (generation, epoch) != (flushes, leadership))
        {
            self.state.flushes = Some((flushes, leadership, Instant::now()));
        }
    }

    fn now(&self) -> Now {
        self.node.clock.moment().into()
    }

    /// Makes one attempt at an import. `known_since` is the time at which this node first read the
    /// plan.
    fn import(
        &mut self,
        planned: &Migration,
        leadership: u32,
        known_since: Instant,
    ) -> Result<(), ImportError> {
        // A recent flush may not have reached the exporting group yet. In that case, the import
        // would restore flushed items.
        let generation = self.state.flushes.filter(|(.., at)| at.elapsed() > FLUSH_TIMEOUT);
        let (generation, ..) = generation.ok_or(ImportError::RecentFlush)?;
        if self.state.has_pending_swap {
            self.keeper.supersede_swaps()?;
            self.state.has_pending_swap = false;
        }
        self.keeper.read()?;
        if self.group.topology.next_migration().as_ref() != Some(planned) {
            return Err(ImportError::NotPlanned);
        }
        let leader = self.group.topology.leader(&planned.from);
        let leader = leader.ok_or(ImportError::NoLeader)?;
        let address = leader.address.ok_or(LocalError::NoAddress)?;
        let journals = self.group.journals().ok_or(ImportError::NoJournals)?;
        if journals.flush_pends(self.node.clock.now()) {
            return Err(ImportError::FlushPending);
        }
        if !self.remove_foreign(leadership) {
            return Err(LocalError::LeadershipLost.into());
        }
        let process = leader.record.leader;
        let (dialed, epoch) = self.dial(&process, &address, planned, leadership)?;
        if epoch != leader.record.epoch {
            return Err(ImportError::EpochMismatch);
        }
        tracing::info!("importing {} slots from group {}", planned.slots.len(), planned.from);
        self.applier.start_stream(process.incarnation);
        let revision = self.follow(&dialed, planned, leadership, known_since)?;
        // The stream has no items after the barrier, so a later flush removes all imported items.
        // Only a flush before this point requires a new import.
        if self.applier.engine().flush_generation() != generation {
            return Err(ImportError::Flushed);
        }
        if !self.wait_for_followers(leadership, RELEASE_ACK_TIMEOUT) {
            return Err(ImportError::FollowersTimeout);
        }
        let exporter = ExportingLeader { process, epoch };
        let continues = || self.group.is_leading_in(leadership) && !self.stop.is_set();
        let finished = self.keeper.finish(planned, revision, &exporter, leadership, continues);
        self.state.has_pending_swap = finished == Err(FinishError::Unknown);
        Ok(finished?)
    }

    fn dial(
        &self,
        leader: &Process,
        address: &str,
        planned: &Migration,
        leadership: u32,
    ) -> Result<(PeerConnection, u32), ImportError> {
        let me = self.group.local_member();
        let is_wanted = || self.group.is_leading_in(leadership);
        let target = Target { address, node: Some(&leader.node), is_wanted: &is_wanted };
        let purpose = Purpose::Import(planned.slots.clone());
        let dialed =
            dial(target, &self.node.credentials, Caller::Member(&me), purpose, &self.stop)?;
        let identity = &dialed.identity;
        if identity.incarnation != leader.incarnation || identity.epoch == 0 {
            return Err(ImportError::LeaderReplaced);
        }
        let epoch = identity.epoch;
        Ok((dialed, epoch))
    }

    /// Makes this leader assign only CAS values of at least `floor`. The exporting group has
    /// assigned none of these values, so no key gets a value twice. Reserves values in etcd if
    /// necessary.
    fn raise_cas(&self, floor: u64, time: Duration) -> Result<(), ImportError> {
        let started = Instant::now();
        loop {
            let is_done = self.group.update(|member, _| member.raise_cas(floor));
            if is_done.ok_or(LocalError::LeadershipLost)? {
                return Ok(());
            }
            if started.elapsed() > time {
                return Err(ImportError::CasTimeout);
            }
            std::thread::sleep(TICK);
        }
    }

    /// Imports items until the other leader has released the slots and has sent all changes.
    /// Returns the revision of the map that this node read just before it requested the release.
    fn follow(
        &mut self,
        dialed: &PeerConnection,
        planned: &Migration,
        leadership: u32,
        known_since: Instant,
    ) -> Result<Revision, ImportError> {
        let mut stream: &PeerStream = &dialed.stream;
        stream.set_read_timeout(Some(STOP_POLL_INTERVAL))?;
        stream.set_write_timeout(Some(EXPORTER_SILENCE_TIMEOUT))?;
        let (mut bytes, mut received_at, mut ahead) = (vec![0; READ_LEN], Instant::now(), 0);
        let mut release_request: Option<(Instant, Revision)> = None;
        let mut exporter_clock: Option<PeerClock> = None;
        self.apply(&dialed.rest, planned, leadership)?;
        loop {
            match stream.read(&mut bytes) {
                Ok(0) => return Err(ImportError::Closed),
                Ok(len) => {
                    received_at = Instant::now();
                    self.apply(bytes.get(..len).unwrap_or_default(), planned, leadership)?;
                    let (sent, now) = (self.applier.last_heartbeat_sent_ms(), boot_millis());
                    if sent > 0 {
                        exporter_clock.get_or_insert(PeerClock::new(sent, now)).note(sent, now);
                    }
                    ahead += len;
                    if ahead > BYTES_AHEAD {
                        ahead = 0;
                        // The import continues after a timeout, because a follower that is too slow
                        // is no longer in sync.
                        self.wait_for_followers(leadership, CATCH_UP_TIMEOUT);
                    }
                }
                Err(error) if is_silence(&error) => (),
                Err(error) => return Err(error.into()),
            }
            if received_at.elapsed() > EXPORTER_SILENCE_TIMEOUT {
                return Err(ImportError::Silent);
            }
            if self.stop.is_set() || !self.group.is_leading_in(leadership) {
                return Err(LocalError::LeadershipLost.into());
            }
            let mut out = Vec::new();
            self.applier.acknowledge(false, &mut out);
            match release_request {
                Some((requested_at, revision)) if let Some(cas_end) = self.applier.barrier() => {
                    // Raise the CAS values again, because the exporting leader may have reserved
                    // further values since this node last read that leader's record.
                    let left = RELEASE_TIMEOUT.saturating_sub(requested_at.elapsed());
                    self.raise_cas(cas_end, left)?;
                    return Ok(revision);
                }
                Some((requested_at, _)) if requested_at.elapsed() > RELEASE_TIMEOUT => {
                    return Err(ImportError::ReleaseTimeout);
                }
                Some(_) => (),
                None if let Some(clock) = exporter_clock
                    && self.applier.is_synced()
                    && known_since.elapsed() > PLAN_PROPAGATION_TIME =>
                {
                    if !self.wait_for_followers(leadership, CATCH_UP_TIMEOUT) {
                        continue;
                    }
                    self.keeper.read()?;
                    if self.group.topology.next_migration().as_ref() != Some(planned) {
                        return Err(ImportError::NotPlanned);
                    }
                    let exporter = self.group.topology.leader(&planned.from);
                    let exporter = exporter.ok_or(ImportError::NoLeader)?;
                    self.raise_cas(exporter.record.cas.to, CAS_TIMEOUT)?;
                    release_request = Some((Instant::now(), self.group.topology.map().1));
                    Frame::ReleaseSlots { sent: clock.at(boot_millis()) }.write(&mut out);
                }
                None => (),
            }
            stream.write_all(&out)?;
        }
    }

    fn apply(
        &mut self,
        bytes: &[u8],
        planned: &Migration,
        leadership: u32,
    ) -> Result<(), ImportError> {
        let now = self.now();
        let Self { group, applier, .. } = self;
        let can_apply =
            || group.is_leading_in(leadership) && !group.topology.has_one_of(&planned.slots);
        Ok(applier.receive_import(bytes, now, can_apply)?)
    }

    /// Waits up to `time` until the followers in sync have all changes so far. Returns false after
    /// a timeout, or if this node no longer leads or is shutting down.
    fn wait_for_followers(&self, leadership: u32, time: Duration) -> bool {
        let Some(journals) = self.group.journals() else { return true };
        let (ends, started) = (journals.ends(), Instant::now());
        loop {
            if self.group.all_have_passed(journals, &ends) {
                return true;
            }
            let continues = self.group.is_leading_in(leadership) && !self.stop.is_set();
            if !continues || started.elapsed() > time {
                return false;
            }
            std::thread::sleep(TICK);
        }
    }

    /// Removes all items of slots that other groups own. Returns false if this node no longer leads
    /// or is shutting down.
    fn remove_foreign(&mut self, leadership: u32) -> bool {
        if self.group.topology.own_slots() == SlotSet::all() {
            return self.group.is_leading_in(leadership);
        }
        let mut walk = self.applier.engine().walk();
        let (mut removed, mut ahead, started) = (0, 0, boot_millis());
        loop {
            let now = self.now();
            let engine = self.applier.engine();
            engine.begin_batch(now);
            // Check this within the batch: a replaced leader waits for the end of its batches
            // before it follows another node.
            if !self.group.is_leading_in(leadership) || self.stop.is_set() {
                engine.end_batch();
                return false;
            }
            let own = self.group.topology.own_slots();
            let mut foreign: Vec<Vec<u8>> = Vec::new();
            let walked = engine.continue_walk(&mut walk, WALK_ITEMS, Waker::noop(), |key, _| {
                if !own.has_key(key) {
                    foreign.push(key.to_vec());
                }
            });
            for key in &foreign {
                let key = HashedKey { bytes: key, hash: engine.hash(key) };
                let _ = engine.update_unread(key, &mut None, |_| (Change::Remove, ()));
            }
            engine.end_batch();
            removed += foreign.len();
            ahead += foreign.len();
            if ahead > ITEMS_AHEAD {
                ahead = 0;
                self.wait_for_followers(leadership, CATCH_UP_TIMEOUT);
            }
            match walked {
                WalkState::More => (),
                WalkState::Waiting => std::thread::sleep(TICK),
                WalkState::End => break,
            }
        }
        if removed > 0 {
            let millis = boot_millis().saturating_sub(started);
            tracing::info!("removed {removed} items of slots of other groups in {millis} ms");
        }
        true
    }
}
