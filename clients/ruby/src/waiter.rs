//! Waits for replies. A thread first polls for up to 40 µs while it holds the GVL, because
//! reacquiring the GVL may take a long time. Then it waits without the GVL.

use crate::gvl::{self, Pending};
use larder_client::{Interrupted, Readiness, WaitCondition, Waiter};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The maximum time that a thread polls while it holds the GVL.
const SPIN: Duration = Duration::from_micros(40);

/// If the mean response time in microseconds exceeds this limit, threads poll in only one of every
/// [`PROBE`] waits.
const SLOW_MICROS: u32 = 80;

/// While replies are slow, a thread polls once in this many waits, to detect faster replies. A wait
/// without polling cannot detect faster replies, because it lasts until the thread has reacquired
/// the GVL.
const PROBE: u32 = 16;

/// The interval at which a waiting fiber checks whether another fiber has returned a connection.
const FIBER_PAUSE: Duration = Duration::from_millis(1);

/// A waiter that waits like Ruby's own I/O: other threads or fibers run during the wait, and an
/// interrupt ends the wait.
#[derive(Debug, Default)]
pub(crate) struct RubyWaiter {
    /// A moving average of response times, in microseconds.
    average: AtomicU32,
    waits: AtomicU32,
}

impl Waiter for RubyWaiter {
    fn wait(&self, waiting: &mut WaitCondition<'_>, time: Duration) -> Result<(), Interrupted> {
        if gvl::is_pending() {
            return Err(Interrupted);
        }
        if waiting.socket().is_none() {
            return wait_for_thread(waiting, time).map_err(|Pending| Interrupted);
        }
        let begun = Instant::now();
        let is_timed = self.spins();
        let spin = if is_timed { SPIN } else { Duration::ZERO };
        loop {
            if waiting.poll(Duration::ZERO) {
                self.note(begun.elapsed());
                return Ok(());
            }
            if begun.elapsed() >= spin {
                break;
            }
        }
        if let Some((fd, readiness)) = waiting.socket() {
            let events = match readiness {
                Readiness::Read => gvl::READ,
                Readiness::Write => gvl::WRITE,
                Readiness::Both => gvl::READ | gvl::WRITE,
            };
            gvl::wait_for(fd, events, time).map_err(|Pending| Interrupted)?;
        }
        if is_timed {
            self.note(begun.elapsed());
        }
        waiting.poll(Duration::ZERO);
        Ok(())
    }
}

impl RubyWaiter {
    fn spins(&self) -> bool {
        let is_probe = self.waits.fetch_add(1, Ordering::Relaxed).is_multiple_of(PROBE);
        is_probe || self.average.load(Ordering::Relaxed) <= SLOW_MICROS
    }

    /// Updates the average. The new time has a weight of a quarter, so two or three slow replies in
    /// a row stop the polling, and three or four fast replies in timed waits restart it. A
    /// concurrent update may be lost.
    fn note(&self, time: Duration) {
        let time = time.as_micros().min(u128::from(2 * SLOW_MICROS));
        let time = u32::try_from(time).unwrap_or(u32::MAX);
        let average = self.average.load(Ordering::Relaxed);
        self.average.store((3 * average).saturating_add(time) / 4, Ordering::Relaxed);
    }
}

/// Waits for another thread, or another fiber of this thread, to return a connection to the pool or
/// to deliver a reply.
fn wait_for_thread(waiting: &mut WaitCondition<'_>, time: Duration) -> Result<(), Pending> {
    if gvl::let_fibers_run(FIBER_PAUSE.min(time))? {
        waiting.poll(Duration::ZERO);
        return Ok(());
    }
    gvl::without(|| {
        waiting.poll(time);
    })
}
