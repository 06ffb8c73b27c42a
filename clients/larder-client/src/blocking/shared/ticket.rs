//! Tickets of waiting calls: deliveries to their threads, and the list of threads to wake.

use crate::blocking::stream::ReadTimeout;
use crate::core::shared::CallReplies;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};

/// The permit to read from the connection, with the reader's buffer and the socket's current
/// timeout.
#[derive(Debug, Default)]
pub(super) struct ReadPermit {
    pub(super) bytes: Box<[u8]>,
    pub(super) timeout: ReadTimeout,
    /// Whether an outer call of the same thread has the permit. This happens if a
    /// [`Waiter`](crate::Waiter) makes a nested call, for example from a signal handler.
    pub(super) is_nested: bool,
}

/// A call's thread and state. The caller shares the ticket with the reading thread.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) thread: Thread,
    /// The state of the call. Threads change it only while they hold the lock of the connection's
    /// state, with one exception: the caller takes its delivery without that lock.
    state: Mutex<TicketState>,
}

#[derive(Debug)]
pub(super) enum TicketState {
    /// The caller does not wait, for example because it reads.
    Awake,
    /// The caller waits.
    Waiting,
    /// The delivery has arrived, but the caller has not taken it yet.
    Delivered(Delivery),
    /// The caller has given up.
    GivenUp,
}

/// A delivery to a caller.
#[derive(Debug)]
pub(super) enum Delivery {
    Answer(CallReplies),
    /// The permit to read: this caller now reads the replies of all callers.
    ReadPermit(ReadPermit),
}

/// The calls whose threads the client must unpark after it has unlocked the connection's state.
#[derive(Debug, Default)]
pub(super) struct WakeList(Vec<Arc<Ticket>>);

impl Ticket {
    pub(super) fn new() -> Self {
        Self { thread: thread::current(), state: Mutex::new(TicketState::Awake) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, TicketState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the delivery, if there is one.
    pub(super) fn take(&self) -> Option<Delivery> {
        let mut state = self.lock();
        match mem::replace(&mut *state, TicketState::Awake) {
            TicketState::Delivered(delivery) => Some(delivery),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Moves the read permit out of the ticket if the caller has not taken the permit. The caller
    /// continues to wait.
    pub(super) fn give_back(&self) -> Option<ReadPermit> {
        let mut state = self.lock();
        match mem::replace(&mut *state, TicketState::Waiting) {
            TicketState::Delivered(Delivery::ReadPermit(reader)) => Some(reader),
            other => {
                *state = other;
                None
            }
        }
    }

    pub(super) fn has_delivery(&self) -> bool {
        matches!(*self.lock(), TicketState::Delivered(_))
    }

    pub(super) fn is_waiting(&self) -> bool {
        matches!(*self.lock(), TicketState::Waiting)
    }

    pub(super) fn is_given_up(&self) -> bool {
        matches!(*self.lock(), TicketState::GivenUp)
    }
}

impl WakeList {
    /// Stores the delivery in a caller's ticket. If the caller waits, adds the ticket to the list.
    /// Does nothing if the caller has given up.
    pub(super) fn give(&mut self, ticket: Arc<Ticket>, delivery: Delivery) {
        let before = {
            let mut state = ticket.lock();
            if let TicketState::GivenUp = *state {
                return;
            }
            mem::replace(&mut *state, TicketState::Delivered(delivery))
        };
        if let TicketState::Waiting = before {
            self.0.push(ticket);
        }
    }

    pub(super) fn unpark(self) {
        self.0.iter().for_each(|ticket| ticket.thread.unpark());
    }
}
