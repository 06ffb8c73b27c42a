//! Two threads that use etcd: one runs elections, and one renews the process's lease. The threads
//! are separate, so that a slow reply to one does not delay the other. Further threads read and
//! write the shard map and the list of servers for clients (`shard_map.rs`).

use super::etcd_log::EtcdLog;
use super::membership::{Group, Renewal};
use super::registration::{MembershipError, Registration};
use crate::peers::Stop;
use larder_etcd::{Etcd, EtcdGroup, EtcdSettings, IdentityFinder, LEASE_SECS, Presence};
use larder_replica::{
    Addresses, Command, Coordinator, CoordinatorError, GroupView, Member, Millis, PROMISE_TIME,
    Revision, Role, Secret,
};
use larder_support::clock::boot_millis;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The interval at which a process renews its lease. The election simulation of `larder-replica`
/// repeats this value (`tests/it/election/nodes.rs`).
const LEASE_RENEWAL_INTERVAL: Duration = Duration::from_millis(LEASE_SECS * 1000 * 3 / 10);

// When a leader fails, the promises that members made to it expire before its lease at etcd does,
// so the promises never delay an election.
const _: () = assert!(
    Duration::from_millis(PROMISE_TIME).as_millis() + LEASE_RENEWAL_INTERVAL.as_millis()
        < Duration::from_secs(LEASE_SECS).as_millis()
);

/// The interval at which the renewing thread checks whether the keys of the process are missing
/// from etcd.
const KEYS_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How long an in-sync member may take to replace a leader whose lease has ended, before this node
/// logs a warning.
const SUCCESSION_TIME: Duration = Duration::from_secs(3);

/// The interval at which the threads check whether the cluster's identity is known.
const IDENTITY_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The etcd settings, the group and the addresses that the threads use.
pub(crate) struct Coordination {
    settings: EtcdSettings,
    group: Arc<Group>,
    addresses: Addresses,
}

impl Coordination {
    pub(crate) fn new(settings: EtcdSettings, group: Arc<Group>, addresses: Addresses) -> Self {
        Self { settings, group, addresses }
    }

    fn etcd(&self) -> Option<Etcd> {
        // Fails only for invalid settings. These settings were valid when the server started.
        Etcd::new(&self.settings).ok()
    }

    /// Carries out the commands of the member until the node shuts down.
    pub(crate) fn coordinate(&self, stop: &Stop) {
        let Some(etcd) = self.etcd() else { return };
        self.wait_for_identity(stop);
        if self.group.identity.is_founder() {
            self.group.update(|member, _| member.note_founder());
        }
        let mut coordinator = EtcdGroup::new(etcd, self.group.name.clone());
        let mut log = EtcdLog::default();
        let mut roles = RoleLog::new();
        while !stop.is_set() {
            if let Some(acks) = self.group.acks() {
                acks.end_late(Instant::now());
            }
            match self.group.update(|member, now| member.next(now)) {
                None => {
                    let idle = self.group.read(|member| member.idle_time(boot_millis()));
                    self.group.wait(Duration::from_millis(idle.clamp(1, 100)));
                }
                Some(Command::Read) if self.group.skip_read() => (),
                Some(Command::Read) => {
                    let requested_at = Instant::now();
                    let view = read_group(&mut coordinator);
                    log.note(&view);
                    self.note_read(requested_at, view.as_ref().ok(), coordinator.read_revision());
                    self.group.update(|member, now| member.handle_view(now, view.ok()));
                }
                Some(Command::Swap(revision, record)) => {
                    let answer = coordinator.swap(revision, &record);
                    log.note(&answer);
                    self.group.update(|member, now| member.handle_swap(now, answer.ok()));
                }
            }
            roles.note(&self.group);
        }
    }

    /// Notes a read of the group, which also shows whether etcd has the keys of this process, and
    /// whether any key in etcd has changed.
    fn note_read(
        &self,
        requested_at: Instant,
        view: Option<&GroupView>,
        revision: Option<Revision>,
    ) {
        let me = self.group.me();
        let has_keys = view.is_some_and(|view| {
            view.is_live(&me) && view.addresses.get(&me.node) == Some(&self.addresses)
        });
        let seen = revision.filter(|_| has_keys).unwrap_or_default();
        self.group.keys_revision.store(seen, Ordering::Relaxed);
        self.group.topology.note_etcd_revision(requested_at, revision);
    }

