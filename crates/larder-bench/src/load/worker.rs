//! A worker thread of the load: an event loop over its connections.

use super::connection::{Connection, Load};
use super::stats::LoadStats;
use crate::run::RunError;
use crate::settings::Stop;
use mio::{Events, Poll, Token};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// Interval at which a worker reports its statistics.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// How long the worker waits for outstanding answers after the end of a timed run.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The event queue's timeout has a resolution of a millisecond, so the worker polls without
/// blocking when a request is due sooner than this.
const SPIN_TIME: Duration = Duration::from_millis(2);

/// A worker thread of the load.
#[derive(Debug)]
pub(crate) struct Worker<'l> {
    load: &'l Load,
    poll: Poll,
    /// A connection becomes `None` when it is done or lost.
    connections: Vec<Option<Connection>>,
    schedule: Option<Schedule>,
    stats: LoadStats,
    start: Instant,
    /// Number of connections that are neither done nor lost.
    busy: usize,
    lost: usize,
}

/// The times at which the open loop sends requests, a full pipeline each time.
#[derive(Debug)]
struct Schedule {
    /// When the next pipeline is due, in nanoseconds since the start.
    next: f64,
    step: f64,
    /// Index of the connection that sends the next pipeline.
    connection: usize,
}

impl<'l> Worker<'l> {
    /// # Errors
    /// The system refuses an event queue, or to register the sockets with it.
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

    /// Runs until all requests are answered or all connections are lost, and sends statistics to
    /// `reports` about once a second. Returns the number of lost connections.
    ///
    /// # Errors
    /// Waiting for events failed.
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

    /// The timeout of the event queue: until the next report, the end of the run or the next
    /// scheduled request, whichever comes first.
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

    /// Sends the first requests of a closed loop. The others follow as answers arrive.
    fn begin(&mut self) {
        for index in 0..self.connections.len() {
            if self.schedule.is_none() {
                self.fill_pipeline(index, self.now());
            }
        }
    }

    /// Reads a connection's answers and, in a closed loop, sends further requests.
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

    /// Sends the requests of an open loop that are due, as far as connections are free. A request
    /// that has to wait for a connection keeps its scheduled time.
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

    /// Sends requests until the connection's pipeline is full. `at` is the time from which their
    /// latency is measured.
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
        // Sending fails if the receiver is gone; the load goes on without reports.
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
        // The threads' pipelines alternate.
        let (thread, threads) = (thread as f64, load.settings.threads as f64);
        Self { next: step * thread, step: step * threads, connection: 0 }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not negative, and at most the length of a run"
    )]
    fn due(&self) -> Duration {
        Duration::from_nanos(self.next as u64)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
