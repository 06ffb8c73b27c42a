//! Runs a trial: starts a server, measures all phases of a workload, and stops the server.

use super::fill::fill;
use super::plan::Trial;
use super::results::{Failure, Found, Record};
use super::suite::{self, Phase, Suite};
use larder_bench::Outcome;
use larder_bench::{RunError, run};
use larder_bench::{Settings, Stop};
use larder_target::CoreSet;
use larder_target::CpuTimes;
use larder_target::launch::{CommandLine, Launch, Launched};
use larder_target::process::{self, Usage};
use larder_target::template::Values;
use larder_target::{Protocol, ServerAddress};
use std::cmp::Reverse;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Runs trials, with what they all have in common.
#[derive(Debug)]
pub struct Harness<'s> {
    /// The suite.
    pub suite: &'s Suite,
    /// Cores that servers run on.
    pub server_cores: &'s CoreSet,
    /// Cores that the load runs on.
    pub load_cores: &'s CoreSet,
    /// Number of cores of the whole machine.
    pub cores: usize,
    /// Directory for the servers' output.
    pub logs: &'s Path,
    /// Set by a signal handler: the trial ends, and its server is stopped.
    pub interrupted: &'s AtomicBool,
}

impl Harness<'_> {
    /// Starts the server from its `program`, measures all phases, and stops it. Returns nothing if it
    /// was interrupted.
    #[must_use]
    pub fn run(&self, trial: &Trial<'_>, program: &Path) -> Option<Vec<Record>> {
        let found = match self.start(trial, program) {
            Ok(mut server) => self.phases(trial, &mut server),
            Err(reason) => vec![(Found::Failed(reason.into()), None); trial.workload.phases.len()],
        };
        let records = trial.cells().into_iter().zip(found);
        let records = records
            .map(|(cell, (found, others_busy))| Record { cell, found, others_busy })
            .collect();
        (!self.is_interrupted()).then_some(records)
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    fn start(&self, trial: &Trial<'_>, program: &Path) -> Result<Launched, String> {
        let log = self.logs.join(format!("{}.log", trial.server.name));
        let arguments = &trial.server.command[1..];
        let launch = Launch {
            command: CommandLine::Words { program, arguments },
            values: Values::default()
                .with("threads", trial.threads)
                .with_memory(self.suite.memory_mb),
            port: trial.server.port,
            protocol: self.protocol(trial)?,
            cores: Some(self.server_cores),
            log: Some(&log),
        };
        launch.start().map_err(|error| error.to_string())
    }

    /// The protocol of a trial's server, or of its first load.
    fn protocol(&self, trial: &Trial<'_>) -> Result<Protocol, String> {
        let mut loads = trial.workload.phases.iter().filter_map(|phase| phase.load.as_deref());
        match (trial.server.protocol, loads.next()) {
            (Some(protocol), _) => Ok(protocol),
            (None, Some(load)) => Ok(suite::arguments(load, &self.values(trial))?.protocol),
            (None, None) => Ok(Protocol::Text),
        }
    }

    fn values(&self, trial: &Trial<'_>) -> Values {
        let load_threads = self.load_cores.count();
        Values::default()
            .with("pipeline", trial.pipeline)
            .with("threads", trial.threads)
            .with("load_threads", load_threads)
            .with("clients", (self.suite.connections / load_threads).max(1))
    }

    /// The result of each phase, and the CPU time of other processes meanwhile.
    fn phases(&self, trial: &Trial<'_>, server: &mut Launched) -> Vec<(Found, Option<f64>)> {
        let mut warm = false;
        let mut found = Vec::new();
        for phase in &trial.workload.phases {
            let result = self.phase(trial, phase, server, &mut warm);
            found.push(result.unwrap_or_else(|reason| (Found::Failed(reason.into()), None)));
        }
        found
    }

    fn phase(
        &self,
        trial: &Trial<'_>,
        phase: &Phase,
        server: &mut Launched,
        warm: &mut bool,
    ) -> Result<(Found, Option<f64>), String> {
        if let Some(report) = server.exit_report() {
            return Err(format!("exited before this phase: {report}"));
        }
        let (address, pid) = (server.address().clone(), server.pid());
        if let Some(what) = phase.fill {
            let (protocol, limit_mb) = (self.protocol(trial)?, self.suite.memory_mb);
            let filling = || fill(what, &address, protocol, limit_mb, pid);
            let before = CpuTimes::now(pid);
            let held = self.run_monitored(server, &AtomicU64::new(NO_PROGRESS_YET), filling)?;
            return Ok((Found::Held(held), self.others_since(before, pid)));
        }
        let mut settings = self.settings(trial, phase, address)?;
        if !std::mem::replace(warm, true) && self.suite.warm_up_secs > 0.0 {
            let warm_up = Duration::from_secs_f64(self.suite.warm_up_secs);
            let warming = Settings { stop: Stop::After(warm_up), ..settings.clone() };
            self.load(server, &warming)?;
            settings.fill = false;
        }
        let before = CpuTimes::now(pid);
        let mut outcome = self.load(server, &settings)?;
        // A cost of 0 is one that was not seen.
        outcome.server = outcome.server.filter(|cost| cost.user_micros + cost.system_micros > 0.0);
        Ok((judge(outcome), self.others_since(before, pid)))
    }

    /// CPU time of other processes since a point in time, in percent of the whole machine.
    fn others_since(&self, before: Option<CpuTimes>, pid: i32) -> Option<f64> {
        CpuTimes::now(pid)?.others_since(&before?, self.cores)
    }

    fn settings(
        &self,
        trial: &Trial<'_>,
        phase: &Phase,
        address: ServerAddress,
    ) -> Result<Settings, String> {
        let load = phase.load.as_deref().unwrap_or_default();
        let mut arguments = suite::arguments(load, &self.values(trial))?;
        arguments.protocol = trial.server.protocol.unwrap_or(arguments.protocol);
        arguments.server = "127.0.0.1".to_owned();
        let settings = arguments.settings().map_err(|error| error.to_string())?;
        Ok(Settings { address, ..settings })
    }

    fn load(&self, server: &mut Launched, settings: &Settings) -> Result<Outcome, String> {
        let (answered, pid) = (AtomicU64::new(NO_PROGRESS_YET), server.pid());
        let loading = || {
            let mut progress = |progress: larder_bench::Progress| {
                answered.store(progress.requests, Ordering::Relaxed);
            };
            let measured = run(settings, Some(pid), &mut progress)
                .map_err(|error: RunError| error.to_string())?;
            match measured.outcome.ended_early {
                Some(reason) => Err(reason),
                None => Ok(measured),
            }
        };
        let measured = self.run_monitored(server, &answered, loading)?;
        match server.exit_report() {
            Some(report) => Err(format!("exited during this phase: {report}")),
            None => Ok(measured.outcome),
        }
    }

    /// Runs `work` on the load's cores. If the trial is interrupted, or the count of answers stalls,
    /// stops the server, which makes `work` return.
    fn run_monitored<T: Send>(
        &self,
        server: &mut Launched,
        answered: &AtomicU64,
        work: impl FnOnce() -> Result<T, String> + Send,
    ) -> Result<T, String> {
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| self.load_cores.pin().and_then(|()| work()));
            let mut stall = StallTimer::new();
            let mut stalled = false;
            let timeout = Duration::from_secs_f64(self.suite.answer_timeout_secs);
            let pid = server.pid();
            while !worker.is_finished() {
                std::thread::sleep(POLL_INTERVAL);
                stalled |= stall.has_timed_out(answered.load(Ordering::Relaxed), pid, timeout);
                if stalled || self.is_interrupted() {
                    server.stop();
                }
            }
            let result = worker.join().map_err(|_| "the load panicked".to_owned())?;
            match (result, server.exit_report()) {
                (Err(_), _) if stalled => Err(format!("did not answer for {timeout:?}")),
                (Err(error), Some(report)) => Err(format!("exited: {report}; {error}")),
                (result, _) => result,
            }
        })
    }
}

