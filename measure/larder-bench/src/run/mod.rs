//! One run: opens the connections, starts the worker threads and collects their statistics.

mod collection;
pub(crate) mod measured;
mod server_monitor;

use crate::load::client::Client;
use crate::load::control::Control;
use crate::load::stats::LoadStats;
use crate::load::worker::{CHECK_EVERY, Worker, WorkerEnd};
use crate::load::workload::Load;
use crate::outcome::{FILL, Outcome};
use crate::run_error::RunError;
use crate::settings::{Arrivals, KeySpace, Keys, NamedServer, Pattern, Ratio, Settings, Stop};
use collection::Collected;
use larder_target::process::own_cpu_secs;
use measured::{Measured, Progress};
use server_monitor::ServerMonitor;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Sends load to servers according to `settings`. The load threads inherit the calling thread's CPU
/// affinity. Measures the CPU time and memory of process `pid` or, without a `pid`, of the local
/// process that listens on a server's address. Calls `progress` about once per second, except
/// during a fill.
///
/// A failure of the server during the run is a result, not an error: see [`Outcome::faults`] and
/// [`Outcome::ended_early`].
///
/// # Errors
/// A server cannot be reached or refuses the login, the settings are invalid, the trace cannot be
/// read, or the system cannot open further files or create an event queue.
pub fn run(
    settings: &Settings,
    pid: Option<i32>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Measured, RunError> {
    run_interruptible(settings, pid, &AtomicBool::new(false), progress)
}

/// Performs a run like [`run()`], and stops it soon after `interrupted` becomes true.
///
/// # Errors
/// An error of [`run()`], or an interruption before the first request.
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
                let ended_early = Some(format!("{reason}, during --fill"));
                filled.outcome = Outcome { ended_early, faults: fill_faults, ..filled.outcome };
                return Ok(filled);
            }
        }
    }
    let mut measured = load(settings, pid, interrupted, progress)?;
    measured.outcome.faults.append(&mut fill_faults);
    Ok(measured)
}

/// Returns the settings for the fill's runs: one run per key space or, without key spaces, a single
/// run. The runs set every key at least once. If the keys cannot be divided evenly among the
/// clients, the runs set some keys more than once.
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
            // Clients have no bursts before the step at which they connect, so the offered rate is
            // lower than the rate of the settings.
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

/// Returns whether no server has sent a reply for the duration of the timeout, although requests
/// were outstanding or connections were being opened. Returns false after a signal and after the
/// end of a timed run, because the workers then apply their own timeout to outstanding replies.
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
    // The error message of a server that expects another protocol does not always arrive.
    let hint = match (stats.answered(), &settings.tls) {
        (1.., _) => "",
        (0, None) => "; nothing was answered: check --protocol, and whether the server expects TLS",
        (0, Some(_)) => "; nothing was answered: check whether the server uses TLS on this port",
    };
    format!("all connections were lost within {seconds:.1} s: {}{hint}", reasons.join(", "))
}
