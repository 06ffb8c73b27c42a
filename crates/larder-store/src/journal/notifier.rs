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
pub struct Notifier {
    waiting: AtomicUsize,
    paused: AtomicUsize,
    /// How often it has wakeups for all.
    generation: AtomicU64,
    /// How often it has wakeups for somebody.
    wakeups: Mutex<u64>,
    on_wait: Condvar,
    on_pause: Condvar,
}

impl Notifier {
    /// Wakes all that wait or rest. What was written before is seen by them.
    pub fn notify(&self) {
        // What was written before is seen by whoever reads it.
        self.generation.fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
        let waiting = self.waiting.load(Ordering::Relaxed) + self.paused.load(Ordering::Relaxed);
        if waiting > 0 {
            *self.wakeups.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            self.on_wait.notify_all();
            self.on_pause.notify_all();
        }
    }

    /// Wakes all that wait, for something that is in no hurry: those that rest see it when they have result.
    pub fn notify_waiting(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            *self.wakeups.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            self.on_wait.notify_all();
        }
    }

    /// How often it has wakeups for all, also those that rest. See [`Notifier::pause`].
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Rests for this time, or until it rings for all. `seen` is what [`Notifier::generation`] said before the caller last
    /// looked for something to do.
    pub fn pause(&self, time: Duration, seen: u64) {
        let wakeups = self.wakeups.lock().unwrap_or_else(PoisonError::into_inner);
        self.paused.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // Whoever rings after this look wakes it.
        let is_unchanged = |_: &mut u64| self.generation.load(Ordering::Relaxed) == seen;
        let result = self.on_pause.wait_timeout_while(wakeups, time, is_unchanged);
        self.paused.fetch_sub(1, Ordering::Relaxed);
        drop(result);
    }

    /// Waits until it rings, unless `has_more` says that there is something to do, and for no longer than
    /// `timeout`; false if that has passed.
    pub fn wait(&self, timeout: Duration, has_more: impl FnOnce() -> bool) -> bool {
        let mut wakeups = self.wakeups.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *wakeups;
        self.waiting.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // Whoever writes after this look rings.
        let mut is_in_time = true;
        if !has_more() {
            let is_unchanged = |wakeups: &mut u64| *wakeups == before;
            let waited = self.on_wait.wait_timeout_while(wakeups, timeout, is_unchanged);
            let (lock, result) = waited.unwrap_or_else(PoisonError::into_inner);
            (wakeups, is_in_time) = (lock, !result.timed_out());
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        drop(wakeups);
        is_in_time
    }
}

impl Wake for Notifier {
    fn wake(self: Arc<Self>) {
        self.notify();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn whoever_waits_is_woken_by_each_write() {
        const WRITES: u64 = 20_000;
        let (notifier, written) = (Notifier::default(), AtomicU64::new(0));
        let seen = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while seen.load(Ordering::Acquire) < WRITES {
                    let last = seen.load(Ordering::Relaxed);
                    let has_more = || written.load(Ordering::Relaxed) > last;
                    assert!(notifier.wait(Duration::from_secs(60), has_more), "a ring was lost");
                    seen.store(written.load(Ordering::Acquire), Ordering::Release);
                }
            });
            for number in 1..=WRITES {
                written.store(number, Ordering::Release);
                notifier.notify();
                while number % 64 == 0 && seen.load(Ordering::Acquire) < number {
                    std::hint::spin_loop();
                }
            }
        });
    }
    #[test]
    fn whoever_rests_is_woken_by_what_is_in_a_hurry_alone() {
        const LONG: Duration = Duration::from_secs(3600);
        let notifier = Notifier::default();
        std::thread::scope(|scope| {
            let paused = scope.spawn(|| notifier.pause(LONG, 0));
            while notifier.paused.load(Ordering::Relaxed) == 0 {
                std::hint::spin_loop();
            }
            (0..1_000).for_each(|_| notifier.notify_waiting());
            assert!(!paused.is_finished());
            assert_eq!(notifier.generation(), 0, "what it looks at when it is woken");
            notifier.notify();
        });
        // It has wakeups since the caller looked.
        let seen = notifier.generation();
        notifier.notify();
        notifier.pause(LONG, seen);
        for _ in 0..1_000 {
            let seen = notifier.generation();
            std::thread::scope(|scope| {
                scope.spawn(|| notifier.pause(LONG, seen));
                notifier.notify();
            });
        }
    }
}
