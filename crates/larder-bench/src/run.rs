//! One run: opens the connections, starts the worker threads and collects their statistics.

use crate::load::connection::{Connection, Load};
use crate::load::socket::TlsClient;
use crate::load::stats::{CommandStats, Kind, LoadStats, histogram};
use crate::load::worker::Worker;
use crate::outcome::{Command, Latency, Outcome, ServerCost};
use crate::settings::{Pattern, Ratio, Settings, Stop};
use hdrhistogram::Histogram;
use larder_target::process::{self, Events, Usage, own_cpu_secs};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// The results of a run, with latency histograms.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Throughput, percentiles and CPU time.
    pub outcome: Outcome,
    /// Latency histograms by command, in nanoseconds.
    pub histograms: BTreeMap<String, Histogram<u64>>,
    /// Latency histograms of all commands together, in nanoseconds, one for each second in which
    /// answers arrived. Seconds are approximate: workers report about once a second.
    pub by_second: Vec<Histogram<u64>>,
}

/// The state of a run while it lasts.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Time since the first request.
    pub elapsed: Duration,
    /// Requests answered so far.
    pub requests: u64,
    /// Requests per second since the last report.
    pub per_second: f64,
    /// 99th percentile of the latency since the last report, in microseconds.
    pub p99_micros: u64,
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The server did not accept a connection.
    #[error("cannot connect to {address}: {error}; check that the server runs there")]
    Connect {
        /// The server's address.
        address: String,
        /// The system's error.
        error: std::io::Error,
    },
    /// Every connection was lost before the end of the run.
    #[error(
        "all connections were lost after {requests} requests: {faults}; see the server's log, and \
         check --protocol"
    )]
    ConnectionsLost {
        /// Number of requests that were answered until then.
        requests: u64,
        /// The kinds of faults that were counted.
        faults: String,
    },
    /// A certificate, key or server name cannot be used.
    #[error("TLS: {0}")]
    Tls(String),
    /// The distribution of value sizes has invalid parameters.
    #[error(
        "the distribution of value sizes has invalid parameters; see --data-size-list and \
         --data-size-lognormal"
    )]
    Sizes,
    /// The distribution of keys has invalid parameters.
    #[error("the distribution of keys has invalid parameters; see --key-zipf-exp and --key-stddev")]
    Pattern,
    /// The system refused an event queue, or to wait for events.
    #[error("the system's event queue failed: {0}; check the limit of open files (ulimit -n)")]
    System(std::io::Error),
}

/// Loads a server as `settings` say, from threads that inherit the calling thread's CPU affinity.
/// Reports the CPU time and memory of process `pid` or, if it is none, of the local process that
/// listens on the server's address. Calls `progress` about once a second.
///
/// # Errors
/// The server cannot be reached, all connections were lost, or the settings are invalid.
pub fn run(
    settings: &Settings,
    pid: Option<i32>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Measured, RunError> {
    if settings.fill {
        load(&fill_settings(settings), pid, &mut |_| ())?;
    }
    load(settings, pid, progress)
}

/// The settings of a run that sets every key once.
fn fill_settings(settings: &Settings) -> Settings {
    let mut fill_settings = settings.clone();
    fill_settings.ratio = Ratio { sets: 1, gets: 0 };
    fill_settings.keys.set = Pattern::Partitioned;
    fill_settings.stop =
        Stop::Requests(settings.keys.count().div_ceil(settings.connections() as u64));
    fill_settings.pipeline = settings.pipeline.max(16);
    fill_settings.rate = None;
    fill_settings
}

fn load(
    settings: &Settings,
    pid: Option<i32>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Measured, RunError> {
    let load = Load::new(settings)?;
    let tls = match &settings.tls {
        Some(tls) => Some(TlsClient::new(tls, &settings.address)?),
        None => None,
    };
    let mut workers = Vec::new();
    for thread in 0..settings.threads {
        let first = thread * settings.clients;
        let connections: Result<Vec<_>, _> = (first..first + settings.clients)
            .map(|index| Connection::new(&load, tls.as_ref(), index))
            .collect();
        workers.push(Worker::new(&load, connections?, thread)?);
    }
    let server = pid.or_else(|| process::find(&settings.address)).and_then(ServerMonitor::begin);
    let own_cpu = own_cpu_secs();
    let (reports, received) = channel();
    let start = Instant::now();
    let (collected, lost) = std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .into_iter()
            .map(|worker| {
                let reports = reports.clone();
                scope.spawn(move || worker.run(start, &reports))
            })
            .collect();
        drop(reports);
        let collected = Collected::collect(&received, settings.threads, start, progress);
        let lost = threads.into_iter().map(|thread| thread.join().expect("no worker panics"));
        (collected, lost.sum::<Result<usize, RunError>>())
    });
    let server = server.and_then(|server| server.end(collected.all.requests()));
    if lost? == settings.connections() {
        let faults = collected.all.faults.keys().cloned().collect::<Vec<_>>().join(", ");
        return Err(RunError::ConnectionsLost { requests: collected.all.requests(), faults });
    }
    let outcome = Outcome {
        seconds: collected.seconds,
        open_loop: settings.rate.is_some(),
        server,
        load_cpu_seconds: own_cpu_secs() - own_cpu,
        ..Outcome::default()
    };
    Ok(collected.measured(outcome))
}

