//! Server health: the admission of calls by the breaker, and the results of these calls.

use crate::core::servers::breaker::{AdmissionKind, Breaker};
use crate::error::{Error, ErrorKind};
use crate::metrics::ServerRecorder;
use crate::refresh::RefreshSignal;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The breaker of a server. Threads share it.
#[derive(Debug)]
pub(crate) struct Health {
    state: Mutex<State>,
    /// Whether a fault has occurred since the last reply. If not, successful calls skip the lock.
    has_faults: AtomicBool,
    /// Requests a refresh of the server list after a fault. `None` without discovery.
    refresh: Option<Arc<RefreshSignal>>,
    recorder: Arc<ServerRecorder>,
}

#[derive(Debug, Default)]
struct State {
    breaker: Breaker,
    /// The latest fault since the last reply. If there is none, the breaker is closed.
    last_fault: Option<Arc<ErrorKind>>,
}

/// An admitted call. Dropping it records that the call revealed nothing about the server's health.
#[derive(Debug)]
pub(crate) struct Admission<'h> {
    health: &'h Health,
    call: AdmissionKind,
}

impl Health {
    pub(crate) fn new(refresh: Option<Arc<RefreshSignal>>, recorder: Arc<ServerRecorder>) -> Self {
        Self { state: Mutex::default(), has_faults: AtomicBool::default(), refresh, recorder }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change leaves the state consistent, so a poisoned lock is safe to use.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a call.
    ///
    /// # Errors
    /// `Unavailable`: the breaker is open.
    pub(crate) fn admit(&self, now: Instant) -> Result<Admission<'_>, Error> {
        let call = if self.has_faults.load(Ordering::Relaxed) {
            let mut state = self.state();
            state.breaker.admit(now).map_err(|retry_in| state.unavailable(retry_in))?
        } else {
            AdmissionKind::Call
        };
        Ok(Admission { health: self, call })
    }

    /// Returns whether the breaker would admit a call.
    pub(crate) fn is_available(&self, now: Instant) -> bool {
        !self.has_faults.load(Ordering::Relaxed) || self.state().breaker.is_available(now)
    }
}

impl State {
    fn unavailable(&self, retry_in: Duration) -> Error {
        let cause = self.last_fault.clone().expect("the breaker opens after a fault");
        Error::definite(ErrorKind::Unavailable { retry_in, cause })
    }
}

impl Admission<'_> {
    /// Checks the breaker again before the client opens a connection, because the call may have
    /// waited after its admission. If the breaker has opened since then and its pause is already
    /// over, this call becomes the probe.
    ///
    /// # Errors
    /// Other calls have opened the breaker since the admission, and its pause is not over.
    pub(crate) fn confirm(&mut self, now: Instant) -> Result<(), Error> {
        if self.call == AdmissionKind::Probe || !self.health.has_faults.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut state = self.health.state();
        match state.breaker.admit(now) {
            Ok(call) => {
                self.call = call;
                Ok(())
            }
            Err(retry_in) => Err(state.unavailable(retry_in).echo()),
        }
    }

    /// Records the result of the call. After a fault, also requests a server-list refresh.
    pub(crate) fn note(self, error: Option<&Error>) {
        // Skips `Drop`, which would record the call a second time.
        let Self { health, call } = *ManuallyDrop::new(self);
        let is_echo = error.is_some_and(|error| error.is_echo);
        let is_fault = error.is_some_and(Error::is_fault) && !is_echo;
        if !is_fault && !health.has_faults.load(Ordering::Relaxed) {
            return;
        }
        if is_fault && let Some(refresh) = &health.refresh {
            refresh.request();
        }
        let State { breaker, last_fault } = &mut *health.state();
        match error.map(Error::kind) {
            Some(kind) if is_fault => {
                *last_fault = Some(Arc::new(kind.clone()));
                breaker.fail(call, Instant::now(), rand::random());
            }
            _ if is_echo => breaker.pass(call, Instant::now()),
            Some(ErrorKind::PoolTimeout | ErrorKind::Interrupted | ErrorKind::ClientClosed) => {
                breaker.pass(call, Instant::now());
            }
            _ => {
                *last_fault = None;
                breaker.succeed();
            }
        }
        health.has_faults.store(!breaker.is_healthy(), Ordering::Relaxed);
        health.recorder.breaker(breaker.is_open(), error);
    }
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        if self.call == AdmissionKind::Probe {
            self.health.state().breaker.pass(self.call, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_probe_lets_the_next_call_probe() {
        let health = Health::new(None, Arc::new(ServerRecorder::new("cache")));
        let start = Instant::now();
        let fault = Error::definite(ErrorKind::Timeout);
        (0..5).for_each(|_| health.admit(start).unwrap().note(Some(&fault)));
        assert!(health.admit(start).is_err());
        let later = start + Duration::from_secs(1);
        let probe = health.admit(later).unwrap();
        assert!(health.admit(later).is_err());
        drop(probe);
        let probe = health.admit(later).unwrap();
        probe.note(None);
        assert!(health.admit(later).is_ok() && health.admit(later).is_ok());
    }

    #[test]
    fn one_of_the_calls_that_waited_through_a_pause_probes() {
        let health = Health::new(None, Arc::new(ServerRecorder::new("cache")));
        let start = Instant::now();
        let mut waiting: Vec<_> = (0..10).map(|_| health.admit(start).unwrap()).collect();
        let fault = Error::definite(ErrorKind::Timeout);
        (0..5).for_each(|_| health.admit(start).unwrap().note(Some(&fault)));
        let later = start + Duration::from_secs(1);
        assert!(waiting[0].confirm(start).is_err(), "the pause is not over");
        assert!(waiting[1].confirm(later).is_ok());
        assert!(waiting[2..].iter_mut().all(|call| call.confirm(later).is_err()));
        // The probe fails, so another pause follows.
        waiting.swap_remove(1).note(Some(&fault));
        assert!(waiting.iter_mut().all(|call| call.confirm(Instant::now()).is_err()));
    }
}
