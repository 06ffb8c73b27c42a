//! The task of a connection. In a loop, it waits for an event and then polls the connection until
//! the connection must wait again.

use super::hold::ResumeFlag;
use super::shared::Shared;
use super::stream::Stream;
use crate::connection::{Connection, NextAction};
use crate::driver::dispatch::{Accepted, LOG_INTERVAL, MAINTENANCE};
use crate::process::life_cycle::Phase;
use larder_session::Session;
use larder_store::erased;
use std::cell::OnceCell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};
use tokio::task::yield_now;
use tokio::time::{Sleep, sleep};

/// The maximum number of times that a task yields before it polls its connection while load
/// shedding closes other connections.
const SHEDDING_YIELDS_MAX: u32 = 16;

/// A connection and the events that its task waits for. Dropping it closes the connection.
pub(super) struct Client {
    shared: Arc<Shared>,
    connection: Connection<Session<erased::Handle>>,
    stream: Stream,
    /// The deadline of the TLS handshake; `None` without TLS.
    handshake_deadline: Option<Instant>,
    /// The timer that limits a wait, with the timer's duration; `None` if a wait has no limit.
    alarm: Option<(Duration, Pin<Box<Sleep>>)>,
    /// The server's phase at the last wake.
    phase: Phase,
    /// The flag that ends a wait for slower storage, for another node or for an acknowledgement.
    /// The first such wait creates the flag.
    resume: OnceCell<ResumeFlag>,
}

impl Client {
    pub(super) fn open(shared: &Arc<Shared>, accepted: Accepted) -> io::Result<Self> {
        let (connection, stream, handshake_deadline) = shared.server.open(accepted)?;
        Ok(Self {
            shared: Arc::clone(shared),
            connection,
            stream: Stream::new(stream)?,
            handshake_deadline,
            alarm: None,
            phase: Phase::Serving,
            resume: OnceCell::new(),
        })
    }

    /// Serves the connection until it closes. `self` is boxed, because the future could otherwise
    /// contain several copies of the large [`Client`].
    pub(super) async fn run(mut self: Box<Self>) {
        let shared = Arc::clone(&self.shared);
        // Poll the notification only once, to register this task for changes of the phase. Later,
        // the task checks the phase itself at every wake, because each poll of the notification
        // would acquire a lock that all connections share.
        let mut changed = pin!(shared.phase_changed.notified());
        let _pending = poll_fn(|cx| Poll::Ready(changed.as_mut().poll(cx))).await;
        while self.wait().await && self.serve().await {
            if self.phase == Phase::Draining && self.try_drain().await {
                return;
            }
        }
    }

    /// Polls the connection until the connection must wait. Returns false if the connection must
    /// close.
    async fn serve(&mut self) -> bool {
        // Yield, so that the tasks of connections that are marked for closing can run first and
        // free memory.
        for _ in 0..SHEDDING_YIELDS_MAX {
            if !self.shared.server.is_shedding() {
                break;
            }
            yield_now().await;
        }
        loop {
            if self.connection.is_handshaking() {
                self.admit_handshake().await;
            }
            match poll_fn(|cx| Poll::Ready(self.poll_connection(cx.waker()))).await {
                NextAction::PollAgain => yield_now().await,
                NextAction::Wait | NextAction::Hold => return true,
                NextAction::Close => return false,
            }
        }
    }

    /// Yields to other tasks until this thread has time for a handshake.
    async fn admit_handshake(&mut self) {
        let mut waited = None;
        while let Err(iteration) = self.shared.with_worker(|worker| worker.admit_handshake(waited))
        {
            waited = Some(iteration);
            yield_now().await;
        }
    }

    fn poll_connection(&mut self, task: &Waker) -> NextAction {
        let waker = || self.resume.get_or_init(|| ResumeFlag::new(task)).waker();
        self.shared.with_worker(|worker| {
            let now = worker.now();
            let after =
                worker.serve(&mut self.connection, &mut &*self.stream.socket(), now, &waker);
            worker.maintain_if_due(now.seconds());
            after
        })
    }

    /// Answers the requests that have arrived, including input that arrived before the shutdown
    /// without a reported event. Returns true if the connection can close.
    async fn try_drain(&mut self) -> bool {
        if !self.connection.is_quiet() {
            return false;
        }
        self.connection.note_event(true, false);
        !self.serve().await || self.connection.is_quiet()
    }

    /// Waits for an event, the timer or a change of phase. Returns false if the connection must
    /// close.
    async fn wait(&mut self) -> bool {
        self.set_alarm();
        poll_fn(|cx| self.poll_reason(cx)).await
    }

    fn poll_reason(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let phase = self.shared.server.life.phase();
        if std::mem::replace(&mut self.phase, phase) != phase {
            return Poll::Ready(phase != Phase::Ended);
        }
        if let Some((_, alarm)) = &mut self.alarm
            && alarm.as_mut().poll(cx).is_ready()
        {
            self.alarm = None;
            return Poll::Ready(self.handle_alarm());
        }
        if self.connection.is_holding() {
            self.connection.info.memory.set_waker(cx.waker());
            if self.connection.is_shed() {
                return Poll::Ready(false);
            }
        }
        let is_woken = self.resume.get().is_some_and(ResumeFlag::take_wake);
        if is_woken && self.connection.resume() {
            return Poll::Ready(true);
        }
        let event = if self.connection.awaits_writing() {
            match self.stream.poll_room(cx) {
                Poll::Pending if self.connection.awaits_input() => {
                    let input = ready!(self.stream.poll_input(cx));
                    input.inspect(|()| self.connection.note_event(true, false))
                }
                room => ready!(room),
            }
        } else if self.connection.is_held() {
            ready!(self.stream.poll_failure(cx));
            return Poll::Ready(false);
        } else {
            ready!(self.stream.poll_input(cx)).inspect(|()| self.connection.note_event(true, false))
        };
        // Waiting for the event fails when the runtime stops.
        Poll::Ready(event.is_ok())
    }

    /// Starts the timer that limits waits, unless one with the same duration is running.
    fn set_alarm(&mut self) {
        let after = self.poll_timeout();
        if self.alarm.as_ref().map(|(after, _)| *after) != after {
            self.alarm = after.map(|after| (after, Box::pin(sleep(after))));
        }
    }

    fn poll_timeout(&self) -> Option<Duration> {
        let may_time_out = self.shared.server.options.suboptions.idle_timeout > 0;
        if self.connection.is_watching() {
            Some(LOG_INTERVAL)
        } else {
            (may_time_out || self.connection.is_handshaking()).then_some(MAINTENANCE)
        }
    }

    /// Handles the expiry of the timer. Returns false if the connection must close.
    fn handle_alarm(&mut self) -> bool {
        let (server, connection) = (&self.shared.server, &mut self.connection);
        if connection.is_watching() {
            connection.call_again();
        }
        let late = self.handshake_deadline.is_some_and(|by| by <= Instant::now());
        if late && connection.is_handshaking() {
            server.note_late_handshake(&connection.info);
            return false;
        }
        !server.is_idle_timed_out(connection, server.clock.now())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.shared.server.finish(&mut self.connection, &mut &*self.stream.socket());
    }
}
