//! Suites: TOML files that define servers and loads. `docs/compare.md` describes the format.

use clap::Parser;
use larder_bench::{Arguments, Settings, Stop};
use larder_target::Protocol;
use larder_target::template::{self, Values};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A suite.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Suite {
    /// The report's heading.
    pub title: String,
    /// A text about the measured workload and the source of the setup.
    pub about: String,
    /// The server with which the other servers are compared: the denominator of ratios.
    pub baseline: String,
    /// Number of runs. Each run measures every workload on every server once, and repeats disturbed
    /// measurements.
    pub runs: usize,
    /// Memory limit of each server for items, in MiB.
    pub memory_mb: u64,
    /// Numbers of threads of the servers.
    pub threads: Threads,
    /// Numbers of outstanding requests on each connection.
    pub pipelines: Vec<usize>,
    /// Number of connections of all load threads together, for loads that use `{clients}`. Each
    /// thread has an equal share, rounded down but at least 1.
    #[serde(default = "connections")]
    pub connections: usize,
    /// Duration of an implicit warm-up in seconds; 0 for none. If a workload has no warm-up phase,
    /// the comparison runs the workload's first load for this time before it measures the workload.
    #[serde(default = "warm_up_secs")]
    pub warm_up_secs: f64,
    /// The values that `--quick` replaces.
    #[serde(default)]
    pub quick: Quick,
    /// The compared servers.
    #[serde(rename = "server")]
    pub servers: Vec<Server>,
    /// The workloads to measure on each server.
    #[serde(rename = "workload")]
    pub workloads: Vec<Workload>,
}

fn connections() -> usize {
    50
}

fn warm_up_secs() -> f64 {
    1.0
}

/// Numbers of threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Threads {
    /// The listed numbers.
    Listed(Vec<usize>),
    /// `"1..cores"`: the powers of two below the number of the servers' cores, and that number
    /// itself. With one core, the numbers are 1 and 2.
    Cores(UpToCores),
}

/// The string that selects [`Threads::Cores`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UpToCores {
    /// `"1..cores"`, the only accepted string.
    #[serde(rename = "1..cores")]
    Text,
}

impl Threads {
    /// Returns the numbers of threads for servers on `cores` cores.
    #[must_use]
    pub fn numbers(&self, cores: usize) -> Vec<usize> {
        let Self::Listed(numbers) = self else {
            let most = cores.max(2);
            let doubled = std::iter::successors(Some(1), |number| Some(number * 2));
            return doubled.take_while(|number| *number < most).chain([most]).collect();
        };
        numbers.clone()
    }
}

/// Values for the short form of a suite. A missing value leaves the suite's normal value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quick {
    /// Replaces `runs`.
    pub runs: Option<usize>,
    /// Replaces `memory_mb`.
    pub memory_mb: Option<u64>,
    /// Replaces `threads`.
    pub threads: Option<Threads>,
    /// Replaces `pipelines`.
    pub pipelines: Option<Vec<usize>>,
    /// Replaces `warm_up_secs`.
    pub warm_up_secs: Option<f64>,
    /// Options to append to each phase's load.
    #[serde(default)]
    pub load: String,
}

/// A compared server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// Name of the server in the report.
    pub name: String,
    /// The program and its arguments, with the placeholders `{socket}` or `{port}`, `{threads}`,
    /// `{memory_mb}`, `{memory_bytes}`, and the directories `{dir}`, `{shm}` and `{disk}`.
    pub command: Vec<String>,
    /// Arguments with which the program prints its version and exits.
    #[serde(default)]
    pub version: Vec<String>,
    /// The protocol of the server; `None` if it speaks the protocol of the load.
    pub protocol: Option<Protocol>,
    /// The TCP port of a server whose port is fixed; `None` if the command has `{port}` or
    /// `{socket}`.
    pub port: Option<u16>,
    /// The signal that stops this server for a restart; `None` for the phase's signal.
    pub restart_signal: Option<EndSignal>,
    /// Seconds from the exit of this server to its next start during a restart.
    #[serde(default)]
    pub restart_pause_secs: f64,
}

