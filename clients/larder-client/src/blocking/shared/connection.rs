//! A shared connection: whose turn it is to read, and what comes.

use super::state::State;
use super::ticket::{Came, Reader, Ticket, TicketState, Woken};
use crate::blocking::link::LATE_MAX;
use crate::blocking::stream::Opened;
use crate::blocking::wait::Wait;
use crate::core::operation::Operation;
use crate::core::outcome::Broken;
use crate::core::shared::{Answered, Exchange, Lost, Pace, Queue, SILENCE_MAX, lose, output};
use crate::error::ErrorKind;
use crate::metrics::CloseReason;
use crate::waiter::Readiness;
use socket2::Socket;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// With so many calls under way, what comes meanwhile may wait for an answer, and leave in one write.
const HELD_MIN: usize = 2;

/// So much is read while others may send.
const READ_LEN: usize = 16 << 10;

/// A connection.
#[derive(Debug)]
pub(super) struct Line {
    socket: Arc<Socket>,
    /// Whether a thread may block in a read of the socket.
    may_block: bool,
    state: Mutex<State>,
    is_open: AtomicBool,
    /// Whether any call was answered.
    pub(super) has_answered: AtomicBool,
    /// When no more calls are to use it.
    expires: Option<Instant>,
    wait: Wait,
}

#[derive(Debug)]
pub(super) struct Begun {
    ticket: Arc<Ticket>,
    number: u64,
}

