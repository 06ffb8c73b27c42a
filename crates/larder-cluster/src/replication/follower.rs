//! The follower's side of replication: connects to the leader, and stores the received items and
//! changes.

use crate::error::{LocalError, PeerError, Timeout};
use crate::group::Group;
use crate::node::Node;
use crate::peers::{Caller, PeerConnection, PeerStream, Stop, Target, dial, is_silence};
use larder_replica::{Applier, LeaderIdentity, Member, Millis, Process, Purpose, Role, SyncKind};
use larder_store::{Now, erased};
use larder_support::clock::boot_millis;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A leader counts as unreachable after this time without received bytes: a leader sends ten
/// heartbeats a second. This time is also the write timeout of the connection. The election
/// simulation of `larder-replica` repeats this value (`tests/it/election/nodes.rs`).
const LEADER_SILENCE_TIMEOUT: Duration = Duration::from_secs(3);
/// The interval at which a waiting read checks whether the node shuts down or has another leader.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The minimum pause before another attempt to connect. The election simulation repeats this value
/// as `CONNECT_INTERVAL`.
const RECONNECT_PAUSE_MIN: Duration = Duration::from_millis(50);
/// The maximum pause before another attempt to connect.
const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long a follower waits, before a full sync, until the record no longer lists it as in sync.
const FULL_SYNC_WAIT_MAX: Duration = Duration::from_millis(500);
/// The interval at which this wait checks the record.
const FULL_SYNC_WAIT_TICK: Duration = Duration::from_millis(10);
/// The maximum number of bytes in one read.
const READ_LEN: usize = 256 << 10;

pub(crate) struct Follower {
    node: Arc<Node>,
    /// The name that this node presents to the leader of `--follow`: the first address at which it
    /// serves clients.
    name: String,
    stop: Arc<Stop>,
}

/// Uses the stream's heartbeats to measure its delay.
#[derive(Default)]
struct Heartbeats {
    last: u64,
    /// The smallest difference so far between the arrival time of a heartbeat (on the local clock)
    /// and its send time (on the leader's clock), in milliseconds. The second value is the arrival
    /// time of that heartbeat.
    least: Option<(i128, Millis)>,
}

impl Heartbeats {
    /// Records the number of the last heartbeat. Returns whether that heartbeat is new.
    fn note(&mut self, number: u64) -> bool {
        std::mem::replace(&mut self.last, number) < number
    }

    /// Returns how much longer a heartbeat took than the fastest one. `sent` is its send time on
    /// the leader's clock.
    fn delay(&mut self, sent: u64, now: Millis) -> Millis {
        let difference = i128::from(now) - i128::from(sent);
        // Allow for clocks that drift apart by a thousandth of the elapsed time.
        let least = self.least.map_or(difference, |(least, since)| {
            least + i128::from(now.saturating_sub(since) / 1000)
        });
        if difference <= least {
            self.least = Some((difference, now));
        }
        (difference - least).max(0).try_into().unwrap_or(Millis::MAX)
    }
}

