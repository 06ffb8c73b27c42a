//! The calls for one server that share a connection, without a socket, a thread or a clock: for programs that move the
//! bytes themselves.
//!
//! ```text
//!   push() ─▶ queue ── poll_output() ─▶ bytes ─▶ server
//!     │         │
//!     │         └─ cancel(): nothing of it is sent
//!     ▼
//!   poll_answer() ◀── handle_input() ◀─ bytes ◀─ server
//! ```
//!
//! The connection is opened by the program, when it is told to:
//!
//! ```text
//!   Closed ── begin_opening() ─▶ Opening ── handle_opened() ─▶ Open
//!     ▲                             │                            │
//!     │◀──── handle_failed() ───────┘                            │
//!     └◀──── handle_lost(), or what the server sends is wrong ───┘
//! ```
//! Calls that have not been sent when a connection is lost are sent over the next one.
//!
//! A call is told by what the program gives for it, its ticket. Each ticket comes back once: from [`Pipeline::push`] with
//! an error, from [`Pipeline::poll_answer`], or from [`Pipeline::cancel`].
//!
//! ```
//! use larder_client::pipeline::{Output, Pipeline, Request};
//! use std::time::{Duration, Instant};
//!
//! let now = Instant::now();
//! let mut calls = Pipeline::new("cache:11211", Duration::from_secs(1), now);
//! calls.push("ticket", &Request::Get { key: b"key", cas: false, touch: None }, now).unwrap();
//! assert!(calls.begin_opening());
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
//! | `mod.rs` | the calls, from their requests to their answers |
//! | `request.rs` | requests as values, and what their replies mean |

mod request;

pub use request::{Output, Request};

use crate::core::outcome::{Broken, Progress, Trouble};
use crate::core::servers::breaker::{Admitted, Breaker};
use crate::core::shared::{Exchange, Queue};
use crate::error::{Error, ErrorKind};
use request::Awaited;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// If a caller has given up, the connection is closed after this time without an answer to anybody. The program is woken
/// at least so often while calls are under way.
const SILENCE_MAX: Duration = Duration::from_secs(1);

/// The number of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(u64);

/// The calls for one server.
#[derive(Debug)]
pub struct Pipeline<T> {
    server: Arc<str>,
    timeout: Duration,
    breaker: Breaker,
    /// Why the server failed the last time.
    last_fault: Option<Arc<ErrorKind>>,
    link: Link,
    queue: Queue<Call<T>>,
    exchange: Exchange<Call<T>>,
    /// When the last answer came, or when there was nothing to be answered.
    answered: Instant,
    next_id: u64,
    answers: VecDeque<(T, Result<Output, Error>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Closed,
    Opening,
    Open,
}

#[derive(Debug)]
struct Call<T> {
    id: CallId,
    /// `None` if the caller has given up.
    ticket: Option<T>,
    awaited: Awaited,
    reads: bool,
    admitted: Admitted,
    deadline: Instant,
}

impl<T> Pipeline<T> {
    /// The calls for a server, whose name is shown in errors. `timeout` is how long a call takes at most.
    #[must_use]
    pub fn new(server: &str, timeout: Duration, now: Instant) -> Self {
        Self {
            server: server.into(),
            timeout,
            breaker: Breaker::default(),
            last_fault: None,
            link: Link::Closed,
            queue: Queue::new(),
            exchange: Exchange::new(),
            answered: now,
            next_id: 0,
            answers: VecDeque::new(),
        }
    }

    /// Adds a call, which is sent with the next output.
    ///
    /// # Errors
    /// The ticket, and why the request is not sent: no server takes such a key or value, or this server is left alone for
    /// a moment after many faults.
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
        self.next_id += 1;
        if let Some(nothing) = request.nothing() {
            self.breaker.pass(admitted, now);
            self.answers.push_back((ticket, Ok(nothing)));
            return Ok(id);
        }
        let call = Call {
            id,
            ticket: Some(ticket),
            awaited: request.awaited(),
            reads: request.reads(),
            admitted,
            deadline: now + self.timeout,
        };
        self.queue.push(call, |connection| checked.begin(connection));
        Ok(id)
    }

    /// Gives a call up: it is not sent any more, or its answer is dropped when it comes. Its ticket, unless the call has
    /// been answered.
    pub fn cancel(&mut self, id: CallId, now: Instant) -> Option<T> {
        if let Some(call) = self.queue.recall(id.0) {
            self.breaker.pass(call.admitted, now);
            return call.ticket;
        }
        self.exchange.tickets_mut().find(|call| call.id == id)?.ticket.take()
    }

    /// The calls that were not sent yet, in their order.
    pub fn queued(&self) -> impl Iterator<Item = (CallId, &T)> {
        self.queue.tickets().filter_map(Call::waiting)
    }

    /// The calls that were sent, and whose answer is awaited by somebody, in their order.
    pub fn under_way(&self) -> impl Iterator<Item = (CallId, &T)> {
        self.exchange.tickets().filter_map(Call::waiting)
    }

    /// How many calls were not sent yet.
    #[must_use]
    pub fn queue_len(&self) -> usize {
        self.queue.len()
    }

