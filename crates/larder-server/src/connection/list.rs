//! The list of open connections, their counts, and the state that each connection publishes to
//! other threads.

use crate::connection::connection_memory::ConnectionMemory;
use larder_operations::Tracker;
use larder_session::State;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

/// The open connections and their counts.
#[derive(Debug)]
pub struct Connections {
    /// Open connections.
    pub current: AtomicUsize,
    /// Connections admitted since the start or the last `stats reset`.
    pub total: AtomicU64,
    /// Connections refused by the `-c` limit since the start or the last `stats reset`.
    pub rejected: AtomicU64,
    /// Connections closed by `-o idle_timeout` since the start or the last `stats reset`.
    pub idle_kicks: AtomicU64,
    /// The open connections by ID.
    open: Mutex<BTreeMap<u64, Arc<ConnectionInfo>>>,
    /// The highest assigned ID. Listeners have the lowest IDs.
    last_id: AtomicU64,
    /// The number of buffer bytes that all connections hold, including reservations by sessions and
    /// the gateway.
    held: AtomicUsize,
    /// The wakers of connections that wait for memory to read ahead, by connection ID.
    room_waiters: Mutex<BTreeMap<u64, Waker>>,
    /// Whether `room_waiters` contains a waker.
    is_room_awaited: AtomicBool,
    /// The items that clients cache locally, for invalidation messages (`CLIENT TRACKING`).
    pub(crate) tracker: Arc<Tracker>,
}

/// The tracker's memory limit is the memory limit of all connections divided by this number.
pub(crate) const TRACKER_SHARE: usize = 4;

/// The maximum number of connections that one call to [`Connections::offer_room`] wakes. The number
/// is small, because each woken connection may take all of the free memory.
const ROOM_WAITERS_WOKEN: usize = 16;

impl Connections {
    /// Creates an empty list. The memory limit of all connections is `len_max` bytes.
    pub(crate) fn new(len_max: usize) -> Self {
        Self {
            current: AtomicUsize::default(),
            total: AtomicU64::default(),
            rejected: AtomicU64::default(),
            idle_kicks: AtomicU64::default(),
            open: Mutex::default(),
            last_id: AtomicU64::default(),
            held: AtomicUsize::default(),
            room_waiters: Mutex::default(),
            is_room_awaited: AtomicBool::new(false),
            tracker: Arc::new(Tracker::new(len_max / TRACKER_SHARE)),
        }
    }

    /// Reserves the IDs from 1 to `last` for listeners.
    pub(crate) fn reserve_ids(&self, last: u64) {
        self.last_id.fetch_max(last, Relaxed);
    }

    /// Assigns an ID to a new connection.
    pub(crate) fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Relaxed) + 1
    }

    /// Locks the list of open connections.
    pub(crate) fn open(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<ConnectionInfo>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of buffer bytes that all connections hold, including reservations by
    /// sessions and the gateway.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// Registers a waker for the connection with this ID. A later [`Self::offer_room`] calls it.
    pub(crate) fn wait_for_room(&self, id: u64, waker: Waker) {
        self.change_room_waiters(|waiters| waiters.insert(id, waker));
    }

    /// Removes the waker of a connection that closes.
    pub(crate) fn forget_room_waiter(&self, id: u64) {
        if self.is_room_awaited() {
            self.change_room_waiters(|waiters| waiters.remove(&id));
        }
    }

    /// Returns whether connections wait for memory to read ahead.
    pub(crate) fn is_room_awaited(&self) -> bool {
        self.is_room_awaited.load(SeqCst)
    }

    /// Wakes up to `ROOM_WAITERS_WOKEN` connections that wait for memory to read ahead, oldest
    /// connection first.
    pub(crate) fn offer_room(&self) {
        let woken: Vec<Waker> = self.change_room_waiters(|waiters| {
            let first = std::iter::from_fn(|| waiters.pop_first().map(|(_, waker)| waker));
            first.take(ROOM_WAITERS_WOKEN).collect()
        });
        woken.into_iter().for_each(Waker::wake);
    }

    fn change_room_waiters<R>(&self, change: impl FnOnce(&mut BTreeMap<u64, Waker>) -> R) -> R {
        let mut waiters = self.room_waiters.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut waiters);
        self.is_room_awaited.store(!waiters.is_empty(), SeqCst);
        result
    }

    /// Adds `change` to the buffer bytes of all connections. Returns the new total.
    pub fn count_held(&self, change: isize) -> usize {
        let before = self.held.fetch_add(change.cast_unsigned(), Relaxed);
        before.wrapping_add_signed(change)
    }

    /// Sets the counts of past connections, and the tracker's count of evicted keys, to 0 (`stats
    /// reset`).
    pub(crate) fn reset(&self) {
        for count in [&self.total, &self.rejected, &self.idle_kicks] {
            count.store(0, Relaxed);
        }
        self.tracker.reset();
    }
}