/// A sequence of phases on one server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Name of the workload in the report.
    pub name: String,
    /// The phases of the workload.
    #[serde(rename = "phase")]
    pub phases: Vec<Phase>,
}

/// A load or a fill of the server. The comparison measures each phase that is not a warm-up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// Name of the phase in the report.
    pub name: String,
    /// Options of `larder bench`, with `{pipeline}`, `{clients}`, `{load_threads}`, `{threads}`;
    /// `None` for a fill.
    pub load: Option<String>,
    /// Items with which to fill the server, to count the items that it holds; `None` for a load.
    pub fill: Option<Fill>,
    /// A restart of the server during the load; `None` if there is none.
    pub restart: Option<Restart>,
    /// Whether the load only prepares the server and is not measured.
    #[serde(default)]
    pub warm_up: bool,
}

/// A restart of the server during a load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Restart {
    /// Seconds from the start of the load until the check changes its items, just before the
    /// signal.
    pub after_secs: f64,
    /// The signal that stops a server without its own `restart_signal`.
    #[serde(default)]
    pub signal: EndSignal,
}

/// A signal that stops a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum EndSignal {
    /// SIGTERM.
    #[default]
    Term,
    /// SIGKILL, which the server cannot handle.
    Kill,
    /// SIGUSR1, which makes memcached exit gracefully.
    Usr1,
}

impl From<EndSignal> for Signal {
    fn from(signal: EndSignal) -> Self {
        match signal {
            EndSignal::Term => Self::SIGTERM,
            EndSignal::Kill => Self::SIGKILL,
            EndSignal::Usr1 => Self::SIGUSR1,
        }
    }
}

/// Items to fill a server with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fill {
    /// Size of each value.
    pub value_bytes: usize,
}

/// Placeholders of a server's command.
const SERVER_PLACEHOLDERS: [&str; 8] =
    ["port", "socket", "dir", "shm", "disk", "threads", "memory_mb", "memory_bytes"];
/// Placeholders of a load.
const LOAD_PLACEHOLDERS: [&str; 4] = ["pipeline", "threads", "load_threads", "clients"];

#[derive(Debug, Parser)]
#[command(no_binary_name = true)]
struct Line {
    #[command(flatten)]
    arguments: Arguments,
}

impl Suite {
    /// Parses and checks a suite.
    ///
    /// # Errors
    /// A message with the cause, and the line of a syntax error.
    pub fn parse(text: &str) -> Result<Self, String> {
        let suite: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        suite.check().map(|()| suite)
    }

    /// Converts the suite to its short form.
    #[must_use]
    pub fn quick(mut self) -> Self {
        let quick = std::mem::take(&mut self.quick);
        self.runs = quick.runs.unwrap_or(self.runs);
        self.memory_mb = quick.memory_mb.unwrap_or(self.memory_mb);
        self.threads = quick.threads.unwrap_or(self.threads);
        self.pipelines = quick.pipelines.unwrap_or(self.pipelines);
        self.warm_up_secs = quick.warm_up_secs.unwrap_or(self.warm_up_secs);
        let loads = self.workloads.iter_mut().flat_map(|workload| &mut workload.phases);
        for load in loads.filter_map(|phase| phase.load.as_mut()) {
            *load = format!("{load} {}", quick.load).trim_end().to_owned();
        }
        self
    }

