//! The results so far, which are saved on disk so that an interrupted comparison can resume.
//!
//! The file consists of JSON lines: the setup, then one record for each measurement of a cell. If
//! other programs disturb a cell, the comparison repeats the trial. All cells of that trial then
//! have several records.

use super::Error;
use super::plan::Cell;
use super::suite::Suite;
use larder_bench::{Measured, Outcome};
use larder_target::CoreSet;
use larder_target::Machine;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The setup on which results depend. A comparison can resume only if its setup equals the saved
/// setup, apart from the date, the command line and the number of runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// The date in UTC, such as 2026-11-21.
    pub date: String,
    /// The command line.
    pub command: String,
    /// Larder's version.
    pub larder: String,
    /// The suite. With `--quick`, this is its short form.
    pub suite: Suite,
    /// The programs of the servers, in the suite's order.
    pub servers: Vec<Installed>,
    /// CPU cores of the servers.
    pub server_cores: CoreSet,
    /// CPU cores of the load generator.
    pub load_cores: CoreSet,
    /// The machine.
    pub machine: Machine,
}

/// The program of one of the suite's servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Installed {
    /// The server's name in the suite.
    pub name: String,
    /// The path of the server's program; `None` if the server is not installed.
    pub program: Option<PathBuf>,
    /// The version that the program prints; `None` if it is unknown.
    pub version: Option<String>,
}

/// The result of a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CellResult {
    /// The results of a load.
    Measured(Box<Outcome>),
    /// The result of a fill.
    #[serde(rename = "held")]
    Filled(FillResult),
    /// The measurement failed.
    Failed(Failure),
}

/// The failure of a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// The reason for the failure.
    pub reason: String,
    /// The outcome of the failed run, if there is one. Reports do not use its figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Box<Outcome>>,
}

impl From<String> for Failure {
    fn from(reason: String) -> Self {
        Self { reason, outcome: None }
    }
}

/// The number of items in a server after a fill.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FillResult {
    /// Number of items: exact if all keys were looked up, otherwise estimated from a sample.
    pub items: f64,
    /// Half the width of the 95 % confidence interval of `items`; 0 if all keys were looked up.
    pub items_error: f64,
    /// The server's memory limit.
    pub limit_bytes: u64,
    /// The server's resident memory; `None` if the system does not report it.
    pub rss_bytes: Option<u64>,
}

/// A cell and its result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The measurement.
    pub cell: Cell,
    /// The result of the measurement.
    #[serde(rename = "found")]
    pub result: CellResult,
    /// CPU time of other programs during the measurement, in percent of all cores of the machine.
    /// `None` if the measurement took less than half a second, included a restart, or ended with an
    /// error instead of an outcome. Also `None` where the system does not report CPU times.
    #[serde(rename = "others_busy")]
    pub other_cpu_percent: Option<f64>,
    /// Latencies and rates of a successful load; `None` for a failed load and for a fill.
    #[serde(rename = "course", default, skip_serializing_if = "Option::is_none")]
    pub latency_profile: Option<LatencyProfile>,
    /// The result of a restart during the load; `None` if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<RestartResult>,
}

/// A restart of the server during a load. Times are in seconds since the signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RestartResult {
    /// Time until all old processes of the server have exited.
    pub ended_secs: f64,
    /// Time until the new process starts.
    pub started_secs: f64,
    /// Time until the new process first replies to the load; `None` if it never does.
    pub answered_secs: Option<f64>,
    /// Time until the load's first hit in the new process; `None` if there was none.
    pub hit_secs: Option<f64>,
    /// Number of items before the signal.
    pub items_before: u64,
    /// Number of items that the new process reports just before the check of the items.
    pub items_after: u64,
    /// Numbers of hits and misses during the load after the restart.
    pub found_after: (u64, u64),
    /// Number of missing items among the items that were changed just before the signal.
    pub changed_lost: u64,
    /// Number of items that were changed just before the signal and have a different value after
    /// the restart.
    pub changed_wrong: u64,
    /// Number of present items among the items that were deleted just before the signal.
    pub deleted_back: u64,
}

/// The latency distribution of a load, and its rate over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyProfile {
    /// Minimum latency in microseconds.
    pub min_micros: f64,
    /// Quantiles with their latencies in microseconds, as in HdrHistogram's percentile
    /// distribution: it has two steps for each halving of the distance to 1.
    pub quantiles: Vec<(f64, f64)>,
    /// For each second, the number of requests that the server answered without an error.
    pub by_second: Vec<u64>,
}

