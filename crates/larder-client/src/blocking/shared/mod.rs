//! Connections to one server that threads share: requests of several callers leave in one write.
//!
//! No thread belongs to a connection. Of those who wait for replies, one at a time reads, and hands out what others have
//! asked for. Once it has its own reply, another one goes on:
//!
//! ```text
//!   begin() ─▶ queue ─▶ sent by whoever comes, or by the reader with its next turn
//!   finish() ─▶ nobody reads: be the reader, until the own reply has come ─▶ pass that on to one who waits
//!           └─▶ somebody reads: wait for the reply, or to be the next reader
//! ```

use crate::blocking::link::LATE_MAX;
use crate::blocking::stream::{Opened, ReadTimeout, Stream};
use crate::blocking::wait::Wait;
use crate::core::operation::Operation;
use crate::core::outcome::Broken;
use crate::core::shared::{
    Answered, CALLS_BUSY, Counted, Exchange, Lost, Pace, Queue, SILENCE_MAX, lose, output,
};
use crate::error::{Error, ErrorKind};
use crate::metrics::{CloseReason, OpenConnection};
use crate::waiter::Readiness;
use socket2::Socket;
use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread, ThreadId};
use std::time::Instant;

/// With so many calls under way, what comes meanwhile may wait for an answer, and leave in one write.
const HELD_MIN: usize = 2;

/// So much is read while others may send.
const READ_LEN: usize = 16 << 10;

/// Connections that threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    slots: Box<[Slot]>,
    is_closed: AtomicBool,
    wait: Wait,
}

/// The place of a connection.
#[derive(Debug, Default)]
struct Slot {
    state: Mutex<SlotState>,
    /// Calls that use it, or that wait until it is open.
    calls: AtomicUsize,
}

#[derive(Debug, Default)]
struct SlotState {
    line: Option<Arc<Line>>,
    opening: Option<Arc<Opening>>,
}

/// A connection that a thread opens, for all who need it.
#[derive(Debug)]
struct Opening {
    opener: ThreadId,
    /// When the opener's time is over.
    deadline: Instant,
    outcome: OnceLock<Result<(), Error>>,
    waiting: Mutex<Vec<Thread>>,
}

/// A connection.
#[derive(Debug)]
struct Line {
    socket: Arc<Socket>,
    /// Whether a thread may block in a read of the socket.
    may_block: bool,
    state: Mutex<State>,
    is_open: AtomicBool,
    /// Whether any call was answered.
    has_answered: AtomicBool,
    /// When no more calls are to use it.
    expires: Option<Instant>,
    wait: Wait,
}

#[derive(Debug)]
struct State {
    queue: Queue<Arc<Ticket>>,
    exchange: Exchange<Arc<Ticket>>,
    stream: Stream,
    open: OpenConnection,
    /// `None` while a thread reads.
    reader: Option<Reader>,
    /// Who reads, or is to read next.
    reading: Option<ThreadId>,
    /// When a call was answered last; if there was none under way then, when the next one came.
    answered: Instant,
    /// When something was sent while no call was under way, until the answer comes.
    asked: Option<Instant>,
    pace: Pace,
}

/// The right to read, with what is needed for it.
#[derive(Debug, Default)]
struct Reader {
    bytes: Box<[u8]>,
    timeout: ReadTimeout,
    /// Whether the same thread has the right already: its [`Waiter`](crate::Waiter) has run something that makes a call, as
    /// the handler of a signal.
    is_nested: bool,
}

/// A call.
#[derive(Debug)]
struct Ticket {
    thread: Thread,
    /// It is changed while the connection's state is locked, except that the caller takes what has come.
    state: Mutex<TicketState>,
}

#[derive(Debug)]
enum TicketState {
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
enum Came {
    Answer(Answered),
    /// The right to read.
    Reader(Reader),
}

/// A call that was begun.
#[derive(Debug)]
pub(crate) struct Call<'s> {
    slot: &'s Slot,
    attempt: Attempt,
    _counted: Counted<'s>,
}

#[derive(Debug)]
struct Attempt {
    line: Arc<Line>,
    begun: Result<Begun, Lost>,
    /// Whether the connection had answered calls before.
    was_used: bool,
}

#[derive(Debug)]
struct Begun {
    ticket: Arc<Ticket>,
    number: u64,
}

/// Those who have to be woken, once no lock is held.
#[derive(Debug, Default)]
struct Woken(Vec<Arc<Ticket>>);

impl Shared {
    pub(crate) fn new(connections: usize, wait: Wait) -> Self {
        let slots = (0..connections.max(1)).map(|_| Slot::default()).collect();
        Self { slots, is_closed: AtomicBool::new(false), wait }
    }

