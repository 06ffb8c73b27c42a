//! Summarizes records as tables, one for each combination of workload, phase, threads and pipeline.

use super::metric::Metric;
use super::results::{CellResult, LatencyProfile, Record, Setup};
use super::statistics::{Interval, Spread};
use serde::Serialize;
use std::collections::BTreeMap;

/// A combination of workload, phase, threads and pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Combination {
    /// Name of the workload.
    pub workload: String,
    /// Name of the workload's phase.
    pub phase: String,
    /// Number of threads of the servers.
    pub threads: usize,
    /// Number of outstanding requests on each connection.
    pub pipeline: usize,
}

/// The results of a comparison as tables, one for each combination.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The tables, in the suite's order.
    pub tables: Vec<Table>,
}

/// The results of all servers for one combination.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// The measured combination.
    pub place: Combination,
    /// The rows, in the suite's order.
    pub rows: Vec<Row>,
}

/// The result of one server for one combination.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name of the server.
    pub server: String,
    /// Result of the server.
    pub standing: ServerResult,
}

/// The result of a server for a combination.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerResult {
    /// The server is not installed.
    Absent,
    /// All runs failed, or there was no run. Contains the reason for the last failure, or `not
    /// run`.
    Failed(String),
    /// The figures of the successful runs.
    Figures(Figures),
}

/// The figures of several runs.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Median and spread of each metric.
    pub spreads: BTreeMap<Metric, Spread>,
    /// For each compared metric, the ratio of this server's median to the baseline's median. Empty
    /// if the baseline has no figures. Also empty if a run of either server failed, because the
    /// successful runs are then a biased sample.
    pub ratios: BTreeMap<Metric, f64>,
    /// Confidence intervals of `ratios`, if both servers have at least three runs and all figures
    /// are positive; empty for the baseline itself.
    pub intervals: BTreeMap<Metric, Interval>,
    /// The value of each metric in each run, from which the intervals are computed.
    #[serde(skip)]
    pub values: BTreeMap<Metric, Vec<f64>>,
    /// Latencies and rates of the runs.
    #[serde(skip)]
    pub latency_profiles: Vec<LatencyProfile>,
    /// Number of successful runs that other programs disturbed.
    pub disturbed: usize,
    /// Number of successful runs.
    pub runs: usize,
    /// Reasons for the failures of runs.
    pub failures: Vec<String>,
    /// Number of faults by kind in the successful runs.
    pub faults: BTreeMap<String, u64>,
}

impl Figures {
    /// Returns the ratio to the baseline, such as `1.52×`, or `1.02× no difference` if its
    /// confidence interval contains 1; `None` without a ratio.
    #[must_use]
    pub fn ratio(&self, metric: Metric) -> Option<String> {
        let ratio = self.ratios.get(&metric)?;
        let same = self.intervals.get(&metric).is_some_and(Interval::contains_one);
        Some(format!("{ratio:.2}×{}", if same { " no difference" } else { "" }))
    }
}

impl Row {
    /// Returns the figures, if there are any.
    #[must_use]
    pub fn figures(&self) -> Option<&Figures> {
        match &self.standing {
            ServerResult::Figures(figures) => Some(figures),
            ServerResult::Absent | ServerResult::Failed(_) => None,
        }
    }

    /// Returns whether a run failed, or an installed server had no run.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        match &self.standing {
            ServerResult::Absent => false,
            ServerResult::Failed(_) => true,
            ServerResult::Figures(figures) => !figures.failures.is_empty(),
        }
    }

    /// Describes the number of failed runs, if some but not all runs failed.
    #[must_use]
    pub fn failed_runs(&self) -> Option<String> {
        let Figures { runs, failures, .. } = self.figures()?;
        let failed = failures.len();
        (failed > 0).then(|| format!("{failed} of {} runs failed", runs + failed))
    }

    /// Describes the number of disturbed runs, if there are any.
    #[must_use]
    pub fn disturbed_runs(&self) -> Option<String> {
        let Figures { runs, disturbed, .. } = self.figures()?;
        (*disturbed > 0).then(|| format!("{disturbed} of {runs} runs disturbed"))
    }

    /// Returns the median and spread of a metric, or `None` if the server has no figures for it.
    #[must_use]
    pub fn spread(&self, metric: Metric) -> Option<Spread> {
        self.figures()?.spreads.get(&metric).copied()
    }
}

impl Table {
    /// Returns the metrics in which at least one server has figures.
    #[must_use]
    pub fn metrics(&self) -> Vec<Metric> {
        let any = |metric: &Metric| self.rows.iter().any(|row| row.spread(*metric).is_some());
        Metric::ALL.into_iter().filter(any).collect()
    }
}

impl Summary {
    /// Summarizes the records for each combination and server of the suite.
    #[must_use]
    pub fn of(setup: &Setup, records: &[Record]) -> Self {
        let suite = &setup.suite;
        let mut tables = Vec::new();
        for workload in &suite.workloads {
            for phase in workload.measured() {
                for threads in suite.threads.numbers(setup.server_cores.count()) {
                    for &pipeline in workload.pipelines(suite) {
                        let (workload, phase) = (workload.name.clone(), phase.name.clone());
                        let place = Combination { workload, phase, threads, pipeline };
                        tables.push(table(setup, records, place));
                    }
                }
            }
        }
        Self { tables }
    }

