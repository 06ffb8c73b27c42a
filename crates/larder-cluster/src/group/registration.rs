//! The registration of a process at etcd.

use super::etcd_log::EtcdLog;
use larder_etcd::{
    IdentityError, IdentityFinder, LEASE_SECS, NameConflict, OtherSecret, Presence, PresenceError,
};
use larder_replica::Revision;
use std::time::{Duration, Instant};

/// The pause between attempts to register. The process repeats the attempts while etcd has no
/// identity of the cluster, or while the lease of an earlier process lasts.
const REGISTRATION_RETRY: Duration = Duration::from_millis(100);
/// The total time limit for attempts to register.
const REGISTRATION_MAX: Duration = Duration::from_secs(30);
/// How long etcd may take to remove the keys of a lease after the lease has ended. A new etcd
/// leader restarts all leases, and extends them by an election timeout.
const LEASE_MARGIN: Duration = Duration::from_secs(8);

/// The reason why a node cannot be a member of its group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembershipError {
    /// Another live process has the name of the node.
    #[error("{0}; give each node of a group another --node, and each cluster another --cluster")]
    NameConflict(NameConflict),
    /// The secret of the cluster in etcd differs from the secret of this node.
    #[error("{0}")]
    OtherSecret(OtherSecret),
}

/// Registers the process at etcd: finds the cluster's identity, and renews the process's lease.
pub(crate) struct Registration {
    finder: IdentityFinder,
    presence: Presence,
    /// Logs etcd errors until the identity is known. After that, the election thread logs them.
    log: EtcdLog,
    /// Whether etcd has no identity yet, or an earlier process's lease lasts. The node delays its
    /// start until neither is true, but at most for [`REGISTRATION_MAX`].
    is_waiting: bool,
    /// Whether the process has been registered at least once.
    is_complete: bool,
    /// The time by which the lease of this node's earlier process must have ended; `None` if no
    /// such process is known.
    gives_up_at: Option<Instant>,
}

impl Registration {
    /// Finds the identity of the cluster, and registers the process at etcd. If etcd has no
    /// identity yet, or the lease of the node's earlier process lasts, retries for up to
    /// [`REGISTRATION_MAX`] while `continues` returns true. Does not wait if etcd does not answer.
    ///
    /// # Errors
    /// The node cannot be a member of its group.
    pub(super) fn start(
        finder: IdentityFinder,
        presence: Presence,
        continues: &dyn Fn() -> bool,
    ) -> Result<Self, MembershipError> {
        let mut registration = Self {
            finder,
            presence,
            log: EtcdLog::default(),
            is_waiting: false,
            is_complete: false,
            gives_up_at: None,
        };
        registration.renew(false)?;
        let start = Instant::now();
        while registration.is_waiting && start.elapsed() < REGISTRATION_MAX && continues() {
            std::thread::sleep(REGISTRATION_RETRY);
            registration.renew(false)?;
        }
        Ok(registration)
    }

    /// Revokes the lease when the process shuts down.
    pub(super) fn revoke(&mut self) {
        // If etcd does not answer, the lease expires on its own.
        let _ = self.presence.revoke();
    }

    /// Renews the lease, and if `must_check`, also repairs the keys of the process. Before the first
    /// renewal, finds the identity of the cluster. Returns a revision that etcd had during the call,
    /// or `None` if the lease was not renewed.
    ///
    /// # Errors
    /// The cluster's secret differs from this node's secret, or another process with this node's
    /// name still has its lease. If that process had ended, its lease would have expired.
    pub(super) fn renew(&mut self, must_check: bool) -> Result<Option<Revision>, MembershipError> {
        let found = match self.finder.find() {
            Err(IdentityError::OtherSecret(other)) => {
                return Err(MembershipError::OtherSecret(other));
            }
            Err(IdentityError::Coordinator(error)) => Err(error),
            Ok(found) => Ok(found),
        };
        self.log.note(&found);
        match found {
            Ok(true) => {
                let revision = self.renew_lease(must_check)?;
                self.is_waiting = self.gives_up_at.is_some();
                return Ok(revision);
            }
            Ok(false) => self.is_waiting = true,
            // Ignore the error, because the node must start even if etcd does not answer.
            Err(_) => (),
        }
        Ok(None)
    }

    fn renew_lease(&mut self, must_check: bool) -> Result<Option<Revision>, MembershipError> {
        match self.presence.renew(must_check) {
            Ok(revision) => {
                (self.is_complete, self.gives_up_at) = (true, None);
                return Ok(Some(revision));
            }
            // Wait longer before giving up: after an outage, etcd restarts all leases with their
            // full lifetime.
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
                    return Err(MembershipError::NameConflict(conflict));
                }
            }
        }
        Ok(None)
    }
}
