//! The state of the group, which all threads of a node share.

use super::topology::Topology;
use crate::peers::LocalMember;
use larder_etcd::{ClusterIdentity, Discovery, EtcdCounters, GroupName};
use larder_operations::Tracker;
use larder_replica::{
    Addresses, DoubtPolicy, Member, MemberSettings, Millis, Process, Revision, Role, Succession,
    TRANSFER_HOLD_MAX, TRANSFER_TIME_MAX, is_caught_up,
};
use larder_store::cache::Cache;
use larder_store::erased;
use larder_store::journal::{AckMode, Acknowledgements, Journals};
use larder_support::clock::boot_millis;
use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Returns the addresses of this server.
///
/// The address for clients is `advertise` (`--advertise`), or else `clients`, the address of a
/// listener. If that listener is bound to all interfaces, the host of `--replicate-on` replaces its
/// host. The address for members is that of the first `--replicate-on` socket.
#[must_use]
pub fn addresses(
    advertise: Option<String>,
    clients: &Option<SocketAddr>,
    followers: &[TcpListener],
) -> Addresses {
    let members = followers.iter().find_map(|socket| socket.local_addr().ok());
    let host = members.map(|address| address.ip());
    let resolve = |address: SocketAddr| match host {
        Some(host) if address.ip().is_unspecified() => SocketAddr::new(host, address.port()),
        _ => address,
    };
    let members = members.map(|address| address.to_string()).unwrap_or_default();
    let found = clients.map(|address| resolve(address).to_string());
    Addresses { clients: advertise.or(found), members }
}

/// How long to wait for the batches under way to end. A replaced leader waits for them before it
/// follows another node, and a follower waits for them before a sync.
const BATCHES_WAIT_MAX: Duration = Duration::from_secs(10);
/// How long a leader that shuts down waits for another member to be in sync.
const SUCCESSOR_WAIT_MAX: Duration = Duration::from_secs(5);
/// The interval at which waiting threads check whether batches have ended and acknowledgements have
/// arrived.
const TRANSFER_TICK: Duration = Duration::from_millis(2);
/// Requests start to wait for a transfer only when a candidate acknowledges all changes so far
/// within this time.
const CANDIDATE_LAG_MAX: Duration = Duration::from_millis(10);
/// If no candidate acknowledges within [`CANDIDATE_LAG_MAX`], the limit grows to the time since the
/// start of the transfer, divided by this number.
const CANDIDATE_LAG_PART: u32 = 10;
/// How long a transfer waits for members other than the next leader to acknowledge all changes, so
/// that they stay in sync. This time is a part of [`TRANSFER_HOLD_MAX`].
const OTHERS_WAIT_MAX: Duration = Duration::from_millis(200);
/// How long a leader answers requests between two attempts at a transfer.
const TRANSFER_PAUSE: Duration = Duration::from_millis(200);
/// The time, in milliseconds, from the start of a transfer attempt until all other nodes know the
/// next leader.
const TRANSFER_PUBLICATION_TIME: Millis = 2000;

/// The age at which the last renewal of the lease no longer shows whether etcd has changed. It
/// exceeds two intervals between renewals.
const RENEWAL_AGE_MAX: Millis = 1300;

/// A successful renewal of this process's lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct Renewal {
    /// The send time.
    pub(super) sent: Millis,
    /// The revision of etcd in the reply.
    pub(super) revision: Revision,
}

/// The settings of a member of a group.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// The names of the cluster and the group.
    pub name: GroupName,
    /// The name of this node.
    pub node: String,
    /// The leader's behaviour when neither etcd nor every member in sync is reachable (`--doubt`).
    pub doubt: DoubtPolicy,
    /// A member with incomplete data may lead once the group has had no leader for this many
    /// milliseconds. With `None`, such a member leads only after all members in sync have lost
    /// their items, or etcd has lost the record. The member then starts with an empty cache.
    pub unclean_after: Option<Millis>,
    /// The kinds of changes whose replies wait for acknowledgements (`--ack`). An operator's value
    /// for the group overrides this one.
    pub ack: AckMode,
    /// The maximum replication lag at which this replica answers lookups (`--read-lag`); 0: never.
    pub read_lag: Millis,
}

