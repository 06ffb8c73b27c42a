//! Calls to one server that share a connection, for programs that do the I/O themselves. This
//! module uses no socket, no thread and no clock.
//!
//! ```text
//!   push() ─▶ queue ── poll_output() ─▶ bytes ─▶ server
//!     │         │
//!     │         └─ cancel(): nothing is sent
//!     ▼
//!   poll_answer() ◀── handle_input() ◀─ bytes ◀─ server
//! ```
//!
//! The program opens the connection when the pipeline requests it:
//!
//! ```text
//!   Closed ── start_opening() ─▶ Opening ── handle_opened() ─▶ Open
//!     ▲                             │                            │
//!     │◀──── handle_failed() ───────┘                            │
//!     └◀──── handle_lost(), or an unexpected reply ──────────────┘
//! ```
//! Unsent calls survive the loss of a connection: the pipeline sends these calls over the next
//! connection.
//!
//! The program identifies a call by a ticket of its own. The pipeline returns each ticket exactly
//! once: from [`Pipeline::push`] together with an error, from [`Pipeline::poll_answer`], or from
//! [`Pipeline::cancel`].
//!
//! ```
//! use larder_client::pipeline::{Output, Pipeline, Request};
//! use std::time::{Duration, Instant};
//!
//! let now = Instant::now();
//! let mut calls = Pipeline::new("cache:11211", Duration::from_secs(1), now);
//! calls.push("ticket", &Request::Get { key: b"key", cas: false, touch: None }, now).unwrap();
//! assert!(calls.start_opening());
//! calls.handle_opened(now);
//! let output = calls.poll_output(now, <[u8]>::to_vec);
//! assert_eq!(output.as_deref(), Some(&b"get key\r\n"[..]));
//! calls.handle_input(b"END\r\n", now);
//! let (ticket, answer) = calls.poll_answer().unwrap();
//! assert_eq!((ticket, answer.unwrap()), ("ticket", Output::Item(None)));
//! ```
//!
//! | file | contains |
//! |---|---|
//! | `mod.rs` | calls, from requests to results |
//! | `request.rs` | requests as values, and the interpretation of their replies |

mod request;

pub use request::{Output, Request};

use crate::core::outcome::{CallFailure, FailedCall, Progress};
use crate::core::servers::breaker::{AdmissionKind, Breaker};
use crate::core::shared::{Exchange, Queue};
use crate::error::{Error, ErrorKind};
use request::PendingReply;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// If a caller has given up and no reply has arrived for this time, the pipeline closes the
/// connection. While calls are under way, [`Pipeline::poll_time`] returns a time at most this far
/// ahead.
const SILENCE_MAX: Duration = Duration::from_secs(1);

/// The number of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(u64);

impl CallId {
    /// The identifier that all calls without a request share. Cancelling such a call has no effect.
    const COMPLETED: Self = Self(u64::MAX);
}

