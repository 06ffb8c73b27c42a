//! Wakes those that read journals.

use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::Wake;
use std::time::Duration;

/// What readers wait at when there is nothing to read. Ringing it costs a fence and a load while nobody waits.
#[derive(Debug, Default)]
pub struct Bell {
    waiting: AtomicUsize,
    /// How often it has rung for somebody.
    rung: Mutex<u64>,
    condition: Condvar,
}

impl Bell {
    /// Wakes all that wait. What was written before is seen by them.
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            *self.rung.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            self.condition.notify_all();
        }
    }

    /// Waits until it rings, unless `has_more` says that there is something to do, and for no longer than
    /// `timeout`; false if that has passed.
    pub fn wait(&self, timeout: Duration, has_more: impl FnOnce() -> bool) -> bool {
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *rung;
        self.waiting.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // Whoever writes after this look rings.
        let mut is_in_time = true;
        if !has_more() {
            let is_silent = |rung: &mut u64| *rung == before;
            let waited = self.condition.wait_timeout_while(rung, timeout, is_silent);
            let (lock, result) = waited.unwrap_or_else(PoisonError::into_inner);
            (rung, is_in_time) = (lock, !result.timed_out());
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        drop(rung);
        is_in_time
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn whoever_waits_is_woken_by_each_write() {
        const WRITES: u64 = 20_000;
        let (bell, written) = (Bell::default(), AtomicU64::new(0));
        let seen = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while seen.load(Ordering::Acquire) < WRITES {
                    let last = seen.load(Ordering::Relaxed);
                    let has_more = || written.load(Ordering::Relaxed) > last;
                    assert!(bell.wait(Duration::from_secs(60), has_more), "a ring was lost");
                    seen.store(written.load(Ordering::Acquire), Ordering::Release);
                }
            });
            for number in 1..=WRITES {
                written.store(number, Ordering::Release);
                bell.ring();
                while number % 64 == 0 && seen.load(Ordering::Acquire) < number {
                    std::hint::spin_loop();
                }
            }
        });
    }
}
