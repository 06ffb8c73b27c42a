//! The table of the values that are being made.
//!
//! All caches of the process share one table. Each value that is being made is a *flight*, with an
//! edge to each flight that its maker waits for. Before a thread or a task waits for a flight, it
//! follows the edges from that flight. If they lead to a flight whose maker is on the stack of the
//! waiting thread or task, waiting would cause a deadlock:
//!
//! ```text
//!   maker of a, waits for b ──▶ maker of b, requests a ──▶ a waits for b: the maker of b makes a itself
//! ```
//!
//! A task's stack is the stack of the thread that polls it: each poll of a maker's future pushes
//! the maker's flight on this stack, and pops it when the poll returns.

use bytes::Bytes;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

/// The number of a cache, and a key in that cache.
pub(super) type Name = (u64, Box<[u8]>);

/// The number of a flight or a waiting task. It is unique in the process.
pub(super) type Id = u64;

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

thread_local! {
    /// The flights whose makers are on the stack of this thread, the innermost last.
    static STACK: RefCell<Vec<Id>> = const { RefCell::new(Vec::new()) };
}

#[derive(Default)]
pub(super) struct Table {
    last_id: Id,
    making: HashMap<Name, Arc<Flight>>,
    /// The edges: for each flight, the flights that its maker waits for. A list may contain the
    /// same flight several times.
    waiting: HashMap<Id, Vec<Arc<Flight>>>,
    /// For each flight, the wakers of the tasks that wait for it. The inner key identifies the
    /// wait.
    wakers: HashMap<Id, HashMap<Id, Waker>>,
}

/// A value that is being made.
pub(super) struct Flight {
    pub(super) id: Id,
    /// Notifies the threads that wait for the value.
    pub(super) ended: Condvar,
    /// The value, or `None` if the maker has failed. The cell is empty until the maker ends.
    pub(super) outcome: OnceLock<Option<Bytes>>,
}

/// Locks the table. The holder of the lock must not wake or drop a waker, because a waker may run
/// arbitrary code.
pub(super) fn lock() -> MutexGuard<'static, Table> {
    // No code panics while it holds this lock, so the lock is never poisoned.
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the flights whose makers are on the stack of this thread.
pub(super) fn stack() -> Vec<Id> {
    // While a thread exits, `STACK` may already be destroyed. In this case, no maker is on it.
    STACK.try_with(|stack| stack.borrow().clone()).unwrap_or_default()
}

/// Calls `f` with a flight added to the stack of this thread.
pub(super) fn on_stack<R>(flight: &Flight, f: impl FnOnce() -> R) -> R {
    let pushed = STACK.try_with(|stack| stack.borrow_mut().push(flight.id));
    let _pops = pushed.is_ok().then_some(StackEntry);
    f()
}

/// Removes the last flight from the stack, even if a maker panics.
struct StackEntry;

impl Drop for StackEntry {
    fn drop(&mut self) {
        let _ = STACK.try_with(|stack| stack.borrow_mut().pop());
    }
}

impl Table {
    pub(super) fn next_id(&mut self) -> Id {
        self.last_id += 1;
        self.last_id
    }

    /// Returns the flight of a value that is being made.
    pub(super) fn flight(&self, name: &Name) -> Option<Arc<Flight>> {
        self.making.get(name).cloned()
    }

    /// Adds a flight for a value that has no maker yet.
    pub(super) fn start(&mut self, name: Name) -> Arc<Flight> {
        let id = self.next_id();
        let flight = Arc::new(Flight { id, ended: Condvar::new(), outcome: OnceLock::new() });
        self.making.insert(name, Arc::clone(&flight));
        flight
    }

    /// Ends a flight. The caller wakes the returned tasks after it has released the lock.
    pub(super) fn end(
        &mut self,
        name: &Name,
        flight: &Flight,
        outcome: Option<Bytes>,
    ) -> impl Iterator<Item = Waker> + use<> {
        self.making.remove(name);
        // The outcome is still empty, because a flight ends only once.
        let _ = flight.outcome.set(outcome);
        flight.ended.notify_all();
        self.wakers.remove(&flight.id).into_iter().flat_map(HashMap::into_values)
    }

    /// Returns whether the end of `flight` depends, perhaps through other flights, on one of
    /// `makers`.
    pub(super) fn depends_on(&self, flight: &Arc<Flight>, makers: &[Id]) -> bool {
        if makers.is_empty() {
            return false;
        }
        let (mut seen, mut next) = (HashSet::new(), vec![flight]);
        while let Some(flight) = next.pop() {
            if flight.outcome.get().is_some() || !seen.insert(flight.id) {
                continue;
            }
            if makers.contains(&flight.id) {
                return true;
            }
            next.extend(self.waiting.get(&flight.id).into_iter().flatten());
        }
        false
    }

    /// Adds an edge from each of `makers` to `flight`.
    pub(super) fn link(&mut self, makers: &[Id], flight: &Arc<Flight>) {
        for maker in makers {
            self.waiting.entry(*maker).or_default().push(Arc::clone(flight));
        }
    }

    /// Removes the edges that [`Table::link`] has added.
    pub(super) fn unlink(&mut self, makers: &[Id], flight: &Arc<Flight>) {
        for maker in makers {
            let Some(awaited) = self.waiting.get_mut(maker) else { continue };
            if let Some(found) = awaited.iter().position(|other| other.id == flight.id) {
                awaited.swap_remove(found);
            }
            if awaited.is_empty() {
                self.waiting.remove(maker);
            }
        }
    }

    /// Sets the waker of a task that waits for a flight. Returns the previous waker. The caller
    /// must release the lock before it drops this waker.
    #[must_use]
    pub(super) fn set_waker(&mut self, flight: Id, wait: Id, waker: Waker) -> Option<Waker> {
        self.wakers.entry(flight).or_default().insert(wait, waker)
    }

    /// Removes the waker of a task. The caller must release the lock before it drops the waker.
    #[must_use]
    pub(super) fn remove_waker(&mut self, flight: Id, wait: Id) -> Option<Waker> {
        let wakers = self.wakers.get_mut(&flight)?;
        let waker = wakers.remove(&wait);
        if wakers.is_empty() {
            self.wakers.remove(&flight);
        }
        waker
    }
}
