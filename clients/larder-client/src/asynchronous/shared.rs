//! Shared connections to one server. One write carries the requests of several callers.
//!
//! Each connection has a task that owns the socket. Callers add their requests to the connection's
//! queue and wait for the replies.

use super::stream::Stream;
use crate::core::operation::Operation;
use crate::core::outcome::FailedCall;
use crate::core::shared::{
    CALLS_BUSY, CALLS_MAX, CallGuard, CallReplies, Exchange, LostCall, Queue, SILENCE_MAX,
    fail_all, output,
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

/// The shared connections to a server.
#[derive(Debug)]
pub(crate) struct Shared {
    slots: Box<[Slot]>,
    /// One permit per call under way.
    permits: Semaphore,
    recorder: Arc<ServerRecorder>,
}

/// A slot for one connection.
#[derive(Debug, Default)]
struct Slot {
    connection: Mutex<Option<SharedConnection>>,
    /// A call holds this lock while it opens the connection. The locked value is the error of the
    /// latest attempt that failed before its deadline. `None` if no attempt has failed in this way.
    opening: tokio::sync::Mutex<Option<Error>>,
    /// The number of attempts to open the connection that failed before the deadline of the call
    /// that made the attempt.
    failures: AtomicU64,
    /// The number of calls that use the connection or wait for it to open.
    calls: AtomicUsize,
}

/// A caller's handle to a connection. After the last handle is dropped, the driver closes the
/// connection as soon as no call is under way.
#[derive(Clone, Debug)]
struct SharedConnection(Arc<Sender>);

#[derive(Debug)]
struct Sender {
    state: Arc<State>,
    /// The end of the connection's lifetime. No later call uses the connection. `None` if the
    /// lifetime is unlimited.
    expires: Option<Instant>,
}

/// State that callers and the task of a connection share.
#[derive(Debug)]
struct State {
    queue: Mutex<QueueState>,
    /// Wakes the task when there are requests to send, and when the last handle is dropped.
    changed: Notify,
    /// Whether a reply has arrived on the connection.
    has_answered: AtomicBool,
}

#[derive(Debug)]
struct QueueState {
    queue: Queue<Ticket>,
    is_open: bool,
    /// The reason for closing the connection. `None` until a caller sets it.
    close_reason: Option<CloseReason>,
}

/// Sends a caller its replies and the time at which they were read.
type Ticket = oneshot::Sender<(CallReplies, Instant)>;

/// A new connection: its socket, the end of its lifetime, and the guard that counts it as open.
pub(crate) type NewConnection = (Stream, Option<Instant>, OpenConnection);

impl Shared {
    pub(crate) fn new(connections: usize, recorder: Arc<ServerRecorder>) -> Self {
        let slots: Box<[Slot]> = (0..connections.max(1)).map(|_| Slot::default()).collect();
        let permits = Semaphore::new(slots.len() * CALLS_MAX);
        Self { slots, permits, recorder }
    }

    /// Carries out an operation over one of the connections. `open` opens the connection if
    /// necessary. Returns the output and the time at which the reply was read.
    ///
    /// # Errors
    /// The operation failed, or its deadline has passed.
    pub(crate) async fn call<O: Operation, F: Future<Output = Result<NewConnection, Error>>>(
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
        let _counted = CallGuard::new(&slot.calls);
        let mut is_repeated = false;
        loop {
            let connection = slot.connection(deadline, open()).await?;
            if self.permits.is_closed() {
                // The client was closed while the connection was being opened. This call may still
                // use the connection, which is closed when its last handle is dropped.
                slot.close(&connection, CloseReason::ClientClosed);
            }
            let was_used = connection.0.state.has_answered.load(Ordering::Relaxed);
            let broken = match connection.0.state.call(operation, deadline).await {
                Ok(output) => return Ok(output),
                Err(broken) => broken,
            };
            if !broken.is_usable {
                slot.close(&connection, CloseReason::of(broken.error.kind()));
            }
            // Repeats the call once if a connection that worked before was lost without a reply.
            // The second attempt opens a new connection, which shows whether the server still
            // works.
            if is_repeated || !(was_used && broken.was_stale) {
                return Err(broken.error);
            }
            is_repeated = true;
        }
    }

    /// Returns the slot with the fewest calls. A slot without calls and without a connection counts
    /// as a slot with [`CALLS_BUSY`] calls, so a call opens another connection only if no open
    /// connection has fewer calls.
    fn slot(&self) -> &Slot {
        let load = |slot: &&Slot| {
            let calls = slot.calls.load(Ordering::Relaxed);
            // A slot with calls has a connection or is opening one, so only a slot without calls
            // needs the check.
            if calls > 0 || slot.lock().is_some() { calls } else { CALLS_BUSY }
        };
        self.slots.iter().min_by_key(load).expect("there is at least one slot")
    }

    /// Makes later calls fail, and closes each connection once no call uses it.
    pub(crate) fn close(&self) {
        self.permits.close();
        self.slots.iter().for_each(|slot| drop(slot.lock().take()));
    }

    /// Returns the numbers of open connections, open connections without calls, and waiting calls.
    /// The last number is always 0: calls wait for a connection only in a pool.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        let is_open = |slot: &&Slot| {
            slot.lock().as_ref().is_some_and(|connection| connection.0.state.lock().is_open)
        };
        let open = || self.slots.iter().filter(is_open);
        let idle = open().filter(|slot| slot.calls.load(Ordering::Relaxed) == 0).count();
        (open().count(), idle, 0)
    }
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, Option<SharedConnection>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the slot's connection if it is open and its lifetime is not over. Otherwise removes
    /// the connection from the slot.
    fn open_connection(&self) -> Option<SharedConnection> {
        let mut connection = self.lock();
        if let Some(old) = connection
            .take_if(|connection| connection.is_over() || !connection.0.state.lock().is_open)
        {
            old.0.state.set_close_reason(CloseReason::Lifetime);
        }
        connection.clone()
    }

    /// Returns the connection, and opens it if necessary. If several calls need the connection, one
    /// of them opens it, and the others wait. If the attempt fails before the deadline of the call
    /// that makes it, the waiting calls get the same error.
    async fn connection(
        &self,
        deadline: Instant,
        open: impl Future<Output = Result<NewConnection, Error>>,
    ) -> Result<SharedConnection, Error> {
        if let Some(connection) = self.open_connection() {
            return Ok(connection);
        }
        let failures = self.failures.load(Ordering::Acquire);
        let opening = timeout_at(deadline.into(), self.opening.lock()).await;
        // The breaker ignores this timeout: the call that opens the connection reports the fault,
        // if there is one.
        let mut last_error = opening.map_err(|_| Error::definite(ErrorKind::Timeout).echo())?;
        if let Some(connection) = self.open_connection() {
            return Ok(connection);
        }
        if self.failures.load(Ordering::Acquire) != failures
            && let Some(error) = last_error.as_ref()
        {
            // This call waited for an attempt that failed. It makes no attempt of its own, which
            // would probably fail in the same way.
            return Err(error.clone().echo());
        }
        let opened = open.await.inspect_err(|error| {
            // An attempt that failed at its deadline may have had little time. Other calls may have
            // more time left, so they try again.
            if Instant::now() < deadline {
                *last_error = Some(error.clone());
                self.failures.fetch_add(1, Ordering::Release);
            }
        })?;
        let connection = SharedConnection::new(opened);
        *self.lock() = Some(connection.clone());
        Ok(connection)
    }

    /// Removes a connection from its slot, so that the next call opens a new connection. `reason`
    /// is the reason for closing the removed connection.
    fn close(&self, connection: &SharedConnection, reason: CloseReason) {
        connection.0.state.set_close_reason(reason);
        self.lock().take_if(|other| Arc::ptr_eq(&other.0, &connection.0));
    }
}