/// The leader that a follower follows.
enum FollowedLeader<'g> {
    /// The server at an address (`--follow`).
    Standalone(&'g str),
    /// The leader of the group.
    InGroup(&'g Group, Process),
}

impl Follower {
    pub(crate) fn new(node: Arc<Node>, name: String, stop: Arc<Stop>) -> Self {
        Self { node, name, stop }
    }

    /// Follows the server at this address until the node shuts down (`--follow`).
    pub(crate) fn follow_always(&self, address: &str, engine: erased::Handle) {
        let mut applier = Applier::new(engine);
        let (mut pause, mut last_error) = (RECONNECT_PAUSE_MIN, String::new());
        while !self.stop.is_set() {
            let has_connected = self.follow_noting_errors(
                &mut applier,
                &FollowedLeader::Standalone(address),
                &mut last_error,
            );
            pause = if has_connected {
                RECONNECT_PAUSE_MIN
            } else {
                (2 * pause).min(RECONNECT_PAUSE_MAX)
            };
            self.stop.wait(pause);
        }
    }

    /// Follows the leader of the group. When this node is elected, prepares it for its leadership.
    pub(crate) fn follow_group(&self, group: &Group, engine: erased::Handle) {
        let mut applier = match group.journals() {
            Some(journals) => Applier::for_member(engine, Arc::clone(journals)),
            None => Applier::new(engine),
        };
        let (mut last_error, mut has_led, mut last_request) = (String::new(), false, 0);
        while !self.stop.is_set() {
            let role = group.role();
            match &role {
                Role::Leaderless => (),
                Role::Leader { starts_empty, .. } => {
                    let since = group.leadership_start();
                    if group.ready_leadership().is_none()
                        && let Some(since) = since
                    {
                        // Wait for a new map, because the previous leader may have imported or
                        // exported slots since this node last read the map.
                        let still_leads = || group.leadership_start() == Some(since);
                        if !group.topology.wait_for_map(Instant::now(), &self.stop, still_leads) {
                            continue;
                        }
                        let succession = applier.become_leader().filter(|_| !starts_empty);
                        if *starts_empty {
                            applier.flush(self.node.clock.moment().into());
                        }
                        has_led = true;
                        group.note_ready(since, succession);
                        self.node
                            .forwarders
                            .forwarder_of(larder_session::GroupIndex::OWN)
                            .note_leading();
                        if let Some(link) = &self.node.replication.link {
                            link.note_leading();
                        }
                    }
                    group.grant_transfer_request(&mut last_request);
                }
                Role::Follower { leader, .. } => {
                    if std::mem::take(&mut has_led) && group.wait_for_running_batches() {
                        let now: Now = self.node.clock.moment().into();
                        applier.end_leadership(group.me().incarnation, now);
                    }
                    let leader = FollowedLeader::InGroup(group, leader.clone());
                    self.follow_noting_errors(&mut applier, &leader, &mut last_error);
                    group.wait_for_change(&role, RECONNECT_PAUSE_MIN);
                    continue;
                }
            }
            group.wait_for_change(&role, STOP_POLL_INTERVAL);
        }
    }

    /// Follows until the connection ends, and logs the reason. Logs nothing if the node shuts down,
    /// if the group has another leader or none, or if this attempt failed to connect for the same
    /// reason as the last attempt. Returns whether the connection was established.
    fn follow_noting_errors(
        &self,
        applier: &mut Applier<erased::Handle>,
        leader: &FollowedLeader<'_>,
        last_error: &mut String,
    ) -> bool {
        let mut has_connected = false;
        let Err(error) = self.follow(applier, leader, &mut has_connected);
        if let FollowedLeader::InGroup(group, _) = leader {
            // Read the group soon, because the leader may have transferred its leadership.
            group.update(|member, _| member.read_soon());
        }
        if self.stop.is_set() || leader.is_replaced() {
            return has_connected;
        }
        let is_early = error.is_not_leader() && !has_connected;
        let error = error.to_string();
        if is_early && error != *last_error {
            // A new leader does not accept followers immediately after its election.
            tracing::info!("the leader at {} is not ready yet, reconnecting", leader.name());
        } else if has_connected || error != *last_error {
            tracing::warn!("lost the leader at {}, reconnecting: {error}", leader.name());
        }
        if let Some(link) = &self.node.replication.link {
            link.note_lost(&error);
        }
        *last_error = error;
        has_connected
    }

    /// Connects, and follows until the connection ends.
    fn follow(
        &self,
        applier: &mut Applier<erased::Handle>,
        leader: &FollowedLeader<'_>,
        has_connected: &mut bool,
    ) -> Result<std::convert::Infallible, PeerError> {
        let PeerConnection { stream, identity, rest, .. } = self.dial(applier, leader)?;
        stream.set_write_timeout(Some(LEADER_SILENCE_TIMEOUT))?;
        *has_connected = true;
        let incarnation = identity.incarnation;
        tracing::info!("following the leader at {}", leader.name());
        if let Some(link) = &self.node.replication.link {
            link.note_connected();
        }
        applier.start_stream(incarnation);
        // After a resume, the first frame may be a flush. This replica answers no lookups until the
        // first heartbeat.
        leader.note_data_until(None);
        let mut heartbeats = Heartbeats::default();
        self.receive(applier, leader, &stream, &rest, &mut heartbeats)?;
        stream.set_read_timeout(Some(STOP_POLL_INTERVAL))?;
        let (mut bytes, mut received_at) = (vec![0; READ_LEN], Instant::now());
        loop {
            match (&stream).read(&mut bytes) {
                Ok(0) => {
                    let reason = "the leader has closed the connection";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason).into());
                }
                Ok(len) => {
                    received_at = Instant::now();
                    let bytes = bytes.get(..len).unwrap_or_default();
                    self.receive(applier, leader, &stream, bytes, &mut heartbeats)?;
                }
                Err(error) if is_silence(&error) => {
                    if received_at.elapsed() > LEADER_SILENCE_TIMEOUT {
                        return Err(Timeout::Heartbeat.into());
                    }
                }
                Err(error) => return Err(error.into()),
            }
            if self.stop.is_set() || leader.is_replaced() {
                return Err(LocalError::Replaced.into());
            }
        }
    }

    /// Stores received changes, and acknowledges them.
    fn receive(
        &self,
        applier: &mut Applier<erased::Handle>,
        leader: &FollowedLeader<'_>,
        mut stream: &PeerStream,
        bytes: &[u8],
        heartbeats: &mut Heartbeats,
    ) -> Result<(), PeerError> {
        let now = self.node.clock.moment().into();
        let received = applier.receive_with_consent(bytes, now, &mut |kind| leader.may_sync(kind));
        leader.note_synced(applier.is_synced());
        if let Some(link) = &self.node.replication.link {
            link.note(applier, bytes.len());
        }
        received?;
        let mut out = Vec::new();
        let is_new = heartbeats.note(applier.last_heartbeat());
        let promises = is_new && leader.promise(applier.last_heartbeat_cas_end());
        if is_new {
            let now = boot_millis();
            let delay = heartbeats.delay(applier.last_heartbeat_sent_ms(), now);
            let behind = applier.lag_ms().filter(|_| applier.is_synced());
            let lag = behind.map(|behind| delay + Millis::from(behind));
            leader.note_data_until(lag.map(|lag| now.saturating_sub(lag)));
        }
        applier.acknowledge(promises, &mut out);
        stream.write_all(&out)?;
        Ok(())
    }

    fn dial(
        &self,
        applier: &Applier<erased::Handle>,
        leader: &FollowedLeader<'_>,
    ) -> Result<PeerConnection, PeerError> {
        match leader {
            FollowedLeader::Standalone(address) => {
                let purpose = Purpose::Follow(applier.position(None));
                let target = Target { address, node: None, is_wanted: &|| true };
                let caller = Caller::Follower(&self.name);
                dial(target, &self.node.credentials, caller, purpose, &self.stop)
            }
            FollowedLeader::InGroup(group, process) => {
                let address = leader.address().ok_or(LocalError::NoAddress)?;
                let purpose = Purpose::Follow(applier.position(Some(process.incarnation)));
                let me = group.local_member();
                let (node, is_wanted) = (Some(&*process.node), || !leader.is_replaced());
                let target = Target { address: &address, node, is_wanted: &is_wanted };
                let dialed =
                    dial(target, &self.node.credentials, Caller::Member(&me), purpose, &self.stop);
                match &dialed {
                    Err(error) if error.is_connection_refused() => {
                        group.update(|member, _| member.note_refusal(process));
                    }
                    Err(_) => group.update(|member, _| member.read_soon()),
                    Ok(PeerConnection { identity: LeaderIdentity { incarnation, .. }, .. })
                        if *incarnation != process.incarnation =>
                    {
                        group.update(|member, _| member.note_replaced(process));
                        return Err(LocalError::OtherProcess.into());
                    }
                    Ok(_) => group.update(|member, _| member.note_connected()),
                }
                dialed
            }
        }
    }
}

