//! One run: opens the connections, starts the worker threads and collects their statistics.

use crate::load::client::Client;
use crate::load::connection::Load;
use crate::load::control::Control;
use crate::load::socket::opening::{is_login_timeout, is_refused_login};
use crate::load::stats::client_stats::ClientStats;
use crate::load::stats::outage::Outage;
use crate::load::stats::{CommandStats, LoadStats, ServerStats, histogram};
use crate::load::worker::{CHECK_EVERY, Worker, WorkerEnd};
use crate::outcome::{
    Command, FILL, FlashUse, Interruption, Latency, Offered, Outcome, ServerCost, ServerOutcome,
};
use crate::settings::{Arrivals, KeySpace, Keys, NamedServer, Pattern, Ratio, Settings, Stop};
use hdrhistogram::Histogram;
use larder_protocol::encode::InvalidKey;
use larder_target::process::{self, Events, Usage, own_cpu_secs};
use larder_target::{FlashStats, Protocol, ServerAddress};
use larder_trace::TraceError;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// The results of a run, with latency histograms.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Throughput, percentiles and CPU time.
    pub outcome: Outcome,
    /// Latency histograms by command, in nanoseconds.
    pub histograms: BTreeMap<String, Histogram<u64>>,
    /// When the first request was sent.
    pub begun: Instant,
    /// The run by seconds since its start, without gaps. The last one is a part of a second.
    pub by_second: Vec<Second>,
    /// What each connection did in each second, if [`Settings::client_stats`] is set.
    pub clients: Vec<ClientStats>,
}

/// One second of a run.
#[derive(Clone, Debug)]
pub struct Second {
    /// Latencies of all commands together, in nanoseconds.
    pub latency: Histogram<u64>,
    /// Number of requests that were answered without an error.
    pub requests: u64,
    /// Number of requests that were answered with an error, never answered or never sent.
    pub errors: u64,
}

impl Second {
    fn new() -> Self {
        Self { latency: histogram(), requests: 0, errors: 0 }
    }

    fn add(&mut self, stats: &LoadStats) {
        for command in &stats.commands {
            // Adding fails only if bounds differ; all histograms have the same ones.
            let _ = self.latency.add(&command.latency);
            self.requests += command.requests();
            self.errors += command.errors + command.never_answered + command.never_sent;
        }
    }
}

/// The state of a run while it lasts.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Time since the first request.
    pub elapsed: Duration,
    /// Requests answered without an error so far.
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
    /// The server refused the login.
    #[error("{0}; see --authenticate")]
    Login(String),
    /// The server did not answer a login in time.
    #[error("the login to {address} was not answered within {} s (--timeout)", timeout.as_secs_f64())]
    LoginTimeout {
        /// The server's address.
        address: String,
        /// How long it was waited for.
        timeout: Duration,
    },
    /// The server did not accept a connection in time.
    #[error(
        "cannot connect to {address}: no connection within {} s (--connection-timeout); check that \
         the server accepts connections",
        timeout.as_secs_f64()
    )]
    ConnectTimeout {
        /// The server's address.
        address: String,
        /// How long it was waited for.
        timeout: Duration,
    },
    /// The load may not open as many files as it needs connections.
    #[error(
        "cannot open connection {number} of {connections}: {error}; raise the limit of open files \
         (ulimit -n)"
    )]
    OpenFiles {
        /// The number of the connection.
        number: usize,
        /// Number of connections that the run needs.
        connections: usize,
        /// The system's error.
        error: std::io::Error,
    },
    /// A signal arrived before the first request.
    #[error("interrupted before the first request")]
    Interrupted,
    /// A certificate, key or server name cannot be used.
    #[error("TLS: {0}")]
    Tls(String),
    /// The trace cannot be read.
    #[error("trace {file}: {error}")]
    Trace {
        /// The trace's file.
        file: String,
        /// What is wrong with it.
        error: TraceError,
    },
    /// No key can have this prefix.
    #[error("--key-prefix: {0}")]
    KeyPrefix(InvalidKey),
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

/// `EMFILE` and `ENFILE`: the process or the system has too many open files.
const TOO_MANY_FILES: [i32; 2] = [24, 23];

