//! Counters and latency histograms of one worker thread.

pub(crate) mod client_stats;
pub(crate) mod outage;
pub(crate) mod unsent;

use crate::load::stats::outage::Outage;
use hdrhistogram::Histogram;
use std::collections::BTreeMap;

/// A command of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A set in the key space with this number; 0 without key spaces.
    Set(u16),
    /// A get in the key space with this number; 0 without key spaces.
    Get(u16),
    /// A custom command or an operation of a trace: its index in
    /// [`Settings::command_names`](crate::Settings::command_names).
    Custom(u16),
}

impl Kind {
    /// Returns the command at an index of
    /// [`Settings::command_names`](crate::Settings::command_names).
    pub(crate) fn of_number(number: usize) -> Self {
        match number {
            0 => Self::Set(0),
            1 => Self::Get(0),
            _ => Self::Custom(u16::try_from(number).unwrap_or(u16::MAX)),
        }
    }

    /// Returns whether the command is a set.
    #[inline]
    pub(crate) fn is_set(self) -> bool {
        matches!(self, Self::Set(_))
    }

    #[inline]
    fn number(self) -> usize {
        match self {
            Self::Set(space) => 2 * usize::from(space),
            Self::Get(space) => 2 * usize::from(space) + 1,
            Self::Custom(number) => usize::from(number),
        }
    }
}

/// The statistics of a thread since its last report, or the sums of many reports.
#[derive(Clone, Debug)]
pub(crate) struct LoadStats {
    /// The statistics of each command, by its number.
    pub(crate) commands: Vec<CommandStats>,
    /// Open loop: delays of the load generator, in nanoseconds. A delay starts when a request is
    /// due and a connection is free, and ends when the request is sent. `None` in a closed loop.
    pub(crate) lateness: Option<Histogram<u64>>,
    pub(crate) faults: BTreeMap<String, u64>,
    /// With `--reconnect-on-error`: lost connections, and the replies on reconnected connections.
    /// `None` before the first lost connection.
    pub(crate) outage: Option<Outage>,
    /// The replies of each server; empty with one server.
    pub(crate) servers: Vec<ServerStats>,
    /// The second of the run, from 0, in which the report's period started.
    pub(crate) second: usize,
}

/// The replies from one of several servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerStats {
    /// Number of answered requests, including requests with an error reply.
    pub(crate) answered: u64,
    /// Number of requests with an error reply.
    pub(crate) errors: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) lost_connections: u64,
}

/// The statistics of one command.
#[derive(Clone, Debug)]
pub(crate) struct CommandStats {
    /// Latencies in nanoseconds of all requests that were due. Requests without a reply count
    /// with their waiting time until the end of the run or, with `--reconnect-on-error`, until the
    /// loss of their connection.
    pub(crate) latency: Histogram<u64>,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    /// Number of requests that were answered with an error.
    pub(crate) errors: u64,
    /// Number of requests that were sent and not answered.
    pub(crate) never_answered: u64,
    /// Number of requests that were due and not sent: requests of an open loop, requests for a lost
    /// server, and recorded requests for a lost connection.
    pub(crate) never_sent: u64,
    pub(crate) value_bytes: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
}

/// At most this many kinds of faults have their own count. Further kinds share one count.
const FAULTS_MAX: usize = 100;

impl LoadStats {
    pub(crate) fn new() -> Self {
        let commands = vec![CommandStats::new(), CommandStats::new()];
        let (faults, servers) = (BTreeMap::new(), Vec::new());
        Self { commands, lateness: None, faults, outage: None, servers, second: 0 }
    }

    /// Returns the replies of all servers together since the last report.
    pub(crate) fn of_all_servers(&self) -> ServerStats {
        let mut all = ServerStats::default();
        for command in &self.commands {
            all.answered += command.latency.len();
            all.errors += command.errors;
            all.hits += command.hits;
            all.misses += command.misses;
        }
        all
    }

    pub(crate) fn of_server(&mut self, server: usize) -> &mut ServerStats {
        if server >= self.servers.len() {
            self.servers.resize(server + 1, ServerStats::default());
        }
        &mut self.servers[server]
    }

    /// Counts the replies of a server that have just arrived. `before` is the result of
    /// [`of_all_servers`](Self::of_all_servers) before these replies.
    pub(crate) fn count_for(&mut self, server: usize, before: ServerStats) {
        let after = self.of_all_servers();
        let stats = self.of_server(server);
        stats.answered += after.answered - before.answered;
        stats.errors += after.errors - before.errors;
        stats.hits += after.hits - before.hits;
        stats.misses += after.misses - before.misses;
    }

    #[inline]
    pub(crate) fn of(&mut self, kind: Kind) -> &mut CommandStats {
        let number = kind.number();
        if number >= self.commands.len() {
            self.commands.resize_with(number + 1, CommandStats::new);
        }
        &mut self.commands[number]
    }

    /// Returns the number of requests answered without an error, over all commands.
    pub(crate) fn requests(&self) -> u64 {
        self.commands.iter().map(CommandStats::requests).sum()
    }

    /// Returns the number of due requests, over all commands.
    pub(crate) fn due(&self) -> u64 {
        self.commands.iter().map(|command| command.latency.len()).sum()
    }

    /// Returns the number of answered requests, over all commands. Includes requests with an error
    /// reply.
    pub(crate) fn answered(&self) -> u64 {
        self.commands.iter().map(|command| command.requests() + command.errors).sum()
    }

