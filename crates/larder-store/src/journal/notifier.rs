//! Wakes readers of journals.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::Wake;
use std::time::Duration;

/// Notifies readers of changes. Readers wait on it when there is nothing to read. While no reader
/// waits or pauses, a notification costs a fence and a few atomic accesses. In this case, a
/// notification takes no lock and makes no system call.
///
/// A reader that has just read something pauses before it waits. So while changes continue, writers
/// make no system calls to wake readers, and a reader finds more changes at a time. Network drivers
/// do the same with interrupts (Mogul and Ramakrishnan, "Eliminating receive livelock in an
/// interrupt-driven kernel", 1997).
#[derive(Debug, Default)]
pub struct Notifier {
    waiting: AtomicUsize,
    paused: AtomicUsize,
    /// The number of calls to [`Notifier::notify`].
    generation: AtomicU64,
    /// The number of notifications that found a reader to wake.
    wakeups: Mutex<u64>,
    on_wait: Condvar,
    on_pause: Condvar,
}

impl Notifier {
    /// Wakes all readers that wait or pause. They see everything that was written before this call.
    pub fn notify(&self) {
        // `Release`: a reader of the generation sees everything that was written before this call.
        self.generation.fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
        let waiting = self.waiting.load(Ordering::Relaxed) + self.paused.load(Ordering::Relaxed);
        if waiting > 0 {
            *self.wakeups.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            self.on_wait.notify_all();
            self.on_pause.notify_all();
        }
    }

    /// Wakes only waiting readers, for a change that is not urgent. Paused readers see the change
    /// after their pause.
    pub fn notify_waiting(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            *self.wakeups.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            self.on_wait.notify_all();
        }
    }

    /// Returns the number of calls to [`Notifier::notify`], for [`Notifier::pause`].
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Pauses for `time`, or until the next [`Notifier::notify`]. `seen` is the
    /// [`Notifier::generation`] that the caller read before it last checked for changes. If the
    /// generation has changed since, returns immediately.
    pub fn pause(&self, time: Duration, seen: u64) {
        let wakeups = self.wakeups.lock().unwrap_or_else(PoisonError::into_inner);
        self.paused.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // A later notification sees `paused` and wakes this thread.
        let is_unchanged = |_: &mut u64| self.generation.load(Ordering::Relaxed) == seen;
        let result = self.on_pause.wait_timeout_while(wakeups, time, is_unchanged);
        self.paused.fetch_sub(1, Ordering::Relaxed);
        drop(result);
    }

    /// Waits up to `timeout` for a notification. Does not wait if `has_more` returns true. Returns
    /// false after a timeout.
    pub fn wait(&self, timeout: Duration, has_more: impl FnOnce() -> bool) -> bool {
        let mut wakeups = self.wakeups.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *wakeups;
        self.waiting.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // A writer that writes after this check sees `waiting` and notifies.
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
    fn a_waiting_reader_is_woken_by_each_write() {
        const WRITES: u64 = 20_000;
        let (notifier, written) = (Notifier::default(), AtomicU64::new(0));
        let seen = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while seen.load(Ordering::Acquire) < WRITES {
                    let last = seen.load(Ordering::Relaxed);
                    let has_more = || written.load(Ordering::Relaxed) > last;
                    assert!(
                        notifier.wait(Duration::from_secs(60), has_more),
                        "a notification was lost"
                    );
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
    fn a_pausing_reader_is_woken_only_by_urgent_changes() {
        const LONG: Duration = Duration::from_secs(3600);
        let notifier = Notifier::default();
        std::thread::scope(|scope| {
            let paused = scope.spawn(|| notifier.pause(LONG, 0));
            while notifier.paused.load(Ordering::Relaxed) == 0 {
                std::hint::spin_loop();
            }
            (0..1_000).for_each(|_| notifier.notify_waiting());
            assert!(!paused.is_finished());
            assert_eq!(notifier.generation(), 0, "the generation that a woken reader compares");
            notifier.notify();
        });
        // A notification since the caller read the generation ends the pause immediately.
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