    /// Returns the names of the servers that are not installed.
    #[must_use]
    pub fn absent(&self) -> Vec<&str> {
        let rows = self.tables.first().map_or(&[][..], |table| &table.rows);
        let absent = rows.iter().filter(|row| matches!(row.standing, ServerResult::Absent));
        absent.map(|row| row.server.as_str()).collect()
    }
}

fn table(setup: &Setup, records: &[Record], place: Combination) -> Table {
    let mut rows: Vec<Row> = setup
        .servers
        .iter()
        .map(|server| {
            let standing = match &server.program {
                None => ServerResult::Absent,
                Some(_) => standing(setup, &at(records, &place, &server.name)),
            };
            Row { server: server.name.clone(), standing }
        })
        .collect();
    let baseline = rows.iter().find(|row| row.server == setup.suite.baseline);
    let baseline = baseline.and_then(Row::figures).filter(|figures| figures.failures.is_empty());
    if let Some(baseline) = baseline.cloned() {
        rows.iter_mut().for_each(|row| relate(row, &baseline));
    }
    Table { place, rows }
}

fn at<'r>(records: &'r [Record], combination: &Combination, server: &str) -> Vec<&'r Record> {
    let here = |record: &&Record| {
        let cell = &record.cell;
        cell.server == server
            && cell.workload == combination.workload
            && cell.phase == combination.phase
            && (cell.threads, cell.pipeline) == (combination.threads, combination.pipeline)
    };
    records.iter().filter(here).collect()
}

fn standing(setup: &Setup, records: &[&Record]) -> ServerResult {
    let mut failures = Vec::new();
    let mut faults = BTreeMap::new();
    for record in records {
        match &record.result {
            CellResult::Failed(failure) => failures.push(failure.reason.clone()),
            CellResult::Measured(outcome) => {
                for (fault, times) in &outcome.faults {
                    *faults.entry(fault.clone()).or_default() += times;
                }
            }
            CellResult::Filled(_) => {}
        }
    }
    let runs = records.len() - failures.len();
    if runs == 0 {
        return ServerResult::Failed(failures.pop().unwrap_or_else(|| "not run".to_owned()));
    }
    let load_cores = setup.load_cores.count();
    let values = |metric: Metric| {
        let values = records.iter().filter_map(|record| metric.of(record, load_cores));
        let values: Vec<f64> = values.collect();
        (!values.is_empty()).then_some((metric, values))
    };
    let values: BTreeMap<Metric, Vec<f64>> = Metric::ALL.into_iter().filter_map(values).collect();
    let spread =
        |(metric, values): (&Metric, &Vec<f64>)| Some((*metric, Spread::of(values.clone())?));
    let counts = |record: &&&Record| record.is_disturbed() && record.failure().is_none();
    ServerResult::Figures(Figures {
        spreads: values.iter().filter_map(spread).collect(),
        ratios: BTreeMap::new(),
        intervals: BTreeMap::new(),
        disturbed: records.iter().filter(counts).count(),
        values,
        latency_profiles: records
            .iter()
            .filter_map(|record| record.latency_profile.clone())
            .collect(),
        runs,
        failures,
        faults,
    })
}

fn relate(row: &mut Row, baseline: &Figures) {
    let ServerResult::Figures(figures) = &mut row.standing else { return };
    if !figures.failures.is_empty() {
        return;
    }
    let compared = || figures.values.keys().filter(|metric| metric.is_compared());
    let ratio = |metric: &Metric| {
        Some((*metric, figures.spreads.get(metric)?.ratio(baseline.spreads.get(metric)?)?))
    };
    // The baseline has no intervals, because it does not differ from itself.
    let is_baseline = figures.values == baseline.values;
    let interval = |metric: &Metric| {
        if is_baseline {
            return None;
        }
        let (ours, theirs) = (figures.values.get(metric)?, baseline.values.get(metric)?);
        Some((*metric, Interval::of_ratio(ours, theirs)?))
    };
    let ratios = compared().filter_map(ratio).collect();
    figures.intervals = compared().filter_map(interval).collect();
    figures.ratios = ratios;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example;

    #[test]
    fn medians_ratios_absence_and_failure() {
        let setup = example::setup();
        let summary = Summary::of(&setup, &example::records(&setup));
        assert_eq!(summary.absent(), ["absent"]);
        let table = &summary.tables[0];
        let [baseline, other, flaky, dead, absent] = &table.rows[..] else { panic!("{table:?}") };
        let throughput = baseline.spread(Metric::Throughput).unwrap();
        let (least, most) = (throughput.min, throughput.max);
        assert!(least < throughput.median && throughput.median < most);
        let figures = other.figures().unwrap();
        assert!((figures.ratios[&Metric::Throughput] - 2.0).abs() < 1e-9);
        assert!((figures.ratios[&Metric::P99] - 0.5).abs() < 1e-9);
        assert!(!figures.ratios.contains_key(&Metric::Hits));
        assert!(!figures.intervals[&Metric::Throughput].contains_one());
        assert!(
            baseline.figures().unwrap().intervals.is_empty(),
            "the baseline is not compared with itself"
        );
        let figures = flaky.figures().unwrap();
        assert_eq!((figures.runs, figures.failures.len()), (2, 1));
        assert!(figures.ratios.is_empty(), "the successful runs are a biased selection");
        assert!(matches!(&dead.standing, ServerResult::Failed(why) if why == "died <early>"));
        assert!(matches!(absent.standing, ServerResult::Absent));
    }
}
