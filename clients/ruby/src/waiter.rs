//! What a thread does while it waits for an answer: for a moment it looks without releasing the GVL, because it may have
//! to wait long until it gets it back; then it waits without.

use crate::gvl::{self, Pending};
use larder_client::{Interrupted, Readiness, Waiter, WaitCondition};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a thread looks without releasing the GVL.
const SPIN: Duration = Duration::from_micros(40);

/// Nobody looks so while answers take longer than this on average.
const SLOW_MICROS: u32 = 80;

/// Of so many waits one looks all the same, to see whether answers have become faster. Other waits show nothing: they
/// last until the thread has the GVL again.
const PROBE: u32 = 16;

/// Fibers that wait for each other's connections look so often.
const FIBER_PAUSE: Duration = Duration::from_millis(1);

/// Waits as Ruby's threads do.
#[derive(Debug, Default)]
pub(crate) struct RubyWaiter {
    /// A moving average of the times that answers took, in microseconds.
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

    /// A quarter of the average is the last time, so two slow answers are enough to wait without looking, and three fast
    /// ones to look again. Threads that note at once may lose one of their times.
    fn note(&self, time: Duration) {
        let time = time.as_micros().min(u128::from(2 * SLOW_MICROS));
        let time = u32::try_from(time).unwrap_or(u32::MAX);
        let average = self.average.load(Ordering::Relaxed);
        self.average.store((3 * average).saturating_add(time) / 4, Ordering::Relaxed);
    }
}

/// Waits until another thread, or another fiber of this one, gives up its connection.
fn wait_for_thread(waiting: &mut WaitCondition<'_>, time: Duration) -> Result<(), Pending> {
    if gvl::let_fibers_run(FIBER_PAUSE.min(time))? {
        waiting.poll(Duration::ZERO);
        return Ok(());
    }
    gvl::without(|| {
        waiting.poll(time);
    })
}
