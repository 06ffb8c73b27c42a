//! What is measured in which order.

use super::suite::{Server, Suite, Workload};
use serde::{Deserialize, Serialize};

/// One measurement of one server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cell {
    /// Who.
    pub server: String,
    /// The workload.
    pub workload: String,
    /// Its phase.
    pub phase: String,
    /// Threads of the server.
    pub threads: usize,
    /// Requests that a connection has under way.
    pub pipeline: usize,
    /// From 1.
    pub run: usize,
}

/// A server's life: it is started, goes through a workload's phases, and is stopped.
#[derive(Clone, Copy, Debug)]
pub struct Trial<'s> {
    /// Who.
    pub server: &'s Server,
    /// What it goes through.
    pub workload: &'s Workload,
    /// Threads of the server.
    pub threads: usize,
    /// Requests that a connection has under way.
    pub pipeline: usize,
    /// From 1.
    pub run: usize,
}

impl Trial<'_> {
    /// What is measured, phase by phase.
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
        self.workload.phases.iter().map(cell).collect()
    }
}

/// All trials of `servers`. Servers take turns within a run, and another one begins each run, so
/// that what changes on the machine meets them all.
#[must_use]
pub fn trials<'s>(suite: &'s Suite, servers: &[&'s Server], cores: usize) -> Vec<Trial<'s>> {
    let mut trials = Vec::new();
    let threads = suite.threads.numbers(cores);
    for run in 1..=suite.runs {
        let mut turns = servers.to_vec();
        turns.rotate_left((run - 1) % servers.len().max(1));
        for workload in &suite.workloads {
            for &threads in &threads {
                for &pipeline in &suite.pipelines {
                    let trial =
                        |server: &&'s Server| Trial { server, workload, threads, pipeline, run };
                    trials.extend(turns.iter().map(trial));
                }
            }
        }
    }
    trials
}
