//! Compares the results of two comparisons, for example for an old and a new server version.

use crate::Error;
use crate::metric::Metric;
use crate::plan::Cell;
use crate::results::{Record, Results, Setup};
use crate::statistics::{Interval, Spread};
use crate::suite::Suite;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

/// The results of a comparison, read from a file.
#[derive(Debug)]
struct Side {
    setup: Setup,
    records: Vec<Record>,
}

/// A cell that stands for all runs ([`Cell::of_all_runs`]), and a metric.
type Key = (Cell, Metric);

/// The difference between two results in one metric of one cell.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Difference {
    cell: Cell,
    metric: Metric,
    old: f64,
    new: f64,
    ratio: f64,
    interval: Option<Interval>,
}

/// The limit for the loss in a metric. A greater loss counts as a regression.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    /// The metric; `None` for all compared metrics without a threshold of their own.
    pub metric: Option<Metric>,
    /// The limit in percent.
    pub percent: f64,
}

impl std::str::FromStr for Threshold {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (metric, percent) = match text.split_once('=') {
            Some((slug, percent)) => {
                let compared = || Metric::ALL.into_iter().filter(|metric| metric.is_compared());
                let known = compared().find(|metric| metric.slug() == slug);
                let slugs = || compared().map(Metric::slug).collect::<Vec<_>>().join(", ");
                (Some(known.ok_or_else(|| format!("expected one of {}", slugs()))?), percent)
            }
            None => (None, text),
        };
        let percent: Option<f64> = percent.parse().ok().filter(|percent| *percent >= 0.0);
        let percent = percent.ok_or("expected PERCENT or METRIC=PERCENT, such as 5 or p99=10")?;
        Ok(Self { metric, percent })
    }
}

/// Compares two results, writes a table to `text`, and returns the regressions. A metric of a cell
/// is a regression if it is worse, significantly and by more than its threshold. A cell that is in
/// both results is a regression if it failed only in the new results. If there is a threshold,
/// cells that are missing from the new results are also regressions.
///
/// # Errors
/// The results cannot be read, or have no cell in common.
pub(crate) fn diff(
    old: &Path,
    new: &Path,
    thresholds: &[Threshold],
    text: &mut String,
) -> Result<Vec<String>, Error> {
    let new_path = new;
    let (old, new) = (Side::read(old)?, Side::read(new)?);
    let (old_cells, new_cells) = (old.cells(), new.cells());
    if old_cells.is_disjoint(&new_cells) {
        let why = "no cell in common with the old results".to_owned();
        return Err(Error::Unreadable { path: new_path.to_owned(), why });
    }
    let differences = differences(&old, &new);
    let mut regressions = failed_only_in(&old, &new);
    let missing = old_cells.difference(&new_cells);
    let missing = missing.map(|cell| format!("{}: not in the new results", cell.place()));
    if !thresholds.is_empty() {
        regressions.extend(missing);
    }
    for difference in &differences {
        let limit = limit(thresholds, difference.metric);
        if difference.is_worse() && limit.is_some_and(|limit| difference.loss_percent() > limit) {
            regressions.push(difference.to_string());
        }
    }
    table(&old, &new, &differences, text);
    for regression in &regressions {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "- regression: {regression}");
    }
    Ok(regressions)
}

/// Returns the threshold of a metric in percent. If the metric has no threshold of its own, uses
/// the general threshold. Of several thresholds, the last one applies. Returns `None` if no
/// threshold applies.
fn limit(thresholds: &[Threshold], metric: Metric) -> Option<f64> {
    let of = |wanted| thresholds.iter().rev().find(|threshold| threshold.metric == wanted);
    of(Some(metric)).or_else(|| of(None)).map(|threshold| threshold.percent)
}

impl Side {
    /// Reads a directory with results, a `cells.jsonl`, or a `results.json`.
    fn read(path: &Path) -> Result<Self, Error> {
        let path = if path.is_dir() { path.join(Results::FILE) } else { path.to_owned() };
        let text = std::fs::read_to_string(&path).map_err(|error| Error::io(&path, error))?;
        let wrong = |why: &dyn std::fmt::Display| Error::Unreadable {
            path: path.clone(),
            why: why.to_string(),
        };
        if path.extension().is_some_and(|extension| extension == "json") {
            #[derive(serde::Deserialize)]
            struct Json {
                setup: Setup,
                cells: Vec<Record>,
            }
            let Json { setup, cells } = serde_json::from_str(&text).map_err(|why| wrong(&why))?;
            return Ok(Self { setup, records: cells });
        }
        let (setup, records) = Results::parse(&text).map_err(|why| wrong(&why))?;
        Ok(Self { setup, records })
    }

    /// Returns the measured cells, including failed cells.
    fn cells(&self) -> BTreeSet<Cell> {
        self.records.iter().map(|record| record.cell.of_all_runs()).collect()
    }

