//! Selects the combinations that a plot shows: they differ only in the pipeline, only in the number
//! of threads, or only in workload and phase.

use crate::metric::Metric;
use crate::summary::{Combination, Summary, Table};
use std::collections::BTreeSet;

/// The combinations of a plot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    /// The values of the dimensions that are equal in all combinations.
    pub(crate) heading: String,
    /// The dimension that varies.
    pub(crate) varies: &'static str,
    /// The value of that dimension in each combination.
    pub(crate) ticks: Vec<String>,
    /// The index of each combination's table in `Summary::tables`.
    pub(crate) tables: Vec<usize>,
    /// Whether the dimension is numeric, so that lines connect the points.
    pub(crate) joined: bool,
}

/// A dimension: its title, a function that returns its value in a combination, and a function that
/// returns a heading with the other dimensions.
type Dimension = (&'static str, fn(&Combination) -> usize, fn(&Combination) -> String);

const PIPELINE: Dimension = (
    "Pipeline (requests under way on a connection)",
    |place| place.pipeline,
    |place| format!("{} · {} · {}", place.workload, place.phase, count(place.threads, "thread")),
);
const THREADS: Dimension = (
    "Threads of the server",
    |place| place.threads,
    |place| format!("{} · {} · pipeline {}", place.workload, place.phase, place.pipeline),
);

fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

impl View {
    /// Returns all views of a summary: by pipeline if the pipeline varies, and by threads if their
    /// number varies. If neither varies, returns one view by workload and phase.
    pub(crate) fn all(summary: &Summary) -> Vec<Self> {
        let mut views = Self::along(summary, PIPELINE);
        views.extend(Self::along(summary, THREADS));
        if views.is_empty() && !summary.tables.is_empty() {
            views.push(Self::by_workload(summary));
        }
        views
    }

    fn along(summary: &Summary, (varies, value, rest): Dimension) -> Vec<Self> {
        let places = || summary.tables.iter().map(|table| &table.place);
        if places().map(value).collect::<BTreeSet<_>>().len() < 2 {
            return Vec::new();
        }
        let mut views: Vec<Self> = Vec::new();
        for (number, place) in places().enumerate() {
            let heading = rest(place);
            let known = views.iter().position(|view| view.heading == heading);
            let at = known.unwrap_or_else(|| {
                let (ticks, tables) = (Vec::new(), Vec::new());
                views.push(Self { heading, varies, ticks, tables, joined: true });
                views.len() - 1
            });
            views[at].ticks.push(value(place).to_string());
            views[at].tables.push(number);
        }
        views
    }

    fn by_workload(summary: &Summary) -> Self {
        let place = &summary.tables[0].place;
        let phases: BTreeSet<&str> =
            summary.tables.iter().map(|t| t.place.phase.as_str()).collect();
        let tick = |table: &Table| match phases.len() {
            1 => table.place.workload.clone(),
            _ => format!("{} · {}", table.place.workload, table.place.phase),
        };
        Self {
            heading: format!("{} · pipeline {}", count(place.threads, "thread"), place.pipeline),
            varies: "Workload",
            ticks: summary.tables.iter().map(tick).collect(),
            tables: (0..summary.tables.len()).collect(),
            joined: false,
        }
    }

    /// Returns the metrics to plot in this view.
    pub(crate) fn metrics(&self, summary: &Summary) -> Vec<Metric> {
        let tables = || self.tables.iter().map(|number| &summary.tables[*number]);
        let is_measured = |metric: &Metric| tables().any(|table| table.metrics().contains(metric));
        Metric::ALL
            .into_iter()
            .filter(|metric| metric.is_compared() && is_measured(metric))
            .collect()
    }
}

/// Returns the heading of a table.
pub(crate) fn heading(combination: &Combination) -> String {
    let Combination { workload, phase, threads, pipeline } = combination;
    let plural = if *threads == 1 { "" } else { "s" };
    format!("{workload} · {phase} · {threads} thread{plural} · pipeline {pipeline}")
}
