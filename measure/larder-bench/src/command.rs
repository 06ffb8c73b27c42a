//! `larder bench`: performs the runs, and writes the table and the result files.

use crate::arguments::Arguments;
use crate::arguments::error::ArgumentError;
use crate::find_rate::{Bound, Search, Step};
use crate::load::socket::opening::server_versions;
use crate::load::stats::histogram;
use crate::outcome::Outcome;
use crate::report::client_files::write_clients;
use crate::report::files::{
    Json, JsonMedian, JsonRun, SearchJson, ServerVersions, Units, without_credentials,
    write_histograms,
};
use crate::report::table;
use crate::run::measured::{Measured, Progress};
use crate::run::run_interruptible;
use crate::run_error::RunError;
use crate::settings::Settings;
use hdrhistogram::Histogram;
use larder_target::Machine;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Errors of `larder bench`.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// An option's value cannot be used.
    #[error(transparent)]
    Arguments(#[from] ArgumentError),
    /// A run failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// An output file cannot be opened, or a result cannot be written. Contains the file (or the
    /// prefix of several files, or `standard output`) and the error.
    #[error("cannot write {0}: {1}")]
    Write(String, io::Error),
    /// A run ended early. The results until its end were written.
    #[error("{reason}; the results cover the time until then")]
    EndedEarly {
        /// The cause.
        reason: String,
    },
    /// A run of `--find-rate` ended early. The results of the earlier runs, if there are any, were
    /// written.
    #[error("{reason}; {}", covered(*complete_runs))]
    SearchEndedEarly {
        /// The cause.
        reason: String,
        /// Number of earlier runs.
        complete_runs: usize,
    },
    /// `--find-rate` found no rate. All results were written.
    #[error("no rate keeps the bound of --find-rate")]
    NoRate,
    /// The runs, or with `--find-rate` the fill, had more faults than `--max-faults` allows. All
    /// results were written.
    #[error("{}, and --max-faults allows {allowed}: {kinds}", table::counted(*count, "fault"))]
    Faults {
        /// Number of faults in all runs, or in the fill of `--find-rate`.
        count: u64,
        /// Number of allowed faults.
        allowed: u64,
        /// The most frequent kinds of faults, with their counts.
        kinds: String,
    },
}

/// Returns the second half of the [`BenchError::SearchEndedEarly`] message. This half says whether
/// there are results, and which runs they cover.
fn covered(complete_runs: usize) -> &'static str {
    match complete_runs {
        0 => "it was the first run, so there are no results",
        _ => "the results cover the earlier runs",
    }
}