impl LatencyProfile {
    /// Returns the latency profile of a run, or `None` if no request was due.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "latencies far below 2^53 ns")]
    pub fn of(measured: &Measured) -> Option<Self> {
        let total = measured.histograms.get("total").filter(|total| !total.is_empty())?;
        let micros = |nanos: u64| (nanos as f64 / 10.0).round() / 100.0;
        let step = |quantile: f64, nanos| ((quantile * 1e7).round() / 1e7, micros(nanos));
        let steps = total.iter_quantiles(2);
        let steps = steps.map(|at| step(at.quantile_iterated_to(), at.value_iterated_to()));
        Some(Self {
            min_micros: micros(total.min()),
            quantiles: steps.collect(),
            by_second: measured.by_second.iter().map(|second| second.requests).collect(),
        })
    }

    /// Returns the latency in microseconds at the first recorded quantile that is not below
    /// `quantile`. If all recorded quantiles are below it, returns the latency at the last recorded
    /// quantile. For quantile 0, returns the minimum latency.
    #[must_use]
    pub fn latency(&self, quantile: f64) -> f64 {
        let reaches = |step: &&(f64, f64)| step.0 >= quantile;
        let step = self.quantiles.iter().find(reaches).or(self.quantiles.last());
        if quantile == 0.0 { self.min_micros } else { step.map_or(0.0, |step| step.1) }
    }
}

/// A measurement counts as disturbed if other programs use more than this share of the machine's
/// CPU time, in percent.
const DISTURBED_PERCENT: f64 = 5.0;
/// A cell is measured at most this many times if other programs disturb its measurements.
pub(crate) const ATTEMPTS_MAX: usize = 3;

impl Record {
    /// Returns whether other programs used so much of the machine that the result is doubtful.
    #[must_use]
    pub fn is_disturbed(&self) -> bool {
        self.other_cpu_percent.is_some_and(|percent| percent > DISTURBED_PERCENT)
    }

    /// Returns whether this attempt replaces an `earlier` attempt at the same cell. A failure
    /// replaces a result, and a less disturbed result replaces a more disturbed one. A result with
    /// an unknown disturbance counts as undisturbed. Nothing replaces a failure.
    fn replaces(&self, earlier: &Self) -> bool {
        let busy = |record: &Self| record.other_cpu_percent.unwrap_or(0.0);
        let (failed, before) = (self.failure().is_some(), earlier.failure().is_some());
        !before && (failed || busy(self) < busy(earlier))
    }

    /// Returns the reason for the failure, if the cell failed.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        match &self.result {
            CellResult::Failed(failure) => Some(&failure.reason),
            CellResult::Measured(_) | CellResult::Filled(_) => None,
        }
    }
}

/// The records of a setup, in memory and on disk.
#[derive(Debug)]
pub struct Results {
    path: PathBuf,
    file: File,
    counted: Counted,
}

/// The attempts at all cells.
#[derive(Debug, Default)]
struct Counted {
    /// The attempt that counts for each cell: see [`Record::replaces`].
    records: Vec<Record>,
    /// Number of attempts at each cell.
    attempts: HashMap<Cell, usize>,
}

impl Counted {
    fn add(&mut self, record: Record) {
        *self.attempts.entry(record.cell.clone()).or_default() += 1;
        match self.records.iter_mut().find(|earlier| earlier.cell == record.cell) {
            Some(earlier) if record.replaces(earlier) => *earlier = record,
            Some(_) => {}
            None => self.records.push(record),
        }
    }
}

impl Results {
    /// Name of the file in the output directory.
    pub const FILE: &'static str = "cells.jsonl";

