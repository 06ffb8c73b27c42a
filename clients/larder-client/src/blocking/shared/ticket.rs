//! A call that waits: what has come to its caller, and which threads have to be woken.

use crate::blocking::stream::ReadTimeout;
use crate::core::shared::Answered;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};

/// The right to read, with what is needed for it.
#[derive(Debug, Default)]
pub(super) struct Reader {
    pub(super) bytes: Box<[u8]>,
    pub(super) timeout: ReadTimeout,
    /// Whether the same thread has the right already: its [`Waiter`](crate::Waiter) has run something that makes a call, as
    /// the handler of a signal.
    pub(super) is_nested: bool,
}

/// A call.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) thread: Thread,
    /// It is changed while the connection's state is locked, except that the caller takes what has come.
    state: Mutex<TicketState>,
}

#[derive(Debug)]
pub(super) enum TicketState {
    /// The caller does something else, or reads.
    Awake,
    /// The caller waits.
    Waiting,
    /// The caller has to take this.
    Came(Came),
    /// Nobody wants the reply.
    GivenUp,
}

/// What comes to a caller.
#[derive(Debug)]
pub(super) enum Came {
    Answer(Answered),
    /// The right to read.
    Reader(Reader),
}

/// Those who have to be woken, once no lock is held.
#[derive(Debug, Default)]
pub(super) struct Woken(Vec<Arc<Ticket>>);

impl Ticket {
    pub(super) fn new() -> Self {
        Self { thread: thread::current(), state: Mutex::new(TicketState::Awake) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, TicketState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has come.
    pub(super) fn take(&self) -> Option<Came> {
        let mut state = self.lock();
        match mem::replace(&mut *state, TicketState::Awake) {
            TicketState::Came(came) => Some(came),
            other => {
                *state = other;
                None
            }
        }
    }

    /// The right to read, if it has come. The caller goes on waiting.
    pub(super) fn give_back(&self) -> Option<Reader> {
        let mut state = self.lock();
        match mem::replace(&mut *state, TicketState::Waiting) {
            TicketState::Came(Came::Reader(reader)) => Some(reader),
            other => {
                *state = other;
                None
            }
        }
    }

    pub(super) fn has_come(&self) -> bool {
        matches!(*self.lock(), TicketState::Came(_))
    }

    pub(super) fn is_waiting(&self) -> bool {
        matches!(*self.lock(), TicketState::Waiting)
    }

    pub(super) fn is_given_up(&self) -> bool {
        matches!(*self.lock(), TicketState::GivenUp)
    }
}

impl Woken {
    /// Gives something to a caller, unless he has given up.
    pub(super) fn give(&mut self, ticket: Arc<Ticket>, what: Came) {
        let before = {
            let mut state = ticket.lock();
            if let TicketState::GivenUp = *state {
                return;
            }
            mem::replace(&mut *state, TicketState::Came(what))
        };
        if let TicketState::Waiting = before {
            self.0.push(ticket);
        }
    }

    pub(super) fn unpark(self) {
        self.0.iter().for_each(|ticket| ticket.thread.unpark());
    }
}
