//! The membership of this node in its group, for all its threads.

use super::topology::Topology;
use larder_etcd::{Discovery, GroupName};
use larder_replica::{
    Addresses, DoubtPolicy, Member, MemberSettings, Millis, Process, Revision, Role, Succession,
    TRANSFER_TIME_MAX, is_caught_up,
};
use larder_store::journal::{AckMode, Acknowledgements, Journals};
use larder_support::clock::boot_millis;
use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The addresses of this server for clients and members: the one of `--advertise`, or those at which it listens, on the host
/// of `--replicate-on` if it listens on all.
#[must_use]
pub fn addresses(
    advertise: Option<String>,
    clients: &Option<SocketAddr>,
    followers: &[TcpListener],
) -> Addresses {
    let members = followers.iter().find_map(|socket| socket.local_addr().ok());
    let host = members.map(|address| address.ip());
    let at = |address: SocketAddr| match host {
        Some(host) if address.ip().is_unspecified() => SocketAddr::new(host, address.port()),
        _ => address,
    };
    let members = members.map(|address| address.to_string()).unwrap_or_default();
    let found = clients.map(|address| at(address).to_string());
    Addresses { clients: advertise.or(found), members }
}

/// How long a replaced leader waits for the requests that it was answering.
const SETTLE_MAX: Duration = Duration::from_secs(10);
/// How often the leader checks whether its successor has everything.
const TRANSFER_TICK: Duration = Duration::from_millis(2);

/// The settings of a member of a group.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// The names of its cluster and group.
    pub name: GroupName,
    /// The name of this node.
    pub node: String,
    /// The leader's behaviour while neither etcd nor all members in sync are reachable.
    pub doubt: DoubtPolicy,
    /// How long there must have been no leader before a member with incomplete data may lead; `None`: never.
    pub unclean_after: Option<Millis>,
    /// The changes that wait for acknowledgements, unless operators have set that for the group.
    pub ack: AckMode,
    /// How far the copy may be behind for lookups.
    pub read_lag: Millis,
}

/// The state of the group that all threads share.
#[derive(Debug)]
pub struct Group {
    /// The names of its cluster and group.
    pub name: GroupName,
    /// The groups that own slots, and their leaders.
    pub topology: Topology,
    /// The changes that wait for acknowledgements, unless operators have set that for the group.
    ack: AckMode,
    member: Mutex<Member>,
    changed: Condvar,
    /// The time until which this server may answer as the leader.
    serves_until: AtomicU64,
    /// How far this replica may be behind for lookups, and until when it is not further.
    read_lag: Millis,
    reads_until: AtomicU64,
    /// The epoch since which this node leads and is ready to: it follows no other node any more.
    ready_epoch: AtomicU32,
    /// The journals of the leaders before, from which members can resume.
    succession: Mutex<Option<Arc<Succession>>>,
    /// How often this node was elected.
    pub elections: AtomicU64,
    /// The journals, and the processes of those that are about to be in sync, with the time up to which they
    /// have all changes.
    journals: OnceLock<Arc<Journals>>,
    joining: Mutex<HashMap<u64, Millis>>,
    /// The list of servers for clients.
    pub discovery: Mutex<Discovery>,
}

impl Group {
    /// The group of this configuration.
    pub(crate) fn new(config: GroupConfig) -> Self {
        let GroupConfig { name, node, doubt, unclean_after, ack, read_lag } = config;
        let me = Process { node, boot: rand::random() };
        let member = Member::new(MemberSettings { me, doubt, unclean_after });
        Self {
            topology: Topology::new(&name.group),
            name,
            ack,
            member: Mutex::new(member),
            changed: Condvar::new(),
            serves_until: AtomicU64::new(0),
            read_lag,
            reads_until: AtomicU64::new(0),
            ready_epoch: AtomicU32::new(0),
            succession: Mutex::default(),
            elections: AtomicU64::new(0),
            journals: OnceLock::new(),
            joining: Mutex::default(),
            discovery: Mutex::default(),
        }
    }

    /// The names of cluster and group, as members say them to each other.
    pub(crate) fn full_name(&self) -> String {
        format!("{}/{}", self.name.cluster, self.name.group)
    }

    /// Whether this server may answer requests about items.
    pub fn is_serving(&self) -> bool {
        boot_millis() < self.serves_until.load(Ordering::Acquire)
    }

    /// Whether lookups may be answered from this replica (`--read-lag`).
    pub fn reads_replica(&self) -> bool {
        boot_millis() < self.reads_until.load(Ordering::Acquire)
            && self.topology.is_current(Duration::from_millis(self.read_lag))
    }

