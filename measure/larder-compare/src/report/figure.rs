//! The content of a plot: texts, axes and points.

use super::axis::{Axis, Scale};
use super::view::{View, heading};
use crate::file_name;
use crate::metric::{Metric, Unit};
use crate::results::LatencyProfile;
use crate::statistics::{Interval, Spread};
use crate::summary::{Row, ServerResult, Summary, Table};

/// A plot.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    /// The metric, and the common parameters of all points.
    pub(crate) title: String,
    /// The scale of the vertical axis.
    pub(crate) scale: Scale,
    /// The unit of the vertical axis.
    pub(crate) unit: Unit,
    pub(crate) axis: Axis,
    /// Title of the horizontal axis.
    pub(crate) varies: &'static str,
    /// Labels of the horizontal axis.
    pub(crate) ticks: Vec<String>,
    /// Whether lines connect the points.
    pub(crate) joined: bool,
    /// The points of each installed server. Plots by percentile or over time contain only servers
    /// with a successful load.
    pub(crate) series: Vec<Series>,
    /// Names of the servers that are not installed; empty in plots by percentile or over time.
    pub(crate) absent: Vec<String>,
    pub(super) slug: String,
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
    /// Median and spread; `None` without a result.
    pub(crate) spread: Option<Spread>,
    /// Whether a run failed. If so, the plot draws a cross.
    pub(crate) failed: bool,
    /// Whether other programs disturbed a run. If so, the plot draws a ring around the point.
    pub(crate) disturbed: bool,
    /// Text of the tooltip.
    pub(crate) tip: String,
}

