//! The results of runs as a table for the terminal.

use crate::median::median;
use crate::outcome::{Outcome, ServerCost};
use crate::run::Measured;
use crate::settings::{Settings, Stop};
use hdrhistogram::Histogram;
use std::fmt::Write;

/// Two lines that summarise the settings.
pub(crate) fn heading(settings: &Settings) -> String {
    let Settings { threads, clients, pipeline, ratio, protocol, address, .. } = settings;
    let loop_ = match settings.rate {
        Some(rate) => {
            format!("open loop at {rate} requests/s, latency from each request's scheduled time")
        }
        None if settings.sliding => {
            "closed loop: a connection sends one request for each answer".to_owned()
        }
        None => {
            "closed loop: a connection sends a pipeline when the one before is answered".to_owned()
        }
    };
    let ends = match settings.stop {
        Stop::Requests(count) => format!("{count} requests each"),
        Stop::After(time) => format!("{} s", time.as_secs_f64()),
    };
    let connections = settings.connections();
    format!(
        "{protocol} to {address}: {threads} threads x {clients} connections = {connections}, \
         {pipeline} deep, sets:gets {}:{}, {ends}\n{loop_}\n",
        ratio.sets, ratio.gets,
    )
}

/// A row for each command: the figures of `outcome`, and the medians of the runs' percentiles.
pub(crate) fn figures(outcome: &Outcome, runs: &[Measured], percentiles: &[f64]) -> String {
    let mut text = format!("{:<6}{:>12}{:>11}{:>11}", "", "requests/s", "hits/s", "misses/s");
    for percentile in percentiles {
        let _ = write!(text, "{:>10}", format!("p{percentile}"));
    }
    let _ = writeln!(text, "{:>10}{:>10}{:>10}", "max", "mean", "MB/s");
    for (name, command) in &outcome.commands {
        let per_second = |count| per_second(count, outcome.seconds);
        let (hits, misses) = (per_second(command.hits), per_second(command.misses));
        let _ = write!(text, "{name:<6}{:>12.0}{hits:>11.0}{misses:>11.0}", command.per_second);
        for percentile in percentiles {
            let of_runs = runs.iter().filter_map(|run| run.histograms.get(name));
            let at = median(of_runs.map(|h| per_mille(h.value_at_percentile(*percentile))));
            let _ = write!(text, "{:>10}", micros(at));
        }
        let megabytes = per_second(command.sent_bytes + command.received_bytes) / 1e6;
        let (max, mean) = (micros(command.latency.max), micros(command.latency.mean));
        let _ = writeln!(text, "{max:>10}{mean:>10}{megabytes:>10.1}");
    }
    text.push_str("latencies in microseconds\n");
    text
}

/// CPU time of the server and the load, memory of the server, and faults.
pub(crate) fn costs(outcome: &Outcome) -> String {
    let mut text = String::new();
    match &outcome.server {
        Some(server) => text.push_str(&server_line(server)),
        None => text.push_str(
            "server: its process was not found on this machine, or is not accessible (see --pid)\n",
        ),
    }
    let share = outcome.load_cpu_seconds / outcome.seconds.max(1e-9);
    let _ = writeln!(text, "load generator: {share:.2} cores busy");
    for (what, times) in &outcome.faults {
        let _ = writeln!(text, "FAULT {times} x {what}");
    }
    text
}

fn server_line(server: &ServerCost) -> String {
    let counted = match (server.cycles, server.instructions) {
        (Some(cycles), Some(instructions)) => {
            format!("{cycles:.0} cycles and {instructions:.0} instructions in user mode")
        }
        _ => "no hardware counters".to_owned(),
    };
    format!(
        "server (pid {}): {:.3} us user + {:.3} us system CPU per request; {counted}; RSS {:.1} MiB \
         before, {:.1} MiB after\n",
        server.pid,
        server.user_micros,
        server.system_micros,
        mebibytes(server.rss_before),
        mebibytes(server.rss_after),
    )
}

/// The latency distribution by percentile.
pub(crate) fn histogram(total: &Histogram<u64>) -> String {
    let mut text = format!("{:>12}{:>14}{:>14}\n", "percentile", "microseconds", "requests");
    for value in total.iter_quantiles(2) {
        let percentile = value.quantile_iterated_to() * 100.0;
        let count = value.count_at_value();
        if count > 0 {
            let at = micros(per_mille(value.value_iterated_to()));
            let _ = writeln!(text, "{percentile:>12.4}{at:>14}{count:>14}");
        }
    }
    text
}

fn micros(micros: f64) -> String {
    match micros {
        _ if micros < 100.0 => format!("{micros:.1}"),
        _ => format!("{micros:.0}"),
    }
}

#[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
fn per_mille(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

#[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
fn per_second(count: u64, seconds: f64) -> f64 {
    count as f64 / seconds.max(1e-9)
}

#[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
