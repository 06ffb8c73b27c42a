//! Runs a trial: starts a server, measures all phases of a workload, and stops the server.

use super::file_name;
use super::fill::fill;
use super::plan::{Cell, Trial};
use super::restart;
use super::results::{CellResult, Failure, LatencyProfile, Record, RestartResult};
use super::suite::{self, Phase, Suite};
use larder_bench::{Measured, Outcome};
use larder_bench::{NamedServer, Settings, Stop};
use larder_bench::{RunError, run};
use larder_target::CoreSet;
use larder_target::CpuTimes;
use larder_target::launch::{CommandLine, Launch, Launched};
use larder_target::template::Values;
use larder_target::{Protocol, ServerAddress};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Runs trials. Contains the state that they share.
#[derive(Debug)]
pub struct Harness<'s> {
    /// The suite.
    pub suite: &'s Suite,
    /// Cores on which servers run.
    pub server_cores: &'s CoreSet,
    /// Cores on which the load runs.
    pub load_cores: &'s CoreSet,
    /// Number of cores of the machine.
    pub cores: usize,
    /// Directory for the servers' output. Directories for `{disk}` are created in its parent.
    pub logs: &'s Path,
    /// Flag that stops the trial and its server when it becomes true, for example on a signal.
    pub interrupted: &'s AtomicBool,
}

