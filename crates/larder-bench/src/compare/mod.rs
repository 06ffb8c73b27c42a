//! `larder compare`: compares servers, each of which is started, loaded and stopped in turn.
//!
//! A [`suite`] says who and how, [`plan`] in which order; [`measure`] visits one server, on its
//! [`cores`], as a [`process`]; [`results`] are kept as they come; a [`summary`] is made of them and
//! written by `report`.

pub mod cores;
mod cpu_times;
mod fill;
pub mod measure;
pub mod metric;
pub mod plan;
pub mod process;
mod report;
pub mod results;
pub mod statistics;
pub mod suite;
pub mod summary;
pub mod template;

#[cfg(test)]
mod example;

use crate::machine::Machine;
use clap::Args;
use cores::CoreSet;
use measure::Harness;
use metric::Metric;
use plan::{Trial, trials};
use report::Report;
use results::{Installed, Record, Results, Setup};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use suite::Suite;

/// The options of `larder compare`.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Suite file (TOML) that defines servers and loads; the directory suites/ has several
    pub suite: PathBuf,
    /// Run the short form that the suite defines, with fewer and shorter runs
    #[arg(long)]
    pub quick: bool,
    /// Number of runs, instead of the number in the suite
    #[arg(long)]
    pub runs: Option<usize>,
    /// Directory for the results. An interrupted comparison with results there is resumed
    /// [default: compare/SUITE, or compare/SUITE-quick with --quick]
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Delete the results in the output directory first, instead of resuming
    #[arg(long)]
    pub fresh: bool,
    /// Cores that the servers run on, such as 0,2-3 [default: half of the cores]
    #[arg(long, requires = "load_cores")]
    pub server_cores: Option<CoreSet>,
    /// Cores that the load runs on, such as 1,4-5 [default: the other half of the cores]
    #[arg(long, requires = "server_cores")]
    pub load_cores: Option<CoreSet>,
    /// Print the result tables to standard output as Markdown
    #[arg(long)]
    pub markdown: bool,
}

/// Why there is no comparison.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The suite.
    #[error("{path}: {why}")]
    Suite {
        /// Its file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Cores.
    #[error("{0}; see --server-cores and --load-cores")]
    Cores(String),
    /// The results that are there are of something else.
    #[error(
        "the results in {folder} were made with another setup ({differing} differ): choose another \
         --out, or --fresh to forget them"
    )]
    OtherSetup {
        /// Where.
        folder: PathBuf,
        /// What differs.
        differing: String,
    },
    /// A file.
    #[error("{path}: {error}")]
    File {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        error: io::Error,
    },
    /// A plot can't be drawn.
    #[error("cannot draw: {0}")]
    Plot(String),
    /// A signal came.
    #[error("stopped; what was measured is in {0}, and the same command goes on with it")]
    Interrupted(PathBuf),
}

impl Error {
    fn io(path: &Path, error: io::Error) -> Self {
        Self::File { path: path.to_owned(), error }
    }
}

/// Runs a suite and writes its report. Ends what it started when a signal asks for it.
///
/// # Errors
/// The suite is wrong, files can't be read or written, or a signal came. A server that fails is no
/// error but a result.
pub fn command(arguments: &Arguments) -> Result<(), Error> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // Without it, a signal ends us and leaves a server behind; better than not to run.
        let _ = signal_hook::flag::register(signal, Arc::clone(&interrupted));
    }
    compare(arguments, &interrupted, &mut io::stderr(), &mut io::stdout())
}

/// The same, where the caller says when to stop. What happens is told to `progress`; tables go to
/// `out` if they were asked for.
///
/// # Errors
/// As [`command`].
pub fn compare(
    arguments: &Arguments,
    interrupted: &AtomicBool,
    progress: &mut dyn Write,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let suite = arguments.read_suite()?;
    let setup = arguments.setup(suite)?;
    let folder = arguments.folder();
    let file = folder.join(Results::FILE);
    if arguments.fresh && file.exists() {
        std::fs::remove_file(&file).map_err(|error| Error::io(&file, error))?;
    }
    let mut results = Results::open(&folder, &setup)?;
    measure_all(&setup, &mut results, &folder, interrupted, progress)?;
    let report = Report::of(&setup, results.records());
    report.write(&folder)?;
    print_progress(progress, &format!("report: {}", folder.join("report.html").display()));
    if arguments.markdown {
        let text = report::markdown::markdown(&report);
        out.write_all(text.as_bytes()).map_err(|error| Error::io(Path::new("stdout"), error))?;
    }
    Ok(())
}

/// What changes the figures, as it is typed.
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
            return Err(wrong("at least one run".to_owned()));
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
        // Said before anything is started; the threads that use them ask again.
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
    let program = server.command.first().and_then(|name| process::find(name));
    let version = program.as_deref().and_then(|path| process::version(path, &server.version));
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
    for (number, (trial, program)) in trials.iter().enumerate() {
        if results.have(&trial.cells()) {
            continue;
        }
        let records = harness.run(trial, program);
        let Some(records) = records.filter(|_| !interrupted.load(Ordering::Relaxed)) else {
            return Err(Error::Interrupted(folder.to_owned()));
        };
        for record in &records {
            let place = format!("[{}/{}] ", number + 1, trials.len());
            print_progress(progress, &(place + &describe(record, setup)));
        }
        results.add(records)?;
    }
    Ok(())
}

/// The trials of the servers that are there, with their programs; says who isn't.
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

/// A record for people who watch.
fn describe(record: &Record, setup: &Setup) -> String {
    let cell = &record.cell;
    let figure = |metric: Metric| {
        let value = metric.of(record, setup.load_cores.count())?;
        Some(metric.unit().quantity(value))
    };
    let figures: Vec<String> = [Metric::Throughput, Metric::P99, Metric::HeldByLimit]
        .into_iter()
        .filter_map(figure)
        .collect();
    let found = match &record.found {
        results::Found::Failed(reason) => format!("failed: {reason}"),
        _ => figures.join(", p99 "),
    };
    format!(
        "{} · {} · {} · {} threads · pipeline {} · run {}: {found}",
        cell.server, cell.workload, cell.phase, cell.threads, cell.pipeline, cell.run
    )
}

/// Nothing depends on it.
fn print_progress(progress: &mut dyn Write, line: &str) {
    let _ = writeln!(progress, "{line}");
}
