//! The contents of a plot: texts, axes and points.

use super::axis::Axis;
use super::view::View;
use crate::file_name;
use crate::metric::{Metric, Unit};
use crate::statistics::{Interval, Spread};
use crate::summary::{Row, Standing, Summary};

/// The scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// Linear, from 0.
    Linear,
    /// Logarithmic.
    Logarithmic,
}

impl Scale {
    /// Its name in files and in the report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::Logarithmic => "logarithmic",
        }
    }
}

/// A plot.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    /// The metric, and what is the same at all points.
    pub(crate) title: String,
    /// The scale of the vertical axis.
    pub(crate) scale: Scale,
    /// The unit of the vertical axis.
    pub(crate) unit: Unit,
    /// The vertical axis.
    pub(crate) axis: Axis,
    /// Title of the horizontal axis.
    pub(crate) varies: &'static str,
    /// Labels of the horizontal axis.
    pub(crate) ticks: Vec<String>,
    /// Whether points are connected by lines.
    pub(crate) joined: bool,
    /// The points of each installed server.
    pub(crate) series: Vec<Series>,
    /// Names of the servers that are not installed.
    pub(crate) absent: Vec<String>,
    slug: String,
}

/// The points of a server.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    /// Name of the server.
    pub(crate) name: String,
    /// Index of the server in the suite, which determines its colour and marker.
    pub(crate) place: usize,
    /// A point for each tick.
    pub(crate) points: Vec<Point>,
}

/// The result of a server at a tick.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    /// Median and spread; nothing if there is no result.
    pub(crate) spread: Option<Spread>,
    /// Whether a run failed. Then the point is crossed out.
    pub(crate) failed: bool,
    /// Whether a run was disturbed. Then the point has a ring.
    pub(crate) disturbed: bool,
    /// Text of the tooltip.
    pub(crate) tip: String,
}

impl Figure {
    /// The plot of a metric in a view.
    pub(crate) fn of(summary: &Summary, view: &View, metric: Metric, scale: Scale) -> Self {
        let (ticks, tables) = places(summary, view, metric);
        let series = series(summary, &tables, metric);
        let spreads = series.iter().flat_map(|series| &series.points);
        let values = spreads.filter_map(|point| point.spread).flat_map(|s| [s.min, s.max]);
        Self {
            title: format!("{} · {}", metric.name(), view.heading),
            scale,
            unit: metric.unit(),
            axis: Axis::of(scale, values),
            varies: view.varies,
            ticks,
            joined: view.joined,
            absent: summary.absent().into_iter().map(ToOwned::to_owned).collect(),
            slug: format!("{} {} {}", view.heading, metric.slug(), scale.name()),
            series,
        }
    }

    /// Name of the plot's file, without extension.
    pub(crate) fn file_name(&self) -> String {
        file_name(&self.slug)
    }
}

/// The ticks and tables of places where the metric applies, or where no server has a result.
fn places(summary: &Summary, view: &View, metric: Metric) -> (Vec<String>, Vec<usize>) {
    let means = |table: &usize| {
        let metrics = summary.tables[*table].metrics();
        metrics.is_empty() || metrics.contains(&metric)
    };
    let places = view.ticks.iter().cloned().zip(view.tables.iter().copied());
    places.filter(|(_, table)| means(table)).unzip()
}

fn series(summary: &Summary, tables: &[usize], metric: Metric) -> Vec<Series> {
    let rows = |table: usize| &summary.tables[table].rows;
    let servers = tables.first().map_or(&[][..], |table| rows(*table)).iter().enumerate();
    let installed = servers.filter(|(_, row)| !matches!(row.standing, Standing::Absent));
    installed
        .map(|(place, row)| Series {
            name: row.server.clone(),
            place,
            points: tables.iter().map(|table| point(&rows(*table)[place], metric)).collect(),
        })
        .collect()
}

fn point(row: &Row, metric: Metric) -> Point {
    let spread = row.spread(metric);
    let tip = match (&row.standing, spread) {
        (Standing::Figures(figures), Some(spread)) => {
            let ratio = figures.ratios.get(&metric);
            let ratio = ratio.map_or(String::new(), |ratio| format!(", {ratio:.2} × baseline"));
            let same = figures.intervals.get(&metric).is_some_and(Interval::contains_one);
            let same = if same { " (no difference)" } else { "" };
            let unit = metric.unit();
            let (least, most) = (unit.number(spread.min), unit.number(spread.max));
            let marks = row.failed_runs().into_iter().chain(row.disturbed_runs());
            let marks: String = marks.map(|mark| format!(", {mark}")).collect();
            let median = unit.quantity(spread.median);
            format!("{}: {median} ({least} to {most}){ratio}{same}{marks}", row.server)
        }
        (Standing::Failed(reason), _) => format!("{} failed: {reason}", row.server),
        _ => format!("{}: no result", row.server),
    };
    let disturbed = row.disturbed_runs().is_some();
    Point { spread, failed: row.has_failed(), disturbed, tip }
}
