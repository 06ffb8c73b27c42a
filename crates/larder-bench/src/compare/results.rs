//! What has been found so far, kept on disk cell by cell so that a comparison can be gone on with.
//!
//! A file of JSON lines: the setup, then a record a cell.

use super::Error;
use super::cores::CoreSet;
use super::plan::Cell;
use super::suite::Suite;
use crate::machine::Machine;
use crate::outcome::Outcome;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Everything that figures depend on. Results of another setup are not gone on with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// The day, as in 2026-11-21, in UTC.
    pub date: String,
    /// How to do it again.
    pub command: String,
    /// Larder's version.
    pub larder: String,
    /// The suite as it is run, in its short form if that was asked for.
    pub suite: Suite,
    /// Who is there, in the suite's order.
    pub servers: Vec<Installed>,
    /// The servers' cores.
    pub server_cores: CoreSet,
    /// The load's cores.
    pub load_cores: CoreSet,
    /// Where.
    pub machine: Machine,
}

/// Whether a server of the suite can be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Installed {
    /// As the suite calls it.
    pub name: String,
    /// Its program; nothing if there is none.
    pub program: Option<PathBuf>,
    /// What it says of its version.
    pub version: Option<String>,
}

/// What came of a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// A load's figures.
    Measured(Box<Outcome>),
    /// A fill's.
    Held(Held),
    /// Why there are none.
    Failed(String),
}

/// How many items a server held when old ones began to be missing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// Items: counted, or estimated from a sample.
    pub items: f64,
    /// Half the width of the 95 % confidence interval of `items`; 0 if they were counted.
    pub items_error: f64,
    /// The server's limit.
    pub limit_bytes: u64,
    /// Its resident memory, if the system says.
    pub rss_bytes: Option<u64>,
}

/// A cell and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Which.
    pub cell: Cell,
    /// What.
    pub found: Found,
    /// What other programs took meanwhile of all of the machine's cores, in percent, if the system
    /// says.
    pub others_busy: Option<f64>,
}

/// A setup's records.
#[derive(Debug)]
pub struct Results {
    path: PathBuf,
    file: File,
    records: Vec<Record>,
}

impl Results {
    /// The file's name in the output folder.
    pub const FILE: &'static str = "cells.jsonl";

    /// Opens the results in `folder`, which is made if need be. A record that was cut off while it
    /// was written is dropped.
    ///
    /// # Errors
    /// They are of another setup, damaged, or can't be read or written.
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

    /// What was found so far.
    #[must_use]
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Whether all of these have been found.
    #[must_use]
    pub fn have(&self, cells: &[Cell]) -> bool {
        cells.iter().all(|cell| self.records.iter().any(|record| record.cell == *cell))
    }

    /// Keeps records; those of cells that are there already are dropped.
    ///
    /// # Errors
    /// They can't be written.
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
    use crate::compare::example;
    use tempfile::tempdir;

    #[test]
    fn gone_on_with_after_a_cut() {
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
    fn not_gone_on_with_after_a_change() {
        let (folder, mut setup) = (tempdir().unwrap(), example::setup());
        drop(Results::open(folder.path(), &setup).unwrap());
        setup.servers[0].version = Some("another".to_owned());
        setup.machine.cores += 1;
        let error = Results::open(folder.path(), &setup).unwrap_err().to_string();
        assert!(error.contains("machine, servers"), "{error}");
    }

    #[test]
    fn damage_is_said() {
        let (folder, setup) = (tempdir().unwrap(), example::setup());
        drop(Results::open(folder.path(), &setup).unwrap());
        let path = folder.path().join(Results::FILE);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.clone() + "{}\n").unwrap();
        assert!(Results::open(folder.path(), &setup).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text + "{}\n");
    }
}