/// Performs the runs that `arguments` describe. Writes the table to `out` or to the file of
/// `--out-file`. Also writes the other result files. The first SIGINT or SIGTERM stops the current
/// run early and prevents further runs. A further signal stops the process at once if it arrives
/// more than half a second after the first.
///
/// # Errors
/// The function writes no results if an option's value cannot be used, an output file cannot be
/// opened, or the first run failed. With `--find-rate`, the same applies if the first run ended
/// early. The function writes the results before it returns any other error: a later run failed, a
/// run ended early, the runs had more faults than allowed, or `--find-rate` found no rate. If one
/// result cannot be written, the function still writes the others.
pub fn bench(arguments: &Arguments, out: &mut dyn Write) -> Result<(), BenchError> {
    let settings = arguments.settings()?;
    let outputs = Outputs::open(arguments)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    watch_signals(Arc::clone(&interrupted));
    let start_time = SystemTime::now();
    // The heading contains versions only if there are several servers.
    let versions = match settings.has_several_servers() {
        true => server_versions(&settings),
        false => Vec::new(),
    };
    let mut text = table::heading(&settings, &versions, arguments.find_rate);
    if arguments.show_config {
        text.push_str(&serde_json::to_string_pretty(&settings).unwrap_or_default());
        text.push('\n');
    }
    if let Some(bound) = arguments.find_rate {
        let mut search = Search::default();
        let found = find_rate(arguments, &settings, bound, &interrupted, &mut search);
        if search.steps.is_empty() {
            outputs.remove_created();
            return found;
        }
        text.push_str(&table::search(bound, &search));
        write_search(arguments, &settings, bound, &search, &text, start_time, out)?;
        let found = found.and(search.highest_per_second.map(drop).ok_or(BenchError::NoRate));
        return found.and(judge_faults(&search.fill_faults, arguments.max_faults));
    }
    let mut runs: Vec<Measured> = Vec::new();
    // Keeps the first error: a failed write does not prevent the other writes.
    let mut written = Ok(());
    for number in 1..=arguments.run_count {
        let run_start = SystemTime::now();
        let mut progress = progress_line(arguments.quiet, number);
        let measured = run_interruptible(&settings, arguments.pid, &interrupted, &mut progress);
        let measured = match measured {
            Ok(measured) => measured,
            // If a later run fails, the earlier runs are still reported.
            Err(error) if !runs.is_empty() => {
                written = written.and(Err(error.into()));
                break;
            }
            Err(error) => {
                outputs.remove_created();
                return Err(error.into());
            }
        };
        if let Some(prefix) = &arguments.hdr_file_prefix {
            let result = write_histograms(prefix, number, &measured, run_start)
                .map_err(|error| BenchError::Write(prefix.clone(), error));
            written = written.and(result);
        }
        if let Some(prefix) = &arguments.client_stats {
            let result = write_clients(prefix, number, arguments.clients, &measured.clients)
                .map_err(|error| BenchError::Write(prefix.clone(), error));
            written = written.and(result);
        }
        if arguments.print_all_runs && arguments.run_count > 1 {
            text.push_str(&format!("\nrun {number} of {}\n", arguments.run_count));
            text.push_str(&render(arguments, &measured.outcome, std::slice::from_ref(&measured)));
        }
        let ended_early = measured.outcome.ended_early.is_some();
        runs.push(measured);
        if ended_early {
            break;
        }
    }
    let outcomes: Vec<Outcome> = runs.iter().map(|run| run.outcome.clone()).collect();
    let median = Outcome::median_of(&outcomes);
    if arguments.run_count > 1 {
        text.push_str(&format!("\nmedians of {} runs\n", runs.len()));
    }
    text.push_str(&render(arguments, &median, &runs));
    let text_written = write_text(arguments, &text, out);
    let json_written = write_json(arguments, &settings, &runs, &median, start_time);
    written.and(text_written).and(json_written)?;
    judge(&median, arguments.max_faults)
}

/// Searches for the highest rate at which the latency percentile stays within a bound.
fn find_rate(
    arguments: &Arguments,
    settings: &Settings,
    bound: Bound,
    interrupted: &AtomicBool,
    search: &mut Search,
) -> Result<(), BenchError> {
    let mut settings = settings.clone();
    let mut number = 0;
    let mut fill_faults = BTreeMap::new();
    let found = search.go_on(settings.rate.unwrap_or(u64::MAX), |rate| {
        number += 1;
        settings.rate = Some(rate);
        let mut progress = progress_line(arguments.quiet, number);
        let mut measured = run_interruptible(&settings, arguments.pid, interrupted, &mut progress)?;
        if let Some(reason) = measured.outcome.ended_early.clone() {
            return Err(BenchError::SearchEndedEarly { reason, complete_runs: number - 1 });
        }
        settings.fill = false;
        // Removes the faults of the fill from the run, because they must not count against the
        // first rate.
        fill_faults.append(&mut measured.outcome.take_fill_faults());
        Ok(step(rate, bound, arguments.max_faults, &measured))
    });
    search.fill_faults = fill_faults;
    found
}

