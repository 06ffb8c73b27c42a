//! The log of failing requests to etcd.

use larder_replica::CoordinatorError;

/// Logs the first failure of a series of failed requests to etcd, and the first success after it.
#[derive(Default)]
pub(super) struct EtcdLog {
    error: Option<CoordinatorError>,
}

impl EtcdLog {
    /// Logs the first error after a success, and the first success after an error.
    pub(super) fn note<T>(&mut self, answer: &Result<T, CoordinatorError>) {
        match (answer, &self.error) {
            (Ok(_), Some(_)) => {
                tracing::info!("etcd: requests succeed again");
                self.error = None;
            }
            (Err(error), None) => {
                let remedy = match error {
                    CoordinatorError::MalformedValue(key) if key.ends_with("/identity") => {
                        "delete the key with etcdctl: the next process of the cluster writes it again"
                    }
                    CoordinatorError::MalformedValue(_) => "repair or delete the key with etcdctl",
                    CoordinatorError::OtherCluster(_) => {
                        "this server writes nothing to etcd any more: restart it to join that cluster, without its items"
                    }
                    _ => "check --etcd, its credentials and the network",
                };
                tracing::warn!("etcd: a request failed: {error}; {remedy}");
                self.error = Some(error.clone());
            }
            _ => (),
        }
    }
}
