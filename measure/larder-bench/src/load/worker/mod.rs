//! A load worker thread: an event loop over its clients' connections.

mod connections;
mod end;
mod sending;

use crate::load::client::Client;
use crate::load::connection::answers::PendingRequest;
use crate::load::connection::{Arrived, Connection};
use crate::load::control::Control;
use crate::load::nanos;
use crate::load::pace::bursts::Bursts;
use crate::load::pace::schedule::Schedule;
use crate::load::stats::LoadStats;
use crate::load::stats::client_stats::ClientStats;
use crate::load::stats::unsent::Unsent;
use crate::load::trace::replay::Replay;
use crate::load::wire::Writer;
use crate::load::workload::Load;
use crate::run_error::RunError;
use crate::settings::{Arrivals, Stop};
use mio::{Events, Poll, Token};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// Interval at which a worker reports its statistics.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// Maximum interval between checks of [`Control`]'s flags.
pub(crate) const CHECK_EVERY: Duration = Duration::from_millis(50);
/// Minimum interval at which a worker updates the time of the last reply in [`Control`], so that
/// workers rarely write to shared memory.
const PROGRESS_STEP: Duration = Duration::from_millis(1);
/// Time after the end of an open loop during which workers still send overdue requests, so that a
/// slow server or load generator can catch up.
const CATCH_UP_TIME: Duration = Duration::from_secs(1);
/// Maximum time to wait for outstanding replies after a signal.
const INTERRUPTED_TIMEOUT: Duration = Duration::from_secs(1);
/// If a request is due within this time, the worker polls without blocking: the event queue's
/// timeout has a resolution of only a millisecond.
const SPIN_TIME: Duration = Duration::from_millis(2);
/// Maximum delay before a client without events continues. A client receives no event if all of its
/// last requests were for lost servers, or if it has just lost a connection.
const RETRY_AFTER: Duration = Duration::from_millis(1);
/// Delay before each attempt to reconnect a lost connection.
const REOPEN_AFTER: Duration = Duration::from_millis(2);

/// A worker thread of the load.
#[derive(Debug)]
pub(crate) struct Worker<'l> {
    load: &'l Load,
    control: &'l Control,
    poll: Poll,
    /// `None` for a client that is done or has lost all connections.
    clients: Vec<Option<Client>>,
    /// Number of connections per client.
    servers: usize,
    /// Clients that continue after [`RETRY_AFTER`] because no event will arrive for them: all of
    /// their last requests were for lost servers, or the clients have just lost a connection.
    waiting: Vec<usize>,
    /// Scheduled reconnects: client, server and time.
    reopening: Vec<(usize, usize, Duration)>,
    /// Requests that were not sent because their server is lost.
    unsent: Unsent,
    /// The time of the last check for connections that take too long to open.
    opening_checked: Duration,
    schedule: Option<Schedule>,
    bursts: Option<Bursts>,
    /// The replay of a trace; `None` for other runs.
    replay: Option<Replay>,
    writer: Writer,
    stats: LoadStats,
    start: Instant,
    /// The time after which no request becomes due: the end of a timed run, or the arrival of a
    /// signal. `None` in other runs until a signal arrives.
    end: Option<Duration>,
    /// Maximum time to wait for outstanding replies after `end`.
    timeout: Duration,
    interrupted: bool,
    /// The time at which the next step is due; `None` without further steps.
    next_step: Option<Duration>,
    /// The statistics of finished and lost connections.
    client_stats: Vec<ClientStats>,
    /// Number of clients that are neither done nor lost.
    busy: usize,
    /// Number of lost connections. Connections that are reconnected do not count.
    lost: usize,
    /// The time of the last event with data or the end of a stream.
    last_event: Duration,
    /// The last time at which a reply arrived or nothing was outstanding.
    progress: Duration,
    /// The unanswered requests of lost connections.
    unanswered: Vec<PendingRequest>,
    /// Number of requests that lost clients still had to send.
    left_of_lost: u64,
}

