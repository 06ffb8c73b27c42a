//! Counters of calls to etcd, for statistics.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The counters that all clients with the same settings share. A call that tries several servers
/// counts once.
#[derive(Debug)]
pub struct EtcdCounters {
    requests: AtomicU64,
    failures: AtomicU64,
    /// The total time of all calls, in microseconds.
    total_micros: AtomicU64,
    /// The time at which the last successful call ended. Before the first successful call, the time
    /// at which the counters were created.
    succeeded_at: Mutex<Instant>,
}

impl Default for EtcdCounters {
    fn default() -> Self {
        Self {
            requests: AtomicU64::default(),
            failures: AtomicU64::default(),
            total_micros: AtomicU64::default(),
            succeeded_at: Mutex::new(Instant::now()),
        }
    }
}

impl EtcdCounters {
    /// Records a call that took this time.
    pub(crate) fn note(&self, time: Duration, has_succeeded: bool) {
        let micros = time.as_micros().try_into().unwrap_or(u64::MAX);
        self.requests.fetch_add(1, Relaxed);
        self.total_micros.fetch_add(micros, Relaxed);
        if has_succeeded {
            *self.succeeded_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        } else {
            self.failures.fetch_add(1, Relaxed);
        }
    }

    /// Returns the number of calls that have ended.
    pub fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    /// Returns the number of failed calls. A call fails if every server that it tries fails.
    pub fn failures(&self) -> u64 {
        self.failures.load(Relaxed)
    }

    /// Returns the total time of all calls.
    pub fn total_time(&self) -> Duration {
        Duration::from_micros(self.total_micros.load(Relaxed))
    }

    /// Returns the time since the last successful call. Before the first successful call, returns
    /// the time since the counters were created.
    pub fn success_age(&self) -> Duration {
        self.succeeded_at.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}
