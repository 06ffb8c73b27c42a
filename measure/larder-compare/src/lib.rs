//! `larder compare`: starts several servers one after another, applies the same loads to each, and
//! compares the results. It can also compare the results of two earlier comparisons (`diff`).
//!
//! A [`suite`] defines servers and loads, and [`plan`] orders the trials. [`measure`] runs a trial,
//! with the server and the load on separate [cores](CoreSet). [`results`] saves each result
//! immediately, and `report` writes the [`summary`] of all results.

mod diff;
mod fill;
pub mod measure;
pub mod metric;
pub mod plan;
mod report;
mod restart;
pub mod results;
pub mod statistics;
pub mod suite;
pub mod summary;

#[cfg(test)]
mod example;

use clap::Args;
pub use diff::Threshold;
use larder_target::CoreSet;
use larder_target::Machine;
use larder_target::program;
use measure::Harness;
use metric::Metric;
use plan::{Trial, trials};
use report::Report;
pub use report::means::{MeanPlot, MeanSeries};
use results::{ATTEMPTS_MAX, Installed, Record, Results, Setup};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use suite::Suite;

/// The options of `larder compare`.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Suite file (TOML) that defines servers and loads, such as those in measure/suites/. With
    /// NEW, the results of an earlier comparison: its directory, cells.jsonl or results.json
    #[arg(value_name = "SUITE|OLD")]
    pub suite: PathBuf,
    /// Results of a later comparison, to compare with the earlier ones
    #[arg(value_name = "NEW", conflicts_with_all = ["quick", "runs", "out", "fresh", "server_cores", "load_cores", "markdown"])]
    pub new: Option<PathBuf>,
    /// Exit with status 1 if a metric is worse by more than this percentage, and the difference is
    /// significant. METRIC is throughput, p50, p99, cpu and so on, as in names of plots. Repeat the
    /// option for several metrics
    #[arg(long, value_name = "[METRIC=]PERCENT", requires = "new")]
    pub threshold: Vec<Threshold>,
    /// Run the short form of the suite, with fewer and shorter runs
    #[arg(long)]
    pub quick: bool,
    /// Number of runs [default: the number in the suite]
    #[arg(long)]
    pub runs: Option<usize>,
    /// Directory of the results. Resumes an interrupted comparison with results there
    /// [default: compare/SUITE, or compare/SUITE-quick with --quick]
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Delete the results in the output directory first, instead of resuming
    #[arg(long)]
    pub fresh: bool,
    /// Cores of the servers, such as 0,2-3 [default: half of the cores]
    #[arg(long, requires = "load_cores")]
    pub server_cores: Option<CoreSet>,
    /// Cores of the load generator, such as 1,4-5 [default: the other half of the cores]
    #[arg(long, requires = "server_cores")]
    pub load_cores: Option<CoreSet>,
    /// Print the result tables to standard output as Markdown
    #[arg(long)]
    pub markdown: bool,
}

/// Errors of a comparison.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The suite is invalid, or `--runs` is 0.
    #[error("suite {path}: {why}")]
    Suite {
        /// The suite's file.
        path: PathBuf,
        /// The error.
        why: String,
    },
    /// The system does not report the cores, or the cores in the arguments cannot be used.
    #[error("{0}; choose others with --server-cores and --load-cores")]
    Cores(String),
    /// The results in the output directory have a different setup from this comparison.
    #[error(
        "the results in {folder} have a different setup ({differing} differ); choose another directory \
         with --out, or delete them with --fresh"
    )]
    OtherSetup {
        /// The output directory.
        folder: PathBuf,
        /// The parts of the setup that differ.
        differing: String,
    },
    /// A file or directory cannot be read, written, created or removed, or the results in the
    /// output directory are malformed.
    #[error("{path}: {error}")]
    File {
        /// The file or directory; `stdout` for the standard output.
        path: PathBuf,
        /// The system's error, or the reason why the results are malformed.
        error: io::Error,
    },
    /// A plot cannot be drawn, or its PNG file cannot be written.
    #[error("cannot draw a plot: {0}")]
    Plot(String),
    /// A results file to compare is malformed, or the new and the old results have no cell in
    /// common.
    #[error("{path} has no usable results: {why}")]
    Unreadable {
        /// The malformed file, or the path of the new results if they have no cell in common with
        /// the old ones.
        path: PathBuf,
        /// The error.
        why: String,
    },
    /// The new results have regressions. A regression is a metric that is worse, significantly and
    /// by more than its threshold, or a cell that is in both results and failed only in the new
    /// results. If there is a threshold, a cell that is missing from the new results is also a
    /// regression.
    #[error("{count} regressions, first {first}")]
    Regressions {
        /// Number of regressions.
        count: usize,
        /// The first regression.
        first: String,
    },
    /// Measurements failed. `results.csv` and `results.json` contain the reason for each failure.
    #[error("{failed} of {all} measurements failed, first {first}; see {report}")]
    Failed {
        /// Number of failed measurements.
        failed: usize,
        /// Number of all measurements.
        all: usize,
        /// The first failed measurement, with its reason.
        first: String,
        /// The report.
        report: PathBuf,
    },
    /// A signal interrupted the comparison. The results so far are in this output directory.
    #[error("interrupted; the results so far are in {0}; repeat the command to resume")]
    Interrupted(PathBuf),
}