/// The state of the group that all threads share.
#[derive(Debug)]
pub struct Group {
    /// The names of the cluster and the group.
    pub name: GroupName,
    /// The groups that own slots, and their leaders.
    pub topology: Topology,
    /// The kinds of changes whose replies wait for acknowledgements. An operator's value for the
    /// group overrides this one.
    ack: AckMode,
    member: Mutex<Member>,
    /// The cache. While this node leads, `member` sets the range of its CAS values.
    cache: erased::Cache,
    /// Held during a leadership transfer.
    transferring: Mutex<()>,
    changed: Condvar,
    /// The time until which this server may answer requests as the leader; 0 if it may not.
    serves_until: AtomicU64,
    /// The maximum replication lag at which this replica answers lookups; 0: never.
    read_lag: Millis,
    /// The time until which this replica may answer lookups; 0 if it may not. Heartbeats extend it.
    reads_until: AtomicU64,
    /// The start epoch of the leadership for which this node is ready; 0 if the node is not ready.
    ready_epoch: AtomicU32,
    /// The start of this node's last leadership, from which this node computes delta syncs for
    /// other members. `None` before the first leadership, or if other members need full syncs.
    succession: Mutex<Option<Arc<Succession>>>,
    /// Whether requests wait for the end of a leadership transfer.
    holds_requests: AtomicBool,
    /// Until this time, a leadership transfer may be the reason why this node answers no requests;
    /// 0 before the first transfer.
    transfer_until: AtomicU64,
    /// Whether this node is shutting down. If so, a transfer does not list it as in sync.
    shuts_down: AtomicBool,
    /// The number of times that this node has become the leader.
    pub elections: AtomicU64,
    /// The journals that record this server's changes; unset until the server accepts peers.
    journals: OnceLock<Arc<Journals>>,
    /// The members that replies wait for although they are not in sync yet. Maps a member's
    /// incarnation to the time up to which the member has all changes.
    joining: Mutex<HashMap<u64, Millis>>,
    /// The revision of etcd at the last read of the group, if that read has shown both keys of this
    /// process, `live` and `nodes`; 0 otherwise.
    pub(super) keys_revision: AtomicU64,
    /// The last renewal of this process's lease; `None` if it has failed.
    renewal: Mutex<Option<Renewal>>,
    /// The cluster's identity.
    pub(crate) identity: Arc<ClusterIdentity>,
    /// The counters for this node's calls to etcd.
    pub etcd: Arc<EtcdCounters>,
    /// The list of servers for clients.
    pub discovery: Mutex<Discovery>,
}

impl Group {
    /// Creates the state of a member that has not read the group yet.
    pub(crate) fn new(config: GroupConfig, cache: erased::Cache, tracker: &Arc<Tracker>) -> Self {
        let GroupConfig { name, node, doubt, unclean_after, ack, read_lag } = config;
        let me = Process { node, incarnation: rand::random() };
        let member = Member::new(MemberSettings { me, doubt, unclean_after });
        Self {
            topology: Topology::new(&name.group, tracker),
            identity: Arc::new(ClusterIdentity::new(&name.cluster)),
            name,
            ack,
            member: Mutex::new(member),
            cache,
            transferring: Mutex::default(),
            changed: Condvar::new(),
            serves_until: AtomicU64::new(0),
            read_lag,
            reads_until: AtomicU64::new(0),
            ready_epoch: AtomicU32::new(0),
            succession: Mutex::default(),
            holds_requests: AtomicBool::new(false),
            transfer_until: AtomicU64::new(0),
            shuts_down: AtomicBool::new(false),
            elections: AtomicU64::new(0),
            journals: OnceLock::new(),
            joining: Mutex::default(),
            keys_revision: AtomicU64::new(0),
            renewal: Mutex::default(),
            etcd: Arc::default(),
            discovery: Mutex::default(),
        }
    }

    /// Returns the group's name as used in handshakes: `CLUSTER/GROUP`.
    pub(crate) fn full_name(&self) -> String {
        format!("{}/{}", self.name.cluster, self.name.group)
    }

    /// Returns whether this server may answer requests as the leader.
    pub fn is_serving(&self) -> bool {
        boot_millis() < self.serves_until.load(Ordering::Acquire)
    }

    /// Returns whether requests should wait for the end of a leadership transfer. Afterwards,
    /// either another node leads, or this server answers again.
    pub(crate) fn holds_requests(&self) -> bool {
        self.holds_requests.load(Ordering::Acquire)
    }

