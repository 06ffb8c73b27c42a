//! The results so far, kept on disk so that an interrupted comparison can be resumed.
//!
//! The file consists of JSON lines: the setup, then one record for each cell.

use super::Error;
use super::plan::Cell;
use super::suite::Suite;
use larder_bench::Outcome;
use larder_target::CoreSet;
use larder_target::Machine;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Everything that results depend on. A comparison with a different setup is not resumed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// The date in UTC, such as 2026-11-21.
    pub date: String,
    /// The command line.
    pub command: String,
    /// Larder's version.
    pub larder: String,
    /// The suite as it is run, in its short form if that was requested.
    pub suite: Suite,
    /// The programs of the servers, in the suite's order.
    pub servers: Vec<Installed>,
    /// Cores that servers run on.
    pub server_cores: CoreSet,
    /// Cores that the load runs on.
    pub load_cores: CoreSet,
    /// The machine.
    pub machine: Machine,
}

/// The installed program of a server of the suite.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Installed {
    /// The server's name in the suite.
    pub name: String,
    /// The path of its program; nothing if it is not installed.
    pub program: Option<PathBuf>,
    /// The version that the program prints.
    pub version: Option<String>,
}

/// The result of a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// The results of a load.
    Measured(Box<Outcome>),
    /// The result of a fill.
    Held(Held),
    /// There is no result that counts.
    Failed(Failure),
}

/// Why a cell has no result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// What happened.
    pub reason: String,
    /// What was measured nevertheless: a run with faults. No figure is taken from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Box<Outcome>>,
}

impl From<String> for Failure {
    fn from(reason: String) -> Self {
        Self { reason, outcome: None }
    }
}

/// The number of items that a server held after it was filled.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// Number of items: counted, or estimated from a sample.
    pub items: f64,
    /// Half the width of the 95 % confidence interval of `items`; 0 if they were counted.
    pub items_error: f64,
    /// The server's memory limit.
    pub limit_bytes: u64,
    /// The server's resident memory, where the system reports it.
    pub rss_bytes: Option<u64>,
}

/// A cell and its result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The measurement.
    pub cell: Cell,
    /// Its result.
    pub found: Found,
    /// CPU time of other programs meanwhile, in percent of all cores of the machine, where the
    /// system reports it.
    pub others_busy: Option<f64>,
}

impl Record {
    /// Why the cell has no result, if it has none.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        match &self.found {
            Found::Failed(failure) => Some(&failure.reason),
            Found::Measured(_) | Found::Held(_) => None,
        }
    }
}

/// The records of a setup, in memory and on disk.
#[derive(Debug)]
pub struct Results {
    path: PathBuf,
    file: File,
    records: Vec<Record>,
}

impl Results {
    /// Name of the file in the output directory.
    pub const FILE: &'static str = "cells.jsonl";

    /// Opens the results in `folder`, which is created if it does not exist. An incomplete last line
    /// is removed.
    ///
    /// # Errors
    /// The results are those of a different setup, damaged, or cannot be read or written.
    pub fn open(folder: &Path, setup: &Setup) -> Result<Self, Error> {
        let path = folder.join(Self::FILE);
        let failed = |error| Error::io(&path, error);
        std::fs::create_dir_all(folder).map_err(failed)?;
        let mut text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(failed(error)),
        };
        text.truncate(text.rfind('\n').map_or(0, |end| end + 1));
        let mut lines = text.lines();
        let first = lines.next();
        if let Some(first) = first {
            same_setup(first, setup, folder)?;
        }
        let records: Result<_, _> = lines.map(serde_json::from_str).collect();
        let records = records.map_err(|error| failed(io::Error::from(error)))?;
        let file = OpenOptions::new().create(true).append(true).open(&path).map_err(failed)?;
        file.set_len(text.len() as u64).map_err(failed)?;
        let mut results = Self { records, file, path: path.clone() };
        if first.is_none() {
            results.write(&line(setup)).map_err(failed)?;
        }
        Ok(results)
    }

    /// The records so far.
    #[must_use]
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Whether all of these cells have results.
    #[must_use]
    pub fn have(&self, cells: &[Cell]) -> bool {
        cells.iter().all(|cell| self.records.iter().any(|record| record.cell == *cell))
    }

    /// Adds records, except those of cells that have results already.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(&mut self, records: Vec<Record>) -> Result<(), Error> {
        for record in records {
            if !self.have(std::slice::from_ref(&record.cell)) {
                self.write(&line(&record)).map_err(|error| Error::io(&self.path, error))?;
                self.records.push(record);
            }
        }
        Ok(())
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        self.file.write_all(text.as_bytes())?;
        self.file.flush()
    }
}

fn line(value: &impl Serialize) -> String {
    let mut line = serde_json::to_string(value).expect("plain data is JSON");
    line.push('\n');
    line
}

fn same_setup(first: &str, setup: &Setup, folder: &Path) -> Result<(), Error> {
    let before: serde_json::Value = serde_json::from_str(first).unwrap_or_default();
    let now = serde_json::to_value(setup).expect("plain data is JSON");
    let matters = |name: &str| !matches!(name, "date" | "command");
    let differs = |name: &&String| matters(name) && before.get(name) != now.get(name);
    let names = now.as_object().into_iter().flatten().map(|(name, _)| name);
    let differing: Vec<&str> = names.filter(differs).map(String::as_str).collect();
    if differing.is_empty() {
        return Ok(());
    }
    Err(Error::OtherSetup { folder: folder.to_owned(), differing: differing.join(", ") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example;
    use tempfile::tempdir;

    #[test]
    fn a_comparison_is_resumed_after_an_incomplete_line() {
        let (folder, setup) = (tempdir().unwrap(), example::setup());
        let records = example::records(&setup);
        let mut results = Results::open(folder.path(), &setup).unwrap();
        results.add(records[..2].to_vec()).unwrap();
        drop(results);
        let path = folder.path().join(Results::FILE);
        let whole = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 10]).unwrap();

        let mut again = Results::open(folder.path(), &setup).unwrap();
        assert_eq!(again.records(), &records[..1]);
        assert!(!again.have(&[records[0].cell.clone(), records[1].cell.clone()]));
        again.add(records[..3].to_vec()).unwrap();
        drop(again);
        let last = Results::open(folder.path(), &setup).unwrap();
        assert_eq!(last.records(), &records[..3]);
        assert!(last.have(&[records[2].cell.clone()]));
    }

    #[test]
    fn a_comparison_with_another_setup_is_not_resumed() {
        let (folder, mut setup) = (tempdir().unwrap(), example::setup());
        drop(Results::open(folder.path(), &setup).unwrap());
        setup.servers[0].version = Some("another".to_owned());
        setup.machine.cores += 1;
        let error = Results::open(folder.path(), &setup).unwrap_err().to_string();
        assert!(error.contains("machine, servers"), "{error}");
    }

    #[test]
    fn a_damaged_file_is_an_error() {
        let (folder, setup) = (tempdir().unwrap(), example::setup());
        drop(Results::open(folder.path(), &setup).unwrap());
        let path = folder.path().join(Results::FILE);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.clone() + "{}\n").unwrap();
        assert!(Results::open(folder.path(), &setup).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text + "{}\n");
    }
}
