//! Three threads that use etcd: one runs elections, one renews the lease of the process, and one
//! maintains the list of servers for clients. They are separate, so that a slow reply to one does
//! not delay the others. Further threads read and write the shard map (`shard_map.rs`).

use super::membership::Group;
use crate::peers::Stop;
use larder_etcd::{
    DiscoveryKeeper, Etcd, EtcdGroup, EtcdSettings, LEASE_SECS, NameConflict, Presence,
    PresenceError,
};
use larder_replica::{
    Addresses, Command, Coordinator, CoordinatorError, Member, Millis, PROMISE_TIME, Role,
};
use larder_support::clock::boot_millis;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// The interval at which a process renews its lease. The simulation has a copy
/// (`tests/it/election/nodes.rs` of `larder-replica`).
const LEASE_RENEWAL_INTERVAL: Duration = Duration::from_millis(LEASE_SECS * 1000 / 5);

// When a leader fails, the election promises to it end before its last lease at etcd expires. So
// the promises never delay an election.
const _: () = assert!(
    Duration::from_millis(PROMISE_TIME).as_millis() + LEASE_RENEWAL_INTERVAL.as_millis()
        < Duration::from_secs(LEASE_SECS).as_millis()
);

/// The pause between attempts to register while the lease of an earlier process lasts.
const REGISTRATION_RETRY: Duration = Duration::from_millis(100);
/// The maximum time of these attempts, while etcd fails again and again.
const REGISTRATION_MAX: Duration = Duration::from_secs(30);
/// The time after the end of a lease in which etcd must have removed its keys. When etcd elects a
/// leader, it starts all leases again, and adds an election timeout.
const LEASE_MARGIN: Duration = Duration::from_secs(8);

/// The interval at which a leader updates the list of servers for clients, and other members read
/// it.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(1);

