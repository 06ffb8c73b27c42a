//! The state of a shared connection: the calls under way, the right to read, and when the server answered last.

use super::ticket::{Reader, Ticket};
use crate::blocking::stream::Stream;
use crate::core::shared::{Exchange, Pace, Queue, SILENCE_MAX};
use crate::metrics::OpenConnection;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Instant;

#[derive(Debug)]
pub(super) struct State {
    pub(super) queue: Queue<Arc<Ticket>>,
    pub(super) exchange: Exchange<Arc<Ticket>>,
    pub(super) stream: Stream,
    pub(super) open: OpenConnection,
    /// `None` while a thread reads.
    pub(super) reader: Option<Reader>,
    /// Who reads, or is to read next.
    pub(super) reading: Option<ThreadId>,
    /// When a call was answered last; if there was none under way then, when the next one came.
    pub(super) answered: Instant,
    /// When something was sent while no call was under way, until the answer comes.
    pub(super) asked: Option<Instant>,
    pub(super) pace: Pace,
}

impl State {
    /// Adds bytes that were received.
    pub(super) fn append(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = self.exchange.room();
            let len = room.len().min(bytes.len());
            let (now, later) = bytes.split_at(len);
            room.get_mut(..len).unwrap_or_default().copy_from_slice(now);
            self.exchange.received(len);
            bytes = later;
        }
    }

    /// The right to read, if it has come to a call of this thread that has not taken it yet. It would be lost with the answer
    /// to that call.
    pub(super) fn take_from(&self, thread: ThreadId) -> Option<Reader> {
        let mut tickets = self.exchange.tickets().chain(self.queue.tickets());
        tickets
            .find_map(|ticket| if ticket.thread.id() == thread { ticket.give_back() } else { None })
    }

    /// Whether calls are under way, and nobody wants their replies.
    pub(super) fn is_unwanted(&self) -> bool {
        !self.exchange.is_idle()
            && self.queue.is_empty()
            && self.exchange.tickets().all(|ticket| ticket.is_given_up())
    }

    /// Whether a caller has given up, and nobody else was answered for long.
    pub(super) fn is_silent(&self) -> bool {
        !self.exchange.is_idle()
            && self.answered.elapsed() >= SILENCE_MAX
            && self.exchange.tickets().any(|ticket| ticket.is_given_up())
    }
}