impl RunError {
    /// Why the connection of client `index` to a server could not be made.
    pub(crate) fn connect(
        settings: &Settings,
        index: usize,
        server: usize,
        error: std::io::Error,
    ) -> Self {
        let Settings { servers, connection_timeout, timeout, .. } = settings;
        let address = servers[server].address.to_string();
        if is_refused_login(&error) {
            return Self::Login(error.to_string());
        }
        if is_login_timeout(&error) {
            return Self::LoginTimeout { address, timeout: *timeout };
        }
        match (error.raw_os_error(), connection_timeout) {
            (Some(code), _) if TOO_MANY_FILES.contains(&code) => {
                let number = index * servers.len() + server + 1;
                Self::OpenFiles { number, connections: settings.connections(), error }
            }
            (_, Some(timeout)) if error.kind() == std::io::ErrorKind::TimedOut => {
                Self::ConnectTimeout { address, timeout: *timeout }
            }
            _ => Self::Connect { address, error },
        }
    }
}

/// Loads a server as `settings` say, from threads that inherit the calling thread's CPU affinity.
/// Reports the CPU time and memory of process `pid` or, if it is none, of the local process that
/// listens on the server's address. Calls `progress` about once a second.
///
/// A server that fails during the run is a result: see [`Outcome::faults`] and
/// [`Outcome::ended_early`].
///
/// # Errors
/// The server cannot be reached, or the settings are invalid.
pub fn run(
    settings: &Settings,
    pid: Option<i32>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Measured, RunError> {
    run_interruptible(settings, pid, &AtomicBool::new(false), progress)
}

/// Loads a server like [`run()`], and ends the run soon after `interrupted` becomes true.
///
/// # Errors
/// The server cannot be reached, the settings are invalid, or the run was interrupted before its
/// first request.
pub fn run_interruptible(
    settings: &Settings,
    pid: Option<i32>,
    interrupted: &AtomicBool,
    progress: &mut dyn FnMut(Progress),
) -> Result<Measured, RunError> {
    let mut fill_faults = BTreeMap::new();
    if settings.fill {
        for filling in fill_settings(settings) {
            let mut filled = load(&filling, pid, interrupted, &mut |_| ())?;
            for (what, times) in std::mem::take(&mut filled.outcome.faults) {
                *fill_faults.entry(format!("{FILL}{what}")).or_default() += times;
            }
            if let Some(reason) = filled.outcome.ended_early {
                let ended_early = Some(format!("{reason}, while the keys were set (--fill)"));
                filled.outcome = Outcome { ended_early, faults: fill_faults, ..filled.outcome };
                return Ok(filled);
            }
        }
    }
    let mut measured = load(settings, pid, interrupted, progress)?;
    measured.outcome.faults.append(&mut fill_faults);
    Ok(measured)
}

/// The settings of the runs that set every key once: one run, or one for each key space.
fn fill_settings(settings: &Settings) -> Vec<Settings> {
    if settings.key_spaces.is_empty() {
        return vec![fill_settings_of(settings, settings.keys.clone(), None)];
    }
    let of_space = |space: &KeySpace| {
        let mut space = space.clone();
        space.ratio = ONLY_SETS;
        space.keys.set = Pattern::Partitioned;
        fill_settings_of(settings, space.keys.clone(), Some(space))
    };
    settings.key_spaces.iter().map(of_space).collect()
}

const ONLY_SETS: Ratio = Ratio { sets: 1, gets: 0 };

fn fill_settings_of(settings: &Settings, keys: Keys, space: Option<KeySpace>) -> Settings {
    let mut fill_settings = settings.clone();
    fill_settings.ratio = ONLY_SETS;
    fill_settings.stop = Stop::Requests(keys.count().div_ceil(settings.all_clients() as u64));
    fill_settings.keys = Keys { set: Pattern::Partitioned, ..keys };
    fill_settings.trace = None;
    fill_settings.key_spaces = space.into_iter().collect();
    fill_settings.pipeline = settings.pipeline.max(16);
    fill_settings.rate = None;
    fill_settings.client_stats = false;
    fill_settings.commands.clear();
    fill_settings.steps = None;
    fill_settings.reconnect_interval = None;
    fill_settings.reconnect_on_error = false;
    fill_settings
}

#[expect(clippy::cast_precision_loss, reason = "a rate needs no last digit")]
fn load(
    settings: &Settings,
    pid: Option<i32>,
    interrupted: &AtomicBool,
    progress: &mut dyn FnMut(Progress),
) -> Result<Measured, RunError> {
    let load = Load::new(settings)?;
    let control = Control::new(settings.connections());
    let mut workers = Vec::new();
    for thread in 0..settings.threads {
        let first = thread * settings.clients;
        let clients: Result<Vec<_>, _> = (first..first + settings.clients)
            .map(|index| match interrupted.load(Ordering::Relaxed) {
                true => Err(RunError::Interrupted),
                false => Client::new(&load, index),
            })
            .collect();
        workers.push(Worker::new(&load, &control, clients?, thread, interrupted)?);
    }
    let monitor = |server: &NamedServer| ServerMonitor::begin(settings, server, pid);
    let monitors: Vec<_> = settings.servers.iter().map(monitor).collect();
    let own_cpu = own_cpu_secs();
    let (reports, received) = channel();
    let start = Instant::now();
    let (collected, ends) = std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .into_iter()
            .map(|worker| {
                let reports = reports.clone();
                scope.spawn(move || worker.run(start, &reports))
            })
            .collect();
        drop(reports);
        let mut collected = Collected::new(settings.threads, start);
        let mut stalled = false;
        loop {
            match received.recv_timeout(CHECK_EVERY) {
                Ok(stats) => collected.add(stats, progress),
                Err(RecvTimeoutError::Timeout) => (),
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if interrupted.load(Ordering::Relaxed) {
                control.interrupt();
            }
            stalled |= is_stalled(settings, &control, start.elapsed());
            if stalled || control.all_are_lost() {
                control.stop();
            }
        }
        let ends = threads.into_iter().map(|thread| thread.join().expect("no worker panics"));
        collected.stalled = stalled;
        (collected, ends.collect::<Result<Vec<WorkerEnd>, RunError>>())
    });
    let ends = ends?;
    let (server, flash, servers) = if settings.has_several_servers() {
        (None, None, collected.servers(settings, monitors))
    } else {
        let mut figures = monitors.into_iter().map(|one| one.end(collected.all.requests()));
        let (server, flash) = figures.next().unwrap_or_default();
        (server, flash, Vec::new())
    };
    let lost = ends.iter().map(|end| end.lost).sum::<usize>();
    let seconds = ends.iter().map(|end| end.time.as_secs_f64()).fold(0.0, f64::max);
    let ended_early = if control.is_interrupted() {
        Some(format!("interrupted after {seconds:.1} s"))
    } else if let Some(error) = ends.iter().find_map(|end| end.trace_error.clone()) {
        Some(error)
    } else if collected.stalled {
        let handshaking = ends.iter().any(|end| end.handshaking > 0);
        Some(describe_stall(settings, handshaking, collected.all.answered() == 0))
    } else {
        (lost == settings.connections()).then(|| describe_loss(settings, &collected.all, seconds))
    };
    let outcome = Outcome {
        seconds,
        open_loop: settings.is_open_loop(),
        offered: match settings.rate {
            // Connections that are not open yet have no bursts.
            Some(rate) if settings.arrivals != Arrivals::Bursts || settings.steps.is_none() => {
                Some(collected.offered(rate as f64))
            }
            _ if settings.is_open_loop() => {
                let due = collected.all.due() as f64;
                Some(collected.offered(due / seconds.max(1e-9)))
            }
            _ => None,
        },
        ended_early,
        connections: settings.connections() as u64,
        lost_connections: lost as u64,
        server,
        flash,
        servers,
        load_cpu_seconds: own_cpu_secs() - own_cpu,
        ..Outcome::default()
    };
    let mut measured = collected.measured(settings, outcome);
    measured.clients = ends.into_iter().flat_map(|end| end.clients).collect();
    Ok(measured)
}