#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
fn step(rate: u64, bound: Bound, max_faults: u64, measured: &Measured) -> Step {
    let latency_nanos =
        all_latencies(std::slice::from_ref(measured)).value_at_percentile(bound.percentile);
    let latency_micros = latency_nanos as f64 / 1e3;
    let faults = measured.outcome.fault_count();
    Step {
        asked_per_second: rate,
        got_per_second: measured.outcome.total().per_second,
        latency_micros,
        faults,
        passed: latency_micros <= bound.millis * 1e3 && faults <= max_faults,
    }
}

fn write_search(
    arguments: &Arguments,
    settings: &Settings,
    bound: Bound,
    search: &Search,
    text: &str,
    start_time: SystemTime,
    out: &mut dyn Write,
) -> Result<(), BenchError> {
    let written = write_text(arguments, text, out);
    let Some(path) = &arguments.json_out_file else { return written };
    let json = SearchJson {
        version: env!("CARGO_PKG_VERSION"),
        time: start_time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        command_line: without_credentials(std::env::args()),
        versions: ServerVersions::of(settings),
        machine: Machine::this(),
        units: Units::JSON,
        settings,
        bound,
        search,
    };
    let saved = json.write(path);
    written.and(saved.map_err(|error| BenchError::Write(path.display().to_string(), error)))
}

/// Sets `interrupted` on the first SIGINT or SIGTERM. Stops the process if another signal arrives
/// more than [`SAME_SIGNAL`] after the first, because a run that is still connecting can take
/// minutes to stop.
fn watch_signals(interrupted: Arc<AtomicBool>) {
    // Without a handler, a signal stops the process at once.
    let Ok(mut signals) = Signals::new([SIGINT, SIGTERM]) else { return };
    std::thread::spawn(move || {
        let mut first: Option<Instant> = None;
        for signal in signals.forever() {
            match first {
                Some(first) if first.elapsed() > SAME_SIGNAL => std::process::exit(128 + signal),
                Some(_) => (),
                None => {
                    first = Some(Instant::now());
                    interrupted.store(true, Ordering::Relaxed);
                }
            }
        }
    });
}

/// Signals within this time after the first count as the same signal: the command `timeout` signals
/// both a process and its process group.
const SAME_SIGNAL: Duration = Duration::from_millis(500);

/// Returns an error if a run ended early or the runs had too many faults.
fn judge(median: &Outcome, allowed: u64) -> Result<(), BenchError> {
    if let Some(reason) = median.ended_early.clone() {
        return Err(BenchError::EndedEarly { reason });
    }
    judge_faults(&median.faults, allowed)
}

fn judge_faults(faults: &BTreeMap<String, u64>, allowed: u64) -> Result<(), BenchError> {
    let count = faults.values().sum();
    if count <= allowed {
        return Ok(());
    }
    let mut kinds: Vec<(&String, &u64)> = faults.iter().collect();
    kinds.sort_by_key(|(_, times)| std::cmp::Reverse(**times));
    let more = if kinds.len() > SHOWN_KINDS { ", and others" } else { "" };
    let kinds: Vec<String> =
        kinds.iter().take(SHOWN_KINDS).map(|(what, times)| format!("{times} x {what}")).collect();
    Err(BenchError::Faults { count, allowed, kinds: kinds.join(", ") + more })
}

/// The error message lists at most this many kinds of faults.
const SHOWN_KINDS: usize = 3;

/// The output files. Before the first run, [`open`](Self::open) opens the files of `--out-file` and
/// `--json-out-file` and one file for each prefix. An invalid path is reported before any time is
/// spent on a run.
#[derive(Debug)]
struct Outputs {
    /// Files that [`open`](Self::open) has created.
    created: Vec<PathBuf>,
}