    /// Renews the process's lease until the node shuts down, and then revokes it.
    ///
    /// # Errors
    /// The node cannot be a member of its group. The lease is not revoked.
    pub(crate) fn stay_alive(
        &self,
        mut registration: Registration,
        stop: &Stop,
    ) -> Result<(), MembershipError> {
        let mut checked = 0;
        while !stop.is_set() {
            let (start, seen) = (Instant::now(), self.group.keys_revision.load(Ordering::Relaxed));
            // Any change in etcd may concern the keys of this process, for example the lease of its
            // `live` key. A read of the group does not show that lease.
            let sent = boot_millis();
            let revision = registration.renew(seen == 0 || seen != checked)?;
            self.group.note_renewal(revision.map(|revision| Renewal { sent, revision }));
            checked = seen;
            let is_lost = || seen != 0 && self.group.keys_revision.load(Ordering::Relaxed) == 0;
            while !stop.is_set() && !is_lost() && start.elapsed() < LEASE_RENEWAL_INTERVAL {
                let left = LEASE_RENEWAL_INTERVAL.saturating_sub(start.elapsed());
                stop.wait(left.min(KEYS_POLL_INTERVAL));
            }
        }
        registration.revoke();
        Ok(())
    }

    /// Registers the process at etcd, as [`Registration::start`] does. Returns `None` if the etcd
    /// settings are invalid.
    ///
    /// # Errors
    /// [`MembershipError`].
    pub(crate) fn register(
        &self,
        secret: Option<Secret>,
        continues: &dyn Fn() -> bool,
    ) -> Result<Option<Registration>, MembershipError> {
        let Some(etcd) = self.etcd() else { return Ok(None) };
        let (name, identity) = (&self.group.name, &self.group.identity);
        let finder = IdentityFinder::new(&self.settings, &name.cluster, identity, secret);
        let Ok(finder) = finder else { return Ok(None) };
        let presence = Presence::new(etcd, name, &self.group.me(), self.addresses.clone());
        Registration::start(finder, presence, continues).map(Some)
    }

    /// Waits until the cluster's identity is known, or the node shuts down.
    fn wait_for_identity(&self, stop: &Stop) {
        while !self.group.identity.is_known() && !stop.is_set() {
            stop.wait(IDENTITY_POLL_INTERVAL);
        }
    }
}

/// Reads the group. If its record is malformed, restores the earlier value and reads again.
fn read_group(group: &mut EtcdGroup) -> Result<GroupView, CoordinatorError> {
    let view = group.read();
    if matches!(view, Err(CoordinatorError::MalformedValue(_)))
        && group.restore_record() == Ok(true)
    {
        tracing::warn!(
            "etcd: the record of the group was malformed: it has its earlier value again"
        );
        return group.read();
    }
    view
}

/// Logs changes of this node's role, and changes of the in-sync members while it leads.
struct RoleLog {
    role: Role,
    in_sync: Vec<String>,
    /// Whether this node has led since it last followed another node.
    has_led: bool,
    /// `Some(true)` while this leader answers requests, `Some(false)` after the log has reported
    /// that it does not. `None` until this leader has answered requests.
    answers: Option<bool>,
    /// The time at which this node first saw the leader without a lease and without heartbeats, and
    /// whether the log has reported it. `None` if the leader has a lease or sends heartbeats, or if
    /// this node does not follow.
    lease_lapse: Option<(Instant, bool)>,
    /// Whether this leader had used up its CAS values at the last call to `note_cas`.
    lacks_cas: bool,
}

impl RoleLog {
    fn new() -> Self {
        Self {
            role: Role::Leaderless,
            in_sync: Vec::new(),
            has_led: false,
            answers: None,
            lease_lapse: None,
            lacks_cas: false,
        }
    }