    /// This replica has all changes up to this time; `None`: it lacks items.
    pub(crate) fn note_data_until(&self, time: Option<Millis>) {
        let until = time.filter(|_| self.read_lag > 0).map_or(0, |time| time + self.read_lag);
        self.reads_until.store(until, Ordering::Release);
    }

    /// Passes an event to the member, and publishes the new state.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut Member, Millis) -> R) -> R {
        let mut member = self.lock();
        let result = act(&mut member, boot_millis());
        self.publish(&member);
        drop(member);
        self.changed.notify_all();
        result
    }

    fn publish(&self, member: &Member) {
        let ready = self.ready_epoch.load(Ordering::Acquire);
        let is_ready = member.leads_since() == Some(ready);
        let until = if is_ready { member.serves_until() } else { 0 };
        self.serves_until.store(until, Ordering::Release);
        let Some(acks) = self.acks() else { return };
        acks.set_mode(self.ack_mode(member));
        if is_ready {
            let now = boot_millis();
            let mut joining = self.joining.lock().unwrap_or_else(PoisonError::into_inner);
            // A member that has joined stays while the record lists it, and one that is too slow does not join.
            joining.retain(|boot, time| {
                !member.may_be_in_sync(*boot, now) && is_caught_up(*time, now)
            });
            acks.retain(|boot| member.may_be_in_sync(boot, now) || joining.contains_key(&boot));
        } else if ready != 0 {
            // This node led, and has been replaced.
            self.ready_epoch.store(0, Ordering::Release);
            acks.abandon();
        }
    }

    /// Which changes wait for acknowledgements while this server leads.
    fn ack_mode(&self, member: &Member) -> AckMode {
        member.view().requests.ack.unwrap_or(self.ack)
    }

    /// The changes that wait for acknowledgements while this server leads, as set now.
    pub fn current_ack_mode(&self) -> AckMode {
        self.see(|member| self.ack_mode(member))
    }

    /// Sets the journals whose acknowledgements answers wait for.
    pub(crate) fn set_journals(&self, journals: &Arc<Journals>) {
        let _ = self.journals.set(Arc::clone(journals));
    }

    /// The journals that all handles of this server write.
    pub(crate) fn journals(&self) -> Option<&Arc<Journals>> {
        self.journals.get()
    }

    /// The acknowledgements of followers.
    pub fn acks(&self) -> Option<&Acknowledgements> {
        self.journals().map(|journals| journals.acks())
    }

    /// Waits for requests from when this node led, before it follows. Returns whether all have ended.
    pub(crate) fn settle(&self) -> bool {
        let Some(journals) = self.journals.get() else { return true };
        let (mut seen, begun) = (Vec::new(), Instant::now());
        while !journals.settle(&mut seen) {
            if begun.elapsed() >= SETTLE_MAX {
                return false;
            }
            std::thread::sleep(TRANSFER_TICK);
        }
        true
    }

    /// Transfers the leadership if an operator has requested that, once for each request; `done` is the last one.
    pub(crate) fn grant_transfer_request(&self, done: &mut Revision) {
        let request = self.see(|member| member.transfer_request().cloned());
        if let Some(request) = request.filter(|request| request.number != *done)
            && self.transfer_leadership(request.to.as_deref())
        {
            *done = request.number;
        }
    }

    /// Transfers the leadership, if this node has it, to another member, or to the one of this name: this node stops
    /// answering, waits until a member has all changes, and names that one in the record. Requests wait during that, and
    /// are forwarded afterwards. Returns whether there was a candidate.
    pub fn transfer_leadership(&self, to: Option<&str>) -> bool {
        let (Some(_), Some(journals)) = (self.leading_epoch(), self.journals.get()) else {
            return false;
        };
        let end = Instant::now() + Duration::from_millis(TRANSFER_TIME_MAX);
        let candidates = self.with(|member, now| member.start_transfer(now, to));
        if candidates.is_empty() {
            return false;
        }
        let mut under_way = Vec::new();
        while self.leading_epoch().is_some() && Instant::now() < end {
            // The changes of a batch are in the journals when it has ended.
            if journals.settle(&mut under_way) {
                let ends = journals.ends();
                let has_all = |process: &&Process| journals.acks().has_passed(process.boot, &ends);
                if let Some(next) = candidates.iter().find(has_all) {
                    self.with(|member, _| member.transfer_to(next.clone()));
                }
            }
            std::thread::sleep(TRANSFER_TICK);
        }
        // Ends the connections of followers, so that they look for the leader.
        journals.bell().ring();
        match self.role() {
            Role::Follower { leader, .. } => {
                tracing::info!("transferred the leadership to {}", leader.node)
            }
            _ => tracing::warn!("leadership transfer timed out: no in-sync member took over"),
        }
        true
    }

    /// Notes that answers are about to wait for this process, which has all changes up to this time.
    pub(crate) fn note_joining(&self, boot: u64, synced_until: Millis) {
        self.joining.lock().unwrap_or_else(PoisonError::into_inner).insert(boot, synced_until);
    }

    /// Ends that: answers wait for the process only if it is in sync.
    pub(crate) fn note_joining_ends(&self, boot: u64) {
        self.joining.lock().unwrap_or_else(PoisonError::into_inner).remove(&boot);
        self.with(|_, _| ());
    }

    fn lock(&self) -> MutexGuard<'_, Member> {
        self.member.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the state of the member.
    pub fn see<R>(&self, look: impl FnOnce(&Member) -> R) -> R {
        look(&self.lock())
    }

    /// Whether all members in sync, and all that answers wait for, have this much of the journals.
    pub(crate) fn all_have_passed(&self, journals: &Journals, ends: &[u64]) -> bool {
        let in_sync: Vec<u64> = self.see(|member| {
            let record = member.view().record.iter();
            let others = record.flat_map(|record| &record.in_sync);
            others.filter(|process| *process != member.me()).map(|process| process.boot).collect()
        });
        let acks = journals.acks();
        in_sync.into_iter().all(|boot| acks.has_passed(boot, ends)) && acks.all_have_passed(ends)
    }

    /// Whether this node leads without a break since this epoch, and neither transfers its leadership nor is in doubt.
    pub(crate) fn leads_on(&self, leadership: u32) -> bool {
        self.leadership() == Some(leadership) && self.is_serving()
    }

    /// The names of the nodes in sync.
    pub fn in_sync(&self) -> Vec<String> {
        self.see(|member| {
            let (view, me) = (member.view(), member.me());
            let in_sync = view.record.iter().flat_map(|record| &record.in_sync);
            // A node that has restarted is listed until the leader notices.
            let is_here = |process: &&Process| {
                if process.node == me.node { **process == *me } else { view.is_live(process) }
            };
            in_sync.filter(is_here).map(|process| process.node.clone()).collect()
        })
    }

    /// The role of this node as it is now.
    pub fn role(&self) -> Role {
        self.see(Member::role)
    }

    /// This process.
    pub fn me(&self) -> Process {
        self.see(|member| member.me().clone())
    }

    /// Waits until the role is another one than this, or for this time.
    pub(crate) fn wait_for_change(&self, from: &Role, time: Duration) -> Role {
        let member = self.lock();
        let waited = self.changed.wait_timeout_while(member, time, |member| member.role() == *from);
        let (member, _) = waited.unwrap_or_else(PoisonError::into_inner);
        member.role()
    }

    /// Waits for an event, or for this time.
    pub(crate) fn wait(&self, time: Duration) {
        let _ = self.changed.wait_timeout(self.lock(), time);
    }

    /// The journals of the leaders before, if members can resume from them.
    pub(crate) fn succession(&self) -> Option<Arc<Succession>> {
        self.succession.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes that this node is ready to lead since this epoch: it follows no other node any more.
    pub(crate) fn note_ready(&self, epoch: u32, succession: Option<Succession>) {
        *self.succession.lock().unwrap_or_else(PoisonError::into_inner) = succession.map(Arc::new);
        self.ready_epoch.store(epoch, Ordering::Release);
        self.elections.fetch_add(1, Ordering::Relaxed);
        self.with(|member, _| member.end_full_sync());
    }

    /// The epoch in which this server began to lead, if it does, ready or not.
    pub(crate) fn leads_since(&self) -> Option<u32> {
        self.see(Member::leads_since)
    }

    /// The same, if it is ready to lead.
    pub(crate) fn leadership(&self) -> Option<u32> {
        let ready = self.ready_epoch.load(Ordering::Acquire);
        self.leads_since().filter(|since| *since == ready)
    }

    /// The epoch in which this server leads, if it is ready to.
    pub(crate) fn leading_epoch(&self) -> Option<u32> {
        let Role::Leader { epoch, .. } = self.role() else { return None };
        self.leadership().map(|_| epoch)
    }
}
