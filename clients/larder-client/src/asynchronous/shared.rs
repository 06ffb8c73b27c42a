//! Connections to one server that calls share: the requests of all callers leave in one write.
//!
//! A task for each connection owns its socket. Callers put their requests into its queue, and wait for their replies.

use super::stream::Stream;
use crate::core::operation::Operation;
use crate::core::outcome::Broken;
use crate::core::shared::{
    Answered, CALLS_BUSY, CALLS_MAX, Counted, Exchange, Lost, Queue, SILENCE_MAX, lose, output,
};
use crate::error::{Error, ErrorKind};
use crate::metrics::{CloseReason, OpenConnection, ServerRecorder};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::io::Interest;
use tokio::sync::{Notify, Semaphore, TryAcquireError, oneshot};
use tokio::time::{sleep_until, timeout_at};

/// Connections that calls share.
#[derive(Debug)]
pub(crate) struct Shared {
    slots: Box<[Slot]>,
    /// One for each call.
    permits: Semaphore,
    recorder: Arc<ServerRecorder>,
}

/// The place of a connection.
#[derive(Debug, Default)]
struct Slot {
    line: Mutex<Option<Line>>,
    /// Whoever opens the connection has it, and leaves the error of the last attempt there.
    opening: tokio::sync::Mutex<Option<Error>>,
    /// How many attempts to open the connection have failed.
    failures: AtomicU64,
    /// Calls that use it, or that wait until it is open.
    calls: AtomicUsize,
}

/// A connection, for those who send. It is closed with the last of these.
#[derive(Clone, Debug)]
struct Line(Arc<Sender>);

#[derive(Debug)]
struct Sender {
    state: Arc<State>,
    /// When no more calls are to use it.
    expires: Option<Instant>,
}

/// What callers and the task of a connection share.
#[derive(Debug)]
struct State {
    queue: Mutex<Open>,
    /// There is something to be sent, or nobody sends any more.
    changed: Notify,
    /// Whether any call was answered.
    has_answered: AtomicBool,
}

#[derive(Debug)]
struct Open {
    queue: Queue<Ticket>,
    is_open: bool,
    /// Why those who send have no more use for it, if it is known.
    close_reason: Option<CloseReason>,
}

/// What a call gets, and when it was read.
type Ticket = oneshot::Sender<(Answered, Instant)>;

/// A socket, and when it is to be closed.
pub(crate) type Opened = (Stream, Option<Instant>, OpenConnection);

impl Shared {
    pub(crate) fn new(connections: usize, recorder: Arc<ServerRecorder>) -> Self {
        let slots: Box<[Slot]> = (0..connections.max(1)).map(|_| Slot::default()).collect();
        let permits = Semaphore::new(slots.len() * CALLS_MAX);
        Self { slots, permits, recorder }
    }

    /// Does an operation over one of the connections, which `open` opens. Returns its output, and when the reply was read.
    ///
    /// # Errors
    /// [`Error`]; it is over by the deadline.
    pub(crate) async fn call<O: Operation, F: Future<Output = Result<Opened, Error>>>(
        &self,
        operation: &mut O,
        deadline: Instant,
        open: impl Fn() -> F,
    ) -> Result<(O::Output, Instant), Error> {
        let closed = || Error::definite(ErrorKind::ClientClosed);
        let _permit = match self.permits.try_acquire() {
            Ok(permit) => permit,
            Err(TryAcquireError::Closed) => return Err(closed()),
            Err(TryAcquireError::NoPermits) => {
                let _time = self.recorder.wait();
                match timeout_at(deadline.into(), self.permits.acquire()).await {
                    Ok(permit) => permit.map_err(|_| closed())?,
                    Err(_) => return Err(Error::definite(ErrorKind::PoolTimeout)),
                }
            }
        };
        let slot = self.slot();
        let _counted = Counted::new(&slot.calls);
        let mut is_repeated = false;
        loop {
            let line = slot.line(deadline, open()).await?;
            if self.permits.is_closed() {
                // The client was closed while it was opened. It ends with those who have it.
                slot.close(&line, CloseReason::ClientClosed);
            }
            let was_used = line.0.state.has_answered.load(Ordering::Relaxed);
            let broken = match line.0.state.call(operation, deadline).await {
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
        }
    }

    /// The place with the fewest calls. One that is empty is used when all others are busy.
    fn slot(&self) -> &Slot {
        let load = |slot: &&Slot| {
            let calls = slot.calls.load(Ordering::Relaxed);
            // One that has calls is open, or is being opened.
            if calls > 0 || slot.lock().is_some() { calls } else { CALLS_BUSY }
        };
        self.slots.iter().min_by_key(load).expect("there is one")
    }

    /// Closes the connections, and refuses further calls.
    pub(crate) fn close(&self) {
        self.permits.close();
        self.slots.iter().for_each(|slot| drop(slot.lock().take()));
    }

    /// Connections that are open, those of them that no call uses, and 0 calls that wait for one.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        let is_open =
            |slot: &&Slot| slot.lock().as_ref().is_some_and(|line| line.0.state.lock().is_open);
        let open = || self.slots.iter().filter(is_open);
        let idle = open().filter(|slot| slot.calls.load(Ordering::Relaxed) == 0).count();
        (open().count(), idle, 0)
    }
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, Option<Line>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, if it is open.
    fn open_line(&self) -> Option<Line> {
        let mut line = self.lock();
        if let Some(old) = line.take_if(|line| line.is_over() || !line.0.state.lock().is_open) {
            old.0.state.closes(CloseReason::Lifetime);
        }
        line.clone()
    }