impl Error {
    fn io(path: &Path, error: io::Error) -> Self {
        Self::File { path: path.to_owned(), error }
    }
}

/// Runs a suite and writes its report, or compares two results. A SIGINT or SIGTERM during the
/// measurements stops the running server and makes the command fail with [`Error::Interrupted`].
///
/// # Errors
/// The suite or the cores cannot be used, files cannot be read or written, the results in the
/// output directory have a different setup, the two results to compare are malformed or have no
/// cell in common, a plot cannot be drawn, or a signal interrupted the comparison. If a measurement
/// failed, the error is returned after the report is written. If there are regressions, the error
/// is returned after the table is written.
pub fn command(arguments: &Arguments) -> Result<(), Error> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // Ignores a failed registration: without a handler, a signal stops this process at once,
        // and the server's watchdog then kills the server.
        let _ = signal_hook::flag::register(signal, Arc::clone(&interrupted));
    }
    compare(arguments, &interrupted, &mut io::stderr(), &mut io::stdout())
}

/// Does the work of [`command`], but stops when `interrupted` becomes true, and handles no signals.
/// Writes progress to `progress`. For two results, writes their table to `out`. For a suite, writes
/// the Markdown report to `out` if the arguments request it.
///
/// # Errors
/// See [`command`].
pub fn compare(
    arguments: &Arguments,
    interrupted: &AtomicBool,
    progress: &mut dyn Write,
    out: &mut dyn Write,
) -> Result<(), Error> {
    if let Some(new) = &arguments.new {
        return compare_results(&arguments.suite, new, &arguments.threshold, out);
    }
    let suite = arguments.read_suite()?;
    let setup = arguments.setup(suite)?;
    let folder = arguments.folder();
    let file = folder.join(Results::FILE);
    if arguments.fresh && file.exists() {
        std::fs::remove_file(&file).map_err(|error| Error::io(&file, error))?;
    }
    let mut results = Results::open(&folder, &setup)?;
    measure_all(&setup, &mut results, &folder, interrupted, progress)?;
    // The file can contain results of an earlier comparison with more runs.
    let is_asked = |record: &&Record| record.cell.run <= setup.suite.runs;
    let records: Vec<Record> = results.records().iter().filter(is_asked).cloned().collect();
    let report = Report::of(&setup, &records);
    report.write(&folder)?;
    print_progress(progress, &format!("report: {}", folder.join("report.html").display()));
    if arguments.markdown {
        let text = report::markdown::markdown(&report);
        out.write_all(text.as_bytes()).map_err(|error| Error::io(Path::new("stdout"), error))?;
    }
    failures(&records, &folder)
}

fn compare_results(
    old: &Path,
    new: &Path,
    thresholds: &[Threshold],
    out: &mut dyn Write,
) -> Result<(), Error> {
    let mut text = String::new();
    let regressions = diff::diff(old, new, thresholds, &mut text)?;
    out.write_all(text.as_bytes()).map_err(|error| Error::io(Path::new("stdout"), error))?;
    match regressions.first() {
        Some(first) => Err(Error::Regressions { count: regressions.len(), first: first.clone() }),
        None => Ok(()),
    }
}