    /// Returns the reason for the failure of the cell's first failed run, or `None` if no run
    /// failed.
    fn failure(&self, cell: &Cell) -> Option<&str> {
        let mut records = self.records.iter().filter(|record| record.cell.of_all_runs() == *cell);
        records.find_map(Record::failure)
    }

    /// Returns the values of each compared metric in each cell, one per run. Omits cells with a
    /// failed run: their successful runs would be a biased sample.
    fn figures(&self) -> BTreeMap<Key, Vec<f64>> {
        let load_cores = self.setup.load_cores.count();
        let mut figures: BTreeMap<Key, Vec<f64>> = BTreeMap::new();
        let whole = |record: &&Record| self.failure(&record.cell.of_all_runs()).is_none();
        for record in self.records.iter().filter(whole) {
            for metric in Metric::ALL.into_iter().filter(|metric| metric.is_compared()) {
                if let Some(value) = metric.of(record, load_cores) {
                    figures.entry((record.cell.of_all_runs(), metric)).or_default().push(value);
                }
            }
        }
        figures
    }
}

fn differences(old: &Side, new: &Side) -> Vec<Difference> {
    let (old, new) = (old.figures(), new.figures());
    let difference = |((cell, metric), theirs): (&Key, &Vec<f64>)| {
        let ours = new.get(&(cell.clone(), *metric))?;
        let (before, after) = (Spread::of(theirs.clone())?, Spread::of(ours.clone())?);
        Some(Difference {
            cell: cell.clone(),
            metric: *metric,
            old: before.median,
            new: after.median,
            ratio: after.ratio(&before)?,
            interval: Interval::of_ratio(ours, theirs),
        })
    };
    old.iter().filter_map(difference).collect()
}

/// Returns the cells with a failed run in the new results and none in the old ones.
fn failed_only_in(old: &Side, new: &Side) -> Vec<String> {
    let newly = |cell: &Cell| {
        let reason = new.failure(cell).filter(|_| old.failure(cell).is_none())?;
        Some(format!("{}: failed: {reason}", cell.place()))
    };
    old.cells().intersection(&new.cells()).filter_map(newly).collect()
}

impl Difference {
    /// Returns whether the new results are significantly worse.
    fn is_worse(&self) -> bool {
        let worse = if self.metric.more_is_better() { self.ratio < 1.0 } else { self.ratio > 1.0 };
        worse && self.is_significant()
    }

    fn is_significant(&self) -> bool {
        self.interval.is_some_and(|interval| !interval.contains_one())
    }

    /// Returns the size of the change in percent of the old median.
    fn loss_percent(&self) -> f64 {
        100.0 * (self.ratio - 1.0).abs()
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let unit = self.metric.unit();
        let (old, new) = (unit.quantity(self.old), unit.quantity(self.new));
        let (cell, name) = (self.cell.place(), self.metric.name());
        write!(f, "{cell}: {name} {old} → {new}, {:.2}×", self.ratio)
    }
}

