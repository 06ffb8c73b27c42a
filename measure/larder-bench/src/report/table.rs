//! The results of runs as a table for the terminal.

use crate::find_rate::{Bound, Search, Step};
use crate::median::median;
use crate::outcome::{FlashUse, Interruption, Offered, Outcome, ServerCost};
use crate::run::measured::Measured;
use crate::settings::{Arrivals, Settings, Stop};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Returns two lines that summarise the settings. If there are several servers, also returns a line
/// with the servers' versions.
pub(crate) fn heading(
    settings: &Settings,
    versions: &[Option<String>],
    searched: Option<Bound>,
) -> String {
    let Settings { threads, clients, pipeline, ratio, protocol, servers, .. } = settings;
    let intervals = match settings.arrivals {
        Arrivals::Fixed => "even intervals",
        Arrivals::Poisson => "random intervals (Poisson)",
        Arrivals::Bursts => "in bursts of all connections",
    };
    let client = if settings.has_several_servers() { "client" } else { "connection" };
    let loop_ = match settings.rate {
        _ if searched.is_some() => format!(
            "open loop at several rates, {intervals}, latency from each request's scheduled time"
        ),
        Some(rate) => {
            format!(
                "open loop at {rate} requests/s, {intervals}, latency from each request's scheduled \
                 time"
            )
        }
        None if let Some(speed) = settings.trace.as_ref().and_then(|trace| trace.speed) => format!(
            "open loop at {speed} times the trace's speed, latency from each request's own time"
        ),
        None if settings.sliding => {
            format!("closed loop: a {client} sends one request for each answer")
        }
        None => {
            format!("closed loop: a {client} sends a pipeline when the one before is answered")
        }
    };
    let ends = match settings.stop {
        Stop::Requests(count) => format!("{} each", counted(count, "request")),
        Stop::After(time) => format!("{} s", time.as_secs_f64()),
        Stop::EndOfTrace => "to its end".to_owned(),
    };
    let asked = match settings.commands.as_slice() {
        [] if let Some(trace) = &settings.trace => {
            let number = trace.requests.map(|count| format!("{} of ", counted(count, "request")));
            format!("{}trace {}", number.unwrap_or_default(), trace.file.display())
        }
        [] if !settings.key_spaces.is_empty() => {
            let spaces = settings.key_spaces.iter();
            let shares = spaces.map(|space| format!("{} x {}", space.share, space.name));
            format!("key spaces {}", shares.collect::<Vec<_>>().join(" : "))
        }
        [] => format!("sets:gets {}:{}", ratio.sets, ratio.gets),
        commands => {
            let lines =
                commands.iter().map(|command| format!("{} x {}", command.ratio, command.line));
            lines.collect::<Vec<_>>().join(" : ")
        }
    };
    let connections = settings.connections();
    let threads = counted(*threads as u64, "thread");
    let clients = counted(*clients as u64, client);
    let (to, each) = match servers.as_slice() {
        [one] => (one.address.to_string(), String::new()),
        several => {
            let count = several.len();
            (
                format!("{count} servers ({})", settings.distribution),
                format!(" x {count} connections"),
            )
        }
    };
    let mut text = format!(
        "{protocol} to {to}: {threads} x {clients}{each} = {connections}, {pipeline} deep, {asked}, \
         {ends}\n{loop_}\n"
    );
    for (server, version) in servers.iter().zip(versions) {
        let version = version.as_deref().unwrap_or("unknown version");
        let _ = writeln!(text, "server {}: {version}", server.address);
    }
    text
}

/// Returns a number with a noun, in the plural unless the number is 1.
pub(crate) fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Returns the runs of a search for the highest rate, and its result.
pub(crate) fn search(bound: Bound, search: &Search) -> String {
    let Bound { percentile, millis } = bound;
    let latency = format!("p{percentile}");
    let mut text =
        format!("{:>12}{:>12}{latency:>10}{:>10}\n", "requested/s", "achieved/s", "faults");
    for step in &search.steps {
        let Step { asked_per_second, got_per_second, latency_micros, faults, passed } = step;
        let verdict = if *passed { "" } else { "  failed" };
        let at = time(*latency_micros);
        let _ = writeln!(
            text,
            "{asked_per_second:>12}{got_per_second:>12.0}{at:>10}{faults:>10}{verdict}"
        );
    }
    let kept = format!("{latency} of at most {millis} ms");
    let _ = match (search.highest_per_second, search.fails_at_per_second) {
        (Some(highest), Some(fails)) => {
            writeln!(text, "highest rate with {kept}: {highest}/s; {fails}/s failed")
        }
        (Some(highest), None) => {
            writeln!(text, "{kept} even at the maximum of --rate: {highest}/s")
        }
        (None, _) => writeln!(text, "no rate with {kept}"),
    };
    text.push_str(&faults(&search.fill_faults));
    text
}