impl Figure {
    /// Returns the plot of a metric in a view.
    pub(crate) fn of(summary: &Summary, view: &View, metric: Metric, scale: Scale) -> Self {
        let (ticks, tables) = ticks_and_tables(summary, view, metric);
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

    /// Returns a plot of a combination's latencies by percentile, as in HdrHistogram's plots. Each
    /// tick divides the share of slower requests by 2 to 10. Returns `None` without successful
    /// loads.
    pub(crate) fn percentiles(table: &Table) -> Option<Self> {
        let figure = |profiles: &[LatencyProfile]| {
            let spread = |quantile: f64| {
                Spread::of(profiles.iter().map(|profile| profile.latency(quantile)).collect())
            };
            QUANTILES.iter().map(|quantile| spread(*quantile)).collect()
        };
        let ticks: Vec<String> = QUANTILES.iter().map(|q| percent(*q)).collect();
        let (scale, metric) = (Scale::Logarithmic, Metric::P50);
        Self::of_profiles(
            table,
            "Latency by percentile",
            "Percentile",
            scale,
            metric,
            ticks,
            figure,
        )
    }

    /// Returns a plot of a combination's rate over time, or `None` unless a successful load lasts
    /// longer than two seconds.
    pub(crate) fn over_time(table: &Table) -> Option<Self> {
        let profiles = table.rows.iter().filter_map(Row::figures).flat_map(|f| &f.latency_profiles);
        let seconds = profiles.map(|profile| profile.by_second.len()).max().filter(|s| *s >= 3)?;
        let step = seconds.div_ceil(TICKS_MAX);
        let steps = || (0..seconds).step_by(step);
        let figure =
            |profiles: &[LatencyProfile]| steps().map(|from| rate(profiles, from, step)).collect();
        let ticks = steps().map(|from| (from + step).to_string()).collect();
        let (title, varies) = ("Rate over time", "Seconds since the start");
        Self::of_profiles(table, title, varies, Scale::Linear, Metric::Throughput, ticks, figure)
    }

    /// Returns a plot of a combination's latency profiles. `spreads` computes a server's points
    /// from the profiles of its runs, and `metric` determines the unit. Returns `None` if no server
    /// has a profile.
    fn of_profiles(
        table: &Table,
        title: &str,
        varies: &'static str,
        scale: Scale,
        metric: Metric,
        ticks: Vec<String>,
        spreads: impl Fn(&[LatencyProfile]) -> Vec<Option<Spread>>,
    ) -> Option<Self> {
        let mut series = Vec::new();
        for (place, row) in table.rows.iter().enumerate() {
            let Some(figures) =
                row.figures().filter(|figures| !figures.latency_profiles.is_empty())
            else {
                continue;
            };
            let points =
                spreads(&figures.latency_profiles).into_iter().zip(&ticks).map(|(spread, tick)| {
                    let value = spread.map(|spread| metric.unit().quantity(spread.median));
                    let value = value.unwrap_or_else(|| "no result".to_owned());
                    let tip = format!("{}, {tick}: {value}", row.server);
                    let (failed, disturbed) = (row.has_failed(), row.disturbed_runs().is_some());
                    Point { spread, failed, disturbed, tip }
                });
            series.push(Series { name: row.server.clone(), place, points: points.collect() });
        }
        let heading = heading(&table.place);
        let values = series.iter().flat_map(|s: &Series| &s.points).filter_map(|p| p.spread);
        let values: Vec<f64> = values.flat_map(|spread| [spread.min, spread.max]).collect();
        (!series.is_empty()).then(|| Self {
            title: format!("{title} · {heading}"),
            scale,
            unit: metric.unit(),
            axis: Axis::of(scale, values.iter().copied()),
            varies,
            ticks,
            joined: true,
            absent: Vec::new(),
            slug: format!("{heading} {title}"),
            series,
        })
    }

    /// Returns the name of the plot's file, without extension.
    pub(crate) fn file_name(&self) -> String {
        file_name(&self.slug)
    }
}

/// The quantiles of plots by percentile.
const QUANTILES: [f64; 10] = [0.0, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9999, 0.99999];
/// Maximum number of ticks of plots over time.
const TICKS_MAX: usize = 20;

fn percent(quantile: f64) -> String {
    let text = format!("{:.3}", quantile * 100.0);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Returns the spread of the runs' mean rates in requests per second, over `step` seconds from
/// second `from`. For a run that ends earlier, the mean covers the seconds until its end. Returns
/// `None` if no run lasted beyond `from`.
#[expect(clippy::cast_precision_loss, reason = "a rate needs no last digit")]
fn rate(profiles: &[LatencyProfile], from: usize, step: usize) -> Option<Spread> {
    let of_run = |profile: &LatencyProfile| {
        let seconds = profile.by_second.get(from..(from + step).min(profile.by_second.len()))?;
        (!seconds.is_empty()).then(|| seconds.iter().sum::<u64>() as f64 / seconds.len() as f64)
    };
    Spread::of(profiles.iter().filter_map(of_run).collect())
}

/// Returns the ticks and tables of a view. Omits combinations whose servers have results, but none
/// in this metric.
fn ticks_and_tables(summary: &Summary, view: &View, metric: Metric) -> (Vec<String>, Vec<usize>) {
    let means = |table: &usize| {
        let metrics = summary.tables[*table].metrics();
        metrics.is_empty() || metrics.contains(&metric)
    };
    let combinations = view.ticks.iter().cloned().zip(view.tables.iter().copied());
    combinations.filter(|(_, table)| means(table)).unzip()
}

fn series(summary: &Summary, tables: &[usize], metric: Metric) -> Vec<Series> {
    let rows = |table: usize| &summary.tables[table].rows;
    let servers = tables.first().map_or(&[][..], |table| rows(*table)).iter().enumerate();
    let installed = servers.filter(|(_, row)| !matches!(row.standing, ServerResult::Absent));
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
        (ServerResult::Figures(figures), Some(spread)) => {
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
        (ServerResult::Failed(reason), _) => format!("{} failed: {reason}", row.server),
        _ => format!("{}: no result", row.server),
    };
    let disturbed = row.disturbed_runs().is_some();
    Point { spread, failed: row.has_failed(), disturbed, tip }
}
