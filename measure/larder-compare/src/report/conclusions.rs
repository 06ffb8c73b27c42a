//! The conclusions of a report: which servers are best, and which results are missing or doubtful.

use super::contents::Report;
use crate::metric::Metric;
use crate::statistics::Interval;
use crate::summary::{Row, Summary, Table};
use std::collections::BTreeMap;

/// The metrics of the ranking.
const RANKED: [Metric; 5] =
    [Metric::Throughput, Metric::P50, Metric::P99, Metric::Cpu, Metric::HeldByLimit];

/// Returns the conclusions as sentences, the most important ones first.
pub(crate) fn conclusions(report: &Report<'_>) -> Vec<String> {
    let summary = &report.summary;
    let mut sentences: Vec<String> =
        RANKED.into_iter().filter_map(|metric| ranking(summary, metric)).collect();
    sentences.extend(failures(report));
    sentences.extend(disturbances(report));
    let absent = summary.absent();
    if !absent.is_empty() {
        sentences.push(format!("Not installed: {}.", absent.join(", ")));
    }
    sentences.extend(crowded(report));
    sentences
}

/// Returns a sentence about a metric. The sentence says for how many combinations of workload,
/// phase, threads and pipeline each server is the best one, and how many have no clear winner.
/// Returns `None` if no combination has two servers to compare.
fn ranking(summary: &Summary, metric: Metric) -> Option<String> {
    let mut wins: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut places, mut unclear) = (0, 0);
    for table in &summary.tables {
        match winner(table, metric) {
            Some(Winner::Clear(server)) => *wins.entry(server).or_default() += 1,
            Some(Winner::Unclear) => unclear += 1,
            None => continue,
        }
        places += 1;
    }
    let mut wins: Vec<(&str, usize)> = wins.into_iter().collect();
    wins.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let mut parts: Vec<String> = wins
        .into_iter()
        .map(|(server, count)| format!("{server} is best at {count} of {places} places"))
        .collect();
    if unclear > 0 {
        parts.push(format!("at {unclear} of {places} no server is clearly better than the next"));
    }
    (places > 0).then(|| format!("{}: {}.", metric.name(), parts.join(", ")))
}

enum Winner<'t> {
    Clear(&'t str),
    /// The best and the second-best server do not differ significantly, or have too few runs.
    Unclear,
}

/// Returns the best server in a metric for one combination. Ignores servers with failed runs.
/// Returns `None` if fewer than two servers remain.
fn winner(table: &Table, metric: Metric) -> Option<Winner<'_>> {
    let sound = table.rows.iter().filter(|row| !row.has_failed());
    let mut ranked: Vec<(&Row, f64)> =
        sound.filter_map(|row| Some((row, row.spread(metric)?.median))).collect();
    ranked.sort_by(|(_, one), (_, other)| one.total_cmp(other));
    if metric.more_is_better() {
        ranked.reverse();
    }
    let [(best, _), (next, _), ..] = &ranked[..] else { return None };
    let [ours, theirs] = [best, next].map(|row| row.figures()?.values.get(&metric));
    let interval = Interval::of_ratio(ours?, theirs?);
    let clear = interval.is_some_and(|interval| !interval.contains_one());
    Some(if clear { Winner::Clear(&best.server) } else { Winner::Unclear })
}

fn failures(report: &Report<'_>) -> Option<String> {
    let failed: Vec<_> = report.records.iter().filter(|r| r.failure().is_some()).collect();
    let mut servers: Vec<&str> = failed.iter().map(|record| record.cell.server.as_str()).collect();
    servers.sort_unstable();
    servers.dedup();
    let (count, all) = (failed.len(), report.records.len());
    let servers = servers.join(", ");
    (count > 0).then(|| format!("{count} of {all} measurements failed, of {servers}."))
}

fn disturbances(report: &Report<'_>) -> Option<String> {
    let count = report.records.iter().filter(|record| record.is_disturbed()).count();
    let all = report.records.len();
    (count > 0).then(|| {
        format!(
            "{count} of {all} measurements are disturbed: other programs used more than 5 % of the \
             machine, also when they were repeated."
        )
    })
}

/// Returns a sentence about servers with more threads than cores, or `None` if there are none.
fn crowded(report: &Report<'_>) -> Option<String> {
    let cores = report.setup.server_cores.count();
    let threads = report.summary.tables.iter().map(|table| table.place.threads);
    let mut crowded: Vec<usize> = threads.filter(|threads| *threads > cores).collect();
    crowded.sort_unstable();
    crowded.dedup();
    let numbers: Vec<String> = crowded.iter().map(ToString::to_string).collect();
    (!crowded.is_empty()).then(|| {
        format!(
            "Servers with {} threads have only {cores} {}: these results show how threads share \
             cores, not how servers scale.",
            numbers.join(", "),
            if cores == 1 { "core" } else { "cores" },
        )
    })
}