    /// The connection, which is opened if it is not open. Of calls that need it at the same time one opens it; if that
    /// fails, the others get the same error.
    async fn line(
        &self,
        deadline: Instant,
        open: impl Future<Output = Result<Opened, Error>>,
    ) -> Result<Line, Error> {
        if let Some(line) = self.open_line() {
            return Ok(line);
        }
        let failures = self.failures.load(Ordering::Acquire);
        let opening = timeout_at(deadline.into(), self.opening.lock()).await;
        // Whoever opens the connection tells of the fault.
        let mut last_error = opening.map_err(|_| Error::definite(ErrorKind::Timeout).echo())?;
        if let Some(line) = self.open_line() {
            return Ok(line);
        }
        if self.failures.load(Ordering::Acquire) != failures
            && let Some(error) = last_error.as_ref()
        {
            // Another attempt would fail as the one that was waited for.
            return Err(error.clone().echo());
        }
        let opened = open.await.inspect_err(|error| {
            // A call whose time is over may have tried for a shorter time than others can.
            if Instant::now() < deadline {
                *last_error = Some(error.clone());
                self.failures.fetch_add(1, Ordering::Release);
            }
        })?;
        let line = Line::new(opened);
        *self.lock() = Some(line.clone());
        Ok(line)
    }

    /// Has the next call open another connection.
    fn close(&self, line: &Line, reason: CloseReason) {
        line.0.state.closes(reason);
        self.lock().take_if(|other| Arc::ptr_eq(&other.0, &line.0));
    }
}

impl Line {
    fn is_over(&self) -> bool {
        self.0.expires.is_some_and(|at| at <= Instant::now())
    }

    fn new((stream, expires, open): Opened) -> Self {
        let queue = Open { queue: Queue::new(), is_open: true, close_reason: None };
        let (changed, has_answered) = (Notify::new(), AtomicBool::new(false));
        let state = Arc::new(State { queue: Mutex::new(queue), changed, has_answered });
        let exchange = Exchange::new();
        tokio::spawn(Driver { state: Arc::clone(&state), stream, exchange, open }.run());
        Self(Arc::new(Sender { state, expires }))
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.state.lock().is_open = false;
        self.state.changed.notify_one();
    }
}

impl State {
    fn lock(&self) -> MutexGuard<'_, Open> {
        // Each change of it is whole before anything can panic.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says why nobody will send any more. The first reason counts.
    fn closes(&self, reason: CloseReason) {
        self.lock().close_reason.get_or_insert(reason);
    }

    async fn call<O: Operation>(
        &self,
        operation: &mut O,
        deadline: Instant,
    ) -> Result<(O::Output, Instant), Broken> {
        let reads = operation.reads();
        let (ticket, answered) = oneshot::channel();
        let number = {
            let mut open = self.lock();
            if !open.is_open {
                return Err(Lost::new(ErrorKind::Closed, false).broken(reads));
            }
            open.queue.push(ticket, |connection| operation.begin(connection))
        };
        self.changed.notify_one();
        let (answered, read) = match timeout_at(deadline.into(), answered).await {
            Ok(Ok(answered)) => answered,
            // The runtime of the task was shut down.
            Ok(Err(_)) => return Err(Lost::new(ErrorKind::Closed, true).broken(reads)),
            Err(_) => {
                let is_sent = !self.lock().queue.withdraw(number);
                let broken = Lost::new(ErrorKind::Timeout, is_sent).broken(reads);
                // The connection goes on: the reply is dropped when it comes.
                return Err(Broken { is_usable: true, ..broken });
            }
        };
        output(operation, answered).map(|output| (output, read))
    }
}

/// The task of a connection.
struct Driver {
    state: Arc<State>,
    stream: Stream,
    exchange: Exchange<Ticket>,
    open: OpenConnection,
}