/// A run counts as a result unless it has more faults than are allowed.
fn judge(outcome: Outcome) -> Found {
    let outcome = Box::new(outcome);
    match too_many_faults(&outcome) {
        Some(reason) => Found::Failed(Failure { reason, outcome: Some(outcome) }),
        None => Found::Measured(outcome),
    }
}

/// What is wrong with a run that has faults (error replies, lost connections, wrong values, requests
/// without an answer), or no answer at all.
fn too_many_faults(outcome: &Outcome) -> Option<String> {
    let all: u64 = outcome.faults.values().sum();
    let mut kinds: Vec<(&String, &u64)> = outcome.faults.iter().collect();
    kinds.sort_by_key(|(_, times)| Reverse(**times));
    let kinds: Vec<String> =
        kinds.iter().take(KINDS_SHOWN).map(|(what, times)| format!("{what}: {times}")).collect();
    if all > FAULTS_MAX {
        return Some(format!("{all} faults ({})", kinds.join(", ")));
    }
    (outcome.total().requests == 0).then(|| "no request was answered".to_owned())
}

/// Number of faults that a result may have.
const FAULTS_MAX: u64 = 0;
/// Number of kinds of faults that a reason names.
const KINDS_SHOWN: usize = 3;

const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The count before the first report, while connections are made and keys are set.
const NO_PROGRESS_YET: u64 = u64::MAX;

/// Measures for how long a server has made no progress: the count of answers has not changed or,
/// before the first count, the server has used no CPU time.
#[derive(Debug)]
struct StallTimer {
    progress: (u64, Option<Usage>),
    since: Instant,
    /// When the server's CPU time was read.
    looked: Instant,
}

/// Interval at which the CPU times of all processes are read.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

impl StallTimer {
    fn new() -> Self {
        let now = Instant::now();
        Self { progress: (NO_PROGRESS_YET, None), since: now, looked: now }
    }

    fn has_timed_out(&mut self, count: u64, pid: i32, timeout: Duration) -> bool {
        if count == self.progress.0 && self.looked.elapsed() < LOOK_INTERVAL {
            return false;
        }
        self.looked = Instant::now();
        let used = if count == NO_PROGRESS_YET { process::usage(pid) } else { None };
        // Memory may change without any request.
        let used = used.map(|used| Usage { rss_bytes: 0, ..used });
        if (count, used) != self.progress {
            *self = Self { progress: (count, used), since: self.looked, ..*self };
        }
        self.since.elapsed() > timeout
    }
}
