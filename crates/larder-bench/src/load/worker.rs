//! One thread: an event loop over its connections.

use super::connection::{Connection, Load};
use super::stats::LoadStats;
use crate::run::RunError;
use crate::settings::Stop;
use mio::{Events, Poll, Token};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// How often a thread says how it is doing.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// How long answers are waited for when no more is sent.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The system's wait is counted in milliseconds: what is due sooner is waited for awake.
const SPIN_TIME: Duration = Duration::from_millis(2);

/// One thread of the load.
#[derive(Debug)]
pub(crate) struct Worker<'l> {
    load: &'l Load,
    poll: Poll,
    /// None once it is done or lost.
    connections: Vec<Option<Connection>>,
    schedule: Option<Schedule>,
    stats: LoadStats,
    start: Instant,
    /// How many are neither done nor lost.
    busy: usize,
    lost: usize,
}

/// When requests are due in the open loop: a pipeline's worth at a time.
#[derive(Debug)]
struct Schedule {
    /// Nanoseconds since the start.
    next: f64,
    step: f64,
    /// Whose turn it is.
    connection: usize,
}

impl<'l> Worker<'l> {
    /// # Errors
    /// The system refuses to watch the sockets.
    pub(crate) fn new(
        load: &'l Load,
        mut connections: Vec<Connection>,
        thread: usize,
    ) -> Result<Self, RunError> {
        let poll = Poll::new().map_err(RunError::System)?;
        for (index, connection) in connections.iter_mut().enumerate() {
            connection.socket.register(poll.registry(), Token(index)).map_err(RunError::System)?;
        }
        Ok(Self {
            load,
            poll,
            busy: connections.len(),
            lost: 0,
            connections: connections.into_iter().map(Some).collect(),
            schedule: load.settings.rate.map(|rate| Schedule::new(rate, load, thread)),
            stats: LoadStats::new(),
            start: Instant::now(),
        })
    }

    /// Loads until everything is answered or lost; tells `reports` about once a second. Returns how
    /// many connections were lost.
    ///
    /// # Errors
    /// The system refuses to wait.
    pub(crate) fn run(
        mut self,
        start: Instant,
        reports: &Sender<LoadStats>,
    ) -> Result<usize, RunError> {
        self.start = start;
        let mut events = Events::with_capacity(1024);
        let mut reported = Duration::ZERO;
        self.begin();
        while self.busy > 0 {
            let elapsed = self.start.elapsed();
            if elapsed >= reported + REPORT_EVERY {
                reported = elapsed;
                self.report(reports);
            }
            let ended = self.has_ended(elapsed);
            if ended && self.is_answered_or_late(elapsed) {
                break;
            }
            if !ended {
                self.send_what_is_due();
            }
            let wait = self.wait(elapsed, reported, ended);
            match self.poll.poll(&mut events, Some(wait)) {
                Err(error) if error.kind() != std::io::ErrorKind::Interrupted => {
                    return Err(RunError::System(error));
                }
                _ => (),
            }
            for event in &events {
                self.serve(event.token().0, event.is_readable());
            }
        }
        self.end(reports);
        Ok(self.lost)
    }

    fn now(&self) -> u64 {
        nanos(self.start.elapsed())
    }

    fn has_ended(&self, elapsed: Duration) -> bool {
        matches!(self.load.settings.stop, Stop::After(time) if elapsed >= time)
    }

    fn is_answered_or_late(&self, elapsed: Duration) -> bool {
        let Stop::After(time) = self.load.settings.stop else { return false };
        elapsed >= time + ANSWER_TIMEOUT
            || self.connections.iter().flatten().all(|connection| connection.unanswered() == 0)
    }

    /// How long nothing but answers can happen.
    fn wait(&self, elapsed: Duration, reported: Duration, ended: bool) -> Duration {
        let mut wait = (reported + REPORT_EVERY).saturating_sub(elapsed);
        if let Stop::After(time) = self.load.settings.stop {
            let until = if ended { time + ANSWER_TIMEOUT } else { time };
            wait = wait.min(until.saturating_sub(elapsed));
        }
        if let (Some(schedule), false) = (&self.schedule, ended) {
            let due = schedule.due().saturating_sub(elapsed);
            wait = wait.min(due.saturating_sub(SPIN_TIME));
        }
        wait
    }

    /// The closed loop's first requests; the rest follow answers.
    fn begin(&mut self) {
        for index in 0..self.connections.len() {
            if self.schedule.is_none() {
                self.fill_pipeline(index, self.now());
            }
        }
    }

    /// Reads what came for a connection and, in the closed loop, asks on.
    fn serve(&mut self, index: usize, readable: bool) {
        let start = self.start;
        let Some(Some(connection)) = self.connections.get_mut(index) else { return };
        let result = if readable {
            connection.receive(self.load, || nanos(start.elapsed()), &mut self.stats)
        } else {
            Ok(())
        };
        if let Err(error) = result.and_then(|()| connection.send()) {
            return self.drop_connection(index, &error);
        }
        if connection.is_done() {
            self.connections[index] = None;
            self.busy -= 1;
        } else if self.schedule.is_none() && !self.has_ended(self.start.elapsed()) {
            self.fill_pipeline(index, self.now());
        }
    }

    /// The open loop: asks what is due by now, as far as connections have room. What has to wait
    /// for room keeps its due time.
    fn send_what_is_due(&mut self) {
        let now = self.start.elapsed();
        while let Some(schedule) = &mut self.schedule
            && schedule.due() <= now
        {
            let all = self.connections.len();
            let idle = |index: &usize| {
                self.connections[*index].as_ref().is_some_and(|c| c.is_ready(self.load))
            };
            let Some(index) = (0..all).map(|i| (schedule.connection + i) % all).find(idle) else {
                return;
            };
            let due = nanos(schedule.due());
            schedule.next += schedule.step;
            schedule.connection = (index + 1) % all;
            self.fill_pipeline(index, due);
        }
    }

    /// Asks until the pipeline is full.
    fn fill_pipeline(&mut self, index: usize, at: u64) {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return };
        if !connection.is_ready(self.load) {
            return;
        }
        while connection.has_room(self.load) {
            connection.enqueue(self.load, at, &mut self.stats);
        }
        if let Err(error) = connection.send() {
            self.drop_connection(index, &error);
        }
    }

    fn drop_connection(&mut self, index: usize, error: &std::io::Error) {
        if let Some(connection) = self.connections[index].take() {
            self.stats.fault(&format!("connection lost: {error}"), 1);
            self.stats.fault("unanswered", connection.unanswered());
            self.busy -= 1;
            self.lost += 1;
        }
    }

    fn report(&mut self, reports: &Sender<LoadStats>) {
        // Nobody may be listening any more; the load goes on.
        let _ = reports.send(self.stats.clone());
        self.stats.clear();
    }

    fn end(&mut self, reports: &Sender<LoadStats>) {
        let late: u64 =
            self.connections.iter().flatten().map(|connection| connection.unanswered()).sum();
        if late > 0 {
            self.stats.fault("unanswered", late);
        }
        self.report(reports);
    }
}

impl Schedule {
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    fn new(rate: u64, load: &Load, thread: usize) -> Self {
        let step = 1e9 * load.settings.pipeline as f64 / rate as f64;
        // Threads take turns.
        let (thread, threads) = (thread as f64, load.settings.threads as f64);
        Self { next: step * thread, step: step * threads, connection: 0 }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "positive, and of this century"
    )]
    fn due(&self) -> Duration {
        Duration::from_nanos(self.next as u64)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
