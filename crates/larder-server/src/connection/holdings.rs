//! The memory that each connection holds, as other threads see it, and how much of it belongs to
//! connections that are about to be closed. `shedding.rs` chooses these.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Mutex, PoisonError};
use std::task::Waker;

/// A connection counts as active after it has read or sent this many bytes.
pub(crate) const PROGRESS_MIN: usize = 4 << 10;

/// The kinds of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Buffers,
    Leased,
    Uploaded,
}

/// What a connection holds, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// Of buffers.
    pub(crate) buffers: usize,
    /// Of the cache's memory, under a lease.
    pub(crate) leased: usize,
    /// Of the cache's memory, in an upload.
    pub(crate) uploaded: usize,
}

/// Bytes of each [`Kind`], for all threads.
#[derive(Debug, Default)]
pub(crate) struct Amounts([AtomicUsize; 3]);

impl Amounts {
    pub(crate) fn of(&self, kind: Kind) -> usize {
        self.0[kind as usize].load(Relaxed)
    }

    fn set(&self, held: Held) {
        for (amount, bytes) in self.0.iter().zip([held.buffers, held.leased, held.uploaded]) {
            amount.store(bytes, Relaxed);
        }
    }

    pub(crate) fn add(&self, other: &Self) {
        for (amount, other) in self.0.iter().zip(&other.0) {
            amount.fetch_add(other.load(Relaxed), Relaxed);
        }
    }

    pub(crate) fn subtract(&self, other: &Self) {
        for (amount, other) in self.0.iter().zip(&other.0) {
            amount.fetch_sub(other.load(Relaxed), Relaxed);
        }
    }
}

/// What a connection holds, as other threads see it.
#[derive(Debug, Default)]
pub(crate) struct Holdings {
    pub(crate) held: Amounts,
    /// What it held when it was marked. That counts as about to be freed until it is closed.
    pub(crate) leaving: Amounts,
    /// When it last read or sent something, in milliseconds of the server's clock.
    pub(crate) moved_at: AtomicU64,
    /// It is to be closed.
    pub(crate) shed: AtomicBool,
    /// Wakes its thread to check whether it is to be closed.
    waker: Mutex<Option<Waker>>,
}

impl Holdings {
    /// Shows other threads what the connection holds after a turn. `moved_at` is the time of the turn
    /// if it read or sent something.
    pub(crate) fn publish(&self, held: Held, moved_at: Option<u64>) {
        self.held.set(held);
        if let Some(at) = moved_at {
            self.moved_at.store(at, Relaxed);
        }
    }

    /// It is to be closed.
    pub(crate) fn is_shed(&self) -> bool {
        self.shed.load(SeqCst)
    }

    /// Has `waker` called once it is to be closed. The caller checks [`Self::is_shed`] afterwards.
    pub(crate) fn set_waker(&self, waker: &Waker) {
        let mut place = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        if !place.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *place = Some(waker.clone());
        }
    }

    /// Wakes its thread to close it.
    pub(crate) fn wake(&self) {
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The state of load shedding, for all threads.
#[derive(Debug, Default)]
pub(crate) struct Shedding {
    /// The memory of connections that are marked and not closed yet.
    pub(crate) leaving: Amounts,
    /// Connections that were marked, for `stats`.
    pub(crate) count: AtomicU64,
    /// The same count, never reset. It is raised before a thread is woken.
    pub(crate) marks: AtomicU64,
}