/// Returns the reason for an early end, the numbers of lost connections and failed requests, and
/// the interruption. Empty if the run has none of these.
pub(crate) fn warnings(outcome: &Outcome) -> String {
    let mut text = String::new();
    if let Some(reason) = &outcome.ended_early {
        let _ = writeln!(text, "ENDED EARLY: {reason}");
    }
    if outcome.lost_connections > 0 {
        let of = counted(outcome.connections, "connection");
        let _ = writeln!(text, "LOST {} of {of}", outcome.lost_connections);
    }
    if let Some(interruption) = &outcome.interruption {
        text.push_str(&interruption_line(interruption));
    }
    let total = outcome.total();
    let unanswered = total.errors + total.never_answered + total.never_sent;
    if unanswered > 0 {
        let due = total.requests + unanswered;
        let _ = writeln!(
            text,
            "OF {} {} answered without an error, {} with an error, {} never answered, {} never sent",
            counted(due, "request"),
            total.requests,
            total.errors,
            total.never_answered,
            total.never_sent,
        );
    }
    text
}

/// Returns the requested and the achieved rate of an open loop, the numbers of requests that were
/// never sent or never answered, and the delays of the load generator. Empty for a closed loop.
pub(crate) fn offered(outcome: &Outcome) -> String {
    let Some(Offered { per_second, lateness, .. }) = &outcome.offered else { return String::new() };
    let total = outcome.total();
    format!(
        "requested {per_second:.0}/s, achieved {:.0}/s, {} never sent, {} never answered\n\
         load generator late by p50 {}, p99 {}, max {}, while a connection was free\n",
        total.per_second,
        total.never_sent,
        total.never_answered,
        time(lateness.p50),
        time(lateness.p99),
        time(lateness.max),
    )
}

/// Returns a row for each command: the figures of `outcome`, and each percentile as the median over
/// the runs.
pub(crate) fn figures(outcome: &Outcome, runs: &[Measured], percentiles: &[f64]) -> String {
    let longest = outcome.commands.keys().map(|name| name.chars().count()).max();
    let width = longest.unwrap_or(0).max(6);
    let mut text = format!(
        "{:<width$}{:>12}{:>11}{:>11}{:>11}",
        "", "requests/s", "errors/s", "hits/s", "misses/s"
    );
    for percentile in percentiles {
        let _ = write!(text, "{:>10}", format!("p{percentile}"));
    }
    let _ = writeln!(text, "{:>10}{:>10}{:>10}", "max", "mean", "MB/s");
    for (name, command) in &outcome.commands {
        let per_second = |count| per_second(count, outcome.seconds);
        let _ = write!(
            text,
            "{name:<width$}{:>12.0}{:>11.0}{:>11.0}{:>11.0}",
            command.per_second,
            per_second(command.errors),
            per_second(command.hits),
            per_second(command.misses),
        );
        for percentile in percentiles {
            let of_runs = runs.iter().filter_map(|run| run.histograms.get(name));
            let at = median(of_runs.map(|h| per_mille(h.value_at_percentile(*percentile))));
            let _ = write!(text, "{:>10}", time(at));
        }
        let megabytes = per_second(command.sent_bytes + command.received_bytes) / 1e6;
        let (max, mean) = (time(command.latency.max), time(command.latency.mean));
        let _ = writeln!(text, "{max:>10}{mean:>10}{megabytes:>10.1}");
    }
    text
}

/// Returns a heading and a row for each server. Empty if there is only one server.
pub(crate) fn servers(outcome: &Outcome) -> String {
    let longest = outcome.servers.iter().map(|server| server.address.len()).max();
    let Some(width) = longest else { return String::new() };
    let mut text = format!(
        "{:<width$}{:>12}{:>11}{:>11}{:>11}{:>8}\n",
        "", "requests/s", "errors/s", "hits/s", "misses/s", "lost"
    );
    for server in &outcome.servers {
        let per_second = |count| per_second(count, outcome.seconds);
        let _ = writeln!(
            text,
            "{:<width$}{:>12.0}{:>11.0}{:>11.0}{:>11.0}{:>8}",
            server.address,
            per_second(server.requests),
            per_second(server.errors),
            per_second(server.hits),
            per_second(server.misses),
            server.lost_connections,
        );
    }
    text
}

/// Returns the server's CPU time, memory and flash activity, the load generator's CPU time, and the
/// faults.
pub(crate) fn costs(outcome: &Outcome) -> String {
    let mut text = String::new();
    match (&outcome.server, outcome.servers.as_slice()) {
        (Some(server), _) => text.push_str(&server_line("server", server)),
        (None, []) => text.push_str(
            "server: no process with this address is accessible on this machine (see --pid)\n",
        ),
        (None, several) => {
            let costs = several.iter().filter_map(|server| Some((server, server.cost?)));
            for (server, cost) in costs {
                text.push_str(&server_line(&format!("server {}", server.address), &cost));
            }
        }
    }
    if let Some(flash) = &outcome.flash {
        text.push_str(&flash_line("flash", flash));
    }
    for server in &outcome.servers {
        if let Some(flash) = &server.flash {
            text.push_str(&flash_line(&format!("flash of {}", server.address), flash));
        }
    }
    let share = outcome.load_cpu_seconds / outcome.seconds.max(1e-9);
    let _ = writeln!(text, "load generator: {share:.2} cores busy");
    text.push_str(&faults(&outcome.faults));
    text
}