    /// Checks the rules that types cannot express.
    fn check(&self) -> Result<(), String> {
        if self.runs == 0 || self.pipelines.is_empty() || self.threads.numbers(1).is_empty() {
            return Err("runs, pipelines and threads must each be at least one".to_owned());
        }
        if !(0.0..=3600.0).contains(&self.warm_up_secs) {
            return Err("warm_up_secs must be between 0 and 3600".to_owned());
        }
        distinct("server", self.servers.iter().map(|server| &server.name))?;
        distinct("workload", self.workloads.iter().map(|workload| &workload.name))?;
        if !self.servers.iter().any(|server| server.name == self.baseline) {
            return Err(format!("baseline: no server `{}`", self.baseline));
        }
        self.servers.iter().try_for_each(Server::check)?;
        // The short form passes `None`, because its number of runs may differ from the --run-count
        // of a load.
        let short = self.clone().quick();
        let check = |workload: &Workload, runs| workload.check(&self.servers, runs);
        self.workloads.iter().try_for_each(|workload| check(workload, Some(self.runs)))?;
        short.workloads.iter().try_for_each(|workload| check(workload, None))?;
        Ok(())
    }
}

fn distinct<'n>(noun: &str, names: impl Iterator<Item = &'n String>) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for name in names {
        if name.is_empty() || !seen.insert(name) {
            return Err(format!("{noun} `{name}`: names must be unique and not empty"));
        }
    }
    if seen.is_empty() { Err(format!("the suite must have at least one {noun}")) } else { Ok(()) }
}

impl Server {
    /// Returns whether the server listens on a unix socket instead of TCP.
    #[must_use]
    pub fn on_unix_socket(&self) -> bool {
        self.command.iter().any(|word| word.contains("{socket}"))
    }

    fn check(&self) -> Result<(), String> {
        if self.command.is_empty() {
            return Err(format!("server `{}`: `command` is empty", self.name));
        }
        for word in &self.command {
            template::expand(word, &Values::examples(&SERVER_PLACEHOLDERS))
                .map_err(|error| format!("server `{}`: {error}", self.name))?;
        }
        if !(0.0..=60.0).contains(&self.restart_pause_secs) {
            return Err(format!(
                "server `{}`: restart_pause_secs must be between 0 and 60",
                self.name
            ));
        }
        let port = self.port.is_some() || self.command.iter().any(|w| w.contains("{port}"));
        if port == self.on_unix_socket() {
            return Err(format!(
                "server `{}`: needs either {{socket}} or a port, not both",
                self.name
            ));
        }
        Ok(())
    }
}

impl Workload {
    /// Returns the phases that are measured, which excludes warm-ups.
    pub fn measured(&self) -> impl Iterator<Item = &Phase> {
        self.phases.iter().filter(|phase| !phase.warm_up)
    }

    /// Returns the pipelines to measure. Fills do not depend on the pipeline, so a workload that
    /// consists of fills uses only the first pipeline.
    #[must_use]
    pub fn pipelines<'s>(&self, suite: &'s Suite) -> &'s [usize] {
        let only_fills = self.phases.iter().all(|phase| phase.fill.is_some());
        if only_fills { &suite.pipelines[..1] } else { &suite.pipelines }
    }

    fn check(&self, servers: &[Server], runs: Option<usize>) -> Result<(), String> {
        distinct("phase", self.phases.iter().map(|phase| &phase.name))?;
        if self.measured().next().is_none() {
            return Err(format!("workload `{}`: every phase is a warm-up", self.name));
        }
        for phase in &self.phases {
            let wrong =
                |error| format!("workload `{}`, phase `{}`: {error}", self.name, phase.name);
            match (&phase.load, &phase.fill) {
                (Some(load), None) => {
                    let load = arguments(load, &Values::examples(&LOAD_PLACEHOLDERS));
                    let load = load.and_then(|load| check_load(load, runs)).map_err(wrong)?;
                    let check = |restart: Restart| restart.check(&load, servers);
                    phase.restart.map_or(Ok(()), check).map_err(wrong)?;
                }
                (None, Some(_)) if !phase.warm_up && phase.restart.is_none() => {}
                _ => return Err(wrong("needs either load or fill".to_owned())),
            }
        }
        Ok(())
    }
}

