//! The log of failing requests to etcd.

use larder_replica::CoordinatorError;

/// The maximum number of errors that are logged in a series.
const ERRORS_MAX: usize = 8;

/// Logs each distinct error in a series of failed requests to etcd, and the first success after the
/// series. The first error may be a timeout that hides the cause, so later errors are logged, too.
#[derive(Default)]
pub(crate) struct EtcdLog {
    /// The logged errors of the current series.
    logged: Vec<CoordinatorError>,
}

impl EtcdLog {
    /// Logs an error unless the log already contains an error with the same reason from this
    /// series. Also logs the end of a series.
    pub(crate) fn note<T>(&mut self, answer: &Result<T, CoordinatorError>) {
        match answer {
            Ok(_) if !self.logged.is_empty() => {
                tracing::info!("etcd: requests succeed again");
                self.logged.clear();
            }
            Err(error) if self.is_new(error) => {
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
                self.logged.push(error.clone());
            }
            _ => (),
        }
    }

    fn is_new(&self, error: &CoordinatorError) -> bool {
        self.logged.len() < ERRORS_MAX && !self.logged.iter().any(|logged| is_same(logged, error))
    }
}

/// Returns whether two errors have the same reason, perhaps at different servers.
fn is_same(one: &CoordinatorError, other: &CoordinatorError) -> bool {
    match (one, other) {
        (
            CoordinatorError::Failed { reason: one, .. },
            CoordinatorError::Failed { reason: other, .. },
        ) => one == other,
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_of_a_series_is_logged_once() {
        let failed = |server: &str, reason: String| CoordinatorError::Failed {
            server: server.to_owned(),
            reason,
        };
        let mut log = EtcdLog::default();
        let timeout = failed("a", "timed out".to_owned());
        assert!(log.is_new(&timeout));
        log.note::<()>(&Err(timeout.clone()));
        assert!(!log.is_new(&timeout));
        assert!(!log.is_new(&failed("b", "timed out".to_owned())), "the same at another server");
        assert!(log.is_new(&failed("a", "authentication failed".to_owned())));
        for number in 0..ERRORS_MAX {
            log.note::<()>(&Err(failed("a", number.to_string())));
        }
        assert!(!log.is_new(&failed("a", "authentication failed".to_owned())), "too many");
        log.note(&Ok(()));
        assert!(log.is_new(&timeout), "another series");
    }
}
