//! Ensures that at most one maker per key runs at a time in all threads, unless waiting for it
//! would be a deadlock.
//!
//! All caches of the process share one table of the values that are being made and of the threads
//! that wait for them. `join` can therefore detect a deadlock, even between caches, before it
//! waits:
//!
//! ```text
//!   thread 1 makes a, waits for b ──▶ thread 2 makes b, wants a ──▶ thread 1: thread 2 makes a itself
//! ```

use bytes::Bytes;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};

/// The number of a cache, and a key in it.
type Name = (u64, Box<[u8]>);

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Table {
    making: HashMap<Name, Arc<Flight>>,
    /// The awaited value of each waiting thread.
    waiting: HashMap<ThreadId, Arc<Flight>>,
}

/// A value that is being made.
struct Flight {
    maker: ThreadId,
    ended: Condvar,
    /// The value, or `None` if the maker has failed. The cell is empty until the maker ends.
    outcome: OnceLock<Option<Bytes>>,
}

/// The result of [`join`].
pub(crate) enum JoinOutcome {
    /// The caller makes the value.
    Maker(MakerGuard),
    /// Another thread has made the value.
    Value(Bytes),
    /// Another thread's maker has failed, and the caller has to join again.
    Failed,
}

/// Makes the caller the maker of a value, or waits until the current maker ends. If that maker
/// waits for the caller, the caller becomes a further maker.
pub(crate) fn join(cache: u64, key: &[u8]) -> JoinOutcome {
    let me = thread::current().id();
    let name: Name = (cache, key.into());
    let mut table = lock();
    let Some(flight) = table.making.get(&name).cloned() else {
        let flight =
            Arc::new(Flight { maker: me, ended: Condvar::new(), outcome: OnceLock::new() });
        table.making.insert(name.clone(), Arc::clone(&flight));
        return JoinOutcome::Maker(MakerGuard { registered: Some((name, flight)) });
    };
    if table.waits_for(&flight, me) {
        return JoinOutcome::Maker(MakerGuard { registered: None });
    }
    table.waiting.insert(me, Arc::clone(&flight));
    while flight.outcome.get().is_none() {
        table = flight.ended.wait(table).unwrap_or_else(PoisonError::into_inner);
    }
    table.waiting.remove(&me);
    flight.outcome.get().cloned().flatten().map_or(JoinOutcome::Failed, JoinOutcome::Value)
}

fn lock() -> MutexGuard<'static, Table> {
    // No code panics while it holds the lock.
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Table {
    /// Returns whether the end of `flight` depends, perhaps through other threads, on `thread`.
    fn waits_for(&self, flight: &Arc<Flight>, thread: ThreadId) -> bool {
        let mut next = Some(flight);
        while let Some(flight) = next.filter(|flight| flight.outcome.get().is_none()) {
            if flight.maker == thread {
                return true;
            }
            next = self.waiting.get(&flight.maker);
        }
        false
    }
}

/// The right to make a value. If it is dropped before [`MakerGuard::finish`], the maker has failed.
pub(crate) struct MakerGuard {
    /// The name and flight in the table; `None` if the thread makes a value because waiting for the
    /// current maker would be a deadlock.
    registered: Option<(Name, Arc<Flight>)>,
}

impl MakerGuard {
    /// Passes the value to all threads that wait for this maker.
    pub(crate) fn finish(mut self, value: &Bytes) {
        self.end(Some(value.clone()));
    }

    fn end(&mut self, outcome: Option<Bytes>) {
        let Some((name, flight)) = self.registered.take() else { return };
        let mut table = lock();
        table.making.remove(&name);
        // The outcome is still empty, because a flight ends only once.
        let _ = flight.outcome.set(outcome);
        flight.ended.notify_all();
    }
}

impl Drop for MakerGuard {
    fn drop(&mut self) {
        self.end(None);
    }
}