/// Writes the dates and versions of both results, and whether the machines or the suites differ. A
/// different number of runs does not count as a difference between suites. Then writes a table with
/// a row for each significant difference, the number of figures without a significant difference,
/// and the number of figures with too few runs.
fn table(old: &Side, new: &Side, differences: &[Difference], text: &mut String) {
    let shown: Vec<_> = differences.iter().filter(|one| one.is_significant()).collect();
    let unknown = differences.iter().filter(|one| one.interval.is_none()).count();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "old: {}, {}\nnew: {}, {}",
        old.setup.date, old.setup.larder, new.setup.date, new.setup.larder
    );
    for (what, differs) in [
        ("machine", old.setup.machine != new.setup.machine),
        (
            "suite",
            old.setup.suite != Suite { runs: old.setup.suite.runs, ..new.setup.suite.clone() },
        ),
    ] {
        if differs {
            let _ = writeln!(text, "the results have a different {what}");
        }
    }
    if !shown.is_empty() {
        let _ = writeln!(text, "\n| cell | metric | old | new | ratio | interval | |");
        let _ = writeln!(text, "|---|---|---:|---:|---:|---:|---|");
    }
    for one in &shown {
        let (unit, interval) = (one.metric.unit(), one.interval.expect("it is significant"));
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {:.2}× | {:.2}–{:.2} | {} |",
            one.cell.place().replace('|', "\\|"),
            one.metric.name(),
            unit.quantity(one.old),
            unit.quantity(one.new),
            one.ratio,
            interval.low,
            interval.high,
            if one.is_worse() { "worse" } else { "better" },
        );
    }
    let same = differences.len() - shown.len() - unknown;
    let _ = writeln!(
        text,
        "\n{} figures compared: {} differ, {same} show no difference, {unknown} have too few runs",
        differences.len(),
        shown.len()
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example;
    use crate::results::CellResult;
    use tempfile::tempdir;

    /// Writes results in which the throughput of `larder` in run n is multiplied by `factor` and by
    /// 1 + n %. If `fails` is true, run 1 of each cell of `larder` is a failure instead.
    fn write(folder: &Path, factor: f64, fails: bool) {
        let mut setup = example::setup();
        setup.suite.runs = 5;
        let mut records = example::records(&setup);
        for record in records.iter_mut().filter(|record| record.cell.server == "larder") {
            let noise = 1.0 + 0.01 * record.cell.run as f64;
            match &mut record.result {
                CellResult::Measured(_) if fails && record.cell.run == 1 => {
                    record.result = CellResult::Failed("froze".to_owned().into());
                }
                CellResult::Measured(outcome) => {
                    outcome.commands.get_mut("total").unwrap().per_second *= factor * noise;
                }
                other => panic!("{other:?}"),
            }
        }
        Results::open(folder, &setup).unwrap().add(records).unwrap();
    }

    fn diff_of(old: &Path, new: &Path, thresholds: &[&str]) -> (Vec<String>, String) {
        let thresholds: Vec<Threshold> = thresholds.iter().map(|t| t.parse().unwrap()).collect();
        let mut text = String::new();
        (diff(old, new, &thresholds, &mut text).unwrap(), text)
    }

    #[test]
    fn a_significant_regression_beyond_the_threshold_is_one() {
        let [old, same, slow, broken] = [(); 4].map(|()| tempdir().unwrap());
        write(old.path(), 1.0, false);
        write(same.path(), 1.0, false);
        write(slow.path(), 0.9, false);
        write(broken.path(), 1.0, true);

        let (regressions, text) = diff_of(old.path(), same.path(), &["0"]);
        assert!(regressions.is_empty(), "{regressions:?}");
        assert!(text.contains(": 0 differ, "), "{text}");

        let (regressions, text) = diff_of(old.path(), slow.path(), &["5"]);
        assert_eq!(regressions.len(), 8, "each cell of one server: {regressions:?}");
        assert!(
            regressions[0].starts_with("larder · mixed · GET · 1 thread · pipeline 1: Throughput ")
        );
        assert!(
            text.contains("| Throughput | 309 k requests/s | 278 k requests/s | 0.90× |"),
            "{text}"
        );
        for (thresholds, count) in
            [(&["15"][..], 0), (&["5", "throughput=15"], 0), (&["50", "throughput=5"], 8), (&[], 0)]
        {
            let (regressions, _) = diff_of(old.path(), slow.path(), thresholds);
            assert_eq!(regressions.len(), count, "{thresholds:?}: {regressions:?}");
        }
        let (regressions, _) = diff_of(slow.path(), old.path(), &["5"]);
        assert!(regressions.is_empty(), "an improvement is no regression: {regressions:?}");

        let (regressions, _) = diff_of(old.path(), broken.path(), &[]);
        assert_eq!(regressions.len(), 8);
        assert!(regressions[0].ends_with("failed: froze"), "{regressions:?}");
    }

    #[test]
    fn nothing_in_common_is_an_error_and_a_missing_server_a_regression() {
        let [old, other, fewer] = [(); 3].map(|()| tempdir().unwrap());
        write(old.path(), 1.0, false);
        let mut setup = example::setup();
        let renamed = |server: &str| format!("another {server}");
        let mut records = example::records(&setup);
        setup.suite.runs = 5;
        let others: Vec<Record> = records
            .iter()
            .cloned()
            .map(|mut record| {
                record.cell.server = renamed(&record.cell.server);
                record
            })
            .collect();
        Results::open(other.path(), &setup).unwrap().add(others).unwrap();
        let error = diff(old.path(), other.path(), &[], &mut String::new()).unwrap_err();
        assert!(error.to_string().contains("no cell in common"), "{error}");

        records.retain(|record| record.cell.server != "larder");
        Results::open(fewer.path(), &setup).unwrap().add(records).unwrap();
        let missing = |regressions: &[String]| {
            regressions.iter().filter(|text| text.ends_with(": not in the new results")).count()
        };
        let (regressions, _) = diff_of(old.path(), fewer.path(), &["5"]);
        assert_eq!(missing(&regressions), 8, "{regressions:?}");
        assert_eq!(missing(&diff_of(old.path(), fewer.path(), &[]).0), 0);
    }

    #[test]
    fn thresholds() {
        let parse = |text: &str| text.parse::<Threshold>();
        assert_eq!(parse("5"), Ok(Threshold { metric: None, percent: 5.0 }));
        let p99 = Threshold { metric: Some(Metric::P99), percent: 7.5 };
        assert_eq!(parse("p99=7.5"), Ok(p99));
        assert!(parse("hits=1").unwrap_err().contains("throughput, "));
        for wrong in ["", "x", "-1", "p99="] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