    /// Records the load generator's delay in sending a due request, in nanoseconds.
    pub(crate) fn sent_late(&mut self, nanos: u64) {
        self.lateness.get_or_insert_with(histogram).saturating_record(nanos);
    }

    /// Counts `times` unsent requests that were due `waited` nanoseconds ago.
    #[cold]
    pub(crate) fn never_sent(&mut self, kind: Kind, times: u64, waited: u64) {
        let command = self.of(kind);
        command.latency.saturating_record_n(waited, times);
        command.never_sent += times;
        if times > 0 {
            self.fault("never sent", times);
        }
    }

    /// Counts an unanswered request that has waited for `waited` nanoseconds.
    #[cold]
    pub(crate) fn never_answered(&mut self, kind: Kind, waited: u64) {
        let command = self.of(kind);
        command.latency.saturating_record(waited);
        command.never_answered += 1;
        self.fault("never answered", 1);
    }

    /// Counts a lost connection that will be reconnected, and its outstanding requests with their
    /// waiting times in nanoseconds. Neither the loss nor the requests are faults.
    #[cold]
    pub(crate) fn lost_connection(
        &mut self,
        now: u64,
        outstanding: impl IntoIterator<Item = (Kind, u64)>,
    ) {
        let mut requests = 0;
        for (kind, waited) in outstanding {
            self.lost_request(kind, waited);
            requests += 1;
        }
        let outage = self.outage.get_or_insert(Outage::begin(now));
        outage.lost_connections += 1;
        outage.lost_requests += requests;
    }

    /// Counts replies that have just arrived on a reconnected connection. `before` is the result of
    /// [`of_all_servers`](Self::of_all_servers) before these replies.
    #[cold]
    pub(crate) fn answered_again(&mut self, now: u64, before: ServerStats) {
        let after = self.of_all_servers();
        let outage = self.outage.get_or_insert(Outage::begin(now));
        outage.answered(
            now,
            after.answered - before.answered,
            after.hits - before.hits,
            after.misses - before.misses,
        );
    }

    /// Counts an outstanding request of a lost connection that has waited for `waited` nanoseconds.
    /// The request is not a fault.
    #[cold]
    fn lost_request(&mut self, kind: Kind, waited: u64) {
        let command = self.of(kind);
        command.latency.saturating_record(waited);
        command.never_answered += 1;
    }

    pub(crate) fn fault(&mut self, name: &str, times: u64) {
        let known = self.faults.len() < FAULTS_MAX || self.faults.contains_key(name);
        let name = if known { name } else { "other faults" };
        *self.faults.entry(name.to_owned()).or_default() += times;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        if other.commands.len() > self.commands.len() {
            self.commands.resize_with(other.commands.len(), CommandStats::new);
        }
        for (mine, theirs) in self.commands.iter_mut().zip(&other.commands) {
            mine.add(theirs);
        }
        if let Some(lateness) = &other.lateness {
            // Adding fails only if bounds differ, and all histograms have the same bounds.
            let _ = self.lateness.get_or_insert_with(histogram).add(lateness);
        }
        if let Some(theirs) = &other.outage {
            match &mut self.outage {
                Some(mine) => mine.add(theirs),
                None => self.outage = Some(*theirs),
            }
        }
        for (name, times) in &other.faults {
            self.fault(name, *times);
        }
        for (server, theirs) in other.servers.iter().enumerate() {
            let mine = self.of_server(server);
            mine.answered += theirs.answered;
            mine.errors += theirs.errors;
            mine.hits += theirs.hits;
            mine.misses += theirs.misses;
            mine.lost_connections += theirs.lost_connections;
        }
    }

    pub(crate) fn clear(&mut self) {
        self.commands.iter_mut().for_each(CommandStats::clear);
        if let Some(lateness) = &mut self.lateness {
            lateness.reset();
        }
        self.faults.clear();
        self.outage = None;
        self.servers.clear();
    }
}

impl CommandStats {
    pub(crate) fn new() -> Self {
        Self {
            latency: histogram(),
            hits: 0,
            misses: 0,
            errors: 0,
            never_answered: 0,
            never_sent: 0,
            value_bytes: 0,
            sent_bytes: 0,
            received_bytes: 0,
        }
    }

    /// Returns the number of requests that were answered without an error.
    pub(crate) fn requests(&self) -> u64 {
        let failed = self.errors + self.never_answered + self.never_sent;
        // The difference could be negative, because an error can be counted before the latency of
        // its request.
        self.latency.len().saturating_sub(failed)
    }

    pub(crate) fn add(&mut self, other: &Self) {
        // Adding fails only if bounds differ, and all histograms have the same bounds.
        let _ = self.latency.add(&other.latency);
        self.hits += other.hits;
        self.misses += other.misses;
        self.errors += other.errors;
        self.never_answered += other.never_answered;
        self.never_sent += other.never_sent;
        self.value_bytes += other.value_bytes;
        self.sent_bytes += other.sent_bytes;
        self.received_bytes += other.received_bytes;
    }

    fn clear(&mut self) {
        self.latency.reset();
        (self.hits, self.misses, self.errors) = (0, 0, 0);
        (self.never_answered, self.never_sent) = (0, 0);
        (self.value_bytes, self.sent_bytes, self.received_bytes) = (0, 0, 0);
    }
}

/// Returns an empty histogram for latencies from a nanosecond to an hour, with three significant
/// digits.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("sound bounds")
}