impl Driver {
    async fn run(mut self) {
        let error = self.drive().await.err();
        let known = self.state.lock().close_reason;
        let reason = error.as_ref().map(CloseReason::of).or(known);
        self.open.closes(reason.unwrap_or(CloseReason::ClientClosed));
        self.end(&error.unwrap_or(ErrorKind::ClientClosed));
    }

    /// Refuses further calls, and tells all that have no answer why there will be none.
    fn end(&mut self, kind: &ErrorKind) {
        let lost = {
            let mut open = self.state.lock();
            open.is_open = false;
            lose(&mut self.exchange, &mut open.queue, kind)
        };
        let (mut is_echo, now) = (self.exchange.is_told(), Instant::now());
        for (ticket, mut event) in lost {
            let is_sent = event.is_sent;
            event.is_echo = is_echo;
            // Whoever has given up needs no answer, and tells nobody of it.
            match ticket.send((Err(event), now)) {
                Ok(()) => is_echo = true,
                Err(_) if is_sent => self.open.abandoned(),
                Err(_) => (),
            }
        }
    }

    /// Moves bytes until nobody needs the connection any more.
    async fn drive(&mut self) -> Result<(), ErrorKind> {
        let lost = |error: io::Error| ErrorKind::Io(Arc::new(error));
        let state = Arc::clone(&self.state);
        // When the last call was answered, and when that was asked last.
        let (mut answered, mut checked) = (Instant::now(), Instant::now());
        loop {
            if self.exchange.is_idle() {
                if !state.lock().queue.is_empty() {
                    self.look()?;
                }
                answered = Instant::now();
            }
            let is_behind = !self.exchange.output().is_empty();
            let is_open = {
                let mut open = state.lock();
                self.exchange.take(&mut open.queue, |ticket| !ticket.is_closed());
                open.is_open
            };
            let mut interest = Interest::READABLE;
            while !self.exchange.output().is_empty() {
                match self.stream.try_write(self.exchange.output()) {
                    Ok(len) => self.exchange.sent(len),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        interest = interest.add(Interest::WRITABLE);
                        break;
                    }
                    Err(error) => return Err(lost(error)),
                }
            }
            if is_behind && self.exchange.output().is_empty() {
                // Now there is room for what is in the queue.
                continue;
            }
            let has_read = match self.stream.try_read(self.exchange.room()) {
                Ok(0) => return Err(ErrorKind::Closed),
                Ok(len) => {
                    self.exchange.received(len);
                    let now = Instant::now();
                    if self.hand_out(now)? {
                        answered = now;
                    }
                    true
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
                Err(error) => return Err(lost(error)),
            };
            // Also of a server that never stops to send.
            if !self.exchange.is_idle() && answered.max(checked).elapsed() >= SILENCE_MAX {
                checked = Instant::now();
                let has_lost = self.exchange.tickets().any(oneshot::Sender::is_closed);
                if has_lost && answered.elapsed() >= SILENCE_MAX {
                    return Err(ErrorKind::Timeout);
                }
            }
            if has_read {
                // Whoever was answered may ask again, together with others.
                tokio::task::yield_now().await;
                continue;
            }
            let is_idle = self.exchange.is_idle();
            if is_idle && !is_open {
                return Ok(());
            }
            tokio::select! {
                ready = self.stream.ready(interest) => drop(ready.map_err(lost)?),
                () = state.changed.notified() => (),
                () = sleep_until((answered.max(checked) + SILENCE_MAX).into()), if !is_idle => (),
            }
        }
    }

    /// Fails if the server has closed a connection that was idle, or sent something that nobody asked for.
    fn look(&self) -> Result<(), ErrorKind> {
        match self.stream.is_quiet() {
            Ok(true) => Ok(()),
            Ok(false) => Err(ErrorKind::Closed),
            Err(error) => Err(ErrorKind::Io(Arc::new(error))),
        }
    }

    /// Hands out replies that were read at `now`; whether there was one.
    fn hand_out(&mut self, now: Instant) -> Result<bool, ErrorKind> {
        let mut has_answered = false;
        loop {
            match self.exchange.next() {
                Ok(Some((ticket, replies))) => {
                    has_answered = true;
                    self.state.has_answered.store(true, Ordering::Relaxed);
                    match ticket.send((Ok(replies), now)) {
                        Ok(()) => self.exchange.told(),
                        Err(_) => self.open.abandoned(),
                    }
                }
                Ok(None) => return Ok(has_answered),
                Err(garbage) => return Err(ErrorKind::Unexpected(garbage.0)),
            }
        }
    }
}

/// A runtime that is shut down drops the task, wherever it is.
impl Drop for Driver {
    fn drop(&mut self) {
        self.end(&ErrorKind::Closed);
    }
}