impl Harness<'_> {
    /// Starts the server from its `program`, runs all phases, and stops the server. Returns a
    /// record for each measured phase, or `None` if the trial was interrupted. If the server did
    /// not start, all records are failures. `attempt` is 1 for the first measurement of the trial,
    /// and higher for repetitions after disturbances.
    #[must_use]
    pub fn run(&self, trial: &Trial<'_>, program: &Path, attempt: usize) -> Option<Vec<Record>> {
        let cells = trial.cells();
        let measurements = match self.start(trial, program, attempt) {
            Ok(mut server) => self.phases(trial, &mut server),
            Err(reason) => vec![Measurement::failed(reason); cells.len()],
        };
        let record = |(cell, measurement): (Cell, Measurement)| {
            let Measurement { result, other_cpu_percent, latency_profile, restart } = measurement;
            Record { cell, result, other_cpu_percent, latency_profile, restart }
        };
        let records = cells.into_iter().zip(measurements).map(record).collect();
        (!self.is_interrupted()).then_some(records)
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    fn start(&self, trial: &Trial<'_>, program: &Path, attempt: usize) -> Result<Launched, String> {
        let log = self.logs.join(log_name(trial, attempt));
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
            disk: self.logs.parent(),
        };
        launch.start().map_err(|error| error.to_string())
    }

    /// Returns the protocol of a trial's server. A server without its own protocol uses the
    /// protocol of the workload's first load, or text if the workload has no load.
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

    /// Returns the results of all measured phases. After a failed warm-up phase, all later phases
    /// fail.
    fn phases(&self, trial: &Trial<'_>, server: &mut Launched) -> Vec<Measurement> {
        let mut warm = trial.workload.phases.iter().any(|phase| phase.warm_up);
        let mut broken = None;
        let mut measurements = Vec::new();
        for phase in &trial.workload.phases {
            let result = match &broken {
                Some(reason) => Err(String::clone(reason)),
                None => self.phase(trial, phase, server, &mut warm),
            };
            if !phase.warm_up {
                measurements.push(result.unwrap_or_else(Measurement::failed));
            } else if let Err(reason) = result.and_then(Measurement::succeeded) {
                broken = Some(format!("phase {}: {reason}", phase.name));
            }
        }
        measurements
    }

    fn phase(
        &self,
        trial: &Trial<'_>,
        phase: &Phase,
        server: &mut Launched,
        warm: &mut bool,
    ) -> Result<Measurement, String> {
        if let Some(report) = server.exit_report() {
            return Err(format!("exited before this phase: {report}"));
        }
        let (address, pid) = (server.address().clone(), server.pid());
        if let Some(what) = phase.fill {
            let (protocol, limit_mb) = (self.protocol(trial)?, self.suite.memory_mb);
            let filling = || fill(what, &address, protocol, limit_mb, pid);
            let before = CpuTimes::now(pid);
            let filled = self.run_monitored(server, filling)?;
            let other_cpu_percent = self.others_since(before, pid);
            return Ok(Measurement {
                result: CellResult::Filled(filled),
                other_cpu_percent,
                latency_profile: None,
                restart: None,
            });
        }
        let (mut settings, faults_max) = self.settings(trial, phase, address)?;
        let mut fill_faults = BTreeMap::new();
        if !std::mem::replace(warm, true) && self.suite.warm_up_secs > 0.0 {
            let warm_up = Duration::from_secs_f64(self.suite.warm_up_secs);
            let warming = Settings { stop: Stop::After(warm_up), ..settings.clone() };
            let mut outcome = self.load(server, &warming)?.outcome;
            if let Some(reason) = failure(&outcome, u64::MAX) {
                return Err(format!("warming up: {reason}"));
            }
            // The measurement uses the items of the warm-up's `--fill`, so faults of that fill
            // count as faults of the measurement.
            fill_faults = outcome.take_fill_faults();
            settings.fill = false;
        }
        let before = CpuTimes::now(pid);
        let plan = phase.restart.map(|planned| restart::Plan::of(planned, trial.server));
        settings.reconnect_on_error |= plan.is_some();
        let (measured, restart) = self.load_and_restart(server, &settings, plan)?;
        let latency_profile = LatencyProfile::of(&measured);
        let mut outcome = measured.outcome;
        outcome.faults.append(&mut fill_faults);
        // A CPU time of 0 means that the time is below the system's resolution, so the cost is
        // unknown.
        outcome.server = outcome.server.filter(|cost| cost.user_micros + cost.system_micros > 0.0);
        // A restart replaces the server's process, so the difference between its CPU times is
        // meaningless.
        let other_cpu_percent = self.others_since(before, pid).filter(|_| restart.is_none());
        let result = match restart.as_ref().and_then(restart::value_errors) {
            Some(reason) => {
                CellResult::Failed(Failure { reason, outcome: Some(Box::new(outcome)) })
            }
            None => judge(outcome, faults_max),
        };
        let latency_profile = latency_profile.filter(|_| matches!(result, CellResult::Measured(_)));
        Ok(Measurement { result, other_cpu_percent, latency_profile, restart })
    }

    /// Returns the CPU time of other processes since `before`, in percent of all cores of the
    /// machine; `None` if less than half a second has passed, or if the system does not report CPU
    /// times.
    fn others_since(&self, before: Option<CpuTimes>, pid: i32) -> Option<f64> {
        CpuTimes::now(pid)?.others_since(&before?, self.cores)
    }

    /// Returns the settings of a load, and the number of faults that it allows.
    fn settings(
        &self,
        trial: &Trial<'_>,
        phase: &Phase,
        address: ServerAddress,
    ) -> Result<(Settings, u64), String> {
        let load = phase.load.as_deref().unwrap_or_default();
        let mut arguments = suite::arguments(load, &self.values(trial))?;
        arguments.protocol = trial.server.protocol.unwrap_or(arguments.protocol);
        arguments.server = "127.0.0.1".to_owned();
        let settings = arguments.settings().map_err(|error| error.to_string())?;
        Ok((Settings { servers: vec![NamedServer::at(address)], ..settings }, arguments.max_faults))
    }

    /// Runs a load on the server. Fails if the load cannot be run or the server exits during it.
    fn load(&self, server: &mut Launched, settings: &Settings) -> Result<Measured, String> {
        self.load_and_restart(server, settings, None).map(|(measured, _)| measured)
    }

    /// Runs a load on the server. If there is a `plan`, restarts the server during the load.
    fn load_and_restart(
        &self,
        server: &mut Launched,
        settings: &Settings,
        plan: Option<restart::Plan>,
    ) -> Result<(Measured, Option<RestartResult>), String> {
        let pid = server.pid();
        let mut restart_check = match plan {
            Some(plan) => Some(restart::RestartCheck::new(plan, server.address())?),
            None => None,
        };
        let loading =
            || run(settings, Some(pid), &mut |_| ()).map_err(|error: RunError| error.to_string());
        let measured = self.run_with(server, loading, |server| match &mut restart_check {
            Some(restart_check) => restart_check.restart_when_due(server),
            None => Ok(()),
        })?;
        match server.exit_report() {
            Some(report) => Err(format!("exited during this phase: {report}")),
            None => {
                let result = restart_check
                    .map(|restart_check| restart_check.result(&measured))
                    .transpose()?;
                Ok((measured, result))
            }
        }
    }

    /// Runs `work` on the load's cores. On an interruption, stops the server, which makes `work`
    /// return.
    fn run_monitored<T: Send>(
        &self,
        server: &mut Launched,
        work: impl FnOnce() -> Result<T, String> + Send,
    ) -> Result<T, String> {
        self.run_with(server, work, |_| Ok(()))
    }

    /// Does the work of [`run_monitored`](Self::run_monitored), and calls `check` repeatedly until
    /// `work` returns or a check fails. A failed check stops the server, and its error replaces the
    /// result of `work`.
    fn run_with<T: Send>(
        &self,
        server: &mut Launched,
        work: impl FnOnce() -> Result<T, String> + Send,
        mut check: impl FnMut(&mut Launched) -> Result<(), String>,
    ) -> Result<T, String> {
        let mut failed = None;
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| self.load_cores.pin().and_then(|()| work()));
            while !worker.is_finished() {
                std::thread::sleep(POLL_INTERVAL);
                if failed.is_none()
                    && let Err(reason) = check(server)
                {
                    failed = Some(reason);
                }
                if self.is_interrupted() || failed.is_some() {
                    server.stop();
                }
            }
            if let Some(reason) = failed {
                return Err(reason);
            }
            let result = worker.join().map_err(|_| "the load panicked".to_owned())?;
            match (result, server.exit_report()) {
                (Err(error), Some(report)) => Err(format!("exited: {report}; {error}")),
                (result, _) => result,
            }
        })
    }
}