    /// Begins an operation over one of the connections, which `open` opens: it is sent without waiting, or with what comes
    /// next.
    ///
    /// # Errors
    /// [`Error`]; it is over by the deadline.
    pub(crate) fn begin<O: Operation>(
        &self,
        operation: &mut O,
        deadline: Instant,
        open: impl Fn() -> Result<Opened, Error>,
    ) -> Result<Call<'_>, Error> {
        let slot = self.slot();
        let counted = Counted::new(&slot.calls);
        let attempt = self.begin_at(slot, operation, deadline, open)?;
        Ok(Call { slot, attempt, _counted: counted })
    }

    /// Ends what was begun with the same operation.
    ///
    /// # Errors
    /// [`Error`]; it is over by the deadline.
    pub(crate) fn finish<O: Operation>(
        &self,
        call: Call<'_>,
        operation: &mut O,
        deadline: Instant,
        open: impl Fn() -> Result<Opened, Error>,
    ) -> Result<O::Output, Error> {
        let Call { slot, mut attempt, _counted } = call;
        let mut is_repeated = false;
        loop {
            let Attempt { line, begun, was_used } = attempt;
            let broken = match line.finish(begun, operation, deadline) {
                Ok(output) => return Ok(output),
                Err(broken) => broken,
            };
            if !broken.is_usable {
                slot.close(&line, CloseReason::of(broken.error.kind()));
            }
            // The connection has ended meanwhile: a new one says whether the server is there.
            if is_repeated || !(was_used && broken.was_stale) {
                return Err(broken.error);
            }
            is_repeated = true;
            attempt = self.begin_at(slot, operation, deadline, &open)?;
        }
    }

    /// Begins an operation over the connection of a place.
    fn begin_at<O: Operation>(
        &self,
        slot: &Slot,
        operation: &mut O,
        deadline: Instant,
        open: impl Fn() -> Result<Opened, Error>,
    ) -> Result<Attempt, Error> {
        loop {
            let line = self.line(slot, deadline, &open)?;
            let was_used = line.has_answered.load(Ordering::Relaxed);
            match line.begin(operation) {
                // Another call has ended it meanwhile, perhaps because nobody needed it any more.
                Err(lost) if lost.is_echo && Instant::now() < deadline => (),
                begun => return Ok(Attempt { line, begun, was_used }),
            }
        }
    }

    fn line(
        &self,
        slot: &Slot,
        deadline: Instant,
        open: impl Fn() -> Result<Opened, Error>,
    ) -> Result<Arc<Line>, Error> {
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(Error::definite(ErrorKind::ClientClosed));
        }
        let line = slot.line(deadline, open, &self.wait)?;
        if self.is_closed.load(Ordering::Relaxed) {
            // The client was closed while it was opened. It ends with those who have it.
            slot.close(&line, CloseReason::ClientClosed);
        }
        Ok(line)
    }

    /// The place with the fewest calls. One that is empty is used when all others are busy.
    fn slot(&self) -> &Slot {
        let load = |slot: &&Slot| {
            let calls = slot.calls.load(Ordering::Relaxed);
            // One that has calls is open, or is being opened.
            if calls > 0 || slot.lock().line.is_some() { calls } else { CALLS_BUSY }
        };
        match &*self.slots {
            [one] => one,
            slots => slots.iter().min_by_key(load).expect("there is one"),
        }
    }

    /// Closes the connections, and refuses further calls.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.slots.iter().for_each(|slot| drop(slot.lock().line.take()));
    }

    /// Connections that are open, those of them that no call uses, and 0 calls that wait for one.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        let is_open = |slot: &&Slot| slot.lock().line.as_ref().is_some_and(|line| line.is_open());
        let open = || self.slots.iter().filter(is_open);
        let idle = open().filter(|slot| slot.calls.load(Ordering::Relaxed) == 0).count();
        (open().count(), idle, 0)
    }
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn line(
        &self,
        deadline: Instant,
        open: impl Fn() -> Result<Opened, Error>,
        wait: &Wait,
    ) -> Result<Arc<Line>, Error> {
        loop {
            let opening = {
                let mut state = self.lock();
                if let Some(old) = state.line.take_if(|line| line.is_over() || !line.is_open()) {
                    old.closes(CloseReason::Lifetime);
                }
                if let Some(line) = &state.line {
                    return Ok(Arc::clone(line));
                }
                let Some(opening) = &state.opening else {
                    let opening = Arc::new(Opening::new(deadline));
                    state.opening = Some(Arc::clone(&opening));
                    drop(state);
                    return self.open(&opening, open, wait);
                };
                if opening.opener == thread::current().id() {
                    // Its waiter has run something that makes this call, which gets a connection of its own.
                    drop(state);
                    return open().map(|opened| Arc::new(Line::new(opened, wait)));
                }
                Arc::clone(opening)
            };
            opening.await_outcome(deadline, wait)?;
        }
    }

    fn open(
        &self,
        opening: &Opening,
        open: impl Fn() -> Result<Opened, Error>,
        wait: &Wait,
    ) -> Result<Arc<Line>, Error> {
        let opened = open().map(|opened| Arc::new(Line::new(opened, wait)));
        {
            let mut state = self.lock();
            state.opening = None;
            state.line = opened.as_ref().ok().cloned();
        }
        opening.end(opened.as_ref().map(|_| ()).map_err(Error::clone));
        opened
    }

    /// Has the next call open another connection.
    fn close(&self, line: &Arc<Line>, reason: CloseReason) {
        line.closes(reason);
        self.lock().line.take_if(|other| Arc::ptr_eq(other, line));
    }
}

