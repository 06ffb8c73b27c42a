//! A connection's task: it waits for an event, has turns until it has to wait again, and repeats that.

use super::hold::Hold;
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

/// How often a task lets others go first while connections are being closed for want of memory.
const SHEDDING_YIELDS_MAX: u32 = 16;

/// A connection with what its task waits for. Dropping it closes it.
pub(super) struct Client {
    shared: Arc<Shared>,
    connection: Connection<Session<erased::Handle>>,
    stream: Stream,
    /// The deadline of its TLS handshake.
    handshake_deadline: Option<Instant>,
    /// The timer that ends its wait without an event: its duration, and the timer.
    alarm: Option<(Duration, Pin<Box<Sleep>>)>,
    /// The phase that it has seen.
    phase: Phase,
    /// What wakes it when it waits for slower storage; created at the first such wait.
    hold: OnceCell<Hold>,
}

impl Client {
    pub(super) fn begin(shared: &Arc<Shared>, accepted: Accepted) -> io::Result<Self> {
        let (connection, stream, handshake_deadline) = shared.server.begin(accepted)?;
        Ok(Self {
            shared: Arc::clone(shared),
            connection,
            stream: Stream::new(stream)?,
            handshake_deadline,
            alarm: None,
            phase: Phase::Serving,
            hold: OnceCell::new(),
        })
    }

    /// Serves it to its end. It is boxed because the task would contain it more than once otherwise.
    pub(super) async fn run(mut self: Box<Self>) {
        let shared = Arc::clone(&self.shared);
        // It is polled once and then wakes this task, which checks the phase whenever it wakes: so no
        // request takes the lock that all connections share.
        let mut changed = pin!(shared.phase_changed.notified());
        let _pending = poll_fn(|cx| Poll::Ready(changed.as_mut().poll(cx))).await;
        while self.wait().await && self.serve().await {
            if self.phase == Phase::Draining && self.try_drain().await {
                return;
            }
        }
    }

    /// Has turns until there is something to wait for; false if it is to be closed.
    async fn serve(&mut self) -> bool {
        // The tasks that have to close are ready to run: after them there is room for this one.
        for _ in 0..SHEDDING_YIELDS_MAX {
            if !self.shared.server.is_shedding() {
                break;
            }
            yield_now().await;
        }
        loop {
            if self.connection.is_handshaking() {
                self.await_handshake_turn().await;
            }
            match poll_fn(|cx| Poll::Ready(self.turn(cx.waker()))).await {
                NextAction::PollAgain => yield_now().await,
                NextAction::Wait | NextAction::Hold => return true,
                NextAction::Close => return false,
            }
        }
    }

    /// Lets tasks that are ready go first, as long as handshakes have had their share of this thread.
    async fn await_handshake_turn(&mut self) {
        let mut waited = None;
        while let Err(round) = self.shared.with_worker(|worker| worker.admit_handshake(waited)) {
            waited = Some(round);
            yield_now().await;
        }
    }

    fn turn(&mut self, task: &Waker) -> NextAction {
        let waker = || self.hold.get_or_init(|| Hold::new(task)).waker();
        self.shared.with_worker(|worker| {
            let now = worker.now();
            let after =
                worker.serve(&mut self.connection, &mut &*self.stream.socket(), now, &waker);
            worker.maintain_if_due(now.seconds());
            after
        })
    }

    /// Whether it has no unanswered request. Input from before the announced end is answered, whether
    /// or not its event has been seen.
    async fn try_drain(&mut self) -> bool {
        if !self.connection.is_quiet() {
            return false;
        }
        self.connection.note_event(true, false);
        !self.serve().await || self.connection.is_quiet()
    }

    /// Waits for a reason to serve it; false if it is to be closed.
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
            self.connection.info.holdings.set_waker(cx.waker());
            if self.connection.is_shed() {
                return Poll::Ready(false);
            }
        }
        if self.connection.is_held() && self.hold.get().is_some_and(Hold::take_wake) {
            self.connection.resume();
            return Poll::Ready(true);
        }
        let event = if self.connection.awaits_writing() {
            ready!(self.stream.poll_room(cx))
        } else if self.connection.is_held() {
            ready!(self.stream.poll_failure(cx));
            return Poll::Ready(false);
        } else {
            ready!(self.stream.poll_input(cx)).inspect(|()| self.connection.note_event(true, false))
        };
        // It fails when the runtime ends.
        Poll::Ready(event.is_ok())
    }

    /// Sets the timer that ends the wait.
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

    /// False if it is to be closed.
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
