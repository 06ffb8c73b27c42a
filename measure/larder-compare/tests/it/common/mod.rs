//! Suites and comparisons for tests, and a faulty server.
#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

pub mod misbehaving;

use clap::Parser;
use larder_compare::results::{Record, Results};
use larder_compare::{Arguments, Error, compare};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use tempfile::{TempDir, tempdir};

/// The command of memcached.
pub const MEMCACHED: [&str; 7] = ["memcached", "-u", "root", "-U", "0", "-s", "{socket}"];

/// Returns a suite with a server named `it`, a small load, and the TOML tables in `more`.
pub fn suite_text(command: &[&str], more: &str) -> String {
    let load = "-t 1 -c 2 -n 100 --ratio 1:1 --key-maximum 99 --pipeline {pipeline}";
    format!(
        "title = \"test\"
about = \"\"
baseline = \"it\"
memory_mb = 64
threads = [1]

runs = 2
pipelines = [1, 5]
warm_up_secs = 0.05

[[server]]
name = \"it\"
command = {command:?}
version = [\"--version\"]

{more}

[[workload]]
name = \"small\"
[[workload.phase]]
name = \"mixed\"
load = \"{load}\"
"
    )
}

/// Returns the TOML table of a server in a suite.
pub fn suite_entry(name: &str, command: &[impl std::fmt::Debug]) -> String {
    format!("[[server]]\nname = \"{name}\"\ncommand = {command:?}\n")
}

/// A comparison in its own directory.
pub struct Bench {
    pub folder: TempDir,
    pub arguments: Arguments,
}

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    arguments: Arguments,
}

/// The output of a comparison.
#[derive(Debug)]
pub struct Ended {
    pub result: Result<(), Error>,
    pub progress: String,
    pub tables: String,
}

impl Bench {
    pub fn of(suite: &str) -> Self {
        let folder = tempdir().unwrap();
        let path = folder.path().join("suite.toml");
        std::fs::write(&path, suite).unwrap();
        let out = folder.path().join("out");
        let line =
            ["compare", path.to_str().unwrap(), "--out", out.to_str().unwrap(), "--markdown"];
        let arguments = Line::try_parse_from(line).unwrap().arguments;
        Self { folder, arguments }
    }

    /// Runs the comparison until it ends or `interrupted` becomes true.
    pub fn run(&self, interrupted: &AtomicBool) -> Ended {
        let (mut progress, mut out) = (Vec::new(), Vec::new());
        let result = compare(&self.arguments, interrupted, &mut progress, &mut out);
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ended { result, progress: text(progress), tables: text(out) }
    }

    /// Runs a comparison that must succeed. Returns its progress and its tables.
    pub fn go(&self) -> (String, String) {
        let Ended { result, progress, tables } = self.run(&AtomicBool::new(false));
        result.unwrap_or_else(|error| panic!("{error}: {progress}"));
        (progress, tables)
    }

    /// Runs a comparison in which at least one measurement must fail.
    pub fn go_wrong(&self) -> Ended {
        let ended = self.run(&AtomicBool::new(false));
        assert!(matches!(ended.result, Err(Error::Failed { .. })), "{ended:?}");
        ended
    }

    pub fn out(&self, name: &str) -> PathBuf {
        self.folder.path().join("out").join(name)
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.out(name)).unwrap()
    }

    /// Returns the records of all attempts, including disturbed attempts.
    pub fn attempts(&self) -> Vec<Record> {
        let text = self.read(Results::FILE);
        text.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Returns the first record of each cell.
    pub fn records(&self) -> Vec<Record> {
        let lines = self.lines();
        lines.iter().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Returns the lines of the results file: the setup, and the first record of each cell.
    pub fn lines(&self) -> Vec<String> {
        let text = self.read(Results::FILE);
        let mut cells = Vec::new();
        let is_first = |line: &&str| match serde_json::from_str::<Record>(line) {
            Ok(record) if cells.contains(&record.cell) => false,
            Ok(record) => {
                cells.push(record.cell);
                true
            }
            Err(_) => true,
        };
        text.lines().filter(is_first).map(str::to_owned).collect()
    }
}
