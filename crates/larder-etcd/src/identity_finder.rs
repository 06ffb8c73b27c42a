//! Finds the identity of a cluster when a process starts. Also replaces the fingerprint of the
//! cluster's secret.

use crate::client::Etcd;
use crate::client::requests::{Range, has_no_key_below, has_revision, put_request};
use crate::client::{EtcdSettings, SettingsError};
use crate::cluster_key;
use crate::identity::{ClusterIdentity, FoundIdentity, IdentityJson, fingerprint, key};
use larder_replica::{CoordinatorError, Secret};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long etcd must have had no identity before a process chooses one. Running processes that
/// know the earlier identity restore it within this time.
const ABSENCE_MIN: Duration = Duration::from_secs(2);

/// The reason why finding the identity has failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// A request to etcd has failed, or the identity there is malformed.
    #[error(transparent)]
    Coordinator(#[from] CoordinatorError),
    /// The secret of the cluster in etcd differs from the secret of this process.
    #[error("{0}")]
    OtherSecret(OtherSecret),
}

/// The secret of the cluster in etcd differs from the secret of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherSecret {
    cluster: String,
    /// Whether the cluster has a secret.
    has_secret: bool,
    /// Whether this process has a secret.
    has_own: bool,
}

impl fmt::Display for OtherSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cluster = &self.cluster;
        match (self.has_secret, self.has_own) {
            (false, _) => {
                write!(f, "cluster {cluster} in etcd has no secret: omit --cluster-secret")
            }
            (true, false) => {
                write!(f, "cluster {cluster} in etcd has a secret: set --cluster-secret")
            }
            (true, true) => {
                write!(f, "cluster {cluster} in etcd has another secret: correct --cluster-secret")
            }
        }?;
        f.write_str(", or choose another --cluster")
    }
}

/// Finds the identity of a cluster, or chooses it for a new cluster.
#[derive(Debug)]
pub struct IdentityFinder {
    etcd: Etcd,
    cluster: String,
    identity: Arc<ClusterIdentity>,
    secret: Option<Secret>,
    /// The time since which every read has found no identity in etcd. `None` if the last read found
    /// one or failed.
    absent_since: Option<Instant>,
}

impl IdentityFinder {
    /// Creates a finder for a process with this cluster secret. The finder sets `identity`.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn new(
        settings: &EtcdSettings,
        cluster: &str,
        identity: &Arc<ClusterIdentity>,
        secret: Option<Secret>,
    ) -> Result<Self, SettingsError> {
        let etcd = Etcd::new(&EtcdSettings { identity: None, ..settings.clone() })?;
        let (cluster, identity) = (cluster.to_owned(), Arc::clone(identity));
        Ok(Self { etcd, cluster, identity, secret, absent_since: None })
    }

    /// Reads the identity. Writes a new one if etcd has had none for 2 s. Returns false if the
    /// caller must call again, because etcd has had no identity for less than 2 s, or another
    /// process has just written one.
    ///
    /// # Errors
    /// [`IdentityError`].
    pub fn find(&mut self) -> Result<bool, IdentityError> {
        if self.identity.is_known() {
            return Ok(true);
        }
        let key = &self.identity.key;
        let read = self.etcd.read(&[Range::One(key.clone())]);
        if read.is_err() {
            // Restart the wait: while etcd did not answer, running processes could not restore the
            // identity either.
            self.absent_since = None;
        }
        let (text, is_own) = match read?.into_iter().flatten().next() {
            Some(found) => {
                self.absent_since = None;
                (found.value, false)
            }
            None => {
                let since = *self.absent_since.get_or_insert_with(Instant::now);
                if since.elapsed() < ABSENCE_MIN {
                    return Ok(false);
                }
                let number = rand::random_range(1..=u128::MAX);
                let text = IdentityJson::new(number, self.secret.as_ref()).write();
                if self.etcd.replace(key, 0, &text)?.is_none() {
                    return Ok(false);
                }
                (text, true)
            }
        };
        let malformed = || CoordinatorError::MalformedValue(key.clone());
        let (value, number) = IdentityJson::read(&text).ok_or_else(malformed)?;
        let own = self.secret.as_ref().map(|secret| fingerprint(secret, &value.identity));
        if own != value.secret {
            let (has_secret, has_own) = (value.secret.is_some(), own.is_some());
            let cluster = self.cluster.clone();
            return Err(IdentityError::OtherSecret(OtherSecret { cluster, has_secret, has_own }));
        }
        self.identity.note(FoundIdentity { value: text, number, is_own });
        Ok(true)
    }
}

/// The result of [`replace_secret`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretReplaced {
    /// The secret was replaced. Processes with the new secret can start.
    Done,
    /// etcd has no cluster of this name.
    NoCluster,
    /// A process of the cluster is live, or another operator has replaced the secret at the same
    /// time.
    Refused,
}

/// Replaces the fingerprint of a cluster's secret if no process of the cluster is live. If `secret`
/// is `None`, the cluster has no secret afterwards.
///
/// # Errors
/// [`CoordinatorError`]: the fingerprint may have been replaced.
pub fn replace_secret(
    etcd: &mut Etcd,
    cluster: &str,
    secret: Option<&Secret>,
) -> Result<SecretReplaced, CoordinatorError> {
    let key = key(cluster);
    let Some(found) = etcd.read(&[Range::One(key.clone())])?.into_iter().flatten().next() else {
        return Ok(SecretReplaced::NoCluster);
    };
    let malformed = || CoordinatorError::MalformedValue(key.clone());
    let (_, number) = IdentityJson::read(&found.value).ok_or_else(malformed)?;
    let value = IdentityJson::new(number, secret).write();
    let live = format!("{}live/", cluster_key(cluster));
    let comparisons = [has_revision(&key, found.revision), has_no_key_below(&live)];
    let done = etcd.transact(&comparisons, &[put_request(&key, &value, 0)], &[])?;
    Ok(if done.has_succeeded { SecretReplaced::Done } else { SecretReplaced::Refused })
}