/// The calls to one server.
#[derive(Debug)]
pub struct Pipeline<T> {
    server: Arc<str>,
    timeout: Duration,
    breaker: Breaker,
    /// The latest fault of the server. `None` before the first fault.
    last_fault: Option<Arc<ErrorKind>>,
    link: LinkState,
    queue: Queue<Call<T>>,
    exchange: Exchange<Call<T>>,
    /// The time of the last reply, or of the first output after an idle period.
    answered_at: Instant,
    next_id: u64,
    answers: VecDeque<(T, Result<Output, Error>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkState {
    Closed,
    Opening,
    Open,
}

#[derive(Debug)]
struct Call<T> {
    id: CallId,
    /// The caller's ticket. `None` after the call was cancelled or has timed out.
    ticket: Option<T>,
    pending_reply: PendingReply,
    reads: bool,
    admitted: AdmissionKind,
    deadline: Instant,
}

impl<T> Pipeline<T> {
    /// Creates a pipeline. `server` names the server in errors. `timeout` is the time limit of a
    /// call.
    #[must_use]
    pub fn new(server: &str, timeout: Duration, now: Instant) -> Self {
        Self {
            server: server.into(),
            timeout,
            breaker: Breaker::default(),
            last_fault: None,
            link: LinkState::Closed,
            queue: Queue::new(),
            exchange: Exchange::new(),
            answered_at: now,
            next_id: 0,
            answers: VecDeque::new(),
        }
    }

    /// Adds a call to the queue. [`poll_output`](Self::poll_output) later returns its bytes. A
    /// request without keys or items is not sent, and its result is available at once.
    ///
    /// # Errors
    /// A key or value is invalid, or the breaker is open. The error includes the ticket.
    pub fn push(
        &mut self,
        ticket: T,
        request: &Request<'_>,
        now: Instant,
    ) -> Result<CallId, (T, Error)> {
        let id = CallId(self.next_id);
        let checked = match request.check() {
            Ok(checked) => checked,
            Err(error) => return Err((ticket, error)),
        };
        let admitted = match self.breaker.admit(now) {
            Ok(admitted) => admitted,
            Err(retry_in) => {
                let cause = self.last_fault.clone().expect("the breaker opens after a fault");
                let error = Error::definite(ErrorKind::Unavailable { retry_in, cause });
                return Err((ticket, error.of(&self.server)));
            }
        };
        if let Some(output) = request.empty_output() {
            self.breaker.pass(admitted, now);
            self.answers.push_back((ticket, Ok(output)));
            return Ok(CallId::COMPLETED);
        }
        // The queue also numbers its calls from 0, so this identifier equals the call's number in
        // the queue.
        self.next_id += 1;
        let call = Call {
            id,
            ticket: Some(ticket),
            pending_reply: request.pending_reply(),
            reads: request.reads(),
            admitted,
            deadline: now + self.timeout,
        };
        self.queue.push(call, |connection| checked.encode(connection));
        Ok(id)
    }

    /// Cancels a call. If the request is unsent, drops the request. Otherwise, the pipeline drops
    /// the reply when the reply arrives. Returns the ticket, or `None` if the call already has a
    /// result or was already cancelled.
    pub fn cancel(&mut self, id: CallId, now: Instant) -> Option<T> {
        if let Some(call) = self.queue.remove(id.0) {
            self.breaker.pass(call.admitted, now);
            return call.ticket;
        }
        self.exchange.tickets_mut().find(|call| call.id == id)?.ticket.take()
    }

    /// Iterates over the unsent calls, oldest first.
    pub fn queued(&self) -> impl Iterator<Item = (CallId, &T)> {
        self.queue.tickets().filter_map(Call::waiting)
    }

    /// Iterates over the sent calls without a result, oldest first. Omits cancelled calls.
    pub fn under_way(&self) -> impl Iterator<Item = (CallId, &T)> {
        self.exchange.tickets().filter_map(Call::waiting)
    }

    /// Returns the number of unsent calls.
    #[must_use]
    pub fn queue_len(&self) -> usize {
        self.queue.len()
    }

    /// Returns whether no reply is pending. Replies to cancelled calls count as pending.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.exchange.is_idle()
    }

    /// Returns whether a connection is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.link == LinkState::Open
    }

    /// Returns true if the program must open a connection: there are calls to send, and no
    /// connection is open or being opened. After the attempt, the program calls
    /// [`handle_opened`](Self::handle_opened) or [`handle_failed`](Self::handle_failed).
    pub fn start_opening(&mut self) -> bool {
        let must_open = self.link == LinkState::Closed && !self.queue.is_empty();
        if must_open {
            self.link = LinkState::Opening;
        }
        must_open
    }

    /// Handles an opened connection.
    pub fn handle_opened(&mut self, now: Instant) {
        debug_assert!(self.exchange.is_idle(), "calls were sent without a connection");
        self.link = LinkState::Open;
        self.answered_at = now;
    }

    /// Handles a failed attempt to open the connection: all queued calls fail.
    pub fn handle_failed(&mut self, error: io::Error, now: Instant) {
        self.link = LinkState::Closed;
        let error = Error::definite(ErrorKind::connect(error));
        self.fail_queue(&error, now);
    }

    /// Handles the loss of the connection. `error` is `None` if the server closed the connection.
    /// All sent calls without a reply fail.
    pub fn handle_lost(&mut self, error: Option<io::Error>, now: Instant) {
        let io = |error| ErrorKind::Io(Arc::new(error));
        self.end(&error.map_or(ErrorKind::Closed, io), now);
    }

    /// Closes the client: all calls without a result fail.
    pub fn close(&mut self, now: Instant) {
        self.end(&ErrorKind::ClientClosed, now);
        self.fail_queue(&Error::definite(ErrorKind::ClientClosed), now);
    }

    /// Handles input from the server. If the input is unexpected, all sent calls without a reply
    /// fail, [`is_open`](Self::is_open) returns false, and the program must close the connection.
    pub fn handle_input(&mut self, mut input: &[u8], now: Instant) {
        while self.link == LinkState::Open && !input.is_empty() {
            let room = self.exchange.room();
            let (taken, rest) = input.split_at(input.len().min(room.len()));
            if let Some(room) = room.get_mut(..taken.len()) {
                room.copy_from_slice(taken);
            }
            self.exchange.received(taken.len());
            input = rest;
            self.deliver_replies(now);
        }
    }

    /// Fails calls whose deadline has passed. Closes the connection if a sent call was cancelled or
    /// has timed out and no reply has arrived for a second.
    pub fn handle_time(&mut self, now: Instant) {
        let mut late = Vec::new();
        for call in self.exchange.tickets_mut().take_while(|call| call.deadline <= now) {
            // The call stays in the exchange, because its reply is still pending.
            late.extend(call.ticket.take().map(|ticket| (ticket, call.reads, call.admitted)));
        }
        for (ticket, reads, admitted) in late {
            let error = Error::new(ErrorKind::Timeout, !reads);
            self.fail(Some(ticket), admitted, error, now);
        }
        let is_late = |call: &&Call<T>| call.deadline <= now;
        let unsent: Vec<u64> =
            self.queue.tickets().take_while(is_late).map(|call| call.id.0).collect();
        for id in unsent {
            if let Some(call) = self.queue.remove(id) {
                let error = Error::definite(ErrorKind::Timeout);
                self.fail(call.ticket, call.admitted, error, now);
            }
        }
        let has_given_up = self.exchange.tickets().any(|call| call.ticket.is_none());
        if has_given_up && now.saturating_duration_since(self.answered_at) >= SILENCE_MAX {
            self.end(&ErrorKind::Timeout, now);
        }
    }