    /// Returns whether this replica may answer lookups (`--read-lag`).
    pub fn may_answer_lookups_as_replica(&self) -> bool {
        boot_millis() < self.reads_until.load(Ordering::Acquire)
            && self.topology.is_current(Duration::from_millis(self.read_lag))
    }

    /// Records the time up to which this replica has all changes. `None` means that it lacks items,
    /// or that the time is unknown.
    pub(crate) fn note_data_until(&self, time: Option<Millis>) {
        let until = time.filter(|_| self.read_lag > 0).map_or(0, |time| time + self.read_lag);
        self.reads_until.store(until, Ordering::Release);
    }

    /// Passes an event to the member, publishes the new state, and wakes waiting threads.
    pub(crate) fn update<R>(&self, act: impl FnOnce(&mut Member, Millis) -> R) -> R {
        let mut member = self.lock();
        let now = boot_millis();
        member.note_next_cas(now, self.cache.control().next_cas());
        let result = act(&mut member, now);
        self.publish(&member);
        drop(member);
        self.changed.notify_all();
        result
    }

    fn publish(&self, member: &Member) {
        let ready = self.ready_epoch.load(Ordering::Acquire);
        let is_ready = member.leadership_epoch() == Some(ready);
        if is_ready {
            self.cache.control().set_cas_range(member.cas_values());
        }
        let until = if is_ready { member.serves_until() } else { 0 };
        self.serves_until.store(until, Ordering::Release);
        self.holds_requests.store(member.is_transferring(), Ordering::Release);
        let Some(acks) = self.acks() else { return };
        acks.set_mode(self.ack_mode(member));
        if is_ready {
            let now = boot_millis();
            let mut joining = self.joining.lock().unwrap_or_else(PoisonError::into_inner);
            // Remove a member from `joining` once it may be in sync, or if it is too slow.
            joining.retain(|incarnation, time| {
                !member.may_be_in_sync(*incarnation, now) && is_caught_up(*time, now)
            });
            acks.retain(|incarnation| {
                member.may_be_in_sync(incarnation, now) || joining.contains_key(&incarnation)
            });
        } else if ready != 0 {
            // The leadership for which this node was ready has ended.
            self.ready_epoch.store(0, Ordering::Release);
            acks.abandon();
        }
    }

    /// Returns the kinds of changes whose replies wait for acknowledgements while this server
    /// leads.
    fn ack_mode(&self, member: &Member) -> AckMode {
        member.view().requests.ack.unwrap_or(self.ack)
    }

    /// Returns the kinds of changes whose replies currently wait for acknowledgements while this
    /// server leads.
    pub fn current_ack_mode(&self) -> AckMode {
        self.read(|member| self.ack_mode(member))
    }

    /// Sets this server's journals. Followers acknowledge offsets in these journals, and replies
    /// wait for the acknowledgements.
    pub(crate) fn set_journals(&self, journals: &Arc<Journals>) {
        let _ = self.journals.set(Arc::clone(journals));
    }

    /// Returns the journals that record this server's changes, or `None` before
    /// [`Self::set_journals`].
    pub(crate) fn journals(&self) -> Option<&Arc<Journals>> {
        self.journals.get()
    }

    /// Returns the acknowledgements of followers, or `None` before the server accepts peers.
    pub fn acks(&self) -> Option<&Acknowledgements> {
        self.journals().map(|journals| journals.acks())
    }

    /// Waits until all batches under way have ended. Returns false if this takes longer than
    /// [`BATCHES_WAIT_MAX`].
    pub(crate) fn wait_for_running_batches(&self) -> bool {
        let Some(journals) = self.journals.get() else { return true };
        let (mut seen, start) = (Vec::new(), Instant::now());
        while !journals.batches_have_ended(&mut seen) {
            if start.elapsed() >= BATCHES_WAIT_MAX {
                return false;
            }
            std::thread::sleep(TRANSFER_TICK);
        }
        true
    }

    /// Performs the operator's transfer request, unless its number equals `done`. Sets `done` to
    /// the request's number if there was a candidate, even if the transfer timed out.
    pub(crate) fn grant_transfer_request(&self, done: &mut Revision) {
        let request = self.read(|member| member.transfer_request().cloned());
        if let Some(request) = request.filter(|request| request.number != *done)
            && self.transfer_leadership(request.to.as_deref(), true)
        {
            *done = request.number;
        }
    }