/// The final report of a worker.
#[derive(Clone, Debug)]
pub(crate) struct WorkerEnd {
    /// Time from the start of the run to the last reply. If a time limit, a signal or an early end
    /// stopped the worker after the last reply, this is the time until that stop.
    pub(crate) time: Duration,
    /// Number of lost connections. Connections that are reconnected do not count.
    pub(crate) lost: usize,
    /// Number of connections with an incomplete TLS handshake.
    pub(crate) handshaking: usize,
    /// The statistics of each connection, if they were recorded.
    pub(crate) clients: Vec<ClientStats>,
    /// The error that ended the trace; `None` if there was none.
    pub(crate) trace_error: Option<String>,
}

impl<'l> Worker<'l> {
    /// Creates a thread's worker, and registers its clients' sockets.
    ///
    /// # Errors
    /// The system cannot create an event queue or register the sockets with it, the trace cannot be
    /// read, or the run was interrupted.
    pub(crate) fn new(
        load: &'l Load,
        control: &'l Control,
        mut clients: Vec<Client>,
        thread: usize,
        interrupted: &AtomicBool,
    ) -> Result<Self, RunError> {
        let poll = Poll::new().map_err(RunError::System)?;
        // A connection's token is its index in the sequence of all connections of this worker's
        // clients.
        let connections = clients.iter_mut().flat_map(Client::connections_mut);
        for (token, connection) in connections.enumerate() {
            if !connection.is_dormant() {
                let registered = connection.socket.register(poll.registry(), Token(token));
                registered.map_err(RunError::System)?;
            }
        }
        let settings = &load.settings;
        let (mut schedule, mut bursts) = (None, None);
        match (settings.rate, settings.arrivals) {
            (Some(rate), Arrivals::Bursts) => {
                let each = rate / settings.all_clients() as u64;
                bursts = Some(Bursts::new(each, clients.len()));
            }
            (Some(rate), _) => schedule = Some(Schedule::new(rate, load, thread)),
            (None, _) => (),
        }
        Ok(Self {
            load,
            control,
            poll,
            busy: clients.len(),
            lost: 0,
            clients: clients.into_iter().map(Some).collect(),
            servers: load.settings.servers.len(),
            waiting: Vec::new(),
            reopening: Vec::new(),
            unsent: Unsent::default(),
            opening_checked: Duration::ZERO,
            schedule,
            bursts,
            replay: Replay::open(load, thread, interrupted)?,
            writer: load.writer(),
            stats: LoadStats::new(),
            start: Instant::now(),
            end: match load.settings.stop {
                Stop::After(time) => Some(time),
                Stop::Requests(_) | Stop::EndOfTrace => None,
            },
            timeout: load.settings.timeout,
            interrupted: false,
            client_stats: Vec::new(),
            next_step: load.settings.steps.map(|steps| steps.every),
            last_event: Duration::ZERO,
            progress: Duration::ZERO,
            unanswered: Vec::new(),
            left_of_lost: 0,
        })
    }