/// Returns an error if a measurement failed.
fn failures(records: &[Record], folder: &Path) -> Result<(), Error> {
    let mut failed = records.iter().filter_map(|record| Some((&record.cell, record.failure()?)));
    let Some((cell, why)) = failed.next() else { return Ok(()) };
    Err(Error::Failed {
        failed: 1 + failed.count(),
        all: records.len(),
        first: format!("{cell}: {why}"),
        report: folder.join("report.html"),
    })
}

/// Formats the command line with the options that affect results.
impl fmt::Display for Arguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "larder compare {}", self.suite.display())?;
        if self.quick {
            f.write_str(" --quick")?;
        }
        if let Some(runs) = self.runs {
            write!(f, " --runs {runs}")?;
        }
        if let (Some(server), Some(load)) = (&self.server_cores, &self.load_cores) {
            write!(f, " --server-cores {server} --load-cores {load}")?;
        }
        Ok(())
    }
}

impl Arguments {
    fn read_suite(&self) -> Result<Suite, Error> {
        let wrong = |why| Error::Suite { path: self.suite.clone(), why };
        let text = std::fs::read_to_string(&self.suite).map_err(|e| Error::io(&self.suite, e))?;
        let mut suite = Suite::parse(&text).map_err(wrong)?;
        if self.quick {
            suite = suite.quick();
        }
        suite.runs = self.runs.unwrap_or(suite.runs);
        if suite.runs == 0 {
            return Err(wrong("--runs must be at least 1".to_owned()));
        }
        Ok(suite)
    }

    fn folder(&self) -> PathBuf {
        self.out.clone().unwrap_or_else(|| {
            let name = self.suite.file_stem().unwrap_or_default().to_string_lossy();
            let quick = if self.quick { "-quick" } else { "" };
            Path::new("compare").join(format!("{name}{quick}"))
        })
    }

    fn setup(&self, suite: Suite) -> Result<Setup, Error> {
        let (server_cores, load_cores) = match (&self.server_cores, &self.load_cores) {
            (Some(server), Some(load)) => (server.clone(), load.clone()),
            _ => CoreSet::halves().map_err(Error::Cores)?,
        };
        // Detects invalid cores before a server starts. The check pins only a thread that exits
        // immediately.
        for cores in [&server_cores, &load_cores] {
            let tried = std::thread::scope(|scope| scope.spawn(|| cores.pin()).join());
            tried.unwrap_or(Ok(())).map_err(Error::Cores)?;
        }
        let larder = env!("CARGO_PKG_VERSION").to_owned();
        let servers = suite.servers.iter().map(installed).collect();
        Ok(Setup {
            date: jiff::Timestamp::now().strftime("%F").to_string(),
            command: self.to_string(),
            larder,
            suite,
            servers,
            server_cores,
            load_cores,
            machine: Machine::this(),
        })
    }
}

fn installed(server: &suite::Server) -> Installed {
    let program = server.command.first().and_then(|name| program::find(name));
    let version = program.as_deref().and_then(|path| program::version(path, &server.version));
    Installed { name: server.name.clone(), program, version }
}

fn measure_all(
    setup: &Setup,
    results: &mut Results,
    folder: &Path,
    interrupted: &AtomicBool,
    progress: &mut dyn Write,
) -> Result<(), Error> {
    let logs = folder.join("logs");
    std::fs::create_dir_all(&logs).map_err(|error| Error::io(&logs, error))?;
    let harness = Harness {
        suite: &setup.suite,
        server_cores: &setup.server_cores,
        load_cores: &setup.load_cores,
        cores: setup.machine.cores,
        logs: &logs,
        interrupted,
    };
    let trials = installed_trials(setup, progress);
    let numbered: Vec<_> = (1..).zip(&trials).collect();
    let mut left = TimeLeft::new(trials.iter().filter(|(t, _)| !results.have(&t.cells())).count());
    for run in numbered.chunk_by(|(_, (one, _)), (_, (other, _))| one.run == other.run) {
        // Repeats trials with disturbed measurements at the end of their run.
        for attempt in 1..=ATTEMPTS_MAX {
            for (number, (trial, program)) in run {
                let cells = trial.cells();
                if results.have(&cells) && (attempt == 1 || !results.want_again(&cells)) {
                    continue;
                }
                let records = harness.run(trial, program, attempt);
                let Some(records) = records.filter(|_| !interrupted.load(Ordering::Relaxed)) else {
                    return Err(Error::Interrupted(folder.to_owned()));
                };
                let again = if attempt == 1 { "" } else { " again" };
                let place = format!("[{number}/{}{again}] ", trials.len());
                if attempt == 1 {
                    left.count_one();
                }
                for record in &records {
                    let found = describe(record, setup);
                    print_progress(progress, &format!("{place}{found}{left}"));
                }
                results.add(records)?;
            }
        }
    }
    Ok(())
}

