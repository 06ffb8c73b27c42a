//! The trials of a comparison and their order.

use super::suite::{Server, Suite, Workload};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Identifies one measurement of one server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Cell {
    /// Name of the server.
    pub server: String,
    /// Name of the workload.
    pub workload: String,
    /// Name of the workload's phase.
    pub phase: String,
    /// Number of threads of the server.
    pub threads: usize,
    /// Number of outstanding requests on each connection.
    pub pipeline: usize,
    /// Number of the run, from 1.
    pub run: usize,
}

impl Cell {
    /// Describes the cell without the number of its run.
    #[must_use]
    pub fn place(&self) -> String {
        let Self { server, workload, phase, threads, pipeline, .. } = self;
        let plural = if *threads == 1 { "" } else { "s" };
        format!("{server} · {workload} · {phase} · {threads} thread{plural} · pipeline {pipeline}")
    }

    /// Returns a cell that stands for all runs of this cell: its run is 0.
    #[must_use]
    pub fn of_all_runs(&self) -> Self {
        Self { run: 0, ..self.clone() }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} · run {}", self.place(), self.run)
    }
}

/// A trial: starts a server, measures all phases of a workload, and stops the server.
#[derive(Clone, Copy, Debug)]
pub struct Trial<'s> {
    /// The server.
    pub server: &'s Server,
    /// The workload.
    pub workload: &'s Workload,
    /// Number of threads of the server.
    pub threads: usize,
    /// Number of outstanding requests on each connection.
    pub pipeline: usize,
    /// Number of the run, from 1.
    pub run: usize,
}

impl Trial<'_> {
    /// Returns the measurements of the trial, one for each measured phase.
    #[must_use]
    pub fn cells(&self) -> Vec<Cell> {
        let cell = |phase: &super::suite::Phase| Cell {
            server: self.server.name.clone(),
            workload: self.workload.name.clone(),
            phase: phase.name.clone(),
            threads: self.threads,
            pipeline: self.pipeline,
            run: self.run,
        };
        self.workload.measured().map(cell).collect()
    }
}

/// Returns all trials of `servers` in order. `cores` is the number of cores for a server. Servers
/// alternate within a run, and each run starts with another server, so that changes in the
/// machine's speed affect all servers equally.
#[must_use]
pub fn trials<'s>(suite: &'s Suite, servers: &[&'s Server], cores: usize) -> Vec<Trial<'s>> {
    let mut trials = Vec::new();
    let threads = suite.threads.numbers(cores);
    for run in 1..=suite.runs {
        let mut turns = servers.to_vec();
        turns.rotate_left((run - 1) % servers.len().max(1));
        for workload in &suite.workloads {
            for &threads in &threads {
                for &pipeline in workload.pipelines(suite) {
                    let trial =
                        |server: &&'s Server| Trial { server, workload, threads, pipeline, run };
                    trials.extend(turns.iter().map(trial));
                }
            }
        }
    }
    trials
}