fn faults(faults: &BTreeMap<String, u64>) -> String {
    faults.iter().fold(String::new(), |mut text, (fault, times)| {
        let _ = writeln!(text, "FAULT {times} x {fault}");
        text
    })
}

fn server_line(name: &str, server: &ServerCost) -> String {
    let counted = match (server.cycles, server.instructions) {
        (Some(cycles), Some(instructions)) => {
            format!("{cycles:.0} cycles and {instructions:.0} instructions in user mode")
        }
        _ => "no hardware counters".to_owned(),
    };
    format!(
        "{name} (pid {}): {:.3} us user + {:.3} us system CPU per request; {counted}; RSS {:.1} MiB \
         before, {:.1} MiB after\n",
        server.pid,
        server.user_micros,
        server.system_micros,
        mebibytes(server.rss_before),
        mebibytes(server.rss_after),
    )
}

fn interruption_line(interruption: &Interruption) -> String {
    let Interruption { lost_connections, lost_requests, begun_secs, .. } = interruption;
    let after = |at: Option<f64>| match at {
        Some(at) => format!("after {}", time((at - begun_secs) * 1e6)),
        None => "never".to_owned(),
    };
    format!(
        "INTERRUPTED at {begun_secs:.3} s: {}, {}; first answer {}, first hit {}; then {} hits and {} \
         misses\n",
        counted(*lost_connections, "lost connection"),
        counted(*lost_requests, "lost request"),
        after(interruption.answered_secs),
        after(interruption.hit_secs),
        interruption.hits_after,
        interruption.misses_after,
    )
}

fn flash_line(name: &str, flash: &FlashUse) -> String {
    let share = flash.share_from_flash.map_or("none".to_owned(), percent);
    let each = match flash.sets {
        0 => String::new(),
        sets => format!(", {:.0} B per set", per_second(flash.written_bytes, float(sets))),
    };
    format!(
        "{name}: {share} of the hits were read from it, {} failed; {:.1} MiB written{each}; {} items \
         in {:.1} MiB\n",
        counted(flash.failed_reads, "read"),
        mebibytes(flash.written_bytes),
        flash.items,
        mebibytes(flash.used_bytes),
    )
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Returns the latency distribution by percentile. Each row counts the requests whose latency is
/// above the previous row's latency and at most the row's own latency. Rows without requests are
/// omitted.
pub(crate) fn histogram(total: &Histogram<u64>) -> String {
    let mut text = format!("{:>12}{:>14}{:>14}\n", "percentile", "latency", "requests");
    for value in total.iter_quantiles(2) {
        let percentile = value.quantile_iterated_to() * 100.0;
        let count = value.count_since_last_iteration();
        if count > 0 {
            let at = time(per_mille(value.value_iterated_to()));
            let _ = writeln!(text, "{percentile:>12.4}{at:>14}{count:>14}");
        }
    }
    text
}

/// Formats a time in microseconds, milliseconds or seconds. From 1 us to 1,000 s, it has three
/// significant digits. Shorter times have two decimals, and longer ones are whole seconds.
pub(crate) fn time(micros: f64) -> String {
    match micros {
        _ if micros < 999.5 => digits(micros) + " us",
        _ if micros < 999_500.0 => digits(micros / 1e3) + " ms",
        _ => digits(micros / 1e6) + " s",
    }
}

fn digits(value: f64) -> String {
    match value {
        _ if value < 9.995 => format!("{value:.2}"),
        _ if value < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
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

#[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_histograms_counts_add_up() {
        let mut latencies = crate::load::stats::histogram();
        for at in 0..100_000 {
            latencies.record(1000 + at * at % 900_007).unwrap();
        }
        let table = histogram(&latencies);
        let counts = table.lines().skip(1).map(|row| row.split_whitespace().last().unwrap());
        assert_eq!(counts.map(|count| count.parse::<u64>().unwrap()).sum::<u64>(), 100_000);
    }

    #[test]
    fn times_have_the_unit_of_their_size() {
        for (micros, shown) in [
            (0.0, "0.00 us"),
            (0.3, "0.30 us"),
            (55.07, "55.1 us"),
            (999.4, "999 us"),
            (999.6, "1.00 ms"),
            (12_345.0, "12.3 ms"),
            (999_600.0, "1.00 s"),
            (1_526_727.0, "1.53 s"),
            (3_600_000_000.0, "3600 s"),
        ] {
            assert_eq!(time(micros), shown);
        }
    }

    #[test]
    fn one_is_singular() {
        assert_eq!(counted(1, "thread"), "1 thread");
        assert_eq!(counted(2, "thread"), "2 threads");
    }

    #[test]
    fn a_run_without_faults_has_no_warnings() {
        assert_eq!(warnings(&Outcome::default()), "");
    }
}