/// The result of a phase.
#[derive(Clone, Debug)]
struct Measurement {
    result: CellResult,
    other_cpu_percent: Option<f64>,
    latency_profile: Option<LatencyProfile>,
    restart: Option<RestartResult>,
}

impl Measurement {
    fn failed(reason: String) -> Self {
        Self {
            result: CellResult::Failed(reason.into()),
            other_cpu_percent: None,
            latency_profile: None,
            restart: None,
        }
    }

    /// Returns the reason for the failure as an error, if the measurement failed.
    fn succeeded(self) -> Result<(), String> {
        match self.result {
            CellResult::Failed(failure) => Err(failure.reason),
            CellResult::Measured(_) | CellResult::Filled(_) => Ok(()),
        }
    }
}

/// Returns the file name for the server's output in a trial.
fn log_name(trial: &Trial<'_>, attempt: usize) -> String {
    let Trial { server, workload, threads, pipeline, run } = trial;
    let plural = if *threads == 1 { "" } else { "s" };
    let name = format!(
        "{} {} {threads} thread{plural} pipeline {pipeline} run {run}",
        server.name, workload.name
    );
    let again = if attempt == 1 { String::new() } else { format!("-attempt-{attempt}") };
    format!("{}{again}.log", file_name(&name))
}

/// Converts the outcome of a run to a result: see [`failure`].
fn judge(outcome: Outcome, faults_max: u64) -> CellResult {
    let outcome = Box::new(outcome);
    match failure(&outcome, faults_max) {
        Some(reason) => CellResult::Failed(Failure { reason, outcome: Some(outcome) }),
        None => CellResult::Measured(outcome),
    }
}

/// Returns the reason why a run counts as failed, or `None` for a successful run. A run has failed
/// if it ended early, has no successful request, or has more than `faults_max` faults. Faults are
/// error replies, lost connections, wrong values, and requests that were never sent or never
/// answered.
fn failure(outcome: &Outcome, faults_max: u64) -> Option<String> {
    let all = outcome.fault_count();
    let mut kinds: Vec<(&String, &u64)> = outcome.faults.iter().collect();
    kinds.sort_by_key(|(_, times)| Reverse(**times));
    let kinds = kinds.iter().take(KINDS_SHOWN).map(|(what, times)| format!("{what}: {times}"));
    let faults = format!("{all} faults ({})", kinds.collect::<Vec<_>>().join(", "));
    match &outcome.ended_early {
        Some(reason) => Some(reason.clone()),
        None if all > faults_max => Some(faults),
        None => (outcome.total().requests == 0).then(|| "no request was answered".to_owned()),
    }
}

/// The reason for a failure lists at most this many kinds of faults.
const KINDS_SHOWN: usize = 3;

const POLL_INTERVAL: Duration = Duration::from_millis(20);