    /// Logs the changes since the last call.
    fn note(&mut self, group: &Group) {
        let role = group.role();
        if role != self.role {
            log_role(&role);
            self.in_sync.clear();
            self.answers = None;
            self.has_led |= matches!(role, Role::Leader { .. });
            if matches!(role, Role::Follower { .. }) && std::mem::take(&mut self.has_led) {
                log_pause(group.read(|member| member.replacing_pause(boot_millis())));
            }
            self.role = role;
        }
        self.note_leader(group);
        if matches!(self.role, Role::Leader { .. }) {
            self.note_answers(group);
            self.note_cas(group);
            let in_sync = group.in_sync();
            if in_sync != self.in_sync {
                tracing::info!("in sync: {}", in_sync.join(" "));
                self.in_sync = in_sync;
            }
        }
    }

    /// Logs once that no member has taken over from a failed leader.
    fn note_leader(&mut self, group: &Group) {
        let Role::Follower { leader, .. } = &self.role else {
            self.lease_lapse = None;
            return;
        };
        let is_heard = |member: &Member| member.hears_leader(boot_millis());
        if group.read(|member| member.view().is_live(leader) || is_heard(member)) {
            self.lease_lapse = None;
            return;
        }
        let (since, is_logged) = self.lease_lapse.get_or_insert_with(|| (Instant::now(), false));
        if !*is_logged && since.elapsed() >= SUCCESSION_TIME {
            *is_logged = true;
            tracing::warn!(
                "the leader {} has no lease and sends nothing to this node, and no in-sync member takes over: requests \
                 for items fail until its node starts again; before you promote a member with `larder cluster promote \
                 --unclean`, check that the leader's process has ended",
                leader.node
            );
        }
    }

    /// Logs when this leader stops answering requests, and when it answers them again.
    fn note_answers(&mut self, group: &Group) {
        let answers = group.is_serving();
        match (self.answers, answers) {
            (Some(true), false) if group.read(Member::may_have_transferred) => {
                tracing::warn!(
                    "this leader answers no requests for items: etcd has not answered whether another member leads \
                     after a transfer; check etcd and the network"
                );
                self.answers = Some(false);
            }
            (Some(true), false) if !group.is_transfer_planned() => {
                tracing::warn!(
                    "this leader answers no requests for items: it has heard neither from etcd nor from every in-sync \
                     member for a second, or not from etcd for the time of --unclean-after (--doubt stop); check etcd, \
                     the members and the network"
                );
                self.answers = Some(false);
            }
            (Some(false), true) => {
                tracing::info!("this leader answers requests again");
                self.answers = Some(true);
            }
            (None, true) => self.answers = Some(true),
            _ => (),
        }
    }

    /// Logs when this leader starts to refuse stores because it has used up its CAS values, and
    /// when it has reserved new ones.
    fn note_cas(&mut self, group: &Group) {
        let lacks_cas = group.ready_leadership().is_some() && group.read(Member::lacks_cas);
        match (std::mem::replace(&mut self.lacks_cas, lacks_cas), lacks_cas) {
            (false, true) => tracing::warn!(
                "this leader refuses stores: it has used up its CAS values, and can reserve others neither in etcd nor \
                 with every in-sync member; check etcd, the members and the network"
            ),
            (true, false) => tracing::info!("this leader has CAS values again"),
            _ => (),
        }
    }
}

/// If a pause made another member replace this leader, logs how long the pause was.
fn log_pause(pause: Option<Millis>) {
    if let Some(pause) = pause {
        tracing::warn!(
            "another member replaced this leader, because this server was paused for {:.1} s; check the machine for \
             suspension, lack of CPU time, and swapping",
            Duration::from_millis(pause).as_secs_f64()
        );
    }
}

fn log_role(role: &Role) {
    match role {
        Role::Leaderless => tracing::warn!(
            "no leader: requests for items fail until a member is elected; see `larder cluster status`"
        ),
        Role::Leader { epoch, starts_empty: false } => {
            tracing::info!("this server leads the group in epoch {epoch}");
        }
        Role::Leader { epoch, starts_empty: true } => tracing::warn!(
            "this server leads the group in epoch {epoch} with an empty cache: every in-sync member has restarted"
        ),
        Role::Follower { leader, epoch } => {
            tracing::info!("{} leads the group in epoch {epoch}", leader.node);
        }
    }
}
