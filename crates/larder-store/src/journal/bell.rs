//! Wakes those that read journals.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::Wake;
use std::time::Duration;

/// What readers wait at when there is nothing to read. Ringing it costs a fence and a load while nobody waits.
///
/// A reader that has just read something rests before it waits: as long as changes go on, writers then have nobody to
/// wake, which costs a system call, and the reader finds more at a time. Network drivers do the same with interrupts
/// (Mogul and Ramakrishnan, "Eliminating receive livelock in an interrupt-driven kernel", 1997).
#[derive(Debug, Default)]
pub struct Bell {
    waiting: AtomicUsize,
    resting: AtomicUsize,
    /// How often it has rung for all.
    loud: AtomicU64,
    /// How often it has rung for somebody.
    rung: Mutex<u64>,
    for_waiting: Condvar,
    for_resting: Condvar,
}

impl Bell {
    /// Wakes all that wait or rest. What was written before is seen by them.
    pub fn ring(&self) {
        // What was written before is seen by whoever reads it.
        self.loud.fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
        let waiting = self.waiting.load(Ordering::Relaxed) + self.resting.load(Ordering::Relaxed);
        if waiting > 0 {
            *self.rung.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            self.for_waiting.notify_all();
            self.for_resting.notify_all();
        }
    }

    /// Wakes all that wait, for something that is in no hurry: those that rest see it when they have rested.
    pub fn ring_softly(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            *self.rung.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            self.for_waiting.notify_all();
        }
    }

    /// How often it has rung for all, also those that rest. See [`Bell::rest`].
    #[must_use]
    pub fn rings(&self) -> u64 {
        self.loud.load(Ordering::Acquire)
    }

    /// Rests for this time, or until it rings for all. `heard` is what [`Bell::rings`] said before the caller last
    /// looked for something to do.
    pub fn rest(&self, time: Duration, heard: u64) {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        self.resting.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // Whoever rings after this look wakes it.
        let is_quiet = |_: &mut u64| self.loud.load(Ordering::Relaxed) == heard;
        let rested = self.for_resting.wait_timeout_while(rung, time, is_quiet);
        self.resting.fetch_sub(1, Ordering::Relaxed);
        drop(rested);
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
            let waited = self.for_waiting.wait_timeout_while(rung, timeout, is_silent);
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
    #[test]
    fn whoever_rests_is_woken_by_what_is_in_a_hurry_alone() {
        const LONG: Duration = Duration::from_secs(3600);
        let bell = Bell::default();
        std::thread::scope(|scope| {
            let resting = scope.spawn(|| bell.rest(LONG, 0));
            while bell.resting.load(Ordering::Relaxed) == 0 {
                std::hint::spin_loop();
            }
            (0..1_000).for_each(|_| bell.ring_softly());
            assert!(!resting.is_finished());
            assert_eq!(bell.rings(), 0, "what it looks at when it is woken");
            bell.ring();
        });
        // It has rung since the caller looked.
        let heard = bell.rings();
        bell.ring();
        bell.rest(LONG, heard);
        for _ in 0..1_000 {
            let heard = bell.rings();
            std::thread::scope(|scope| {
                scope.spawn(|| bell.rest(LONG, heard));
                bell.ring();
            });
        }
    }
}
