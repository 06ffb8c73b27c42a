//! Memory accounting of connections, readable by all threads: each connection's memory, and the
//! total memory of the connections that `shedding.rs` has marked for closing.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Mutex, PoisonError};
use std::task::Waker;

/// A connection makes progress each time it has read and sent this number of bytes, counted
/// together.
pub(crate) const PROGRESS_MIN: usize = 4 << 10;

/// A kind of memory that a connection holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Buffers,
    Leased,
    Uploaded,
}

/// The memory of one connection, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldBytes {
    /// The connection's own buffers.
    pub(crate) buffers: usize,
    /// Cache memory pinned by a lease, for a value that is being sent.
    pub(crate) leased: usize,
    /// Cache memory allocated to an upload, for a value that is being received.
    pub(crate) uploaded: usize,
}

/// The number of bytes held per [`Kind`], readable by all threads.
#[derive(Debug, Default)]
pub(crate) struct AtomicHeldBytes([AtomicUsize; 3]);

impl AtomicHeldBytes {
    pub(crate) fn of(&self, kind: Kind) -> usize {
        self.0[kind as usize].load(Relaxed)
    }

    fn set(&self, held: HeldBytes) {
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

/// The memory of one connection, readable by all threads.
#[derive(Debug, Default)]
pub(crate) struct ConnectionMemory {
    pub(crate) held: AtomicHeldBytes,
    /// The memory that the connection held when load shedding marked it for closing. Until the
    /// connection closes, load shedding expects this memory to become free soon.
    pub(crate) leaving: AtomicHeldBytes,
    /// The time of the last progress, in milliseconds of the server's clock. Starting to hold
    /// memory also counts as progress.
    pub(crate) moved_at: AtomicU64,
    /// Whether load shedding has marked the connection for closing.
    pub(crate) shed: AtomicBool,
    /// Wakes the connection's thread after load shedding has marked the connection.
    waker: Mutex<Option<Waker>>,
}

impl ConnectionMemory {
    /// Publishes the memory that the connection holds after a poll. `moved_at` is the time of the
    /// poll in milliseconds of the server's clock, or `None` if the poll made no progress.
    pub(crate) fn publish(&self, held: HeldBytes, moved_at: Option<u64>) {
        self.held.set(held);
        if let Some(at) = moved_at {
            self.moved_at.store(at, Relaxed);
        }
    }

    /// Returns whether load shedding has marked the connection for closing.
    pub(crate) fn is_shed(&self) -> bool {
        self.shed.load(SeqCst)
    }

    /// Registers the waker that is called when load shedding marks the connection. The caller must
    /// check [`Self::is_shed`] afterwards, because load shedding may have marked the connection
    /// before the registration.
    pub(crate) fn set_waker(&self, waker: &Waker) {
        let mut registered = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        if !registered.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *registered = Some(waker.clone());
        }
    }

    /// Wakes the connection's thread to close the connection.
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
    /// The memory of all connections that are marked for closing and still open.
    pub(crate) leaving: AtomicHeldBytes,
    /// The number of connections marked since the last reset, for `stats`.
    pub(crate) count: AtomicU64,
    /// The number of connections marked since the start. Unlike `count`, it is never reset. It is
    /// incremented before the thread of a marked connection is woken, so that the woken thread
    /// reads the new value.
    pub(crate) marks: AtomicU64,
}