/// The state of the threads.
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
        // The settings were valid when the server started.
        Etcd::new(&self.settings).ok()
    }

    /// Carries out the commands of the member until the node shuts down.
    pub(crate) fn coordinate(&self, stop: &Stop) {
        let Some(etcd) = self.etcd() else { return };
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
                Some(Command::Read) => {
                    let view = coordinator.read();
                    log.note(&view);
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

    /// Renews the lease of the process until the node shuts down. Then revokes the lease.
    ///
    /// # Errors
    /// Another live process has the name of this node. Nothing is revoked.
    pub(crate) fn stay_alive(
        &self,
        mut registration: Registration,
        stop: &Stop,
    ) -> Result<(), NameConflict> {
        while !stop.is_set() {
            let start = Instant::now();
            registration.renew()?;
            stop.wait(LEASE_RENEWAL_INTERVAL.saturating_sub(start.elapsed()));
        }
        let _ = registration.presence.revoke();
        Ok(())
    }

    /// Registers the process at etcd. Waits while a lease of an earlier process of the node lasts,
    /// unless `continues` returns false, for [`REGISTRATION_MAX`] at most. Does not wait for an etcd
    /// that does not answer. Returns `None` if the settings of etcd are invalid.
    ///
    /// # Errors
    /// Another live process has the name of this node.
    pub(crate) fn register(
        &self,
        continues: &dyn Fn() -> bool,
    ) -> Result<Option<Registration>, NameConflict> {
        let Some(etcd) = self.etcd() else { return Ok(None) };
        let addresses = self.addresses.clone();
        let presence = Presence::new(etcd, &self.group.name, &self.group.me(), addresses);
        let mut registration = Registration { presence, is_complete: false, gives_up_at: None };
        registration.renew()?;
        let start = Instant::now();
        while registration.gives_up_at.is_some()
            && start.elapsed() < REGISTRATION_MAX
            && continues()
        {
            std::thread::sleep(REGISTRATION_RETRY);
            registration.renew()?;
        }
        Ok(Some(registration))
    }

    /// Maintains the list of servers for clients until the node shuts down.
    pub(crate) fn keep_discovery(&self, stop: &Stop) {
        let Some(etcd) = self.etcd() else { return };
        let mut keeper = DiscoveryKeeper::new(etcd, self.group.name.cluster.clone());
        while !stop.is_set() {
            let leads = self.group.leading_epoch().is_some();
            let list = if leads { keeper.update() } else { keeper.read() };
            if let Ok(list) = list {
                *self.group.discovery.lock().unwrap_or_else(PoisonError::into_inner) = list;
            }
            stop.wait(DISCOVERY_INTERVAL);
        }
    }
}

/// The registration of the process at etcd.
pub(crate) struct Registration {
    presence: Presence,
    /// Whether the process has been registered once.
    is_complete: bool,
    /// The time at which the lease of an earlier process of the node must have ended; `None` if no
    /// such process is known.
    gives_up_at: Option<Instant>,
}

impl Registration {
    /// Renews the lease. Ignores errors of etcd, which the thread of elections logs.
    ///
    /// # Errors
    /// Another process has the name of this node, and its lease should have ended if it had.
    fn renew(&mut self) -> Result<(), NameConflict> {
        match self.presence.renew() {
            Ok(()) => (self.is_complete, self.gives_up_at) = (true, None),
            // After an outage, etcd lets all leases last for their whole lifetime again.
            Err(PresenceError::Coordinator(_)) => {
                if let Some(until) = &mut self.gives_up_at {
                    let lifetime = Duration::from_secs(LEASE_SECS);
                    *until = (*until).max(Instant::now() + lifetime + LEASE_MARGIN);
                }
            }
            Err(PresenceError::NameConflict(conflict)) => {
                let now = Instant::now();
                if self.gives_up_at.is_none() && !self.is_complete {
                    tracing::info!("{conflict}; waiting for the end of its lease");
                }
                let wait = if self.is_complete {
                    Duration::ZERO
                } else {
                    conflict.lease_time() + LEASE_MARGIN
                };
                if now >= *self.gives_up_at.get_or_insert(now + wait) {
                    return Err(conflict);
                }
            }
        }
        Ok(())
    }
}

/// A log that records once that requests to etcd fail, and once that they succeed again.
#[derive(Default)]
struct EtcdLog {
    error: Option<CoordinatorError>,
}

impl EtcdLog {
    fn note<T>(&mut self, answer: &Result<T, CoordinatorError>) {
        match (answer, &self.error) {
            (Ok(_), Some(_)) => {
                tracing::info!("etcd: requests succeed again");
                self.error = None;
            }
            (Err(error), None) => {
                let remedy = match error {
                    CoordinatorError::MalformedValue(_) => "repair or delete the key with etcdctl",
                    _ => "check --etcd, its credentials and the network",
                };
                tracing::warn!("etcd: a request failed: {error}; {remedy}");
                self.error = Some(error.clone());
            }
            _ => (),
        }
    }
}

/// A log of the changes of this node's role, and of the in-sync members while it leads.
struct RoleLog {
    role: Role,
    in_sync: Vec<String>,
    /// Whether this node has led since it last followed another one.
    has_led: bool,
    /// Whether this leader answered requests at the last call, or has logged that it does not;
    /// `None` before it has answered requests.
    answers: Option<bool>,
}

impl RoleLog {
    fn new() -> Self {
        Self { role: Role::Leaderless, in_sync: Vec::new(), has_led: false, answers: None }
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
        if matches!(self.role, Role::Leader { .. }) {
            self.note_answers(group);
            let in_sync = group.in_sync();
            if in_sync != self.in_sync {
                tracing::info!("in sync: {}", in_sync.join(" "));
                self.in_sync = in_sync;
            }
        }
    }
}

impl RoleLog {
    /// Logs that this leader stops answering requests, or answers them again.
    fn note_answers(&mut self, group: &Group) {
        let answers = group.is_serving();
        match (self.answers, answers) {
            (Some(true), false) if !group.read(Member::is_transferring) => {
                tracing::warn!(
                    "this leader answers no requests for items: it has heard neither from etcd nor from every in-sync \
                     member for a second (--doubt stop); check etcd, the members and the network"
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
}

/// Logs the pause that made another member replace this leader, if there was one.
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
