//! The phases of a server, and requests to change the phase.
//!
//! ```text
//! Serving ──graceful──▶ Draining ──all closed, timeout, quick──▶ Ended
//!    └─────────────────────── quick ─────────────────────────────▲
//! ```
//!
//! Signals and commands store a request and wake the accepting thread with a byte in a socket pair.
//! The accepting thread changes the phase and wakes the workers, which then read the new phase.

use crate::process::systemd;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};

/// The phase of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The server accepts connections and answers requests.
    Serving,
    /// The server accepts no connections, and closes each open connection after answering its
    /// requests.
    Draining,
    /// The threads stop, even if connections are open.
    Ended,
}

/// The phase of a server, and requests to change it.
pub struct LifeCycle {
    phase: AtomicU8,
    quick: Arc<AtomicBool>,
    graceful: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
    waker: UnixStream,
}

impl LifeCycle {
    /// Creates the life cycle of a new server. Also returns the receiving end of its socket pair,
    /// which becomes readable at a signal or a call to [`Self::wake`].
    ///
    /// # Errors
    /// The system has no free file descriptors.
    pub fn new() -> io::Result<(Self, UnixStream)> {
        let (wakeups, waker) = UnixStream::pair()?;
        wakeups.set_nonblocking(true)?;
        waker.set_nonblocking(true)?;
        let new = Self {
            phase: AtomicU8::new(Phase::Serving as u8),
            quick: Arc::default(),
            graceful: Arc::default(),
            reload: Arc::default(),
            waker,
        };
        Ok((new, wakeups))
    }

    /// Installs the signal handlers: SIGINT and SIGTERM stop the server at once, SIGUSR1 stops it
    /// gracefully, and SIGHUP reloads files.
    ///
    /// # Errors
    /// Registering a handler failed.
    pub fn install_signal_handlers(&self) -> io::Result<()> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
        let requests = [
            (SIGINT, &self.quick),
            (SIGTERM, &self.quick),
            (SIGUSR1, &self.graceful),
            (SIGHUP, &self.reload),
        ];
        for (signal, request) in requests {
            // Handlers run in the order of their registration. The first handler stores the
            // request, and the second wakes the accepting thread.
            signal_hook::flag::register(signal, Arc::clone(request))?;
            signal_hook::low_level::pipe::register(signal, self.waker.try_clone()?)?;
        }
        Ok(())
    }

    /// Requests that the server stops, gracefully or at once.
    pub fn stop(&self, graceful: bool) {
        let request = if graceful { &self.graceful } else { &self.quick };
        request.store(true, SeqCst);
        self.wake();
    }

    /// Wakes the accepting thread.
    pub fn wake(&self) {
        // Ignore an error: if the socket is full, wakes are already pending.
        let _ = (&self.waker).write(&[0]);
    }

    /// Returns the phase that signals or [`stop`](Self::stop) have requested. A quick stop
    /// overrides a graceful one.
    #[must_use]
    pub fn requested(&self) -> Phase {
        match (self.quick.load(SeqCst), self.graceful.load(SeqCst)) {
            (true, _) => Phase::Ended,
            (false, true) => Phase::Draining,
            (false, false) => Phase::Serving,
        }
    }

    /// Returns the current phase.
    #[inline]
    pub fn phase(&self) -> Phase {
        match self.phase.load(SeqCst) {
            0 => Phase::Serving,
            1 => Phase::Draining,
            _ => Phase::Ended,
        }
    }

    /// Changes the phase.
    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, SeqCst);
    }

    /// Handles requests: calls `reload` once for all SIGHUPs since the last call, and returns the
    /// requested phase.
    pub(crate) fn handle_requests(&self, reload: impl FnOnce()) -> Phase {
        if self.reload.swap(false, SeqCst) {
            tracing::info!("SIGHUP: reloading passwords, tokens and certificates");
            systemd::reloading(reload);
        }
        self.requested()
    }
}

/// Reads all pending wakes from the receiving end of the socket pair.
pub(crate) fn drain(wakeups: &mut impl Read) {
    while matches!(wakeups.read(&mut [0; 64]), Ok(1..)) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_stop_overrides_a_graceful_one() {
        let (cycle, _wakeups) = LifeCycle::new().unwrap();
        assert_eq!((cycle.phase(), cycle.requested()), (Phase::Serving, Phase::Serving));
        cycle.stop(true);
        assert_eq!(cycle.requested(), Phase::Draining);
        cycle.stop(false);
        assert_eq!((cycle.phase(), cycle.requested()), (Phase::Serving, Phase::Ended));
    }

    #[test]
    fn waking_never_blocks() {
        let (cycle, mut wakeups) = LifeCycle::new().unwrap();
        (0..1_000_000).for_each(|_| cycle.wake());
        drain(&mut wakeups);
        assert!(wakeups.read(&mut [0; 1]).is_err(), "emptied");
        cycle.wake();
        assert_eq!(wakeups.read(&mut [0; 1]).unwrap(), 1);
    }

    #[test]
    fn each_reload_request_reloads_once() {
        let (cycle, _wakeups) = LifeCycle::new().unwrap();
        let mut count = 0;
        cycle.reload.store(true, SeqCst);
        for _ in 0..2 {
            assert_eq!(cycle.handle_requests(|| count += 1), Phase::Serving);
        }
        assert_eq!(count, 1);
    }
}
