//! The tables as Markdown.

use super::conclusions::conclusions;
use super::contents::Report;
use super::view::heading;
use crate::metric::Metric;
use crate::summary::{Figures, Row, ServerResult, Table};
use std::fmt::Write;

/// Returns the text of the Markdown file: title, summary, setup, servers and tables.
pub(crate) fn markdown(report: &Report<'_>) -> String {
    let (setup, suite) = (report.setup, &report.setup.suite);
    let mut text = format!("# {}\n\n{}\n\n", suite.title, suite.about.trim());
    text.push_str("## Summary\n\n");
    for sentence in conclusions(report) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "- {sentence}");
    }
    text.push_str("\n## Setup\n\n");
    for fact in facts(report) {
        let _ = writeln!(text, "- {fact}");
    }
    let _ = writeln!(text, "\n| server | version |\n|---|---|");
    for server in &setup.servers {
        let version = match (&server.program, &server.version) {
            (None, _) => "not installed",
            (Some(_), Some(version)) => version,
            (Some(_), None) => "unknown",
        };
        let _ = writeln!(text, "| {} | {} |", cell(&server.name), cell(version));
    }
    for table in &report.summary.tables {
        let _ = write!(text, "\n## {}\n\n", heading(&table.place));
        if let Some(crowd) = crowd(report, table) {
            let _ = writeln!(text, "{crowd}\n");
        }
        text.push_str(&rows(table));
    }
    text
}

/// Returns a note if the servers of a table have more threads than cores, and `None` otherwise.
pub(crate) fn crowd(report: &Report<'_>, table: &Table) -> Option<String> {
    let (threads, cores) = (table.place.threads, report.setup.server_cores.count());
    let plural = if cores == 1 { "" } else { "s" };
    (threads > cores).then(|| format!("The servers' {threads} threads share {cores} core{plural}."))
}

/// Returns facts about the measurement, one per line: the date, the command, the machine, the
/// cores, and notes on the figures.
pub(crate) fn facts(report: &Report<'_>) -> Vec<String> {
    let (setup, suite) = (report.setup, &report.setup.suite);
    let machine = &setup.machine;
    let gib = machine.memory_bytes as f64 / f64::from(1 << 30);
    let shared = if setup.server_cores == setup.load_cores { ", shared" } else { "" };
    vec![
        format!("{}, Larder {}: {}", setup.date, setup.larder, setup.command),
        format!("{}, {} cores, {gib:.1} GiB, {}", machine.cpu, machine.cores, machine.system),
        format!(
            "servers on cores {}, load on cores {}{shared}; {} MiB for items",
            setup.server_cores, setup.load_cores, suite.memory_mb
        ),
        format!(
            "medians of {} runs (least to most in brackets); × is the ratio to {}'s median; \"no \
             difference\" where its 95 % confidence interval (90 % with 3 runs) contains 1",
            suite.runs, suite.baseline
        ),
        "latency in a closed loop: from sending a request to its answer, unless a load says --rate"
            .to_owned(),
    ]
}

fn rows(table: &Table) -> String {
    let metrics = table.metrics();
    let heads = metrics.iter().map(|metric| format!(" {} |", head(*metric)));
    let mut text = format!("| server |{}\n", heads.collect::<String>());
    let _ = writeln!(text, "|---|{}", "---:|".repeat(metrics.len()));
    for row in table.rows.iter().filter(|row| !matches!(row.standing, ServerResult::Absent)) {
        let marks = marks(row);
        let marks = if marks.is_empty() { marks } else { format!(" ({marks})") };
        let _ = writeln!(text, "| {}{marks} |{}", cell(&row.server), cells(row, &metrics));
    }
    let notes: String = notes(table).iter().map(|note| format!("- {note}\n")).collect();
    if notes.is_empty() { text } else { text + "\n" + &notes }
}

/// Describes the numbers of failed and of disturbed runs. Returns an empty string if there are
/// none.
pub(crate) fn marks(row: &Row) -> String {
    row.failed_runs().into_iter().chain(row.disturbed_runs()).collect::<Vec<_>>().join(", ")
}

/// Returns notes on servers that are not installed and, for each server with figures, on its first
/// failed run and the faults of its successful runs.
pub(crate) fn notes(table: &Table) -> Vec<String> {
    let absent = table.rows.iter().filter(|row| matches!(row.standing, ServerResult::Absent));
    let absent: Vec<&str> = absent.map(|row| row.server.as_str()).collect();
    let absent = (!absent.is_empty()).then(|| format!("not installed: {}", absent.join(", ")));
    absent.into_iter().chain(table.rows.iter().flat_map(notes_of)).collect()
}

fn notes_of(row: &Row) -> Vec<String> {
    let Some(Figures { failures, faults, .. }) = row.figures() else { return Vec::new() };
    let failed = row.failed_runs().zip(failures.first());
    let failed = failed.map(|(failed, why)| format!("{}: {failed}: {why}", row.server));
    let faults = faults.iter().map(|(what, times)| format!("{}: {what}: {times}", row.server));
    failed.into_iter().chain(faults).collect()
}

/// Returns the column heading of a metric: its name and, unless the name contains it (items per
/// GiB), its unit.
pub(crate) fn head(metric: Metric) -> String {
    match metric.unit().name() {
        "items/GiB" => metric.name().to_owned(),
        unit => format!("{}, {unit}", metric.name()),
    }
}

fn cells(row: &Row, metrics: &[Metric]) -> String {
    match &row.standing {
        ServerResult::Absent => String::new(),
        ServerResult::Failed(why) => {
            format!(" failed: {} |{}", cell(why), " |".repeat(metrics.len().max(1) - 1))
        }
        ServerResult::Figures(figures) => {
            metrics.iter().map(|metric| format!(" {} |", figure(figures, *metric))).collect()
        }
    }
}

/// Formats the median, the spread if there are several runs, and the ratio if there is one. Returns
/// `–` without figures.
fn figure(figures: &Figures, metric: Metric) -> String {
    let Some(spread) = figures.spreads.get(&metric) else { return "–".to_owned() };
    let number = |value| metric.unit().number(value);
    let mut text = number(spread.median);
    if figures.runs > 1 {
        let _ = write!(text, " ({}–{})", number(spread.min), number(spread.max));
    }
    if let Some(ratio) = figures.ratio(metric) {
        let _ = write!(text, " {ratio}");
    }
    text
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace(['\n', '\r'], " ")
}
