//! What is known of whether a server works: calls ask before, and tell what came of it.

use crate::core::servers::breaker::{Admitted, Breaker};
use crate::error::{Error, ErrorKind};
use crate::metrics::ServerRecorder;
use crate::refresh::RefreshSignal;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A breaker that threads share.
#[derive(Debug)]
pub(crate) struct Health {
    state: Mutex<State>,
    /// Whether the breaker has to be told of calls that are answered.
    is_troubled: AtomicBool,
    /// Is told of faults, if the list of servers may change.
    refresh: Option<Arc<RefreshSignal>>,
    recorder: Arc<ServerRecorder>,
}

#[derive(Debug, Default)]
struct State {
    breaker: Breaker,
    /// Why the server failed the last time. The breaker is closed as long as there is nothing here.
    last_fault: Option<Arc<ErrorKind>>,
}

/// A call that was let through. One that is dropped has said nothing of the server.
#[derive(Debug)]
pub(crate) struct Admission<'h> {
    health: &'h Health,
    call: Admitted,
}

impl Health {
    pub(crate) fn new(refresh: Option<Arc<RefreshSignal>>, recorder: Arc<ServerRecorder>) -> Self {
        Self { state: Mutex::default(), is_troubled: AtomicBool::default(), refresh, recorder }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change of it is whole before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a call through.
    ///
    /// # Errors
    /// The server is left alone for a moment.
    pub(crate) fn admit(&self, now: Instant) -> Result<Admission<'_>, Error> {
        let call = if self.is_troubled.load(Ordering::Relaxed) {
            let mut state = self.state();
            state.breaker.admit(now).map_err(|retry_in| state.unavailable(retry_in))?
        } else {
            Admitted::Call
        };
        Ok(Admission { health: self, call })
    }

    /// Whether calls are let through at the moment.
    pub(crate) fn is_available(&self, now: Instant) -> bool {
        !self.is_troubled.load(Ordering::Relaxed) || self.state().breaker.is_available(now)
    }
}

impl State {
    fn unavailable(&self, retry_in: Duration) -> Error {
        let cause = self.last_fault.clone().expect("the breaker opens after a fault");
        Error::definite(ErrorKind::Unavailable { retry_in, cause })
    }
}

impl Admission<'_> {
    /// Asks again, before a connection is opened for a call that may have waited. If the server was left alone meanwhile
    /// and the pause is over, this call is the one that tries.
    ///
    /// # Errors
    /// Others have found out meanwhile that the server fails.
    pub(crate) fn confirm(&mut self, now: Instant) -> Result<(), Error> {
        if self.call == Admitted::Probe || !self.health.is_troubled.load(Ordering::Relaxed) {
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

    /// Notes what came of the call.
    pub(crate) fn note(self, error: Option<&Error>) {
        // Nothing is left to be said when it is dropped.
        let Self { health, call } = *ManuallyDrop::new(self);
        let is_echo = error.is_some_and(|error| error.is_echo);
        let is_fault = error.is_some_and(Error::is_fault) && !is_echo;
        if !is_fault && !health.is_troubled.load(Ordering::Relaxed) {
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
        health.is_troubled.store(!breaker.is_untroubled(), Ordering::Relaxed);
        health.recorder.breaker(breaker.is_open(), error);
    }
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        if self.call == Admitted::Probe {
            self.health.state().breaker.pass(self.call, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_that_is_dropped_leaves_the_next_call_to_find_out() {
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
    fn one_of_the_calls_that_waited_for_longer_than_a_pause_tries() {
        let health = Health::new(None, Arc::new(ServerRecorder::new("cache")));
        let start = Instant::now();
        let mut waiting: Vec<_> = (0..10).map(|_| health.admit(start).unwrap()).collect();
        let fault = Error::definite(ErrorKind::Timeout);
        (0..5).for_each(|_| health.admit(start).unwrap().note(Some(&fault)));
        let later = start + Duration::from_secs(1);
        assert!(waiting[0].confirm(start).is_err(), "the pause is not over");
        assert!(waiting[1].confirm(later).is_ok());
        assert!(waiting[2..].iter_mut().all(|call| call.confirm(later).is_err()));
        // It fails too, so there is a pause again.
        waiting.swap_remove(1).note(Some(&fault));
        assert!(waiting.iter_mut().all(|call| call.confirm(Instant::now()).is_err()));
    }
}
