//! The identity of a cluster: a random number, and a fingerprint of the cluster secret. It
//! distinguishes clusters with the same name.
//!
//! The first process of a cluster writes the key. If etcd loses the key, a process that knows the
//! identity writes it again. If the identity in etcd differs, etcd has another cluster of this
//! name.

use crate::client::requests::{KeyValue, Range, has_revision, has_value, put_request};
use crate::cluster_key;
use larder_replica::{CoordinatorError, Secret};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::OnceLock;

/// The value of the key. Both numbers are hexadecimal text, because many JSON parsers lose
/// precision above 2⁵³.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct IdentityJson {
    pub(crate) identity: String,
    /// The fingerprint of the cluster secret; `None` for a cluster without a secret.
    pub(crate) secret: Option<String>,
}

impl IdentityJson {
    pub(crate) fn new(identity: u128, secret: Option<&Secret>) -> Self {
        let identity = format!("{identity:032x}");
        let secret = secret.map(|secret| fingerprint(secret, &identity));
        Self { identity, secret }
    }

    /// Parses a value. Returns the value and its identity as a number, or `None` if the value is
    /// malformed.
    pub(crate) fn read(text: &[u8]) -> Option<(Self, u128)> {
        let value: Self = serde_json::from_slice(text).ok()?;
        let is_written = value.identity.len() == 32;
        let number = u128::from_str_radix(&value.identity, 16).ok()?;
        (is_written && number != 0).then_some((value, number))
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

pub(crate) fn fingerprint(secret: &Secret, identity: &str) -> String {
    format!("{:016x}", u64::from_be_bytes(secret.fingerprint(identity.as_bytes())))
}

/// The identity of a process's cluster. All threads of the process share it.
#[derive(Debug)]
pub struct ClusterIdentity {
    pub(crate) key: String,
    found: OnceLock<FoundIdentity>,
}

/// The identity in etcd.
#[derive(Debug)]
pub(crate) struct FoundIdentity {
    /// The value of the key. It does not change while any process of the cluster is live.
    pub(crate) value: Vec<u8>,
    pub(crate) number: u128,
    /// Whether this process has chosen the identity.
    pub(crate) is_own: bool,
}

impl ClusterIdentity {
    /// Creates the identity of the cluster with this name. It is unknown until
    /// [`IdentityFinder::find`](crate::IdentityFinder::find) finds it.
    #[must_use]
    pub fn new(cluster: &str) -> Self {
        Self { key: key(cluster), found: OnceLock::new() }
    }

    /// Returns the identity; 0 if it is unknown.
    #[must_use]
    pub fn number(&self) -> u128 {
        self.found.get().map_or(0, |found| found.number)
    }

    /// Returns whether the identity is known.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.found.get().is_some()
    }

    /// Returns whether this process has founded the cluster by choosing its identity.
    #[must_use]
    pub fn is_founder(&self) -> bool {
        self.found.get().is_some_and(|found| found.is_own)
    }

    /// Records the identity. An identity never changes, so a second call has no effect.
    pub(crate) fn note(&self, found: FoundIdentity) {
        let _ = self.found.set(found);
    }

    fn value(&self) -> Result<&[u8], CoordinatorError> {
        self.found.get().map(|found| &*found.value).ok_or(CoordinatorError::IdentityPending)
    }

    /// Returns a comparison for a transaction: etcd has this identity. The transaction compares the
    /// value: the revision would not suffice, because the first key of every new etcd has the same
    /// revision.
    ///
    /// # Errors
    /// The identity is unknown.
    pub(crate) fn comparison(&self) -> Result<Value, CoordinatorError> {
        Ok(has_value(&self.key, self.value()?))
    }

    /// Returns a read of the key, for a transaction.
    pub(crate) fn read_request(&self) -> Value {
        Range::One(self.key.clone()).request()
    }

    /// Examines the value of the key after a transaction with [`Self::comparison`] has failed.
    /// Returns true if etcd has the identity: another comparison of the transaction was then false.
    /// Returns false if etcd has lost the identity.
    ///
    /// # Errors
    /// etcd has another cluster of this name, or a malformed identity.
    pub(crate) fn is_kept(&self, found: Option<&KeyValue>) -> Result<bool, CoordinatorError> {
        match found {
            None => Ok(false),
            Some(found) if found.value == self.value()? => Ok(true),
            Some(found) if is_valid(&found.value) => {
                Err(CoordinatorError::OtherCluster(self.key.clone()))
            }
            Some(_) => Err(CoordinatorError::MalformedValue(self.key.clone())),
        }
    }

    /// Returns a comparison for a transaction (the key is absent), and the write that restores the
    /// key.
    ///
    /// # Errors
    /// The identity is unknown.
    pub(crate) fn restoration(&self) -> Result<(Value, Value), CoordinatorError> {
        Ok((has_revision(&self.key, 0), put_request(&self.key, self.value()?, 0)))
    }
}

/// Returns whether a value of the key is well-formed.
pub(crate) fn is_valid(value: &[u8]) -> bool {
    IdentityJson::read(value).is_some()
}

pub(crate) fn key(cluster: &str) -> String {
    format!("{}identity", cluster_key(cluster))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_round_trips_and_malformed_ones_are_refused() {
        let secret = Secret::of(b"a secret of the cluster").unwrap();
        let value = IdentityJson::new(7, Some(&secret));
        assert_eq!(IdentityJson::read(&value.write()), Some((value.clone(), 7)));
        let other = Secret::of(b"another secret of it").unwrap();
        assert_ne!(IdentityJson::new(7, Some(&other)).secret, value.secret);
        assert_ne!(IdentityJson::new(8, Some(&secret)).secret, value.secret);
        assert_eq!(IdentityJson::new(7, None).secret, None);
        let zero = format!(r#"{{"identity":"{:032}","secret":null}}"#, 0);
        for malformed in ["", "{}", r#"{"identity":"7","secret":null}"#, &zero] {
            assert_eq!(IdentityJson::read(malformed.as_bytes()), None, "{malformed}");
        }
    }
}