impl FollowedLeader<'_> {
    fn name(&self) -> String {
        match self {
            Self::Standalone(address) => (*address).to_owned(),
            Self::InGroup(_, process) => {
                let address = self.address().unwrap_or_default();
                format!("{address} ({})", process.node)
            }
        }
    }

    fn address(&self) -> Option<String> {
        match self {
            Self::Standalone(address) => Some((*address).to_owned()),
            Self::InGroup(group, process) => group.read(|member| {
                let addresses = &member.view().addresses;
                addresses.get(&process.node).map(|addresses| addresses.members.clone())
            }),
        }
    }

    /// Returns whether the group now has another leader or none. Always false for `--follow`.
    fn is_replaced(&self) -> bool {
        match self {
            Self::Standalone(_) => false,
            Self::InGroup(group, process) => {
                !matches!(group.role(), Role::Follower { leader, .. } if leader == *process)
            }
        }
    }

    /// Prepares a sync. Returns false if this node must not start the sync, because it must keep
    /// its items.
    fn may_sync(&self, kind: SyncKind) -> bool {
        match self {
            Self::Standalone(_) => true,
            Self::InGroup(group, _) => {
                group.note_data_until(None);
                // Lookups under way must end before the sync removes items.
                group.wait_for_running_batches();
                match kind {
                    SyncKind::Full => self.start_full_sync(group),
                    SyncKind::Delta => group.read(Member::may_start_delta_sync),
                }
            }
        }
    }

    /// Starts a full sync. Returns false if the record still lists this node as in sync. The leader
    /// has removed this node from the record, but this node's view may be older. This function
    /// therefore reads the record again for up to [`FULL_SYNC_WAIT_MAX`].
    fn start_full_sync(&self, group: &Group) -> bool {
        let end = Instant::now() + FULL_SYNC_WAIT_MAX;
        loop {
            if group.update(|member, _| member.start_full_sync()) {
                return true;
            }
            if Instant::now() >= end || self.is_replaced() {
                return false;
            }
            group.update(|member, _| member.read_soon());
            group.wait(FULL_SYNC_WAIT_TICK);
        }
    }

    /// Records the time up to which this node has all changes. `None` means that it lacks items, or
    /// that the time is unknown.
    fn note_data_until(&self, time: Option<Millis>) {
        if let Self::InGroup(group, _) = self {
            group.note_data_until(time);
        }
    }

    /// Ends the sync of this member if `is_synced` is true and the member still counts as lacking
    /// items.
    fn note_synced(&self, is_synced: bool) {
        if let Self::InGroup(group, _) = self
            && is_synced
            && group.read(Member::lacks_items)
        {
            group.update(|member, _| member.end_sync());
        }
    }

    /// Handles a heartbeat. `cas_end` is the end of the CAS range in the heartbeat. Returns whether
    /// this member makes an election promise.
    fn promise(&self, cas_end: u64) -> bool {
        match self {
            Self::Standalone(_) => false,
            Self::InGroup(group, process) => {
                group.update(|member, now| member.note_heartbeat(process, cas_end, now))
            }
        }
    }
}
