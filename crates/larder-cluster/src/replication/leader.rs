//! The leader's side of replication: sends each follower the items and changes that it lacks.

use super::acks::{ChangedKeysPart, FollowingMember, read_acks};
use super::journal_waker::JournalWaker;
use super::status::{FollowerStats, FollowerStatus};
use crate::error::{LocalError, PeerError};
use crate::node::Node;
use crate::peers::{HeartbeatSchedule, PeerStream, Stop};
use larder_replica::{Frame, Position, Sender, Step};
use larder_store::cache::Cache;
use larder_store::journal::Journals;
use larder_store::{Now, erased};
use larder_support::clock::{Clock, boot_millis};
use std::io::Write;
use std::net::Shutdown;
use std::sync::{Arc, mpsc};
use std::task::Waker;
use std::time::Duration;

/// The maximum number of connected followers.
const FOLLOWERS_MAX: usize = 16;
/// How long an idle sender pauses so that more changes accumulate, unless a reply waits for a
/// change. Larger batches need less CPU time.
const BATCH_PAUSE: Duration = Duration::from_millis(1);

/// The interval at which a sender checks whether the record still lists a member that needs a full
/// sync.
const EXCLUSION_TICK: Duration = Duration::from_millis(5);

/// The cache on a server with followers.
pub struct ReplicatedCache {
    /// The cache whose handles append their changes to the journals.
    pub journaled: erased::Cache,
    /// The same cache with handles that append nothing. Use these handles only for reading.
    pub plain: erased::Cache,
    /// The journals of changes for followers.
    pub journals: Arc<Journals>,
}

/// The leader's side of replication for all followers.
pub(crate) struct Leader {
    pub(crate) node: Arc<Node>,
    pub(crate) cache: Arc<ReplicatedCache>,
    /// The incarnation of this process.
    pub(crate) incarnation: u64,
    pub(crate) stop: Arc<Stop>,
}

impl Leader {
    /// Serves a follower until its connection ends. `position` is the position from which the
    /// follower could resume or start a delta sync, or `None` if the follower needs a full sync.
    ///
    /// # Errors
    /// The follower is refused.
    pub(crate) fn serve(
        &self,
        (name, address): (String, &str),
        position: Option<&Position>,
        stream: &PeerStream,
        member: Option<FollowingMember<'_>>,
    ) -> Result<(), PeerError> {
        let journals = &self.cache.journals;
        let status = Arc::new(FollowerStatus::new(name, address.to_owned()));
        if !self.node.replication.add(Arc::clone(&status), FOLLOWERS_MAX) {
            return Err(stream.refuse(LocalError::FollowersMax));
        }
        // This handle only reads, so it needs no journal.
        let engine = self.cache.plain.engine();
        let succession = member.as_ref().and_then(|member| member.group.succession());
        let succession = succession.as_deref();
        let journals_read = Arc::clone(journals);
        let sender = Sender::new(engine, journals_read, self.incarnation, position, succession);
        let start_mode = match (sender.starts_with_full_sync(), sender.is_delta_syncing()) {
            (true, _) => "starts with a full sync",
            (_, true) => "starts with a delta sync",
            _ => "resumes",
        };
        tracing::info!("follower {} at {address} {start_mode}", status.name);
        let ended = self.stream(sender, journals, stream, &status, member.as_ref());
        self.node.replication.remove(&status);
        if let Some(FollowingMember { process, group, leadership, link }) = &member {
            // If the member has connected again, or a later leadership has started, leave the new
            // state unchanged.
            let is_last = group.update(|member, _| {
                let is_last = link.is_current() && member.leadership_epoch() == Some(*leadership);
                if is_last {
                    member.note_disconnected(process);
                }
                is_last
            });
            if is_last {
                group.end_joining(process.incarnation);
            }
        }
        if let Err(error) = ended
            && !self.stop.is_set()
        {
            tracing::info!("follower {} at {address} disconnected: {error}", status.name);
        }
        Ok(())
    }

    /// Sends changes until the connection ends. Another thread reads acknowledgements.
    fn stream(
        &self,
        sender: Sender<erased::Handle>,
        journals: &Arc<Journals>,
        stream: &PeerStream,
        status: &FollowerStatus,
        member: Option<&FollowingMember<'_>>,
    ) -> Result<(), PeerError> {
        let (keys_sender, changed_keys) = mpsc::channel();
        let is_full_sync = sender.starts_with_full_sync();
        let is_delta_sync = sender.is_delta_syncing();
        std::thread::scope(|scope| {
            let acks = std::thread::Builder::new().name("acks".to_owned());
            let acks = acks.spawn_scoped(scope, || {
                let ended = read_acks(
                    stream,
                    journals,
                    status,
                    member,
                    (is_full_sync, is_delta_sync.then_some(keys_sender)),
                );
                // The sender detects the end of the connection at its next write.
                let _ = stream.shutdown(Shutdown::Both);
                ended
            })?;
            let sent = self.send(sender, journals, stream, status, member, &changed_keys);
            let _ = stream.shutdown(Shutdown::Both);
            let read = acks.join().unwrap_or(Ok(()));
            match sent {
                Err(PeerError::Local(error)) => Err(error.into()),
                // If the follower has disconnected, the reader's error states the reason.
                sent => read.and(sent),
            }
        })
    }