/// Whether the server has answered nothing for the timeout. The workers themselves wait for
/// outstanding answers at the end of a timed run.
fn is_stalled(settings: &Settings, control: &Control, elapsed: Duration) -> bool {
    let timed_out = elapsed.saturating_sub(control.last_progress()) > settings.timeout;
    let waits_at_end = matches!(settings.stop, Stop::After(time) if elapsed >= time);
    timed_out && !waits_at_end && !control.is_interrupted()
}

fn describe_stall(settings: &Settings, handshaking: bool, nothing: bool) -> String {
    let secs = settings.timeout.as_secs_f64();
    match nothing {
        true if handshaking => format!(
            "the server did not answer the TLS handshake for {secs} s (--timeout); check that it \
             uses TLS on this port"
        ),
        true => {
            let other = if settings.tls.is_some() { "" } else { ", and expects no TLS" };
            format!(
                "the server accepted connections and answered nothing for {secs} s (--timeout); \
                 check that it speaks the {} protocol on this port{other}",
                settings.protocol
            )
        }
        false => format!("the server answered nothing for {secs} s (--timeout)"),
    }
}

fn describe_loss(settings: &Settings, stats: &LoadStats, seconds: f64) -> String {
    let reasons = stats.faults.keys().filter_map(|what| what.strip_prefix("connection lost"));
    let reasons: Vec<&str> = reasons.map(|why| why.trim_start_matches([':', ' '])).collect();
    // The last words of a server that expects another protocol do not always arrive.
    let hint = match (stats.answered(), &settings.tls) {
        (1.., _) => "",
        (0, None) => "; nothing was answered: check --protocol, and whether the server expects TLS",
        (0, Some(_)) => "; nothing was answered: check whether the server uses TLS on this port",
    };
    format!("all connections were lost within {seconds:.1} s: {}{hint}", reasons.join(", "))
}

