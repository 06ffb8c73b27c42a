//! Logs when requests to etcd start to fail, and when they succeed again.

use larder_replica::CoordinatorError;
use std::time::{Duration, Instant};

/// The minimum time between log lines about different errors of a series of failed requests.
const OTHER_ERROR_INTERVAL: Duration = Duration::from_secs(20);

/// Logs the first failure of a series of failed requests to etcd, other failures later in the series,
/// and the first success after it.
#[derive(Default)]
pub(super) struct EtcdLog {
    /// The last logged error of the current series, and the time of its log line.
    logged: Option<(CoordinatorError, Instant)>,
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
                self.logged = Some((error.clone(), Instant::now()));
            }
            Err(_) => (),
        }
    }

    fn is_worth_logging(&self, error: &CoordinatorError) -> bool {
        self.logged
            .as_ref()
            .is_none_or(|(logged, time)| logged != error && time.elapsed() >= OTHER_ERROR_INTERVAL)
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
        log.note(&Ok(()));
        assert!(log.is_worth_logging(&timeout), "another series");
    }
}
