//! The results as CSV: a header, and a line for each cell.

use super::contents::Report;
use crate::metric::Metric;
use crate::results::Record;

/// Returns the text of the CSV file.
pub(super) fn csv(report: &Report<'_>) -> String {
    let mut writer = ::csv::Writer::from_writer(Vec::new());
    // Writing to memory cannot fail.
    let _ = writer.write_record(header());
    for record in report.records {
        let _ = writer.write_record(line(report, record));
    }
    let bytes = writer.into_inner().unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

const CELL: [&str; 9] =
    ["server", "version", "workload", "phase", "threads", "pipeline", "run", "failed", "disturbed"];

fn header() -> Vec<String> {
    let metric = |metric: Metric| {
        let unit = match metric.unit().name() {
            "requests/s" => "per_second",
            "µs" => "micros",
            "%" => "percent",
            "cycles" => "count",
            _ => "per_gib",
        };
        format!("{}_{unit}", metric.slug().replace('-', "_"))
    };
    let cell = CELL.iter().map(ToString::to_string);
    cell.chain(Metric::ALL.into_iter().map(metric)).collect()
}

fn line(report: &Report<'_>, record: &Record) -> Vec<String> {
    let cell = &record.cell;
    let servers = &report.setup.servers;
    let version = servers.iter().find(|server| server.name == cell.server);
    let version = version.and_then(|server| server.version.clone()).unwrap_or_default();
    let failed = record.failure().unwrap_or_default().to_owned();
    let load_cores = report.setup.load_cores.count();
    let metrics = Metric::ALL.into_iter().map(|metric| {
        let value = metric.of(record, load_cores);
        value.map_or(String::new(), |value| format!("{value:.4}"))
    });
    let mut line = vec![
        cell.server.clone(),
        version,
        cell.workload.clone(),
        cell.phase.clone(),
        cell.threads.to_string(),
        cell.pipeline.to_string(),
        cell.run.to_string(),
        failed,
        if record.is_disturbed() { "yes" } else { "" }.to_owned(),
    ];
    line.extend(metrics);
    line
}