impl SharedConnection {
    fn is_over(&self) -> bool {
        self.0.expires.is_some_and(|at| at <= Instant::now())
    }

    fn new((stream, expires, open): NewConnection) -> Self {
        let queue = QueueState { queue: Queue::new(), is_open: true, close_reason: None };
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
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        // Each change leaves the state consistent, so a poisoned lock is safe to use.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the reason for closing the connection, unless a reason is set already. If the
    /// connection fails, the error determines the reason instead.
    fn set_close_reason(&self, reason: CloseReason) {
        self.lock().close_reason.get_or_insert(reason);
    }

    async fn call<O: Operation>(
        &self,
        operation: &mut O,
        deadline: Instant,
    ) -> Result<(O::Output, Instant), FailedCall> {
        let reads = operation.reads();
        let (ticket, answered) = oneshot::channel();
        let number = {
            let mut open = self.lock();
            if !open.is_open {
                return Err(LostCall::new(ErrorKind::Closed, false).broken(reads));
            }
            open.queue.push(ticket, |requests| operation.encode(requests))
        };
        self.changed.notify_one();
        let (answered, read) = match timeout_at(deadline.into(), answered).await {
            Ok(Ok(answered)) => answered,
            // The runtime dropped the task of the connection when it shut down.
            Ok(Err(_)) => return Err(LostCall::new(ErrorKind::Closed, true).broken(reads)),
            Err(_) => {
                let is_sent = !self.lock().queue.withdraw(number);
                let broken = LostCall::new(ErrorKind::Timeout, is_sent).broken(reads);
                // The connection stays usable: the driver drops the late reply.
                return Err(FailedCall { is_usable: true, ..broken });
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
        let close_reason = self.state.lock().close_reason;
        let reason = error.as_ref().map(CloseReason::of).or(close_reason);
        self.open.closes(reason.unwrap_or(CloseReason::ClientClosed));
        self.end(&error.unwrap_or(ErrorKind::ClientClosed));
    }

    /// Makes later calls fail, and fails all calls without a reply.
    fn end(&mut self, kind: &ErrorKind) {
        let lost = {
            let mut open = self.state.lock();
            open.is_open = false;
            fail_all(&mut self.exchange, &mut open.queue, kind)
        };
        let (mut is_echo, now) = (self.exchange.is_reported(), Instant::now());
        for (ticket, mut event) in lost {
            let is_sent = event.is_sent;
            event.is_echo = is_echo;
            // The first caller that receives the error reports it to the breaker. For the other
            // callers, the error is marked as an echo. A caller that has given up receives nothing.
            match ticket.send((Err(event), now)) {
                Ok(()) => is_echo = true,
                Err(_) if is_sent => self.open.abandoned(),
                Err(_) => (),
            }
        }
    }

    /// Transfers requests and replies until no caller needs the connection.
    async fn drive(&mut self) -> Result<(), ErrorKind> {
        let lost = |error: io::Error| ErrorKind::Io(Arc::new(error));
        let state = Arc::clone(&self.state);
        // `answered_at` is the time of the last reply, or the last time at which no call was under
        // way. `checked_at` is the time of the last check for silence.
        let (mut answered_at, mut checked_at) = (Instant::now(), Instant::now());
        loop {
            let mut may_take = true;
            if self.exchange.is_idle() {
                may_take = !state.lock().queue.is_empty();
                if may_take {
                    self.check_idle()?;
                }
                answered_at = Instant::now();
            }
            let is_behind = !self.exchange.output().is_empty();
            let is_open = {
                let mut open = state.lock();
                // If the queue was empty above, the idle connection was not checked. A request that
                // was queued since then waits for the next iteration, which `changed` starts.
                if may_take {
                    self.exchange.take(&mut open.queue, |ticket| !ticket.is_closed());
                }
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
                // The delayed output is sent, so the next iteration can take queued requests.
                continue;
            }
            let has_read = match self.stream.try_read(self.exchange.room()) {
                Ok(0) => return Err(ErrorKind::Closed),
                Ok(len) => {
                    self.exchange.received(len);
                    let now = Instant::now();
                    if self.deliver_replies(now)? {
                        answered_at = now;
                    }
                    true
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
                Err(error) => return Err(lost(error)),
            };
            // Checks for silence even if the server sends bytes without pause, because only
            // complete replies count.
            if !self.exchange.is_idle() && answered_at.max(checked_at).elapsed() >= SILENCE_MAX {
                checked_at = Instant::now();
                let has_lost = self.exchange.tickets().any(oneshot::Sender::is_closed);
                if has_lost && answered_at.elapsed() >= SILENCE_MAX {
                    return Err(ErrorKind::Timeout);
                }
            }
            if has_read {
                // Yields, so that callers that have just received their replies can queue further
                // requests. One write then sends all of these requests.
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
                () = sleep_until((answered_at.max(checked_at) + SILENCE_MAX).into()), if !is_idle => (),
            }
        }
    }

    /// Checks an idle connection. Fails if the server has closed it or sent unsolicited bytes.
    fn check_idle(&self) -> Result<(), ErrorKind> {
        match self.stream.is_quiet() {
            Ok(true) => Ok(()),
            Ok(false) => Err(ErrorKind::Closed),
            Err(error) => Err(ErrorKind::Io(Arc::new(error))),
        }
    }

    /// Delivers the replies that were read at `now`. Returns whether there were any.
    fn deliver_replies(&mut self, now: Instant) -> Result<bool, ErrorKind> {
        let mut has_answered = false;
        loop {
            match self.exchange.next() {
                Ok(Some((ticket, replies))) => {
                    has_answered = true;
                    self.state.has_answered.store(true, Ordering::Relaxed);
                    match ticket.send((Ok(replies), now)) {
                        Ok(()) => self.exchange.mark_reported(),
                        Err(_) => self.open.abandoned(),
                    }
                }
                Ok(None) => return Ok(has_answered),
                Err(garbage) => return Err(ErrorKind::Unexpected(garbage.0)),
            }
        }
    }
}

/// If the runtime shuts down, it drops the task at an await point. The pending calls then fail.
impl Drop for Driver {
    fn drop(&mut self) {
        self.end(&ErrorKind::Closed);
    }
}