impl Opening {
    fn new(deadline: Instant) -> Self {
        let opener = thread::current().id();
        Self { opener, deadline, outcome: OnceLock::new(), waiting: Mutex::default() }
    }

    fn end(&self, outcome: Result<(), Error>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody else ends it.
        drop(self.outcome.set(outcome));
        waiting.drain(..).for_each(|thread| thread.unpark());
    }

    /// Waits until there is a connection, or another one is to be opened by the caller.
    ///
    /// # Errors
    /// There will be none; it is over by the deadline.
    fn await_outcome(&self, deadline: Instant, wait: &Wait) -> Result<(), Error> {
        {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            if self.outcome.get().is_none() {
                waiting.push(thread::current());
            }
        }
        loop {
            match self.outcome.get() {
                // That it was interrupted, or had too little time, is the matter of who has opened it.
                Some(Err(error)) if matches!(error.kind(), ErrorKind::Interrupted) => return Ok(()),
                Some(Err(_)) if self.deadline <= Instant::now() => return Ok(()),
                Some(Err(error)) => return Err(error.clone().echo()),
                Some(Ok(())) => return Ok(()),
                None => (),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::definite(ErrorKind::Timeout).echo());
            }
            wait.park(left, || self.outcome.get().is_some()).map_err(Error::definite)?;
        }
    }
}

impl Line {
    fn new((stream, expires, open): Opened, wait: &Wait) -> Self {
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

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change of it is whole before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.expires.is_some_and(|at| at <= Instant::now())
    }

    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    /// Notes why it will be closed, unless it has ended.
    fn closes(&self, reason: CloseReason) {
        let mut state = self.lock();
        if self.is_open() {
            state.open.closes(reason);
        }
    }

    /// Begins a call.
    ///
    /// # Errors
    /// The connection has ended.
    fn begin<O: Operation>(&self, operation: &mut O) -> Result<Begun, Lost> {
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
    fn finish<O: Operation>(
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
    fn end(&self, state: &mut State, kind: &ErrorKind, woken: &mut Woken) {
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

impl State {
    /// Adds bytes that were received.
    fn append(&mut self, mut bytes: &[u8]) {
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
    fn take_from(&self, thread: ThreadId) -> Option<Reader> {
        let mut tickets = self.exchange.tickets().chain(self.queue.tickets());
        tickets
            .find_map(|ticket| if ticket.thread.id() == thread { ticket.give_back() } else { None })
    }

    /// Whether calls are under way, and nobody wants their replies.
    fn is_unwanted(&self) -> bool {
        !self.exchange.is_idle()
            && self.queue.is_empty()
            && self.exchange.tickets().all(|ticket| ticket.is_given_up())
    }

    /// Whether a caller has given up, and nobody else was answered for long.
    fn is_silent(&self) -> bool {
        !self.exchange.is_idle()
            && self.answered.elapsed() >= SILENCE_MAX
            && self.exchange.tickets().any(|ticket| ticket.is_given_up())
    }
}

impl Ticket {
    fn new() -> Self {
        Self { thread: thread::current(), state: Mutex::new(TicketState::Awake) }
    }

    fn lock(&self) -> MutexGuard<'_, TicketState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has come.
    fn take(&self) -> Option<Came> {
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
    fn give_back(&self) -> Option<Reader> {
        let mut state = self.lock();
        match mem::replace(&mut *state, TicketState::Waiting) {
            TicketState::Came(Came::Reader(reader)) => Some(reader),
            other => {
                *state = other;
                None
            }
        }
    }

    fn has_come(&self) -> bool {
        matches!(*self.lock(), TicketState::Came(_))
    }

    fn is_waiting(&self) -> bool {
        matches!(*self.lock(), TicketState::Waiting)
    }

    fn is_given_up(&self) -> bool {
        matches!(*self.lock(), TicketState::GivenUp)
    }
}

impl Woken {
    /// Gives something to a caller, unless he has given up.
    fn give(&mut self, ticket: Arc<Ticket>, what: Came) {
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

    fn unpark(self) {
        self.0.iter().for_each(|ticket| ticket.thread.unpark());
    }
}