    fn send(
        &self,
        mut sender: Sender<erased::Handle>,
        journals: &Arc<Journals>,
        mut stream: &PeerStream,
        status: &FollowerStatus,
        member: Option<&FollowingMember<'_>>,
        changed_keys: &mpsc::Receiver<ChangedKeysPart>,
    ) -> Result<(), PeerError> {
        let journal_waker = Arc::new(JournalWaker::new(journals.notifier()));
        let waker = Waker::from(Arc::clone(&journal_waker));
        let clock = self.node.clock.clone();
        let (mut out, mut heartbeats) = (Vec::new(), HeartbeatSchedule::default());
        let (mut sent_bytes, mut paused_after) = (0, 0);
        // A full sync first removes all items of the member. The sync starts only when the member
        // is no longer in sync: a member in sync may become the leader.
        let mut pending_exclusion = member.filter(|_| sender.starts_with_full_sync());
        if let Some(FollowingMember { process, group, leadership, .. }) = pending_exclusion {
            group.update(|member, _| {
                if member.leadership_epoch() == Some(*leadership) {
                    member.exclude(process);
                }
            });
        }
        while !self.stop.is_set() {
            let seen_generation = journals.notifier().generation();
            if member
                .is_some_and(|member| member.group.leadership_start() != Some(member.leadership))
            {
                return Err(LocalError::LeadershipLost.into());
            }
            if member.is_some_and(|member| !member.link.is_current()) {
                return Err(LocalError::Obsolete.into());
            }
            for ChangedKeysPart { keys, is_last } in changed_keys.try_iter() {
                sender.push_changed_keys(keys);
                if is_last {
                    sender.end_changed_keys();
                }
            }
            let now = clock.moment().into();
            if let Some(number) = heartbeats.due() {
                let behind = sender.lag_ms(now);
                let is_in_doubt = member.is_some_and(|member| !member.group.is_serving());
                // Send no lag to a member that waits for a full sync, because its lag is unknown.
                let known = (!is_in_doubt && pending_exclusion.is_none()).then_some(behind);
                let lag_ms = known.and_then(|behind| behind.try_into().ok());
                let sent = boot_millis();
                let cas_end = member.map_or(0, |follower| {
                    follower.group.read(|member| member.heartbeat_cas_end(sent))
                });
                Frame::Heartbeat { number, lag_ms, sent, cas_end }.write(&mut out);
                status.note_heartbeat(number, behind, cas_end);
            }
            if let Some(member) = pending_exclusion.take_if(|member| !member.may_be_in_sync()) {
                tracing::debug!("the full sync of {} starts", member.process.node);
            }
            if let Some(FollowingMember { group, .. }) = pending_exclusion {
                stream.write_all(&out)?;
                out.clear();
                group.wait(EXCLUSION_TICK);
                continue;
            }
            if sender.starts_with_full_sync() && sender.counts().overruns > 0 && member.is_some() {
                // This full sync would remove the items of a member that may be in sync. The
                // member's next connection starts with a full sync.
                return Err(LocalError::Overrun.into());
            }
            let step = sender.step(now, &waker, &mut out);
            // Record the watermarks before the write: their acknowledgements may arrive at once.
            let watermarks = sender.take_watermarks();
            if member.is_some() {
                status.note_watermarks(watermarks);
            }
            stream.write_all(&out)?;
            sent_bytes += out.len() as u64;
            out.clear();
            let must_pause = matches!(step, Step::Idle) && sender.batch() != paused_after;
            // The sender pauses once after each batch, so that changes for the next batch
            // accumulate.
            let pause = if must_pause { BATCH_PAUSE } else { Duration::ZERO };
            note(&sender, status, &clock, sent_bytes, pause);
            match step {
                Step::More => (),
                Step::Idle if must_pause => {
                    paused_after = sender.batch();
                    journals.notifier().pause(BATCH_PAUSE, seen_generation);
                }
                Step::Idle => {
                    let was_notified = || {
                        journals.notifier().generation() != seen_generation || self.stop.is_set()
                    };
                    journals
                        .notifier()
                        .wait(heartbeats.left(), || sender.has_more() || was_notified());
                }
                Step::Waiting => {
                    journals.notifier().wait(heartbeats.left(), || journal_waker.take());
                }
            }
        }
        Ok(())
    }
}

/// Updates the status of a follower. `pause` is the length of the sender's next pause, which adds
/// to the lag.
fn note(
    sender: &Sender<erased::Handle>,
    status: &FollowerStatus,
    clock: &Clock,
    sent_bytes: u64,
    pause: Duration,
) {
    let now: Now = clock.moment().into();
    let stats = FollowerStats {
        counts: sender.counts(),
        is_full_syncing: sender.is_full_syncing(),
        lag_bytes: sender.lag_bytes(),
        lag_keys: sender.lag_keys(),
        lag: Duration::from_millis(sender.lag_ms(now)) + pause,
        sent_bytes,
    };
    status.note(stats, sender.batch());
}
