//! A shared connection: sending, the read permit, and the delivery of replies.

use super::state::State;
use super::ticket::{Delivery, ReadPermit, Ticket, TicketState, WakeList};
use crate::blocking::link::LATE_MAX;
use crate::blocking::stream::NewConnection;
use crate::blocking::wait::Wait;
use crate::core::operation::Operation;
use crate::core::outcome::FailedCall;
use crate::core::shared::{
    CallReplies, Exchange, LostCall, MinLatency, Queue, SILENCE_MAX, fail_all, output,
};
use crate::error::ErrorKind;
use crate::metrics::CloseReason;
use crate::waiter::Readiness;
use socket2::Socket;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The minimum number of calls under way to a quick server at which a new request stays in the
/// queue until the next reply arrives. One write then sends the request together with other
/// requests.
const HELD_CALLS_MIN: usize = 2;

/// The length of a reader's buffer, in bytes. The reader fills the buffer without holding the lock,
/// so other threads can send at the same time.
const READ_LEN: usize = 16 << 10;

/// A connection that threads share.
#[derive(Debug)]
pub(super) struct SharedConnection {
    socket: Arc<Socket>,
    /// Whether the reader may block in a read of the socket. False with TLS or a waiter.
    may_block: bool,
    state: Mutex<State>,
    is_open: AtomicBool,
    /// Whether a reply has arrived on the connection.
    pub(super) has_answered: AtomicBool,
    /// The end of the connection's lifetime. No later call uses the connection. `None` if the
    /// lifetime is unlimited.
    expires: Option<Instant>,
    wait: Wait,
}

#[derive(Debug)]
pub(super) struct PendingCall {
    ticket: Arc<Ticket>,
    number: u64,
}

