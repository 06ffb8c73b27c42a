//! A fictional comparison with results, for tests of reports.

use super::plan::{Cell, trials};
use super::results::{CellResult, Installed, LatencyProfile, Record, Setup};
use super::suite::{Server, Suite};
use larder_bench::{Command, Latency, Outcome, ServerCost};
use larder_target::Machine;
use std::collections::BTreeMap;

const SUITE: &str = r#"
title = "Caches & <friends>"
about = "Made up."
baseline = "memcached"
runs = 3
memory_mb = 64
threads = [1, 2]
pipelines = [1, 10]

[[server]]
name = "memcached"
command = ["memcached", "-s", "{socket}"]

[[server]]
name = "larder"
command = ["larderd", "-s", "{socket}"]

[[server]]
name = "flaky"
command = ["flaky", "-s", "{socket}"]

[[server]]
name = "dead"
command = ["false", "{port}"]

[[server]]
name = "absent"
command = ["absent", "{port}"]

[[workload]]
name = "mixed"
[[workload.phase]]
name = "SET"
load = "--ratio 1:0 --pipeline {pipeline}"
[[workload.phase]]
name = "GET"
load = "--ratio 0:1 --pipeline {pipeline}"
"#;

/// Returns a setup with five servers: the baseline, a server with twice its speed, a server that
/// fails in the second run, a server that always fails, and a server that is not installed.
pub(crate) fn setup() -> Setup {
    let suite = Suite::parse(SUITE).unwrap();
    let installed = |server: &Server| Installed {
        name: server.name.clone(),
        program: (server.name != "absent").then(|| format!("/bin/{}", server.name).into()),
        version: (server.name == "memcached").then(|| "memcached 1.6.18".to_owned()),
    };
    Setup {
        date: "2026-11-21".to_owned(),
        command: "larder compare measure/suites/example.toml".to_owned(),
        larder: "0.0.0".to_owned(),
        servers: suite.servers.iter().map(installed).collect(),
        suite,
        server_cores: "0".parse().unwrap(),
        load_cores: "1".parse().unwrap(),
        machine: Machine {
            cpu: "Abacus".to_owned(),
            cores: 2,
            memory_bytes: 4 << 30,
            system: "Linux 0.1".to_owned(),
        },
    }
}

/// Returns a record for each cell of the installed servers.
pub(crate) fn records(setup: &Setup) -> Vec<Record> {
    let servers: Vec<&Server> = setup.suite.servers.iter().filter(|s| s.name != "absent").collect();
    let trials = trials(&setup.suite, &servers, 1);
    let cells = trials.iter().flat_map(super::plan::Trial::cells);
    let busy = |cell: &Cell| ((&*cell.server, cell.run) == ("larder", 3)).then_some(20.0);
    let record = |cell| Record {
        result: result(&cell),
        other_cpu_percent: busy(&cell),
        latency_profile: latency_profile(&cell),
        restart: None,
        cell,
    };
    cells.map(record).collect()
}

fn result(cell: &Cell) -> CellResult {
    match (cell.server.as_str(), cell.run) {
        ("dead", _) => CellResult::Failed("died <early>".to_owned().into()),
        ("flaky", 2) => CellResult::Failed("died in run 2".to_owned().into()),
        ("larder" | "flaky", _) => CellResult::Measured(Box::new(outcome(cell, 2.0, 1.0))),
        (_, run) => CellResult::Measured(Box::new(outcome(cell, 1.0, 0.8 + 0.1 * run as f64))),
    }
}

/// Returns the latency profile of a three-second load, or `None` if the cell failed. The latency
/// doubles from quantile 0 to 0.9, from 0.9 to 0.99, and so on.
fn latency_profile(cell: &Cell) -> Option<LatencyProfile> {
    let CellResult::Measured(outcome) = result(cell) else { return None };
    let p50 = outcome.total().latency.p50;
    let step = |tenths: i32| (1.0 - 0.1f64.powi(tenths), p50 * 2f64.powi(tenths));
    let by_second = vec![1000, 1100, 900];
    Some(LatencyProfile { min_micros: p50 / 4.0, quantiles: (0..6).map(step).collect(), by_second })
}

/// Returns the results of a run. The factors `good` (for the server) and `luck` (for the run)
/// multiply the rate and divide the latencies. `good` also divides the CPU times.
fn outcome(cell: &Cell, good: f64, luck: f64) -> Outcome {
    let deep = (cell.pipeline as f64).sqrt();
    let threads = cell.threads as f64;
    let set = if cell.phase == "SET" { 0.7 } else { 1.0 };
    let slow = |micros: f64| micros * deep / good / luck;
    let latency = Latency {
        p50: slow(200.0),
        p90: slow(300.0),
        p99: slow(600.0),
        p99_9: slow(2000.0),
        p99_99: slow(9000.0),
        max: slow(30_000.0),
        mean: slow(220.0),
        deviation: slow(90.0),
    };
    let total = Command {
        requests: 1000,
        per_second: 150_000.0 * threads * deep * good * luck * set,
        hits: 900,
        misses: 100,
        latency,
        ..Command::default()
    };
    let server = ServerCost {
        user_micros: 1.0 / deep / good,
        system_micros: 4.0 / deep / good,
        ..ServerCost::default()
    };
    Outcome {
        seconds: 1.0,
        commands: BTreeMap::from([("total".to_owned(), total)]),
        server: Some(server),
        load_cpu_seconds: 0.5,
        faults: BTreeMap::from([("late".to_owned(), 1)]),
        ..Outcome::default()
    }
}