    /// Opens the results in `folder`. Creates the folder and a file with the setup if they do not
    /// exist, and removes an incomplete last line of an existing file.
    ///
    /// # Errors
    /// The results have a different setup, are damaged, or cannot be read or written.
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
        let attempts: Result<Vec<Record>, _> = lines.map(serde_json::from_str).collect();
        let attempts = attempts.map_err(|error| failed(io::Error::from(error)))?;
        let file = OpenOptions::new().create(true).append(true).open(&path).map_err(failed)?;
        file.set_len(text.len() as u64).map_err(failed)?;
        let (counted, path) = (Counted::default(), path.clone());
        let mut results = Self { path, file, counted };
        attempts.into_iter().for_each(|record| results.counted.add(record));
        if first.is_none() {
            let path = results.path.clone();
            results.write(&line(setup)).map_err(|error| Error::io(&path, error))?;
        }
        Ok(results)
    }

    /// Parses a results file: the setup, and the valid record of each cell. Ignores an incomplete
    /// last line.
    ///
    /// # Errors
    /// A line of the file is malformed.
    pub(crate) fn parse(text: &str) -> Result<(Setup, Vec<Record>), serde_json::Error> {
        let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
        let mut lines = whole.lines();
        let setup = serde_json::from_str(lines.next().unwrap_or_default())?;
        let mut counted = Counted::default();
        for line in lines {
            counted.add(serde_json::from_str(line)?);
        }
        Ok((setup, counted.records))
    }

    /// Returns the valid record of each measured cell.
    #[must_use]
    pub fn records(&self) -> &[Record] {
        &self.counted.records
    }

    /// Returns whether every one of these cells has a record. A recorded failure counts.
    #[must_use]
    pub fn have(&self, cells: &[Cell]) -> bool {
        cells.iter().all(|cell| self.counted.records.iter().any(|record| record.cell == *cell))
    }

    /// Returns whether to repeat the measurement: one of these cells is disturbed, has not failed,
    /// and had fewer than `ATTEMPTS_MAX` attempts.
    #[must_use]
    pub fn want_again(&self, cells: &[Cell]) -> bool {
        let wanted = |record: &&Record| {
            record.is_disturbed()
                && record.failure().is_none()
                && self
                    .counted
                    .attempts
                    .get(&record.cell)
                    .is_some_and(|attempts| *attempts < ATTEMPTS_MAX)
        };
        self.counted.records.iter().filter(wanted).any(|record| cells.contains(&record.cell))
    }

    /// Adds records. The valid record of a cell is the first record with a failure or, without a
    /// failure, the least disturbed record.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(&mut self, records: Vec<Record>) -> Result<(), Error> {
        for record in records {
            self.write(&line(&record)).map_err(|error| Error::io(&self.path, error))?;
            self.counted.add(record);
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
    let mut before: serde_json::Value = serde_json::from_str(first).unwrap_or_default();
    let mut now = serde_json::to_value(setup).expect("plain data is JSON");
    for setup in [&mut before, &mut now] {
        // A comparison can resume with another number of runs.
        if let Some(suite) = setup.get_mut("suite").and_then(|suite| suite.as_object_mut()) {
            suite.remove("runs");
        }
    }
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
        again.add(records[1..3].to_vec()).unwrap();
        drop(again);
        let last = Results::open(folder.path(), &setup).unwrap();
        assert_eq!(last.records(), &records[..3]);
        assert!(last.have(&[records[2].cell.clone()]));
    }

    #[test]
    fn of_disturbed_measurements_the_least_disturbed_one_counts() {
        let (folder, setup) = (tempdir().unwrap(), example::setup());
        let first = example::records(&setup).remove(0);
        let cells = [first.cell.clone()];
        let attempt = |busy| Record { other_cpu_percent: busy, ..first.clone() };
        let mut results = Results::open(folder.path(), &setup).unwrap();
        for (busy, counts, again) in [
            (Some(60.0), Some(60.0), true),
            (Some(8.0), Some(8.0), true),
            (Some(9.0), Some(8.0), false),
        ] {
            results.add(vec![attempt(busy)]).unwrap();
            assert_eq!(results.records(), [attempt(counts)]);
            assert_eq!(results.want_again(&cells), again, "{busy:?}");
        }
        let results = Results::open(folder.path(), &setup).unwrap();
        assert_eq!(results.records(), [attempt(Some(8.0))]);
        assert!(!results.want_again(&cells), "three attempts are the maximum");
    }

    #[test]
    fn a_failure_is_not_replaced_by_another_attempt() {
        let (folder, setup) = (tempdir().unwrap(), example::setup());
        let good = Record { other_cpu_percent: Some(50.0), ..example::records(&setup).remove(0) };
        let failed =
            Record { result: CellResult::Failed("died".to_owned().into()), ..good.clone() };
        let mut results = Results::open(folder.path(), &setup).unwrap();
        results.add(vec![good.clone(), failed.clone()]).unwrap();
        assert_eq!(results.records(), std::slice::from_ref(&failed));
        assert!(!results.want_again(std::slice::from_ref(&good.cell)));
        results.add(vec![Record { other_cpu_percent: None, ..good }]).unwrap();
        assert_eq!(results.records(), [failed]);
    }

    #[test]
    fn a_comparison_with_another_setup_is_not_resumed() {
        let (folder, mut setup) = (tempdir().unwrap(), example::setup());
        drop(Results::open(folder.path(), &setup).unwrap());
        setup.suite.runs += 1;
        drop(
            Results::open(folder.path(), &setup).expect("another number of runs is the same setup"),
        );
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