    /// Runs until no client has requests left and no further requests become due. Also stops when a
    /// timed or interrupted run has ended and its outstanding replies have arrived or timed out, or
    /// when [`Control`] stops the worker. Sends statistics to `reports` about once per second.
    ///
    /// # Errors
    /// Waiting for events failed.
    pub(crate) fn run(
        mut self,
        start: Instant,
        reports: &Sender<LoadStats>,
    ) -> Result<WorkerEnd, RunError> {
        self.start = start;
        let mut events = Events::with_capacity(1024);
        let mut reported = Duration::ZERO;
        self.begin();
        loop {
            let elapsed = self.start.elapsed();
            if elapsed >= reported + REPORT_EVERY {
                self.report(reports);
                // Reports start at full seconds since the start of the run, so that the reports of
                // all workers cover the same seconds.
                reported = Duration::from_secs(elapsed.as_secs());
                self.stats.second = seconds(reported);
            }
            self.watch(elapsed);
            self.open_more(elapsed);
            self.drop_overdue(elapsed);
            self.reopen_lost(elapsed);
            self.resume_waiting(elapsed);
            self.send_due_requests(elapsed);
            self.begin_bursts(elapsed);
            self.replay(elapsed);
            if self.control.is_stopped() || self.is_finished(elapsed) {
                break;
            }
            let wait = self.wait(elapsed, reported);
            match self.poll.poll(&mut events, Some(wait)) {
                Err(error) if error.kind() != std::io::ErrorKind::Interrupted => {
                    return Err(RunError::System(error));
                }
                _ => (),
            }
            for event in &events {
                let arrived = Arrived::of(event);
                self.serve(event.token().0, arrived);
            }
        }
        Ok(self.finish(reports))
    }

    fn now(&self) -> u64 {
        nanos(self.start.elapsed())
    }

    fn has_ended(&self, elapsed: Duration) -> bool {
        self.end.is_some_and(|end| elapsed >= end)
    }

    /// Sets the end of the run when a signal arrives, and publishes the time of the last progress
    /// in [`Control`].
    fn watch(&mut self, elapsed: Duration) {
        if self.control.is_interrupted() && !self.interrupted {
            self.interrupted = true;
            let end = self.end.map_or(elapsed, |end| end.min(elapsed));
            self.timeout = self.timeout.min(elapsed - end + INTERRUPTED_TIMEOUT);
            self.end = Some(end);
        }
        if self.last_event >= self.progress + PROGRESS_STEP {
            self.progress = self.last_event;
            self.control.progressed(millis(self.progress));
        } else if elapsed > self.progress + CHECK_EVERY && self.is_idle() {
            self.progress = elapsed;
            self.control.progressed(millis(elapsed));
        }
    }

    fn is_idle(&self) -> bool {
        self.clients.iter().flatten().all(Client::is_idle)
    }

    fn is_answered(&self) -> bool {
        self.clients.iter().flatten().all(|client| client.unanswered() == 0)
    }

    fn connection(&mut self, index: usize, server: usize) -> Option<&mut Connection> {
        self.clients.get_mut(index)?.as_mut()?.connection(server)
    }

    /// Continues the clients for which no event will arrive.
    fn resume_waiting(&mut self, elapsed: Duration) {
        for index in std::mem::take(&mut self.waiting) {
            self.go_on(index, elapsed);
        }
    }

    /// Returns whether the worker has nothing left to send or to wait for, or has waited for
    /// replies until the timeout.
    fn is_finished(&self, elapsed: Duration) -> bool {
        let Some(end) = self.end.filter(|end| elapsed >= *end) else {
            // In a timed open loop, requests become due until the end, even without a connection.
            let is_due = self.is_open_loop() && self.end.is_some()
                || self.replay.as_ref().is_some_and(Replay::is_due_later);
            return self.busy == 0 && !is_due;
        };
        let catches_up = self.is_behind() && elapsed < end + CATCH_UP_TIME && self.busy > 0;
        elapsed >= end + self.timeout || (!catches_up && self.is_answered())
    }

    fn is_open_replay(&self) -> bool {
        self.replay.as_ref().is_some_and(Replay::is_open_loop)
    }

    /// Returns whether the open loop has unsent requests that were due before the end.
    fn is_behind(&self) -> bool {
        if let (Some(replay), Some(end)) = (&self.replay, self.end) {
            return replay.is_behind(nanos(end));
        }
        let due = self.schedule.as_ref().map(Schedule::due);
        due.zip(self.end).is_some_and(|(due, end)| due < end)
            || self.bursts.as_ref().is_some_and(Bursts::is_behind)
    }

    fn is_open_loop(&self) -> bool {
        self.schedule.is_some() || self.bursts.is_some()
    }