impl Outputs {
    fn open(arguments: &Arguments) -> Result<Self, BenchError> {
        let prefix = arguments.hdr_file_prefix.as_ref();
        let logs = prefix.map(|prefix| PathBuf::from(format!("{prefix}_run_1.hlog")));
        let mut outputs = Self { created: Vec::new() };
        let prefix = arguments.client_stats.as_ref();
        let clients = prefix.map(|prefix| PathBuf::from(format!("{prefix}-1-0-0.csv")));
        let paths = [&arguments.out_file, &arguments.json_out_file, &logs, &clients];
        for path in paths.into_iter().flatten() {
            if let Err(error) = outputs.check(path) {
                outputs.remove_created();
                return Err(BenchError::Write(path.display().to_string(), error));
            }
        }
        Ok(outputs)
    }

    fn check(&mut self, path: &Path) -> io::Result<()> {
        let existing = path.metadata();
        if existing.as_ref().is_ok_and(|existing| !existing.is_file() && !existing.is_dir()) {
            // Opening a pipe could block.
            return Ok(());
        }
        File::options().create(true).append(true).open(path)?;
        if existing.is_err() {
            self.created.push(path.to_owned());
        }
        Ok(())
    }

    /// Removes the files that [`open`](Self::open) has created. The caller uses it after a run
    /// without results.
    fn remove_created(&self) {
        for path in &self.created {
            // An empty file that cannot be removed does no harm.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn render(arguments: &Arguments, outcome: &Outcome, runs: &[Measured]) -> String {
    let mut text = table::warnings(outcome);
    text.push_str(&table::offered(outcome));
    text.push_str(&table::figures(outcome, runs, &arguments.print_percentiles));
    text.push_str(&table::servers(outcome));
    text.push_str(&table::costs(outcome));
    if !arguments.hide_histogram {
        text.push_str(&table::histogram(&all_latencies(runs)));
    }
    text
}

/// Returns the latencies of all runs and commands in one histogram.
fn all_latencies(runs: &[Measured]) -> Histogram<u64> {
    let mut all = histogram();
    for total in runs.iter().filter_map(|run| run.histograms.get("total")) {
        // Adding fails only if bounds differ, and all histograms have the same bounds.
        let _ = all.add(total);
    }
    all
}

fn write_json(
    arguments: &Arguments,
    settings: &Settings,
    measured: &[Measured],
    median: &Outcome,
    start_time: SystemTime,
) -> Result<(), BenchError> {
    let Some(path) = &arguments.json_out_file else { return Ok(()) };
    let runs: Vec<_> =
        measured.iter().map(|run| JsonRun::new(run, &arguments.print_percentiles)).collect();
    let json = Json {
        version: env!("CARGO_PKG_VERSION"),
        time: start_time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        command_line: without_credentials(std::env::args()),
        versions: ServerVersions::of(settings),
        units: Units::JSON,
        machine: Machine::this(),
        settings,
        median: JsonMedian::new(median, &runs),
        runs,
    };
    json.write(path).map_err(|error| BenchError::Write(path.display().to_string(), error))
}

fn write_text(arguments: &Arguments, text: &str, out: &mut dyn Write) -> Result<(), BenchError> {
    match &arguments.out_file {
        Some(path) => std::fs::write(path, text)
            .map_err(|error| BenchError::Write(path.display().to_string(), error)),
        None => out
            .write_all(text.as_bytes())
            .map_err(|error| BenchError::Write("standard output".to_owned(), error)),
    }
}

/// Returns a function that shows progress in one line of standard error, if standard error is a
/// terminal and the run is not `quiet`.
fn progress_line(quiet: bool, run: usize) -> impl FnMut(Progress) {
    let watched = !quiet && io::stderr().is_terminal();
    move |progress| {
        if watched {
            let seconds = progress.elapsed.as_secs_f64();
            let Progress { per_second, requests, .. } = progress;
            #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
            let p99_micros = progress.p99_micros as f64;
            // Ignores errors, because a run can continue without its progress line.
            let _ = write!(
                io::stderr(),
                "\rrun {run}: {seconds:5.1} s {requests:>12} requests {per_second:>9.0}/s p99 \
                 {}   ",
                table::time(p99_micros)
            );
        }
    }
}