/// The statistics that the worker threads have reported.
#[derive(Debug)]
struct Collected {
    all: LoadStats,
    by_second: Vec<Second>,
    /// The statistics since the last complete round of reports.
    recent: Second,
    threads: usize,
    reports: usize,
    start: Instant,
    last_progress: (Duration, u64),
    /// Whether the server answered nothing for the timeout.
    stalled: bool,
}

impl Collected {
    fn new(threads: usize, start: Instant) -> Self {
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

    /// Adds a worker's report, and tells the progress when each worker has reported.
    fn add(&mut self, stats: LoadStats, progress: &mut dyn FnMut(Progress)) {
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

    /// What each of several servers answered, and what it cost.
    fn servers(&self, settings: &Settings, monitors: Vec<ServerMonitor>) -> Vec<ServerOutcome> {
        let server = |(number, monitor): (usize, ServerMonitor)| {
            let stats = self.all.servers.get(number).copied().unwrap_or_default();
            let ServerStats { answered, errors, hits, misses, lost_connections } = stats;
            // An error can be counted before its request is complete.
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

    fn offered(&self, per_second: f64) -> Offered {
        Offered {
            per_second,
            due: self.all.due(),
            lateness: self.all.lateness.as_ref().map(latency).unwrap_or_default(),
        }
    }

    fn measured(mut self, settings: &Settings, mut outcome: Outcome) -> Measured {
        let mut total = CommandStats::new();
        self.all.commands.iter().for_each(|stats| total.add(stats));
        let names = settings.command_names();
        let mut rows: BTreeMap<String, CommandStats> = BTreeMap::new();
        for (number, (stats, name)) in self.all.commands.iter().zip(names).enumerate() {
            // What is also reported together: a key space, and a command on all of them.
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

/// Measures the CPU time and memory of the server's process during a run, and the use of its flash tier.
#[derive(Debug)]
struct ServerMonitor {
    address: ServerAddress,
    flash: Option<FlashStats>,
    process: Option<ProcessMonitor>,
}

impl ServerMonitor {
    fn begin(settings: &Settings, server: &NamedServer, pid: Option<i32>) -> Self {
        let address = server.address.clone();
        // The statistics are asked for over a plain connection.
        let is_plain = settings.tls.is_none() && settings.login.is_none();
        let has_stats = settings.protocol != Protocol::Resp;
        let flash = (is_plain && has_stats).then(|| FlashStats::of(&address)).flatten();
        let pid = pid.or_else(|| process::find(&address));
        Self { address, flash, process: pid.and_then(ProcessMonitor::begin) }
    }

    fn end(self, requests: u64) -> (Option<ServerCost>, Option<FlashUse>) {
        let cost = self.process.and_then(|process| process.end(requests));
        let flash = self
            .flash
            .and_then(|before| Some(FlashUse::between(&before, &FlashStats::of(&self.address)?)));
        (cost, flash)
    }
}

/// Measures the CPU time and memory of the server's process.
#[derive(Debug)]
struct ProcessMonitor {
    pid: i32,
    before: Usage,
    events: Option<Events>,
}

impl ProcessMonitor {
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
            written_bytes: after
                .written_bytes
                .zip(self.before.written_bytes)
                .map(|(after, before)| after.saturating_sub(before)),
            cycles: events.map(|(cycles, _)| each(cycles as f64)),
            instructions: events.map(|(_, instructions)| each(instructions as f64)),
        })
    }
}