impl Line {
    pub(super) fn new((stream, expires, open): Opened, wait: &Wait) -> Self {
        let socket = Arc::clone(stream.socket());
        let may_block = stream.is_plain() && wait.may_block();
        let reader = Reader {
            bytes: if may_block { vec![0; READ_LEN].into() } else { Box::default() },
            ..Reader::default()
        };
        let state = State {
            queue: Queue::new(),
            exchange: Exchange::new(),
            stream,
            open,
            reader: Some(reader),
            reading: None,
            answered: Instant::now(),
            asked: None,
            pace: Pace::default(),
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
        // Each change of it is whole before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_over(&self) -> bool {
        self.expires.is_some_and(|at| at <= Instant::now())
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    /// Notes why it will be closed, unless it has ended.
    pub(super) fn closes(&self, reason: CloseReason) {
        let mut state = self.lock();
        if self.is_open() {
            state.open.closes(reason);
        }
    }

    /// Begins a call.
    ///
    /// # Errors
    /// The connection has ended.
    pub(super) fn begin<O: Operation>(&self, operation: &mut O) -> Result<Begun, Lost> {
        let ticket = Arc::new(Ticket::new());
        let mut woken = Woken::default();
        let number = {
            let mut state = self.lock();
            if !self.is_open() {
                // Whoever has ended it meanwhile was told why.
                return Err(Lost::new(ErrorKind::Closed, false).echo());
            }
            if state.exchange.is_idle() && state.queue.is_empty() {
                if !state.stream.is_quiet().unwrap_or(false) {
                    // Bytes that nobody asked for could pass for the answer.
                    self.end(&mut state, &ErrorKind::Closed, &mut woken);
                    return Err(Lost::new(ErrorKind::Closed, false));
                }
                state.answered = Instant::now();
            }
            let call = Arc::clone(&ticket);
            let number = state.queue.push(call, |connection| operation.begin(connection));
            // What is to come in a moment takes it along.
            let is_held =
                state.reader.is_none() && state.exchange.len() >= HELD_MIN && state.pace.is_quick();
            if !is_held {
                self.send(&mut state, &mut woken);
            }
            number
        };
        woken.unpark();
        Ok(Begun { ticket, number })
    }

    /// Waits for the replies to a call.
    pub(super) fn finish<O: Operation>(
        &self,
        begun: Result<Begun, Lost>,
        operation: &mut O,
        deadline: Instant,
    ) -> Result<O::Output, Broken> {
        let begun = match begun {
            Ok(begun) => begun,
            Err(lost) => return Err(lost.broken(operation.reads())),
        };
        let mut reader = None;
        let given_up = loop {
            match begun.ticket.take() {
                Some(Came::Answer(answered)) => {
                    self.pass_on(reader);
                    return output(operation, answered);
                }
                Some(Came::Reader(right)) => reader = Some(right),
                None => (),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break ErrorKind::Timeout;
            }
            if reader.is_none() {
                reader = self.read_or_wait(&begun.ticket);
            }
            let waited = match &mut reader {
                Some(reader) => self.read(reader, &begun.ticket, deadline),
                None if begun.ticket.has_come() => Ok(()),
                None => self.wait.park(left, || self.may_go_on(&begun.ticket)),
            };
            if let Err(interrupted) = waited {
                break interrupted;
            }
        };
        let broken = match self.give_up(&begun, reader, given_up) {
            Ok(answered) => return output(operation, Ok(answered)),
            Err(lost) => lost.broken(operation.reads()),
        };
        // The connection goes on: the reply is dropped when it comes.
        Err(Broken { is_usable: self.is_open(), ..broken })
    }

    /// Whether the caller has not to wait for another thread: something has come, or is there for a call of the same thread
    /// whose waiter makes this one.
    fn may_go_on(&self, ticket: &Ticket) -> bool {
        ticket.has_come() || self.lock().reading == Some(ticket.thread.id())
    }

    /// The right to read if nobody has it; otherwise the ticket is noted as that of one who waits.
    fn read_or_wait(&self, ticket: &Ticket) -> Option<Reader> {
        let mut state = self.lock();
        let reader = match state.reader.take() {
            Some(reader) => {
                state.reading = Some(ticket.thread.id());
                Some(reader)
            }
            None if state.reading == Some(ticket.thread.id()) && !ticket.has_come() => {
                let nested = || Reader { is_nested: true, ..Reader::default() };
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

    /// One turn of a reader: sends what there is to be sent, waits for what comes, and hands out the replies.
    ///
    /// # Errors
    /// `Interrupted`, `Timeout`. That the connection failed is what each call gets as its answer.
    fn read(&self, reader: &mut Reader, mine: &Ticket, deadline: Instant) -> Result<(), ErrorKind> {
        let mut woken = Woken::default();
        let has_read;
        let readiness = {
            let mut state = self.lock();
            self.send(&mut state, &mut woken);
            // What TLS has received already makes no socket ready.
            has_read = !self.may_block && self.take_in(&mut state, &mut woken);
            if state.exchange.output().is_empty() { Readiness::Read } else { Readiness::Both }
        };
        woken.unpark();
        if has_read || mine.has_come() {
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
            let is_over = || mine.has_come();
            match self.wait.for_socket_unless(is_over, &self.socket, readiness, end) {
                Err(ErrorKind::Timeout) => (),
                waited => drop(waited?),
            }
            Ok(None)
        };
        let mut woken = Woken::default();
        {
            let mut state = self.lock();
            match received {
                Ok(Some(0)) => self.end(&mut state, &ErrorKind::Closed, &mut woken),
                Ok(Some(len)) => {
                    state.append(reader.bytes.get(..len).unwrap_or_default());
                    self.hand_out(&mut state, &mut woken);
                    if len == reader.bytes.len() {
                        // There is more, or it is the end.
                        self.take_in(&mut state, &mut woken);
                    }
                }
                Ok(None) => {
                    self.take_in(&mut state, &mut woken);
                }
                Err(error) => self.end(&mut state, &ErrorKind::Io(Arc::new(error)), &mut woken),
            }
            if state.is_silent() {
                self.end(&mut state, &ErrorKind::Timeout, &mut woken);
            }
        }
        woken.unpark();
        Ok(())
    }

    /// Has another one who waits read on.
    fn pass_on(&self, reader: Option<Reader>) {
        let Some(reader) = reader.filter(|reader| !reader.is_nested) else { return };
        let mut woken = Woken::default();
        {
            let mut state = self.lock();
            // The server may work until the next one is awake.
            self.send(&mut state, &mut woken);
            let State { queue, exchange, .. } = &*state;
            let next = exchange.tickets().chain(queue.tickets()).find(|ticket| ticket.is_waiting());
            let next = next.cloned();
            state.reading = next.as_ref().map(|ticket| ticket.thread.id());
            match next {
                Some(ticket) => woken.give(ticket, Came::Reader(reader)),
                None => state.reader = Some(reader),
            }
        }
        woken.unpark();
    }

    /// Ends a call whose caller does not wait any longer.
    ///
    /// # Errors
    /// There is no answer.
    fn give_up(&self, begun: &Begun, reader: Option<Reader>, kind: ErrorKind) -> Answered {
        let mut woken = Woken::default();
        let (given, reader) = {
            let mut state = self.lock();
            if reader.is_some() || state.reader.is_some() {
                // The answer may have come while the caller waited for another server.
                let end = Instant::now() + LATE_MAX;
                while !begun.ticket.has_come()
                    && self.take_in(&mut state, &mut woken)
                    && Instant::now() < end
                {}
            }
            let (given, reader) = match begun.ticket.take() {
                Some(Came::Answer(answered)) => (answered, reader),
                came => {
                    let right = match came {
                        Some(Came::Reader(right)) => Some(right),
                        _ => reader,
                    };
                    *begun.ticket.lock() = TicketState::GivenUp;
                    let is_sent = !state.queue.withdraw(begun.number);
                    (Err(Lost::new(kind, is_sent)), right)
                }
            };
            if given.is_err() && (state.is_unwanted() || state.is_silent()) {
                self.end(&mut state, &ErrorKind::Timeout, &mut woken);
            }
            (given, reader)
        };
        woken.unpark();
        self.pass_on(reader);
        given
    }

    /// Sends what there is room for.
    fn send(&self, state: &mut State, woken: &mut Woken) {
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
                state.asked = Some(Instant::now());
            }
            match state.stream.send(state.exchange.output()) {
                Ok(0) => return self.end(state, &ErrorKind::Closed, woken),
                Ok(len) => state.exchange.sent(len),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return self.end(state, &ErrorKind::Io(Arc::new(error)), woken),
            }
        }
    }

    /// Reads what there is without waiting, and hands it out; whether there was anything.
    fn take_in(&self, state: &mut State, woken: &mut Woken) -> bool {
        let has_read = self.receive(state, woken);
        self.hand_out(state, woken);
        has_read
    }

    fn receive(&self, state: &mut State, woken: &mut Woken) -> bool {
        if !self.is_open() {
            return false;
        }
        match state.stream.read_at_once(state.exchange.room()) {
            Ok(0) => self.end(state, &ErrorKind::Closed, woken),
            Ok(len) => {
                state.exchange.received(len);
                return true;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => (),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Err(error) => self.end(state, &ErrorKind::Io(Arc::new(error)), woken),
        }
        false
    }

    /// Hands out the replies that have come.
    fn hand_out(&self, state: &mut State, woken: &mut Woken) {
        let mut has_answered = false;
        loop {
            match state.exchange.next() {
                Ok(Some((ticket, replies))) => {
                    has_answered = true;
                    if ticket.is_given_up() {
                        state.open.abandoned();
                    } else {
                        state.exchange.told();
                    }
                    woken.give(ticket, Came::Answer(Ok(replies)));
                }
                Ok(None) => break,
                Err(garbage) => {
                    self.end(state, &ErrorKind::Unexpected(garbage.0), woken);
                    break;
                }
            }
        }
        if has_answered {
            self.has_answered.store(true, Ordering::Relaxed);
            state.answered = Instant::now();
            if let Some(asked) = state.asked.take() {
                state.pace.note(state.answered.duration_since(asked));
            }
        }
    }

    /// Ends the connection: further calls are refused, and all that have no answer are told why there will be none.
    pub(super) fn end(&self, state: &mut State, kind: &ErrorKind, woken: &mut Woken) {
        self.is_open.store(false, Ordering::Relaxed);
        state.open.closes(CloseReason::of(kind));
        let mut is_echo = state.exchange.is_told();
        for (ticket, mut lost) in lose(&mut state.exchange, &mut state.queue, kind) {
            lost.is_echo = is_echo;
            if ticket.is_given_up() {
                if lost.is_sent {
                    state.open.abandoned();
                }
                continue;
            }
            is_echo = true;
            woken.give(ticket, Came::Answer(Err(lost)));
        }
    }
}
