//! The state of a shared connection: calls under way, the read permit, and the time of the last
//! reply.

use super::ticket::{ReadPermit, Ticket};
use crate::blocking::stream::Stream;
use crate::core::shared::{Exchange, MinLatency, Queue, SILENCE_MAX};
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
    /// The read permit while it is free. `None` while a thread has the permit or a ticket contains
    /// it.
    pub(super) reader: Option<ReadPermit>,
    /// The thread that has the read permit or whose ticket contains it. `None` if the permit is
    /// free.
    pub(super) reading: Option<ThreadId>,
    /// The time of the last reply, or of the first call after an idle period.
    pub(super) answered_at: Instant,
    /// The time of the first send after an idle period, for measuring the response time. `None`
    /// once a reply has arrived.
    pub(super) sent_at: Option<Instant>,
    pub(super) min_latency: MinLatency,
}

impl State {
    /// Adds received bytes.
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

    /// If the ticket of a call by `thread` contains the read permit, moves the permit out of the
    /// ticket, because the reply to that call would overwrite the permit. Otherwise returns `None`.
    pub(super) fn take_from(&self, thread: ThreadId) -> Option<ReadPermit> {
        let mut tickets = self.exchange.tickets().chain(self.queue.tickets());
        tickets
            .find_map(|ticket| if ticket.thread.id() == thread { ticket.give_back() } else { None })
    }

    /// Returns whether calls are under way, all their callers have given up, and no call is queued.
    pub(super) fn is_unwanted(&self) -> bool {
        !self.exchange.is_idle()
            && self.queue.is_empty()
            && self.exchange.tickets().all(|ticket| ticket.is_given_up())
    }

    /// Returns whether a caller has given up, and no reply has arrived for [`SILENCE_MAX`].
    pub(super) fn is_silent(&self) -> bool {
        !self.exchange.is_idle()
            && self.answered_at.elapsed() >= SILENCE_MAX
            && self.exchange.tickets().any(|ticket| ticket.is_given_up())
    }
}
