//! What a thread does with the interpreter's lock (the GIL) while it waits for a server.
//!
//! A thread that releases the lock can wait up to 5 ms to get it back, and a server nearby answers within a few tens of
//! microseconds. So a thread that uses the client alone keeps the lock for a moment, and releases it when the answer takes
//! longer. Threads that use it at the same time would keep each other from asking, so they release it at once:
//!
//! ```text
//!   sent ─▶ is it answered? (up to 40 µs, unless recent answers took over 80 µs ── yes ──▶ goes on, with the lock
//!                    │       or another thread has waited in the last 20 ms)
//!                    └── no ──▶ releases the lock, waits, takes the lock ──▶ handles signals ──▶ goes on
//! ```

use larder_client::{Interrupted, Waiter, WaitCondition};
use pyo3::prelude::*;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// How long a thread looks for an answer before it releases the lock.
const SPIN: Duration = Duration::from_micros(40);
/// The lock is released at once while recent answers took longer than this.
const SLOW: Duration = Duration::from_micros(80);
/// After this time without the lock, a thread handles signals: one that came just before it began to wait, or while it
/// waits for another thread, does not wake it.
const SLICE: Duration = Duration::from_millis(100);

thread_local! {
    /// What a signal handler has raised while this thread waited.
    static RAISED: Cell<Option<PyErr>> = const { Cell::new(None) };
}

/// What a signal handler has raised in a call that ended as interrupted.
pub(crate) fn raised() -> Option<PyErr> {
    RAISED.take()
}

/// Threads use the client at the same time if another one has waited within this time: threads that compute give each
/// other the lock every 5 ms.
const TOGETHER: Duration = Duration::from_millis(20);

/// What is known of the waits of a client.
#[derive(Debug, Default)]
pub(crate) struct Gil {
    /// How long recent answers took: a moving average, in nanoseconds.
    recent: AtomicU64,
    last: Mutex<Option<Last>>,
}

/// The last wait.
#[derive(Debug)]
struct Last {
    thread: ThreadId,
    /// When another thread waited.
    other: Option<Instant>,
}

impl Gil {
    /// Whether this thread alone has waited lately.
    fn is_alone(&self, now: Instant) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let thread = thread::current().id();
        match &mut *last {
            Some(Last { thread: same, other }) if *same == thread => {
                other.is_none_or(|at| now.saturating_duration_since(at) > TOGETHER)
            }
            before => {
                let other = before.is_some().then_some(now);
                *before = Some(Last { thread, other });
                other.is_none()
            }
        }
    }

    fn note(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).min(1 << 40);
        // Of two threads that note something at the same time, one may be forgotten.
        let recent = self.recent.load(Ordering::Relaxed);
        self.recent.store(recent - recent / 8 + nanos / 8, Ordering::Relaxed);
    }

    fn spins(&self) -> bool {
        Duration::from_nanos(self.recent.load(Ordering::Relaxed)) <= SLOW
    }
}

impl Waiter for Gil {
    fn wait(&self, waiting: &mut WaitCondition<'_>, time: Duration) -> Result<(), Interrupted> {
        let begun = Instant::now();
        let is_for_socket = waiting.socket().is_some();
        if is_for_socket && self.is_alone(begun) && self.spins() {
            while begun.elapsed() < SPIN.min(time) {
                if waiting.poll(Duration::ZERO) {
                    self.note(begun.elapsed());
                    return Ok(());
                }
            }
        }
        let most = time.min(SLICE);
        Python::attach(|py| {
            py.detach(|| {
                let is_over = waiting.poll(most.saturating_sub(begun.elapsed()));
                if is_for_socket && is_over {
                    self.note(begun.elapsed());
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