/// The state while the conversation answers requests.
const AT_WORK: u8 = 5;
/// The state before any input.
const NEW: u8 = 6;
/// The state while a request waits for slower storage or for another node, or while replies wait
/// for an acknowledgement.
const IO_QUEUE: u8 = 7;

/// The part of a connection's state that other threads can read, for `stats conns` and load
/// shedding.
#[derive(Debug)]
pub struct ConnectionInfo {
    /// The ID in `stats conns`. memcached shows the file descriptor instead.
    pub id: u64,
    /// The peer's address, in memcached's format.
    pub peer: String,
    /// The listener that accepted the connection, in memcached's format.
    pub listener: String,
    state: AtomicU8,
    last_command: AtomicU32,
    /// The reason for closing the connection, in memcached's words: an error or the idle timeout.
    /// Unset while the connection is open, and after any other reason, such as `quit` or a
    /// shutdown.
    ended: OnceLock<&'static str>,
    /// The memory that the connection holds. Load shedding uses it to choose the connections to
    /// close.
    pub(crate) memory: ConnectionMemory,
}

impl ConnectionInfo {
    /// Creates the state of a newly accepted connection.
    #[must_use]
    pub fn new(id: u64, peer: String, listener: String, now: u32) -> Self {
        let (state, last_command) = (AtomicU8::new(NEW), AtomicU32::new(now));
        let (ended, memory) = (OnceLock::new(), ConnectionMemory::default());
        Self { id, peer, listener, state, last_command, ended, memory }
    }

    /// Returns memcached's name of the state.
    #[must_use]
    pub fn state(&self) -> &'static str {
        match self.state.load(Relaxed) {
            0 => "conn_read",
            1 => "conn_nread",
            2 => "conn_swallow",
            4 => "conn_watch",
            AT_WORK => "conn_parse_cmd",
            NEW => "conn_new_cmd",
            IO_QUEUE => "conn_io_queue",
            _ => "conn_mwrite",
        }
    }

    /// Records that the conversation is answering requests. A client that requests `stats conns`
    /// finds its own connection in this state.
    pub(crate) fn note_poll(&self) {
        self.state.store(AT_WORK, Relaxed);
    }

    /// Returns the time of the last poll that called the conversation, in seconds of the server's
    /// clock. Before the first such poll, returns the time at which the connection was accepted.
    pub fn last_command(&self) -> u32 {
        self.last_command.load(Relaxed)
    }

    pub(crate) fn note_failure(&self) {
        self.note_end("error");
    }

    /// Records the reason for closing the connection, unless a reason is already recorded.
    pub(crate) fn note_end(&self, reason: &'static str) {
        let _ = self.ended.set(reason);
    }

    /// Returns the recorded reason for closing the connection: an error or the idle timeout.
    /// Returns `None` for any other reason, such as `quit` or a shutdown.
    pub(crate) fn ended(&self) -> Option<&'static str> {
        self.ended.get().copied()
    }

    /// Returns whether the client uses a unix socket.
    pub(crate) fn is_local(&self) -> bool {
        self.peer.starts_with("unix:")
    }

    /// Publishes the state to other threads, and the time of the poll in seconds of the server's
    /// clock. Skips the write of an unchanged value.
    pub(crate) fn publish(&self, state: State, now: u32) {
        let state = match state {
            State::Waiting => 0,
            State::Receiving => 1,
            State::Swallowing => 2,
            State::Sending => 3,
            State::Dumping | State::Watching => 4,
            State::Blocked => IO_QUEUE,
        };
        if self.state.load(Relaxed) != state {
            self.state.store(state, Relaxed);
        }
        if self.last_command.load(Relaxed) != now {
            self.last_command.store(now, Relaxed);
        }
    }
}