impl Restart {
    /// Checks that the load has a `--test-time` longer than `after_secs` and no `--fill`. On all
    /// servers, the load must use one of memcached's protocols without TLS and login, because the
    /// check of the items does.
    fn check(&self, load: &Settings, servers: &[Server]) -> Result<(), String> {
        let Stop::After(time) = load.stop else {
            return Err("a restart needs a load with --test-time".to_owned());
        };
        if !(0.0..time.as_secs_f64()).contains(&self.after_secs) {
            return Err("a restart must be within the load's --test-time".to_owned());
        }
        if load.fill {
            return Err("a restart needs keys of an earlier phase, not --fill".to_owned());
        }
        if load.tls.is_some() || load.login.is_some() {
            return Err("a restart needs a load without TLS and login".to_owned());
        }
        let on_resp = |server: &&Server| server.protocol.unwrap_or(load.protocol) == Protocol::Resp;
        if let Some(server) = servers.iter().find(on_resp) {
            return Err(format!(
                "a restart needs one of memcached's protocols, but server `{}` has resp",
                server.name
            ));
        }
        Ok(())
    }
}

/// Checks that a load has valid settings and no option that a comparison would ignore: the
/// comparison connects to the suite's servers, repeats runs and writes results itself. If `runs` is
/// the number of runs of the suite, a `--run-count` must equal it. If `runs` is `None`, any
/// `--run-count` is valid.
fn check_load(mut load: Arguments, runs: Option<usize>) -> Result<Settings, String> {
    let ignored = [
        ("--run-count", load.run_count > 1 && runs.is_some_and(|runs| runs != load.run_count)),
        ("--print-all-runs", load.print_all_runs),
        ("--find-rate", load.find_rate.is_some()),
        ("--out-file", load.out_file.is_some()),
        ("--json-out-file", load.json_out_file.is_some()),
        ("--hdr-file-prefix", load.hdr_file_prefix.is_some()),
        ("--client-stats", load.client_stats.is_some()),
        ("--pid", load.pid.is_some()),
        ("--port", load.port.is_some()),
        ("--unix-socket", load.unix_socket.is_some()),
        ("--server with several servers", load.server.contains(',')),
        ("--distribution", load.distribution.is_some()),
    ];
    if let Some((option, _)) = ignored.into_iter().find(|(_, is_given)| *is_given) {
        return Err(format!("a load of a suite cannot have this {option}"));
    }
    // A comparison ignores the load's --server, whose name might not resolve on this machine.
    load.server = "127.0.0.1".to_owned();
    load.settings().map_err(|error| error.to_string())
}

/// Expands the placeholders of a load and parses it.
///
/// # Errors
/// The load has an unknown placeholder, or is not a valid command line of `larder bench`.
pub fn arguments(load: &str, values: &Values) -> Result<Arguments, String> {
    let line = template::expand(load, values)?;
    let words = shlex::split(&line).ok_or_else(|| format!("unterminated quote: {line}"))?;
    let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
    Ok(line.arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_that_a_comparison_cannot_keep_are_refused() {
        let check = |load: &str| {
            let examples = Values::examples(&LOAD_PLACEHOLDERS);
            arguments(load, &examples).and_then(|load| check_load(load, Some(3))).map(drop)
        };
        assert_eq!(check("--pipeline {pipeline} -c {clients} --test-time 1"), Ok(()));
        assert_eq!(check("--run-count 3"), Ok(()));
        for load in
            ["--run-count 5", "--client-stats p", "--key-minimum 9 --key-maximum 1", "-p {port}"]
        {
            assert!(check(load).is_err(), "{load}");
        }
    }

    #[test]
    fn threads_up_to_the_cores() {
        let up_to = |cores| Threads::Cores(UpToCores::Text).numbers(cores);
        assert_eq!(up_to(1), [1, 2]);
        assert_eq!(up_to(6), [1, 2, 4, 6]);
        assert_eq!(up_to(8), [1, 2, 4, 8]);
    }
}