    /// Whether no answer is still to come, those to calls included that were given up.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.exchange.is_idle()
    }

    /// Whether a connection is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.link == Link::Open
    }

    /// Whether a connection has to be opened now: there are calls to be sent, and none is open or being opened. Whoever
    /// is told so opens it.
    pub fn begin_opening(&mut self) -> bool {
        let begins = self.link == Link::Closed && !self.queue.is_empty();
        if begins {
            self.link = Link::Opening;
        }
        begins
    }

    /// The connection is open.
    pub fn handle_opened(&mut self, now: Instant) {
        debug_assert!(self.exchange.is_idle(), "calls were sent without a connection");
        self.link = Link::Open;
        self.answered = now;
    }

    /// The connection could not be opened. All calls that wait for it fail.
    pub fn handle_failed(&mut self, error: io::Error, now: Instant) {
        self.link = Link::Closed;
        let error = Error::definite(ErrorKind::connect(error));
        self.fail_queue(&error, now);
    }

    /// The connection has ended, with an error or by the server's will. All calls that were sent fail.
    pub fn handle_lost(&mut self, error: Option<io::Error>, now: Instant) {
        let io = |error| ErrorKind::Io(Arc::new(error));
        self.end(&error.map_or(ErrorKind::Closed, io), now);
    }

    /// The program closes the connection: all calls fail.
    pub fn close(&mut self, now: Instant) {
        self.end(&ErrorKind::ClientClosed, now);
        self.fail_queue(&Error::definite(ErrorKind::ClientClosed), now);
    }

    /// Takes what the server has sent. If it is none of the answers that are awaited, all calls that were sent fail, and
    /// the connection has to be closed: see [`is_open`](Self::is_open).
    pub fn handle_input(&mut self, mut input: &[u8], now: Instant) {
        while self.link == Link::Open && !input.is_empty() {
            let room = self.exchange.room();
            let (taken, rest) = input.split_at(input.len().min(room.len()));
            if let Some(room) = room.get_mut(..taken.len()) {
                room.copy_from_slice(taken);
            }
            self.exchange.received(taken.len());
            input = rest;
            self.hand_out(now);
        }
    }

    /// Ends calls whose time is over, and a connection on which somebody has waited in vain while nobody was answered.
    pub fn handle_time(&mut self, now: Instant) {
        let mut late = Vec::new();
        for call in self.exchange.tickets_mut().take_while(|call| call.deadline <= now) {
            // The call stays: its answer is still to come.
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
            if let Some(call) = self.queue.recall(id) {
                let error = Error::definite(ErrorKind::Timeout);
                self.fail(call.ticket, call.admitted, error, now);
            }
        }
        let has_given_up = self.exchange.tickets().any(|call| call.ticket.is_none());
        if has_given_up && now.saturating_duration_since(self.answered) >= SILENCE_MAX {
            self.end(&ErrorKind::Timeout, now);
        }
    }

    /// When [`handle_time`](Self::handle_time) has to be called next.
    #[must_use]
    pub fn poll_time(&self, now: Instant) -> Option<Instant> {
        let mut waiting = self.exchange.tickets().filter(|call| call.ticket.is_some());
        let first = waiting.next().or_else(|| self.queue.tickets().next());
        let deadline = first.map(|call| call.deadline);
        let look = (!self.exchange.is_idle()).then(|| now + SILENCE_MAX);
        deadline.into_iter().chain(look).min()
    }

    /// What is to be sent now, of all calls that may be under way together, as `take` makes it of the bytes. It counts as
    /// sent. `None`: nothing.
    ///
    /// A program whose socket takes no more calls this again when it does, so that calls can be given up until then.
    pub fn poll_output<B>(&mut self, now: Instant, take: impl FnOnce(&[u8]) -> B) -> Option<B> {
        if self.link != Link::Open || self.queue.is_empty() {
            return None;
        }
        if self.exchange.is_idle() {
            self.answered = now;
        }
        self.exchange.take(&mut self.queue, |_| true);
        let output = self.exchange.output();
        let len = output.len();
        let taken = (len > 0).then(|| take(output));
        self.exchange.sent(len);
        taken
    }

    /// A call that is over, and what came of it.
    pub fn poll_answer(&mut self) -> Option<(T, Result<Output, Error>)> {
        self.answers.pop_front()
    }

    fn hand_out(&mut self, now: Instant) {
        loop {
            match self.exchange.next() {
                Ok(None) => return,
                Ok(Some((call, replies))) => {
                    self.answered = now;
                    match call.awaited.output(&replies) {
                        Ok(output) => {
                            self.breaker.succeed();
                            self.answers.extend(call.ticket.map(|ticket| (ticket, Ok(output))));
                        }
                        Err(failure) => {
                            let trouble = Trouble::Answered(failure);
                            let broken = Broken::new(trouble, Progress::default(), call.reads);
                            self.fail(call.ticket, call.admitted, broken.error, now);
                            if !broken.is_usable {
                                let garbage = "what came before it was no answer to its request";
                                return self.end(&ErrorKind::Unexpected(garbage.into()), now);
                            }
                        }
                    }
                }
                Err(garbage) => return self.end(&ErrorKind::Unexpected(garbage.0), now),
            }
        }
    }

    /// Ends the connection.
    fn end(&mut self, kind: &ErrorKind, now: Instant) {
        self.link = Link::Closed;
        let calls = self.exchange.drain();
        self.exchange = Exchange::new();
        // The first that is told of the event tells the breaker.
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

    /// Ends a call with an error, which the breaker is told of.
    fn fail(&mut self, ticket: Option<T>, admitted: Admitted, error: Error, now: Instant) {
        let is_unsaid = error.is_echo || matches!(error.kind(), ErrorKind::ClientClosed);
        if ticket.is_none() || is_unsaid {
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
