//! The threads that speak to etcd: one asks what the member wants to know, one says that the process is alive, and
//! one keeps the list for clients.

use super::membership::Group;
use crate::peers::Stop;
use larder_etcd::{DiscoveryKeeper, Etcd, EtcdGroup, EtcdSettings, LEASE_SECS, Presence};
use larder_replica::{Addresses, Command, Coordinator, CoordinatorError, Role};
use larder_support::clock::boot_millis;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// How often a process says that it is alive.
const RENEWAL: Duration = Duration::from_millis(LEASE_SECS * 1000 / 5);
/// How often the list for clients is looked at.
const DISCOVERY: Duration = Duration::from_secs(1);

/// What the threads need.
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
        // They were right when the server started.
        Etcd::new(&self.settings).ok()
    }

    /// Asks what the member wants to know, until the end.
    pub(crate) fn coordinate(&self, stop: &Stop) {
        let Some(etcd) = self.etcd() else { return };
        let mut coordinator = EtcdGroup::new(etcd, self.group.name.clone());
        let mut talk = Talk::default();
        let (mut role, mut in_sync) = (Role::Alone, Vec::new());
        while !stop.is_set() {
            if let Some(acks) = self.group.acks() {
                acks.end_late(Instant::now());
            }
            match self.group.with(|member, now| member.next(now)) {
                None => {
                    let idle = self.group.see(|member| member.idle_time(boot_millis()));
                    self.group.wait(Duration::from_millis(idle.clamp(1, 100)));
                }
                Some(Command::Look) => {
                    let view = coordinator.look();
                    talk.note(&view);
                    self.group.with(|member, now| member.looked(now, view.ok()));
                }
                Some(Command::Swap(revision, record)) => {
                    let answer = coordinator.swap(revision, &record);
                    talk.note(&answer);
                    self.group.with(|member, now| member.swapped(now, answer.ok()));
                }
            }
            let now = self.group.role();
            if now != role {
                say(&now);
                role = now;
                in_sync.clear();
            }
            if matches!(role, Role::Leader { .. }) {
                let now = self.group.in_sync();
                if now != in_sync {
                    tracing::info!("in sync: {}", now.join(" "));
                    in_sync = now;
                }
            }
        }
    }

    /// Says that the process is alive, until the end.
    pub(crate) fn stay_alive(&self, stop: &Stop) {
        let Some(etcd) = self.etcd() else { return };
        let addresses = self.addresses.clone();
        let mut presence = Presence::new(etcd, &self.group.name, &self.group.me(), addresses);
        while !stop.is_set() {
            let begun = Instant::now();
            // The other thread says that etcd is out of reach.
            let _ = presence.renew();
            stop.wait(RENEWAL.saturating_sub(begun.elapsed()));
        }
        let _ = presence.end();
    }

    /// Keeps the list for clients, until the end.
    pub(crate) fn keep_discovery(&self, stop: &Stop) {
        let Some(etcd) = self.etcd() else { return };
        let mut keeper = DiscoveryKeeper::new(etcd, self.group.name.cluster.clone());
        while !stop.is_set() {
            let leads = self.group.leading_epoch().is_some();
            let list = if leads { keeper.keep() } else { keeper.read() };
            if let Ok(list) = list {
                *self.group.discovery.lock().unwrap_or_else(PoisonError::into_inner) = list;
            }
            stop.wait(DISCOVERY);
        }
    }
}

/// Says once that etcd is out of reach, and once that it is there again.
#[derive(Default)]
struct Talk {
    error: Option<CoordinatorError>,
}

impl Talk {
    fn note<T>(&mut self, answer: &Result<T, CoordinatorError>) {
        match (answer, &self.error) {
            (Ok(_), Some(_)) => {
                tracing::info!("etcd answers again");
                self.error = None;
            }
            (Err(error), None) => {
                tracing::warn!("etcd does not answer: {error}");
                self.error = Some(error.clone());
            }
            _ => (),
        }
    }
}

fn say(role: &Role) {
    match role {
        Role::Alone => tracing::info!("the group has no leader"),
        Role::Leader { epoch, begins_empty: false } => {
            tracing::info!("this server leads the group in epoch {epoch}");
        }
        Role::Leader { epoch, begins_empty: true } => tracing::warn!(
            "this server leads the group in epoch {epoch}, and begins without items: all that had \
             them have started again since"
        ),
        Role::Follower { leader, epoch } => {
            tracing::info!("{} leads the group in epoch {epoch}", leader.node);
        }
    }
}