    /// Transfers this node's leadership to the node `to`, or to any member in sync. Waits until a
    /// candidate lacks only a few changes. Then this node stops answering, waits until the
    /// candidate has all changes and no reply waits for acknowledgements, and writes a record that
    /// names the candidate as the leader. The members that have all changes stay in sync, including
    /// this node if `stays` is true. Requests wait during the transfer, and are forwarded
    /// afterwards. If an attempt takes longer than [`TRANSFER_HOLD_MAX`], this node answers again
    /// and retries later.
    ///
    /// Returns whether this node led and there was a candidate. True does not mean success: the
    /// transfer may have timed out.
    pub fn transfer_leadership(&self, to: Option<&str>, stays: bool) -> bool {
        if !stays {
            self.shuts_down.store(true, Ordering::Relaxed);
        }
        // Run one transfer at a time, because two concurrent transfers would end each other's
        // attempts.
        let _alone = self.transferring.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(_), Some(journals)) = (self.epoch_as_leader(), self.journals.get()) else {
            return false;
        };
        if !stays && !self.wait_for_successor() {
            return false;
        }
        let started = Instant::now();
        // A shutdown starts its own transfer, so end this one.
        let is_late = || {
            started.elapsed() >= Duration::from_millis(TRANSFER_TIME_MAX)
                || stays && self.shuts_down.load(Ordering::Relaxed)
        };
        let (mut had_candidates, mut has_tried) = (false, false);
        while self.epoch_as_leader().is_some() && !is_late() {
            let candidates = self.read(|member| member.transfer_candidates(boot_millis(), to));
            if candidates.is_empty() {
                if !had_candidates {
                    return false;
                }
                std::thread::sleep(TRANSFER_TICK);
                continue;
            }
            had_candidates = true;
            if !self.wait_for_caught_up_candidate(journals, &candidates, started) {
                continue;
            }
            if has_tried {
                std::thread::sleep(TRANSFER_PAUSE);
            }
            has_tried = true;
            self.attempt_transfer(journals, to, stays);
        }
        // The notified senders close their connections to followers, which makes the followers read
        // the record at once.
        journals.notifier().notify();
        match self.role() {
            Role::Follower { leader, .. } => {
                tracing::info!("transferred the leadership to {}", leader.node)
            }
            _ => tracing::warn!("leadership transfer timed out: no in-sync member took over"),
        }
        true
    }

    /// Waits up to [`SUCCESSOR_WAIT_MAX`] for another member to be in sync, if any other member is
    /// live. Returns whether another member is in sync. If not, logs a warning.
    fn wait_for_successor(&self) -> bool {
        let start = Instant::now();
        let has_others = || {
            self.read(|member| {
                let (live, me) = (&member.view().live, member.me());
                live.keys().any(|node| *node != me.node)
            })
        };
        loop {
            if !self.read(|member| member.transfer_candidates(boot_millis(), None)).is_empty() {
                return true;
            }
            if self.epoch_as_leader().is_none() {
                return false;
            }
            if !has_others() || start.elapsed() >= SUCCESSOR_WAIT_MAX {
                break;
            }
            std::thread::sleep(TRANSFER_TICK);
        }
        tracing::warn!(
            "this leader stops while no other member is in sync: the group loses the items that only this server has"
        );
        false
    }

    /// Waits briefly until one of these members has acknowledged all changes so far. Returns
    /// whether any of them has.
    fn wait_for_caught_up_candidate(
        &self,
        journals: &Journals,
        candidates: &[Process],
        started: Instant,
    ) -> bool {
        let (ends, since) = (journals.ends(), Instant::now());
        let lag_max = CANDIDATE_LAG_MAX.max(started.elapsed() / CANDIDATE_LAG_PART);
        loop {
            let acks = journals.acks();
            if candidates.iter().any(|process| acks.has_passed(process.incarnation, &ends)) {
                return true;
            }
            if since.elapsed() > lag_max {
                return false;
            }
            std::thread::sleep(TRANSFER_TICK);
        }
    }

    /// Stops answering requests for up to [`TRANSFER_HOLD_MAX`], until another member leads.
    fn attempt_transfer(&self, journals: &Journals, to: Option<&str>, stays: bool) {
        let candidates = self.update(|member, now| {
            self.transfer_until.store(now + TRANSFER_PUBLICATION_TIME, Ordering::Relaxed);
            member.start_transfer(now, to)
        });
        let (started, mut under_way) = (Instant::now(), Vec::new());
        while !candidates.is_empty()
            && self.epoch_as_leader().is_some()
            && started.elapsed() < Duration::from_millis(TRANSFER_HOLD_MAX)
        {
            // When a batch has ended, the journals have all its changes, and `acks` has its reply
            // if the reply waits. No reply must be left waiting: the new record ends the leadership
            // in which these replies can be acknowledged.
            if journals.batches_have_ended(&mut under_way) && !journals.acks().has_waiting() {
                let ends = journals.ends();
                let has_all =
                    |process: &&Process| journals.acks().has_passed(process.incarnation, &ends);
                let named = self.read(Member::named_in_sync);
                let is_everyone = named.iter().filter(has_all).count() == named.len();
                if let Some(next) = candidates.iter().find(has_all)
                    && (is_everyone || started.elapsed() > OTHERS_WAIT_MAX)
                {
                    let others = named.iter().filter(has_all).filter(|process| *process != next);
                    let stays = stays && !self.shuts_down.load(Ordering::Relaxed);
                    let me = stays.then(|| self.me());
                    let in_sync = std::iter::once(next).chain(others).chain(&me).cloned().collect();
                    self.update(|member, _| member.transfer_to(in_sync));
                }
            }
            std::thread::sleep(TRANSFER_TICK);
        }
        self.update(|member, _| member.end_transfer());
    }

    /// Returns whether a transfer of this leadership is under way, or was until recently.
    pub(crate) fn is_transfer_planned(&self) -> bool {
        boot_millis() < self.transfer_until.load(Ordering::Relaxed)
    }

    /// Returns whether a planned change may be the reason why this node does not answer a request.
    /// Planned changes are leadership transfers by this node, and slot migrations to or from its
    /// group.
    pub(crate) fn is_change_planned(&self) -> bool {
        self.is_transfer_planned() || self.topology.is_migrating()
    }

    /// Makes replies wait for this process from now on. The process has all changes up to the time
    /// `synced_until`.
    pub(crate) fn note_joining(&self, incarnation: u64, synced_until: Millis) {
        self.joining
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(incarnation, synced_until);
    }

    /// Undoes [`Self::note_joining`]. Afterwards, replies wait for the process only if it is in
    /// sync.
    pub(crate) fn end_joining(&self, incarnation: u64) {
        self.joining.lock().unwrap_or_else(PoisonError::into_inner).remove(&incarnation);
        self.update(|_, _| ());
    }

    fn lock(&self) -> MutexGuard<'_, Member> {
        self.member.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the state of the member.
    pub fn read<R>(&self, read: impl FnOnce(&Member) -> R) -> R {
        read(&self.lock())
    }

    /// Returns whether all other members in sync, and all members for which replies wait, have
    /// acknowledged these journal offsets and the flushes of this node's handles.
    pub(crate) fn all_have_passed(&self, journals: &Journals, ends: &[u64]) -> bool {
        let in_sync: Vec<u64> = self.read(|member| {
            let record = member.view().record.iter();
            let others = record.flat_map(|record| &record.in_sync);
            others
                .filter(|process| *process != member.me())
                .map(|process| process.incarnation)
                .collect()
        });
        let acks = journals.acks();
        in_sync.into_iter().all(|incarnation| acks.has_passed(incarnation, ends))
            && acks.all_have_passed(ends)
    }

    /// Returns whether this node still has the leadership that started in the epoch `leadership`,
    /// and may answer requests. A leader may not answer during a transfer, or after its lease has
    /// expired.
    pub(crate) fn is_leading_in(&self, leadership: u32) -> bool {
        self.ready_leadership() == Some(leadership) && self.is_serving()
    }

    /// Returns the names of the nodes in sync. Excludes other nodes whose process has no lease.
    /// Excludes this node if the record lists an earlier process of this node.
    pub fn in_sync(&self) -> Vec<String> {
        self.read(|member| {
            let (view, me) = (member.view(), member.me());
            let in_sync = view.record.iter().flat_map(|record| &record.in_sync);
            // Omit the old process of a restarted node, which the record lists until the leader
            // replaces the record.
            let is_present = |process: &&Process| {
                if process.node == me.node { **process == *me } else { view.is_live(process) }
            };
            in_sync.filter(is_present).map(|process| process.node.clone()).collect()
        })
    }

    /// Returns the current role of this node.
    pub fn role(&self) -> Role {
        self.read(Member::role)
    }

    /// Notes a renewal of this process's lease; `None` if it has failed. If etcd has changed since
    /// the last read of the group, requests a read.
    pub(super) fn note_renewal(&self, renewal: Option<Renewal>) {
        *self.renewal.lock().unwrap_or_else(PoisonError::into_inner) = renewal;
        let Some(Renewal { revision, .. }) = renewal else { return };
        // A replica that answers lookups reads the map even if only the read of the group is late.
        if self.read_lag == 0 {
            self.topology.note_unchanged(revision);
        }
        let seen = self.keys_revision.load(Ordering::Relaxed);
        if seen != 0 && revision != seen {
            self.update(|member, _| member.read_soon());
        }
    }

    /// Skips the read of the group that is due, if this node follows a leader whose heartbeats it
    /// receives, and if the last renewal of the lease has shown the revision of the last read.
    /// Returns whether the read is skipped.
    ///
    /// A renewal proves less than a read, because the etcd server may lag behind the others. So a replica that answers lookups (`--read-lag`) skips no reads.
    pub(super) fn skip_read(&self) -> bool {
        let seen = self.keys_revision.load(Ordering::Relaxed);
        let renewal = *self.renewal.lock().unwrap_or_else(PoisonError::into_inner);
        let is_unchanged = renewal.is_some_and(|renewal| {
            renewal.revision == seen && boot_millis() < renewal.sent + RENEWAL_AGE_MAX
        });
        let may_skip = is_unchanged && self.read_lag == 0;
        may_skip && self.update(|member, now| member.skip_read(now))
    }

    /// Returns whether the last read of the group has succeeded, and has shown this process.
    pub(crate) fn has_etcd(&self) -> bool {
        self.keys_revision.load(Ordering::Relaxed) != 0
    }

    /// Returns the name and incarnation of this process.
    pub fn me(&self) -> Process {
        self.read(|member| member.me().clone())
    }

    /// Returns the identity that this node presents to other nodes in handshakes.
    pub(crate) fn local_member(&self) -> LocalMember {
        let (process, cluster) = (self.me(), Arc::clone(&self.identity));
        LocalMember { process, group: self.full_name(), cluster }
    }

    /// Waits up to `time` until the role differs from `from`. Returns the role.
    pub(crate) fn wait_for_change(&self, from: &Role, time: Duration) -> Role {
        let member = self.lock();
        let waited = self.changed.wait_timeout_while(member, time, |member| member.role() == *from);
        let (member, _) = waited.unwrap_or_else(PoisonError::into_inner);
        member.role()
    }

    /// Waits up to `time` for a change of the state.
    pub(crate) fn wait(&self, time: Duration) {
        let _ = self.changed.wait_timeout(self.lock(), time);
    }

    /// Returns the start of this node's last leadership, or `None` if delta syncs are impossible.
    pub(crate) fn succession(&self) -> Option<Arc<Succession>> {
        self.succession.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records that this node is ready for the leadership that started in this epoch. The node no
    /// longer follows another node.
    pub(crate) fn note_ready(&self, epoch: u32, succession: Option<Succession>) {
        *self.succession.lock().unwrap_or_else(PoisonError::into_inner) = succession.map(Arc::new);
        if let Some(acks) = self.acks() {
            // Even the first reply must wait for the members in sync.
            let named = self.read(Member::named_in_sync);
            named.iter().for_each(|process| acks.require(process.incarnation));
        }
        self.ready_epoch.store(epoch, Ordering::Release);
        self.elections.fetch_add(1, Ordering::Relaxed);
        self.update(Member::note_ready);
    }

    /// Returns the epoch in which this node's current leadership started, or `None` if this node
    /// does not lead. The node need not be ready yet.
    pub(crate) fn leadership_start(&self) -> Option<u32> {
        self.read(Member::leadership_epoch)
    }

    /// Returns the epoch in which this node's current leadership started, if the node is ready. The
    /// epoch identifies the leadership.
    pub(crate) fn ready_leadership(&self) -> Option<u32> {
        let ready = self.ready_epoch.load(Ordering::Acquire);
        self.leadership_start().filter(|since| *since == ready)
    }

    /// Returns the current epoch of this leader, if it is ready.
    pub(crate) fn epoch_as_leader(&self) -> Option<u32> {
        let Role::Leader { epoch, .. } = self.role() else { return None };
        self.ready_leadership().map(|_| epoch)
    }
}