impl SharedConnection {
    pub(super) fn new((stream, expires, open): NewConnection, wait: &Wait) -> Self {
        let socket = Arc::clone(stream.socket());
        let may_block = stream.is_plain() && wait.may_block();
        let reader = ReadPermit {
            bytes: if may_block { vec![0; READ_LEN].into() } else { Box::default() },
            ..ReadPermit::default()
        };
        let state = State {
            queue: Queue::new(),
            exchange: Exchange::new(),
            stream,
            open,
            reader: Some(reader),
            reading: None,
            answered_at: Instant::now(),
            sent_at: None,
            min_latency: MinLatency::default(),
        };
        Self {
            socket,
            may_block,
            state: Mutex::new(state),
            is_open: AtomicBool::new(true),
            has_answered: AtomicBool::new(false),
            expires,
            wait: wait.clone(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // Each change leaves the state consistent, so a poisoned lock is safe to use.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_over(&self) -> bool {
        self.expires.is_some_and(|at| at <= Instant::now())
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    /// Sets the reason for closing the connection. Does nothing if the connection has already
    /// ended.
    pub(super) fn closes(&self, reason: CloseReason) {
        let mut state = self.lock();
        if self.is_open() {
            state.open.closes(reason);
        }
    }

    /// Starts a call.
    ///
    /// # Errors
    /// The connection has ended.
    pub(super) fn start<O: Operation>(&self, operation: &mut O) -> Result<PendingCall, LostCall> {
        let ticket = Arc::new(Ticket::new());
        let mut wake_list = WakeList::default();
        let number = {
            let mut state = self.lock();
            if !self.is_open() {
                // The call that ended the connection reports the reason, if it is a fault.
                return Err(LostCall::new(ErrorKind::Closed, false).echo());
            }
            if state.exchange.is_idle() && state.queue.is_empty() {
                if !state.stream.is_quiet().unwrap_or(false) {
                    // The server has closed the connection or sent unsolicited bytes. Such bytes
                    // could look like the reply.
                    self.end(&mut state, &ErrorKind::Closed, &mut wake_list);
                    return Err(LostCall::new(ErrorKind::Closed, false));
                }
                state.answered_at = Instant::now();
            }
            let call = Arc::clone(&ticket);
            let number = state.queue.push(call, |requests| operation.encode(requests));
            // The reader soon gets its own reply and then sends the queue, so one write carries
            // this request and later requests.
            let waits_for_reply = state.reader.is_none()
                && state.exchange.len() >= HELD_CALLS_MIN
                && state.min_latency.is_quick();
            if !waits_for_reply {
                self.send(&mut state, &mut wake_list);
            }
            number
        };
        wake_list.unpark();
        Ok(PendingCall { ticket, number })
    }

    /// Waits for the replies to a call, and interprets them.
    pub(super) fn finish<O: Operation>(
        &self,
        pending: Result<PendingCall, LostCall>,
        operation: &mut O,
        deadline: Instant,
    ) -> Result<O::Output, FailedCall> {
        let pending = match pending {
            Ok(pending) => pending,
            Err(lost) => return Err(lost.broken(operation.reads())),
        };
        let mut reader = None;
        let given_up = loop {
            match pending.ticket.take() {
                Some(Delivery::Answer(answered)) => {
                    self.pass_permit(reader);
                    return output(operation, answered);
                }
                Some(Delivery::ReadPermit(right)) => reader = Some(right),
                None => (),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break ErrorKind::Timeout;
            }
            if reader.is_none() {
                reader = self.read_or_wait(&pending.ticket);
            }
            let waited = match &mut reader {
                Some(reader) => self.read(reader, &pending.ticket, deadline),
                None if pending.ticket.has_delivery() => Ok(()),
                None => self.wait.park(left, || self.need_not_wait(&pending.ticket)),
            };
            if let Err(interrupted) = waited {
                break interrupted;
            }
        };
        let failed = match self.give_up(&pending, reader, given_up) {
            Ok(answered) => return output(operation, Ok(answered)),
            Err(lost) => lost.broken(operation.reads()),
        };
        // An open connection stays usable, because it drops the late reply.
        Err(FailedCall { is_usable: self.is_open(), ..failed })
    }

    /// Returns whether the caller can proceed without waiting for another thread: its ticket
    /// contains a reply or the read permit, or an outer call of the same thread has the read
    /// permit.
    fn need_not_wait(&self, ticket: &Ticket) -> bool {
        ticket.has_delivery() || self.lock().reading == Some(ticket.thread.id())
    }

    /// Returns the read permit if it is free. Also returns a permit if an outer call of the same
    /// thread has the read permit. Otherwise marks the ticket as waiting and returns `None`.
    fn read_or_wait(&self, ticket: &Ticket) -> Option<ReadPermit> {
        let mut state = self.lock();
        let reader = match state.reader.take() {
            Some(reader) => {
                state.reading = Some(ticket.thread.id());
                Some(reader)
            }
            None if state.reading == Some(ticket.thread.id()) && !ticket.has_delivery() => {
                let nested = || ReadPermit { is_nested: true, ..ReadPermit::default() };
                Some(state.take_from(ticket.thread.id()).unwrap_or_else(nested))
            }
            None => None,
        };
        let mut ticket = ticket.lock();
        if let TicketState::Awake | TicketState::Waiting = *ticket {
            let is_reader = reader.is_some();
            *ticket = if is_reader { TicketState::Awake } else { TicketState::Waiting };
        }
        reader
    }

    /// Sends the output, waits for input, reads once, and delivers the replies.
    ///
    /// # Errors
    /// The wait was interrupted, or the system reported an error during the wait. A failure of the
    /// connection is not an error of this function, because each call receives the failure in its
    /// ticket.
    fn read(
        &self,
        reader: &mut ReadPermit,
        mine: &Ticket,
        deadline: Instant,
    ) -> Result<(), ErrorKind> {
        let mut wake_list = WakeList::default();
        let has_read;
        let readiness = {
            let mut state = self.lock();
            self.send(&mut state, &mut wake_list);
            // Reads before it waits, because plaintext that TLS has already decrypted does not make
            // the socket ready.
            has_read = !self.may_block && self.read_available(&mut state, &mut wake_list);
            if state.exchange.output().is_empty() { Readiness::Read } else { Readiness::Both }
        };
        wake_list.unpark();
        if has_read || mine.has_delivery() {
            return Ok(());
        }
        let end = deadline.min(Instant::now() + SILENCE_MAX);
        let received = if self.may_block && readiness == Readiness::Read {
            let left = end.saturating_duration_since(Instant::now());
            match reader.timeout.receive(&self.socket, &mut reader.bytes, left) {
                Err(error) if matches!(error.kind(), io::ErrorKind::TimedOut) => Ok(None),
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted) => Ok(None),
                received => received.map(Some),
            }
        } else {
            let is_over = || mine.has_delivery();
            match self.wait.for_socket_unless(is_over, &self.socket, readiness, end) {
                Err(ErrorKind::Timeout) => (),
                waited => drop(waited?),
            }
            Ok(None)
        };
        let mut wake_list = WakeList::default();
        {
            let mut state = self.lock();
            match received {
                Ok(Some(0)) => self.end(&mut state, &ErrorKind::Closed, &mut wake_list),
                Ok(Some(len)) => {
                    state.append(reader.bytes.get(..len).unwrap_or_default());
                    self.deliver_replies(&mut state, &mut wake_list);
                    if len == reader.bytes.len() {
                        // The buffer is full, so the socket may have more data.
                        self.read_available(&mut state, &mut wake_list);
                    }
                }
                Ok(None) => {
                    self.read_available(&mut state, &mut wake_list);
                }
                Err(error) => self.end(&mut state, &ErrorKind::Io(Arc::new(error)), &mut wake_list),
            }
            if state.is_silent() {
                self.end(&mut state, &ErrorKind::Timeout, &mut wake_list);
            }
        }
        wake_list.unpark();
        Ok(())
    }

    /// Passes the read permit to a waiting caller.
    fn pass_permit(&self, reader: Option<ReadPermit>) {
        let Some(reader) = reader.filter(|reader| !reader.is_nested) else { return };
        let mut wake_list = WakeList::default();
        {
            let mut state = self.lock();
            // Sends first, so that the server can process the requests while the next reader wakes
            // up.
            self.send(&mut state, &mut wake_list);
            let State { queue, exchange, .. } = &*state;
            let next = exchange.tickets().chain(queue.tickets()).find(|ticket| ticket.is_waiting());
            let next = next.cloned();
            state.reading = next.as_ref().map(|ticket| ticket.thread.id());
            match next {
                Some(ticket) => wake_list.give(ticket, Delivery::ReadPermit(reader)),
                None => state.reader = Some(reader),
            }
        }
        wake_list.unpark();
    }

    /// Gives up a call with the error `kind`, unless its replies have arrived. Passes the read
    /// permit to a waiting caller.
    ///
    /// # Errors
    /// The replies have not arrived, or the connection has failed.
    fn give_up(
        &self,
        pending: &PendingCall,
        reader: Option<ReadPermit>,
        kind: ErrorKind,
    ) -> CallReplies {
        let mut wake_list = WakeList::default();
        let (given, reader) = {
            let mut state = self.lock();
            if reader.is_some() || state.reader.is_some() {
                // Read once more, because the replies may have arrived while the caller waited for
                // another server.
                let end = Instant::now() + LATE_MAX;
                while !pending.ticket.has_delivery()
                    && self.read_available(&mut state, &mut wake_list)
                    && Instant::now() < end
                {}
            }
            let (given, reader) = match pending.ticket.take() {
                Some(Delivery::Answer(answered)) => (answered, reader),
                delivery => {
                    let right = match delivery {
                        Some(Delivery::ReadPermit(right)) => Some(right),
                        _ => reader,
                    };
                    *pending.ticket.lock() = TicketState::GivenUp;
                    let is_sent = !state.queue.withdraw(pending.number);
                    (Err(LostCall::new(kind, is_sent)), right)
                }
            };
            if given.is_err() && (state.is_unwanted() || state.is_silent()) {
                self.end(&mut state, &ErrorKind::Timeout, &mut wake_list);
            }
            (given, reader)
        };
        wake_list.unpark();
        self.pass_permit(reader);
        given
    }

    /// Sends as many bytes as the socket accepts without waiting. Ends the connection after an
    /// error.
    fn send(&self, state: &mut State, wake_list: &mut WakeList) {
        if !self.is_open() {
            return;
        }
        loop {
            let was_idle = state.exchange.is_idle();
            state.exchange.take(&mut state.queue, |ticket| !ticket.is_given_up());
            if state.exchange.output().is_empty() {
                return;
            }
            if was_idle {
                state.sent_at = Some(Instant::now());
            }
            match state.stream.send(state.exchange.output()) {
                Ok(0) => return self.end(state, &ErrorKind::Closed, wake_list),
                Ok(len) => state.exchange.sent(len),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return self.end(state, &ErrorKind::Io(Arc::new(error)), wake_list),
            }
        }
    }

    /// Reads available data and delivers replies. Returns whether there was any data.
    fn read_available(&self, state: &mut State, wake_list: &mut WakeList) -> bool {
        let has_read = self.receive(state, wake_list);
        self.deliver_replies(state, wake_list);
        has_read
    }

    fn receive(&self, state: &mut State, wake_list: &mut WakeList) -> bool {
        if !self.is_open() {
            return false;
        }
        match state.stream.read_at_once(state.exchange.room()) {
            Ok(0) => self.end(state, &ErrorKind::Closed, wake_list),
            Ok(len) => {
                state.exchange.received(len);
                return true;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => (),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Err(error) => self.end(state, &ErrorKind::Io(Arc::new(error)), wake_list),
        }
        false
    }

    /// Delivers the replies that have arrived.
    fn deliver_replies(&self, state: &mut State, wake_list: &mut WakeList) {
        let mut has_answered = false;
        loop {
            match state.exchange.next() {
                Ok(Some((ticket, replies))) => {
                    has_answered = true;
                    if ticket.is_given_up() {
                        state.open.abandoned();
                    } else {
                        state.exchange.mark_reported();
                    }
                    wake_list.give(ticket, Delivery::Answer(Ok(replies)));
                }
                Ok(None) => break,
                Err(garbage) => {
                    self.end(state, &ErrorKind::Unexpected(garbage.0), wake_list);
                    break;
                }
            }
        }
        if has_answered {
            self.has_answered.store(true, Ordering::Relaxed);
            state.answered_at = Instant::now();
            if let Some(sent_at) = state.sent_at.take() {
                state.min_latency.note(state.answered_at.duration_since(sent_at));
            }
        }
    }

    /// Ends the connection: makes later calls fail, and fails all calls without a reply.
    pub(super) fn end(&self, state: &mut State, kind: &ErrorKind, wake_list: &mut WakeList) {
        self.is_open.store(false, Ordering::Relaxed);
        state.open.closes(CloseReason::of(kind));
        let mut is_echo = state.exchange.is_reported();
        for (ticket, mut lost) in fail_all(&mut state.exchange, &mut state.queue, kind) {
            lost.is_echo = is_echo;
            if ticket.is_given_up() {
                if lost.is_sent {
                    state.open.abandoned();
                }
                continue;
            }
            is_echo = true;
            wake_list.give(ticket, Delivery::Answer(Err(lost)));
        }
    }
}
