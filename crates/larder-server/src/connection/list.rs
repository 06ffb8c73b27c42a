//! The connections that are open, how many there were, and what each shows of itself to other
//! threads.

use crate::connection::holdings::Holdings;
use larder_session::State;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The open connections, and counts of them.
#[derive(Debug, Default)]
pub struct Connections {
    /// The number of connections that are open.
    pub current: AtomicUsize,
    /// The number that were accepted since the start.
    pub total: AtomicU64,
    /// Refused, because there were as many as `-c` allows.
    pub rejected: AtomicU64,
    /// Closed by `-o idle_timeout`.
    pub idle_kicks: AtomicU64,
    /// The open connections by their numbers.
    open: Mutex<BTreeMap<u64, Arc<ConnectionInfo>>>,
    /// The highest number that was assigned. Listeners have the first ones.
    last_id: AtomicU64,
    /// Bytes of memory that all connections hold together.
    held: AtomicUsize,
}

impl Connections {
    /// Reserves the numbers from 1 to `last` for listeners.
    pub(crate) fn reserve_ids(&self, last: u64) {
        self.last_id.fetch_max(last, Relaxed);
    }

    /// A number for a new connection.
    pub(crate) fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Relaxed) + 1
    }

    /// The open connections by their numbers, locked.
    pub(crate) fn open(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<ConnectionInfo>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of memory that all connections hold together.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// Counts a change of the memory that connections hold; returns what they hold together afterwards.
    pub fn count_held(&self, change: isize) -> usize {
        let before = self.held.fetch_add(change.cast_unsigned(), Relaxed);
        before.wrapping_add_signed(change)
    }

    /// Sets the counts to 0 (`stats reset`).
    pub(crate) fn reset(&self) {
        for count in [&self.total, &self.rejected, &self.idle_kicks] {
            count.store(0, Relaxed);
        }
    }
}

/// [`ConnectionInfo`]'s state while its requests are answered.
const AT_WORK: u8 = 5;
/// The state before any input.
const NEW: u8 = 6;
/// The state while a request waits for slower storage, or answers for an acknowledgement.
const IO_QUEUE: u8 = 7;

/// What `stats conns` shows of a connection.
#[derive(Debug)]
pub struct ConnectionInfo {
    /// memcached shows the file descriptor here.
    pub id: u64,
    /// The peer, in memcached's form.
    pub peer: String,
    /// The listener that accepted it, in memcached's form.
    pub listener: String,
    state: AtomicU8,
    last_command: AtomicU32,
    /// Why it ended, in memcached's words, unless its peer closed it.
    ended: OnceLock<&'static str>,
    /// The memory that it holds, from which load shedding chooses connections to close.
    pub(crate) holdings: Holdings,
}

impl ConnectionInfo {
    /// A connection that was just accepted.
    #[must_use]
    pub fn new(id: u64, peer: String, listener: String, now: u32) -> Self {
        let (state, last_command) = (AtomicU8::new(NEW), AtomicU32::new(now));
        let (ended, holdings) = (OnceLock::new(), Holdings::default());
        Self { id, peer, listener, state, last_command, ended, holdings }
    }

    /// memcached's name for its state.
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

    /// Notes that it has a turn: a client that asks for `stats conns` sees itself in this state.
    pub(crate) fn note_turn(&self) {
        self.state.store(AT_WORK, Relaxed);
    }

    /// When it was last served, Unix seconds.
    pub fn last_command(&self) -> u32 {
        self.last_command.load(Relaxed)
    }

    pub(crate) fn note_failure(&self) {
        self.note_end("error");
    }

    /// Notes why it ends. Only the first reason is kept.
    pub(crate) fn note_end(&self, reason: &'static str) {
        let _ = self.ended.set(reason);
    }

    /// Why it ended, unless its peer closed it.
    pub(crate) fn ended(&self) -> Option<&'static str> {
        self.ended.get().copied()
    }

    /// Whether it came over a unix socket.
    pub(crate) fn is_local(&self) -> bool {
        self.peer.starts_with("unix:")
    }

    /// Shows its state to other threads.
    pub(crate) fn publish(&self, state: State, now: u32) {
        let state = match state {
            State::Waiting => 0,
            State::Receiving => 1,
            State::Swallowing => 2,
            State::Sending => 3,
            State::Dumping | State::Watching => 4,
            State::Fetching => IO_QUEUE,
        };
        if self.state.load(Relaxed) != state {
            self.state.store(state, Relaxed);
        }
        if self.last_command.load(Relaxed) != now {
            self.last_command.store(now, Relaxed);
        }
    }
}