    /// Returns the timeout of the event queue: the time until the next timed action, at most
    /// [`CHECK_EVERY`]. Timed actions are a report, the end of the run or of the wait for replies,
    /// and a step, reconnect, retry or scheduled request. The timeout ends [`SPIN_TIME`] before a
    /// scheduled request.
    fn wait(&self, elapsed: Duration, reported: Duration) -> Duration {
        let mut wait = (reported + REPORT_EVERY).saturating_sub(elapsed).min(CHECK_EVERY);
        let ended = self.has_ended(elapsed);
        if let Some(end) = self.end {
            let until = if ended { end + self.timeout } else { end };
            wait = wait.min(until.saturating_sub(elapsed));
        }
        if !self.waiting.is_empty() {
            wait = wait.min(RETRY_AFTER);
        }
        if !self.reopening.is_empty() {
            wait = wait.min(REOPEN_AFTER);
        }
        if let Some(next) = self.next_step {
            wait = wait.min(next.saturating_sub(elapsed));
        }
        let end = self.end.map_or(u64::MAX, nanos);
        if let Some(due) = self.replay.as_ref().and_then(|replay| replay.due(end))
            && (!ended || self.is_open_replay() && !self.is_too_late(elapsed))
        {
            let due = Duration::from_nanos(due).saturating_sub(elapsed);
            wait = wait.min(due.saturating_sub(SPIN_TIME));
        }
        if let (Some(schedule), false) = (&self.schedule, ended)
            && !schedule.blocked
        {
            let due = schedule.due().saturating_sub(elapsed);
            wait = wait.min(due.saturating_sub(SPIN_TIME));
        }
        if let (Some(bursts), false) = (&self.bursts, ended) {
            let due = bursts.due().saturating_sub(elapsed);
            wait = wait.min(due.saturating_sub(SPIN_TIME));
        }
        wait
    }

    /// Handles an event of a connection: continues to open it, reads replies, sends requests, and
    /// starts a reconnect that `--reconnect-interval` requires.
    fn serve(&mut self, token: usize, arrived: Arrived) {
        let (index, server) = (token / self.servers, token % self.servers);
        let start = self.start;
        let now = || nanos(start.elapsed());
        let Some(Some(client)) = self.clients.get_mut(index) else { return };
        let Some(connection) = client.connection(server) else { return };
        if connection.is_lost() {
            return;
        }
        let result = match arrived {
            Arrived::Nothing => Ok(()),
            _ => connection.receive(self.load, arrived, now, &mut self.stats),
        };
        let result = result.and_then(|()| connection.go_on_opening(self.load));
        let result =
            result.and_then(|()| connection.send_or_receive(self.load, now, &mut self.stats));
        let elapsed = self.start.elapsed();
        if arrived != Arrived::Nothing {
            self.last_event = elapsed;
        }
        if let Err(error) = result {
            return self.drop_connection(index, server, &error);
        }
        let is_used_up = connection.is_used_up();
        if self.replay.is_some() {
            client.take_sets();
        }
        if is_used_up && !client.is_done() {
            if let Some(connection) = client.connection(server) {
                let reopened = connection.reopen(self.load);
                self.begin_serving(index, server, reopened);
            }
            return;
        }
        self.go_on(index, elapsed);
    }

    /// Removes a client that is done.
    fn retire(&mut self, index: usize) {
        if let Some(mut client) = self.clients[index].take() {
            let done = client.connections_mut().filter_map(Connection::take_client);
            self.client_stats.extend(done.map(|stats| *stats));
            self.busy -= 1;
        }
    }

    fn report(&mut self, reports: &Sender<LoadStats>) {
        // Sending fails if the receiver was dropped. The load then continues without reports.
        let _ = reports.send(self.stats.clone());
        self.stats.clear();
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn seconds(time: Duration) -> usize {
    usize::try_from(time.as_secs()).unwrap_or(usize::MAX)
}
