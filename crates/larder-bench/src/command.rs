//! `larder bench`: performs the runs and writes their results as a table and as JSON.

use crate::arguments::{ArgumentError, Arguments};
use crate::load::stats::histogram;
use crate::outcome::Outcome;
use crate::report::files::{Json, write_histograms};
use crate::report::table;
use crate::run::{Measured, Progress, RunError, run};
use crate::settings::Settings;
use hdrhistogram::Histogram;
use larder_target::Machine;
use std::io::{self, IsTerminal, Write};
use std::time::{SystemTime, UNIX_EPOCH};

/// Why `larder bench` failed.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// An option's value cannot be used.
    #[error(transparent)]
    Arguments(#[from] ArgumentError),
    /// A run failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A result could not be written.
    #[error("cannot write {0}: {1}")]
    Write(String, io::Error),
}

/// Performs the runs that `arguments` ask for, and writes the table to `out` or to the file that the
/// arguments name.
///
/// # Errors
/// An option's value cannot be used, a run failed, or a result could not be written.
pub fn bench(arguments: &Arguments, out: &mut dyn Write) -> Result<(), BenchError> {
    let settings = arguments.settings()?;
    let begun = SystemTime::now();
    let mut text = table::heading(&settings);
    if arguments.show_config {
        text.push_str(&serde_json::to_string_pretty(&settings).unwrap_or_default());
        text.push('\n');
    }
    let mut runs = Vec::new();
    for number in 1..=arguments.run_count {
        let run_begun = SystemTime::now();
        let measured = run(&settings, arguments.pid, &mut progress_line(arguments.quiet, number))?;
        if let Some(prefix) = &arguments.hdr_file_prefix {
            write_histograms(prefix, number, &measured, run_begun)
                .map_err(|error| BenchError::Write(prefix.clone(), error))?;
        }
        if arguments.print_all_runs && arguments.run_count > 1 {
            text.push_str(&format!("\nrun {number} of {}\n", arguments.run_count));
            text.push_str(&render(arguments, &measured.outcome, std::slice::from_ref(&measured)));
        }
        runs.push(measured);
    }
    let outcomes: Vec<Outcome> = runs.iter().map(|run| run.outcome.clone()).collect();
    let median = Outcome::median_of(&outcomes);
    if runs.len() > 1 {
        text.push_str(&format!("\nmedians of {} runs\n", runs.len()));
    }
    text.push_str(&render(arguments, &median, &runs));
    write_json(arguments, &settings, &outcomes, &median, begun)?;
    write_text(arguments, &text, out)
}

fn render(arguments: &Arguments, outcome: &Outcome, runs: &[Measured]) -> String {
    let mut text = table::figures(outcome, runs, &arguments.print_percentiles);
    text.push_str(&table::costs(outcome));
    if !arguments.hide_histogram {
        text.push_str(&table::histogram(&all_latencies(runs)));
    }
    text
}

/// The latencies of all runs and commands in one histogram.
fn all_latencies(runs: &[Measured]) -> Histogram<u64> {
    let mut all = histogram();
    for total in runs.iter().filter_map(|run| run.histograms.get("total")) {
        // Adding fails only if bounds differ; all histograms have the same ones.
        let _ = all.add(total);
    }
    all
}

fn write_json(
    arguments: &Arguments,
    settings: &Settings,
    outcomes: &[Outcome],
    median: &Outcome,
    begun: SystemTime,
) -> Result<(), BenchError> {
    let Some(path) = &arguments.json_out_file else { return Ok(()) };
    let json = Json {
        version: env!("CARGO_PKG_VERSION"),
        time: begun.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        machine: Machine::this(),
        settings,
        runs: outcomes.iter().collect(),
        median,
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

/// Returns a function that shows progress in one line of standard error, if that is a terminal.
fn progress_line(quiet: bool, run: usize) -> impl FnMut(Progress) {
    let watched = !quiet && io::stderr().is_terminal();
    move |progress| {
        if watched {
            let seconds = progress.elapsed.as_secs_f64();
            let Progress { per_second, requests, p99_micros, .. } = progress;
            // A run goes on if its progress cannot be shown.
            let _ = write!(
                io::stderr(),
                "\rrun {run}: {seconds:5.1} s {requests:>12} requests {per_second:>9.0}/s p99 \
                 {p99_micros} us   "
            );
        }
    }
}
