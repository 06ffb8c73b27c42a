//! Makes a thread or a task the maker of a value, or waits for the current maker.

use super::table::{self, Flight, Id, Name, lock, stack};
use bytes::Bytes;
use std::future::poll_fn;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};

/// The result of [`join`] and [`join_in_task`].
pub(crate) enum JoinOutcome {
    /// The caller makes the value.
    Maker(MakerGuard),
    /// Another maker has made the value.
    Value(Bytes),
    /// Another maker has failed, and the caller has to join again.
    Failed,
}

/// Makes the caller the maker of a value, or blocks the thread until the current maker ends. If
/// that maker waits for the caller, waiting would cause a deadlock, so the caller becomes an
/// additional maker.
pub(crate) fn join(cache: u64, key: &[u8]) -> JoinOutcome {
    let flight = match start(cache, key) {
        Start::Maker(guard) => return JoinOutcome::Maker(guard),
        Start::Wait(flight) => flight,
    };
    let (makers, mut table) = (stack(), lock());
    if table.depends_on(&flight, &makers) {
        return JoinOutcome::Maker(MakerGuard::unregistered());
    }
    table.link(&makers, &flight);
    while flight.outcome.get().is_none() {
        table = flight.ended.wait(table).unwrap_or_else(PoisonError::into_inner);
    }
    table.unlink(&makers, &flight);
    drop(table);
    JoinOutcome::of(flight.outcome.get().cloned().flatten())
}

/// Does the same as [`join`] for a task, which waits without blocking its thread.
pub(crate) async fn join_in_task(cache: u64, key: &[u8]) -> JoinOutcome {
    let flight = match start(cache, key) {
        Start::Maker(guard) => return JoinOutcome::Maker(guard),
        Start::Wait(flight) => flight,
    };
    let mut wait = TaskWait { id: lock().next_id(), flight, makers: Vec::new() };
    poll_fn(|cx| wait.poll(cx)).await
}

enum Start {
    Maker(MakerGuard),
    Wait(Arc<Flight>),
}

/// Makes the caller the maker of a value, unless there is a maker already.
fn start(cache: u64, key: &[u8]) -> Start {
    let name: Name = (cache, key.into());
    let mut table = lock();
    if let Some(flight) = table.flight(&name) {
        return Start::Wait(flight);
    }
    let flight = table.start(name.clone());
    Start::Maker(MakerGuard { registered: Some((name, flight)) })
}

impl JoinOutcome {
    fn of(outcome: Option<Bytes>) -> Self {
        outcome.map_or(Self::Failed, Self::Value)
    }
}

/// A task that waits for a value. Dropping it ends the wait.
struct TaskWait {
    id: Id,
    flight: Arc<Flight>,
    /// The makers on the stack at the last poll. There is an edge from each of these makers to
    /// `flight`.
    makers: Vec<Id>,
}

impl TaskWait {
    fn poll(&mut self, cx: &Context<'_>) -> Poll<JoinOutcome> {
        let (makers, waker) = (stack(), cx.waker().clone());
        let mut table = lock();
        if let Some(outcome) = self.flight.outcome.get() {
            return Poll::Ready(JoinOutcome::of(outcome.clone()));
        }
        if makers != self.makers {
            table.unlink(&self.makers, &self.flight);
            self.makers.clear();
            if table.depends_on(&self.flight, &makers) {
                return Poll::Ready(JoinOutcome::Maker(MakerGuard::unregistered()));
            }
            table.link(&makers, &self.flight);
            self.makers = makers;
        }
        let previous = table.set_waker(self.flight.id, self.id, waker);
        drop(table);
        drop(previous);
        Poll::Pending
    }
}

impl Drop for TaskWait {
    fn drop(&mut self) {
        let mut table = lock();
        table.unlink(&self.makers, &self.flight);
        let waker = table.remove_waker(self.flight.id, self.id);
        drop(table);
        drop(waker);
    }
}

/// The right to make a value. If it is dropped before [`MakerGuard::finish`], the maker has failed.
pub(crate) struct MakerGuard {
    /// The name and flight in the table; `None` if the caller makes a value because waiting for the
    /// current maker would cause a deadlock.
    registered: Option<(Name, Arc<Flight>)>,
}

impl MakerGuard {
    fn unregistered() -> Self {
        Self { registered: None }
    }

    /// Runs code of the maker. Calls of [`join`] and [`join_in_task`] in `f` do not wait for a
    /// maker that depends on this one.
    pub(crate) fn run<R>(&self, f: impl FnOnce() -> R) -> R {
        match &self.registered {
            Some((_, flight)) => table::on_stack(flight, f),
            None => f(),
        }
    }

    /// Passes the value to all threads and tasks that wait for this maker.
    pub(crate) fn finish(mut self, value: &Bytes) {
        self.end(Some(value.clone()));
    }

    fn end(&mut self, outcome: Option<Bytes>) {
        let Some((name, flight)) = self.registered.take() else { return };
        let wakers = lock().end(&name, &flight, outcome);
        wakers.for_each(std::task::Waker::wake);
    }
}

impl Drop for MakerGuard {
    fn drop(&mut self) {
        self.end(None);
    }
}
