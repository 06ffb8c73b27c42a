//! Logs when requests to etcd start to fail, and when they succeed again.

use larder_replica::CoordinatorError;
use std::time::{Duration, Instant};

/// The minimum time between log lines about different errors of a series of failed requests.
const OTHER_ERROR_INTERVAL: Duration = Duration::from_secs(20);

/// The maximum number of errors that are logged in a series.
const ERRORS_MAX: usize = 8;

/// Logs the first failure of a series of failed requests to etcd, other failures later in the series,
/// and the first success after it.
#[derive(Default)]
pub(super) struct EtcdLog {
    /// The logged errors of the current series, and the time of the last log line.
    logged: Option<(Vec<CoordinatorError>, Instant)>,
}

impl EtcdLog {
    /// Logs the first error after a success, and the first success after an error. A later error that
    /// differs from the last logged error is logged after [`OTHER_ERROR_INTERVAL`]: the first error
    /// may be a timeout while the cause is another one.
    pub(super) fn note<T>(&mut self, answer: &Result<T, CoordinatorError>) {
        match answer {
            Ok(_) => {
                if self.logged.take().is_some() {
                    tracing::info!("etcd: requests succeed again");
                }
            }
            Err(error) if self.is_worth_logging(error) => {
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
                let mut errors = self.logged.take().map(|(errors, _)| errors).unwrap_or_default();
                errors.push(error.clone());
                self.logged = Some((errors, Instant::now()));
            }
            Err(_) => (),
        }
    }

    fn is_worth_logging(&self, error: &CoordinatorError) -> bool {
        self.logged.as_ref().is_none_or(|(logged, time)| {
            let is_new = logged.iter().all(|logged| !is_same(logged, error));
            is_new && logged.len() < ERRORS_MAX && time.elapsed() >= OTHER_ERROR_INTERVAL
        })
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
    fn another_error_of_a_series_is_logged_later() {
        let failed = |reason: &str| CoordinatorError::Failed {
            server: "etcd".to_owned(),
            reason: reason.to_owned(),
        };
        let (timeout, refusal) = (failed("timed out"), failed("authentication failed"));
        let mut log = EtcdLog::default();
        assert!(log.is_worth_logging(&timeout));
        log.note::<()>(&Err(timeout.clone()));
        assert!(!log.is_worth_logging(&timeout) && !log.is_worth_logging(&refusal));
        if let Some((_, time)) = &mut log.logged {
            *time -= OTHER_ERROR_INTERVAL;
        }
        assert!(!log.is_worth_logging(&timeout) && log.is_worth_logging(&refusal));
        let elsewhere =
            CoordinatorError::Failed { server: "other".to_owned(), reason: "timed out".to_owned() };
        assert!(!log.is_worth_logging(&elsewhere), "the same error of another server");
        log.note(&Ok(()));
        assert!(log.is_worth_logging(&timeout), "another series");
    }
}
