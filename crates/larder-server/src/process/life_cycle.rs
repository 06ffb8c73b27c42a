//! The phases of a server: how its end is requested, and how threads learn of it.
//!
//! ```text
//! Serving ──graceful──▶ Draining ──all closed, or too late──▶ Ended
//!    └─────────────────────── quick ───────────────────────────▲
//! ```
//!
//! Signals and commands only leave a request and wake the thread that accepts connections, by a byte in
//! a pipe. That thread changes the phase, which the workers see.

use crate::process::systemd;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};

/// The phase of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// It accepts connections and answers them.
    Serving,
    /// It accepts none; each that it has is closed once its requests are answered.
    Draining,
    /// Its threads end, even if connections are open.
    Ended,
}

/// The phase of a server, and the request to change it.
pub struct LifeCycle {
    phase: AtomicU8,
    quick: Arc<AtomicBool>,
    graceful: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
    waker: UnixStream,
}

impl LifeCycle {
    /// The life cycle of a new server, and the other end of its waker's pipe, which becomes readable at
    /// [`Self::wake`].
    ///
    /// # Errors
    /// The system has no file descriptors left.
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

    /// Has SIGINT and SIGTERM end the server at once, SIGUSR1 gracefully, SIGHUP read files again.
    ///
    /// # Errors
    /// The system refuses.
    pub fn install_signal_handlers(&self) -> io::Result<()> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
        let requests = [
            (SIGINT, &self.quick),
            (SIGTERM, &self.quick),
            (SIGUSR1, &self.graceful),
            (SIGHUP, &self.reload),
        ];
        for (signal, request) in requests {
            // The order matters: the request is stored before the thread is woken for it.
            signal_hook::flag::register(signal, Arc::clone(request))?;
            signal_hook::low_level::pipe::register(signal, self.waker.try_clone()?)?;
        }
        Ok(())
    }

    /// Requests the end.
    pub fn stop(&self, graceful: bool) {
        let request = if graceful { &self.graceful } else { &self.quick };
        request.store(true, SeqCst);
        self.wake();
    }

    /// Wakes the thread that accepts connections.
    pub fn wake(&self) {
        // If the pipe is full, the thread is woken anyway.
        let _ = (&self.waker).write(&[0]);
    }

    /// The phase that was asked for.
    #[must_use]
    pub fn requested(&self) -> Phase {
        match (self.quick.load(SeqCst), self.graceful.load(SeqCst)) {
            (true, _) => Phase::Ended,
            (false, true) => Phase::Draining,
            (false, false) => Phase::Serving,
        }
    }

    /// The phase that it is in.
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

    /// Handles the requests of signals: calls `reload` once for all SIGHUPs since the last call, and
    /// returns the phase that was asked for.
    pub(crate) fn handle_requests(&self, reload: impl FnOnce()) -> Phase {
        if self.reload.swap(false, SeqCst) {
            tracing::info!("SIGHUP: passwords and certificates are read again");
            systemd::reloading(reload);
        }
        self.requested()
    }
}

/// Empties the waker's pipe.
pub(crate) fn drain(wakeups: &mut impl Read) {
    while matches!(wakeups.read(&mut [0; 64]), Ok(1..)) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_end_overrides_a_graceful_one() {
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
    fn files_are_read_again_once_for_each_request() {
        let (cycle, _wakeups) = LifeCycle::new().unwrap();
        let mut count = 0;
        cycle.reload.store(true, SeqCst);
        for _ in 0..2 {
            assert_eq!(cycle.handle_requests(|| count += 1), Phase::Serving);
        }
        assert_eq!(count, 1);
    }
}
