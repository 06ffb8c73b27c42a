//! Adds up the statistics of the worker threads.

use super::measured::{Measured, Progress, Second};
use super::server_monitor::ServerMonitor;
use crate::load::stats::outage::Outage;
use crate::load::stats::{CommandStats, LoadStats, ServerStats};
use crate::outcome::{Command, Interruption, Latency, Offered, Outcome, ServerOutcome};
use crate::settings::Settings;
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The reported statistics of the worker threads.
#[derive(Debug)]
pub(super) struct Collected {
    pub(super) all: LoadStats,
    by_second: Vec<Second>,
    /// The statistics since the last call to `progress`.
    recent: Second,
    threads: usize,
    reports: usize,
    start: Instant,
    last_progress: (Duration, u64),
    /// Whether the run ended because the server sent no reply for the duration of `--timeout`.
    pub(super) stalled: bool,
}

impl Collected {
    pub(super) fn new(threads: usize, start: Instant) -> Self {
        Self {
            all: LoadStats::new(),
            by_second: Vec::new(),
            recent: Second::new(),
            threads,
            reports: 0,
            start,
            last_progress: (Duration::ZERO, 0),
            stalled: false,
        }
    }

    /// Adds a worker's report. Calls `progress` whenever as many reports have arrived as there are
    /// workers, even if one worker has sent several of them.
    pub(super) fn add(&mut self, stats: LoadStats, progress: &mut dyn FnMut(Progress)) {
        self.recent.add(&stats);
        while self.by_second.len() <= stats.second {
            self.by_second.push(Second::new());
        }
        self.by_second[stats.second].add(&stats);
        self.all.add(&stats);
        self.reports += 1;
        if self.reports.is_multiple_of(self.threads) {
            let (elapsed, requests) = (self.start.elapsed(), self.all.requests());
            let (before, requests_before) = self.last_progress;
            progress(Progress {
                elapsed,
                requests,
                per_second: rate(
                    requests.saturating_sub(requests_before),
                    (elapsed - before).as_secs_f64(),
                ),
                p99_micros: self.recent.latency.value_at_quantile(0.99) / 1000,
            });
            self.last_progress = (elapsed, requests);
            self.recent = Second::new();
        }
    }

    /// Returns each server's replies, CPU time, memory and flash activity.
    pub(super) fn servers(
        &self,
        settings: &Settings,
        monitors: Vec<ServerMonitor>,
    ) -> Vec<ServerOutcome> {
        let server = |(number, monitor): (usize, ServerMonitor)| {
            let stats = self.all.servers.get(number).copied().unwrap_or_default();
            let ServerStats { answered, errors, hits, misses, lost_connections } = stats;
            // The difference could be negative, because an error can be counted before its request
            // is complete.
            let requests = answered.saturating_sub(errors);
            let (cost, flash) = monitor.end(requests);
            ServerOutcome {
                address: settings.servers[number].address.to_string(),
                requests,
                errors,
                hits,
                misses,
                lost_connections,
                cost,
                flash,
            }
        };
        monitors.into_iter().enumerate().map(server).collect()
    }

    pub(super) fn offered(&self, per_second: f64) -> Offered {
        Offered {
            per_second,
            due: self.all.due(),
            lateness: self.all.lateness.as_ref().map(latency).unwrap_or_default(),
        }
    }

    pub(super) fn measured(mut self, settings: &Settings, mut outcome: Outcome) -> Measured {
        let mut total = CommandStats::new();
        self.all.commands.iter().for_each(|stats| total.add(stats));
        let names = settings.command_names();
        let mut rows: BTreeMap<String, CommandStats> = BTreeMap::new();
        for (number, (stats, name)) in self.all.commands.iter().zip(names).enumerate() {
            // With key spaces, further rows contain sums: one row for each key space, and one for
            // each command over all key spaces.
            let space = settings.key_spaces.get(number / 2).map(|space| space.name.clone());
            let command = ["set", "get"][number % 2].to_owned();
            let sums = space.into_iter().flat_map(|space| [space, command.clone()]);
            for row in sums.chain([name]) {
                rows.entry(row).or_insert_with(CommandStats::new).add(stats);
            }
        }
        rows.retain(|_, stats| !stats.latency.is_empty());
        rows.insert("total".to_owned(), total);
        let command = |(name, stats): (&String, &CommandStats)| {
            (name.clone(), command(stats, outcome.seconds))
        };
        outcome.commands = rows.iter().map(command).collect();
        let histograms = rows.into_iter().map(|(name, stats)| (name, stats.latency)).collect();
        self.all.faults.retain(|_, times| *times > 0);
        outcome.faults = self.all.faults;
        outcome.interruption = self.all.outage.map(interruption);
        Measured {
            outcome,
            begun: self.start,
            histograms,
            by_second: self.by_second,
            clients: Vec::new(),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "nanoseconds of a run")]
fn interruption(outage: Outage) -> Interruption {
    let secs = |nanos: u64| nanos as f64 / 1e9;
    Interruption {
        lost_connections: outage.lost_connections,
        lost_requests: outage.lost_requests,
        begun_secs: secs(outage.begun_at),
        answered_secs: outage.answered_at.map(secs),
        hit_secs: outage.hit_at.map(secs),
        hits_after: outage.hits,
        misses_after: outage.misses,
    }
}

fn command(stats: &CommandStats, seconds: f64) -> Command {
    Command {
        requests: stats.requests(),
        per_second: rate(stats.requests(), seconds),
        hits: stats.hits,
        misses: stats.misses,
        errors: stats.errors,
        never_answered: stats.never_answered,
        never_sent: stats.never_sent,
        value_bytes: stats.value_bytes,
        sent_bytes: stats.sent_bytes,
        received_bytes: stats.received_bytes,
        latency: latency(&stats.latency),
    }
}

#[expect(clippy::cast_precision_loss, reason = "three digits are kept")]
fn latency(nanos: &Histogram<u64>) -> Latency {
    let micros = |quantile| nanos.value_at_quantile(quantile) as f64 / 1e3;
    Latency {
        p50: micros(0.5),
        p90: micros(0.9),
        p99: micros(0.99),
        p99_9: micros(0.999),
        p99_99: micros(0.9999),
        max: nanos.max() as f64 / 1e3,
        mean: nanos.mean() / 1e3,
        deviation: nanos.stdev() / 1e3,
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate needs no last digit")]
fn rate(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}