/// The statistics that the worker threads have reported.
#[derive(Debug)]
struct Collected {
    all: LoadStats,
    by_second: Vec<Histogram<u64>>,
    seconds: f64,
}

impl Collected {
    fn collect(
        received: &Receiver<LoadStats>,
        threads: usize,
        start: Instant,
        progress: &mut dyn FnMut(Progress),
    ) -> Self {
        let mut all = LoadStats::new();
        let mut by_second = Vec::new();
        let (mut second, mut reports_received, mut last_progress) =
            (histogram(), 0, Duration::ZERO);
        while let Ok(mut stats) = received.recv() {
            for (kind, _) in Kind::ALL {
                // Adding fails only if bounds differ; all histograms have the same ones.
                let _ = second.add(&stats.of(kind).latency);
            }
            all.add(&stats);
            reports_received += 1;
            if reports_received % threads == 0 {
                let elapsed = start.elapsed();
                progress(Progress {
                    elapsed,
                    requests: all.requests(),
                    per_second: rate(second.len(), (elapsed - last_progress).as_secs_f64()),
                    p99_micros: second.value_at_quantile(0.99) / 1000,
                });
                last_progress = elapsed;
                by_second.push(std::mem::replace(&mut second, histogram()));
            }
        }
        if !second.is_empty() {
            by_second.push(second);
        }
        Self { all, by_second, seconds: start.elapsed().as_secs_f64() }
    }

    fn measured(mut self, mut outcome: Outcome) -> Measured {
        let mut histograms = BTreeMap::new();
        let mut total = CommandStats::new();
        for (kind, name) in Kind::ALL {
            let stats = self.all.of(kind);
            total.add(stats);
            if !stats.latency.is_empty() {
                outcome.commands.insert(name.to_owned(), command(stats, outcome.seconds));
                histograms.insert(name.to_owned(), stats.latency.clone());
            }
        }
        outcome.commands.insert("total".to_owned(), command(&total, outcome.seconds));
        histograms.insert("total".to_owned(), total.latency);
        self.all.faults.retain(|_, times| *times > 0);
        outcome.faults = self.all.faults;
        Measured { outcome, histograms, by_second: self.by_second }
    }
}

fn command(stats: &CommandStats, seconds: f64) -> Command {
    Command {
        requests: stats.latency.len(),
        per_second: rate(stats.latency.len(), seconds),
        hits: stats.hits,
        misses: stats.misses,
        errors: stats.errors,
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
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate needs no last digit")]
fn rate(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

/// Measures the CPU time and memory of the server's process during a run.
#[derive(Debug)]
struct ServerMonitor {
    pid: i32,
    before: Usage,
    events: Option<Events>,
}

impl ServerMonitor {
    fn begin(pid: i32) -> Option<Self> {
        let before = process::usage(pid)?;
        Some(Self { pid, before, events: Events::count(pid) })
    }

    #[expect(clippy::cast_precision_loss, reason = "figures by request need no last digit")]
    fn end(self, requests: u64) -> Option<ServerCost> {
        let after = process::usage(self.pid)?;
        let events = self.events.and_then(|mut events| events.read());
        let each = |count: f64| count / requests.max(1) as f64;
        Some(ServerCost {
            pid: self.pid,
            user_micros: each((after.user_secs - self.before.user_secs) * 1e6),
            system_micros: each((after.system_secs - self.before.system_secs) * 1e6),
            rss_before: self.before.rss_bytes,
            rss_after: after.rss_bytes,
            cycles: events.map(|(cycles, _)| each(cycles as f64)),
            instructions: events.map(|(_, instructions)| each(instructions as f64)),
        })
    }
}