/// Estimates the remaining time: the number of trials left × the mean time of a trial so far,
/// including repetitions of disturbed trials.
#[derive(Debug)]
struct TimeLeft {
    since: Instant,
    done: usize,
    all: usize,
}

impl TimeLeft {
    fn new(all: usize) -> Self {
        Self { since: Instant::now(), done: 0, all }
    }

    fn count_one(&mut self) {
        self.done += 1;
    }
}

impl fmt::Display for TimeLeft {
    #[expect(clippy::cast_precision_loss, reason = "numbers of trials")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = self.since.elapsed().as_secs_f64() / self.done.max(1) as f64;
        let secs = each * self.all.saturating_sub(self.done) as f64;
        match secs {
            _ if self.done == self.all => Ok(()),
            _ if secs < 90.0 => write!(f, "; about {secs:.0} s left"),
            _ if secs < 5400.0 => write!(f, "; about {:.0} min left", secs / 60.0),
            _ => write!(f, "; about {:.1} h left", secs / 3600.0),
        }
    }
}

/// Returns the trials of the installed servers, with their programs. Writes the names of missing
/// servers to `progress`.
fn installed_trials<'s>(setup: &'s Setup, progress: &mut dyn Write) -> Vec<(Trial<'s>, &'s Path)> {
    let mut servers = Vec::new();
    for (server, installed) in setup.suite.servers.iter().zip(&setup.servers) {
        match &installed.program {
            Some(_) => servers.push(server),
            None => print_progress(progress, &format!("{}: not installed", server.name)),
        }
    }
    let program = |trial: &Trial<'_>| {
        let mut installed = setup.servers.iter();
        installed.find(|known| known.name == trial.server.name)?.program.as_deref()
    };
    let trials = trials(&setup.suite, &servers, setup.server_cores.count());
    trials.into_iter().filter_map(|trial| Some((trial, program(&trial)?))).collect()
}

/// Returns a line of progress about a result.
fn describe(record: &Record, setup: &Setup) -> String {
    let figure = |metric: Metric| {
        let value = metric.of(record, setup.load_cores.count())?;
        Some(metric.unit().quantity(value))
    };
    let figures: Vec<String> = [Metric::Throughput, Metric::P99, Metric::HeldByLimit]
        .into_iter()
        .filter_map(figure)
        .collect();
    let found = match record.failure() {
        Some(reason) => format!("failed: {reason}"),
        None => figures.join(", p99 "),
    };
    let disturbed = record.other_cpu_percent.filter(|_| record.is_disturbed());
    let disturbed = disturbed.map_or(String::new(), |percent| {
        format!(" (disturbed: others use {percent:.0} % of the machine)")
    });
    format!("{}: {found}{disturbed}", record.cell)
}

/// Converts words to a file name in lower case. A hyphen replaces each sequence of characters other
/// than letters, digits and dots. Hyphens at either end are removed.
fn file_name(words: &str) -> String {
    let kept = |c: char| if c.is_alphanumeric() || c == '.' { c } else { '-' };
    let name: String = words.to_lowercase().chars().map(kept).collect();
    let words = name.split('-').filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-")
}

/// Writes a line of progress. Ignores errors, because the output of progress is not essential.
fn print_progress(progress: &mut dyn Write, line: &str) {
    let _ = writeln!(progress, "{line}");
}