    /// Returns the time at which the program must call [`handle_time`](Self::handle_time) next.
    /// Returns `None` if no call is queued or under way.
    #[must_use]
    pub fn poll_time(&self, now: Instant) -> Option<Instant> {
        let mut waiting = self.exchange.tickets().filter(|call| call.ticket.is_some());
        let first = waiting.next().or_else(|| self.queue.tickets().next());
        let deadline = first.map(|call| call.deadline);
        let silence_check = (!self.exchange.is_idle()).then(|| now + SILENCE_MAX);
        deadline.into_iter().chain(silence_check).min()
    }

    /// Passes the unsent bytes to `take`, and returns the result of `take`. The bytes then count as
    /// sent. Returns `None` if there are no bytes or no connection is open.
    ///
    /// The program should not call this function while the socket's send buffer is full, because
    /// queued calls can still be cancelled without being sent.
    pub fn poll_output<B>(&mut self, now: Instant, take: impl FnOnce(&[u8]) -> B) -> Option<B> {
        if self.link != LinkState::Open || self.queue.is_empty() {
            return None;
        }
        if self.exchange.is_idle() {
            self.answered_at = now;
        }
        self.exchange.take(&mut self.queue, |_| true);
        let output = self.exchange.output();
        let len = output.len();
        let taken = (len > 0).then(|| take(output));
        self.exchange.sent(len);
        taken
    }

    /// Returns the ticket and the result of the oldest finished call, or `None` if there is no
    /// finished call.
    pub fn poll_answer(&mut self) -> Option<(T, Result<Output, Error>)> {
        self.answers.pop_front()
    }

    fn deliver_replies(&mut self, now: Instant) {
        loop {
            match self.exchange.next() {
                Ok(None) => return,
                Ok(Some((call, replies))) => {
                    self.answered_at = now;
                    match call.pending_reply.output(&replies) {
                        Ok(output) => {
                            self.breaker.succeed();
                            self.answers.extend(call.ticket.map(|ticket| (ticket, Ok(output))));
                        }
                        Err(failure) => {
                            let failure = CallFailure::Reply(failure);
                            let broken = FailedCall::new(failure, Progress::default(), call.reads);
                            self.fail(call.ticket, call.admitted, broken.error, now);
                            if !broken.is_usable {
                                let garbage = "an earlier reply did not match its request";
                                return self.end(&ErrorKind::Unexpected(garbage.into()), now);
                            }
                        }
                    }
                }
                Err(garbage) => return self.end(&ErrorKind::Unexpected(garbage.0), now),
            }
        }
    }

    /// Closes the connection and fails all calls under way.
    fn end(&mut self, kind: &ErrorKind, now: Instant) {
        self.link = LinkState::Closed;
        let calls = self.exchange.drain();
        self.exchange = Exchange::new();
        // The breaker counts only the first reported failure.
        let mut is_echo = false;
        for (call, is_sent) in calls {
            let error = Error::new(kind.clone(), is_sent && !call.reads);
            let error = if is_echo { error.echo() } else { error };
            is_echo |= call.ticket.is_some();
            self.fail(call.ticket, call.admitted, error, now);
        }
    }

    fn fail_queue(&mut self, error: &Error, now: Instant) {
        let mut is_echo = false;
        for call in self.queue.drain() {
            let error = if is_echo { error.clone().echo() } else { error.clone() };
            is_echo = true;
            self.fail(call.ticket, call.admitted, error, now);
        }
    }

    /// Fails a call, and records the error in the breaker.
    fn fail(&mut self, ticket: Option<T>, admitted: AdmissionKind, error: Error, now: Instant) {
        let is_ignored = error.is_echo || matches!(error.kind(), ErrorKind::ClientClosed);
        if ticket.is_none() || is_ignored {
            self.breaker.pass(admitted, now);
        } else if error.is_fault() {
            self.last_fault = Some(Arc::new(error.kind().clone()));
            self.breaker.fail(admitted, now, rand::random());
        } else {
            self.breaker.succeed();
        }
        let error = error.of(&self.server);
        self.answers.extend(ticket.map(|ticket| (ticket, Err(error))));
    }
}

impl<T> Call<T> {
    fn waiting(&self) -> Option<(CallId, &T)> {
        self.ticket.as_ref().map(|ticket| (self.id, ticket))
    }
}

#[cfg(test)]
mod tests;
