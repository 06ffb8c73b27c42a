//! Decides when a thread that waits for a server releases the interpreter's lock (the GIL).
//!
//! A thread that releases the lock may wait up to 5 ms to get it back, but a nearby server replies
//! within a few tens of microseconds. If only one thread uses the client, that thread keeps the
//! lock for up to 40 µs, and releases it if the reply takes longer. Threads that use the client
//! concurrently release the lock at once, because they would otherwise keep each other from
//! sending:
//!
//! ```text
//!   sent ─▶ is there a reply? (polls for up to 40 µs, unless recent replies took over 80 µs, ── yes ──▶ continue
//!                    │         or the waiting thread has changed, now or in the last 20 ms)
//!                    └── no ──▶ release the lock, wait, take the lock ──▶ handle signals ──▶ continue
//! ```

use larder_client::{Interrupted, WaitCondition, Waiter};
use pyo3::prelude::*;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// The maximum time that a thread polls before it releases the lock.
const SPIN: Duration = Duration::from_micros(40);
/// The mean response time above which threads release the lock at once.
const SLOW: Duration = Duration::from_micros(80);
/// How long a thread waits without the lock before it handles signals. A signal that arrives just
/// before a wait, or during a wait for another thread, does not end the wait.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(100);

thread_local! {
    /// The exception that a signal handler has raised during a wait of this thread.
    static RAISED: Cell<Option<PyErr>> = const { Cell::new(None) };
}

/// Removes and returns the exception that a signal handler has raised during a wait of this thread.
/// Returns `None` if no handler has raised an exception.
pub(crate) fn raised() -> Option<PyErr> {
    RAISED.take()
}

/// If two threads wait within this time, their waits count as concurrent. This time exceeds the
/// 5 ms after which a computing thread must release the lock to a waiting thread.
const TOGETHER: Duration = Duration::from_millis(20);

/// A client's waiter, with statistics about recent waits.
#[derive(Debug, Default)]
pub(crate) struct Gil {
    /// A moving average of recent response times, in nanoseconds.
    recent: AtomicU64,
    last: Mutex<Option<Last>>,
}

/// The thread that waited last.
#[derive(Debug)]
struct Last {
    thread: ThreadId,
    /// The time at which this thread replaced another thread as the last thread to wait. `None` if
    /// no other thread had waited before.
    replaced_at: Option<Instant>,
}

impl Gil {
    /// Records a wait of this thread. Returns false if the previous wait was in another thread, or
    /// if the last such change of threads was within [`TOGETHER`].
    fn is_alone(&self, now: Instant) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let thread = thread::current().id();
        match &mut *last {
            Some(Last { thread: same, replaced_at }) if *same == thread => {
                replaced_at.is_none_or(|at| now.saturating_duration_since(at) > TOGETHER)
            }
            before => {
                let replaced_at = before.is_some().then_some(now);
                *before = Some(Last { thread, replaced_at });
                replaced_at.is_none()
            }
        }
    }

    fn note(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).min(1 << 40);
        // A concurrent update may be lost, which has little effect on an average.
        let recent = self.recent.load(Ordering::Relaxed);
        self.recent.store(recent - recent / 8 + nanos / 8, Ordering::Relaxed);
    }

    fn spins(&self) -> bool {
        Duration::from_nanos(self.recent.load(Ordering::Relaxed)) <= SLOW
    }
}

impl Waiter for Gil {
    fn wait(&self, waiting: &mut WaitCondition<'_>, time: Duration) -> Result<(), Interrupted> {
        let start_time = Instant::now();
        let is_for_socket = waiting.socket().is_some();
        if is_for_socket && self.is_alone(start_time) && self.spins() {
            while start_time.elapsed() < SPIN.min(time) {
                if waiting.poll(Duration::ZERO) {
                    self.note(start_time.elapsed());
                    return Ok(());
                }
            }
        }
        let wait_max = time.min(SIGNAL_CHECK_INTERVAL);
        Python::attach(|py| {
            py.detach(|| {
                let is_over = waiting.poll(wait_max.saturating_sub(start_time.elapsed()));
                if is_for_socket && is_over {
                    self.note(start_time.elapsed());
                }
            });
            py.check_signals()
        })
        .map_err(|error| {
            RAISED.set(Some(error));
            Interrupted
        })
    }
}
