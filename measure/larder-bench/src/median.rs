//! Combines the results of several runs: each figure is the median over the runs.

use crate::outcome::{Command, FlashUse, Latency, Offered, Outcome, ServerCost, ServerOutcome};
use std::collections::{BTreeMap, BTreeSet};

/// Returns the median. For an even count, this is the mean of the two middle numbers. Returns 0 if
/// there are no numbers.
#[must_use]
pub fn median(numbers: impl IntoIterator<Item = f64>) -> f64 {
    let mut numbers: Vec<f64> = numbers.into_iter().collect();
    numbers.sort_by(f64::total_cmp);
    match (numbers.get(numbers.len() / 2), numbers.len().is_multiple_of(2)) {
        (None, _) => 0.0,
        (Some(upper), true) => f64::midpoint(*upper, numbers[numbers.len() / 2 - 1]),
        (Some(middle), false) => *middle,
    }
}

impl Outcome {
    /// Computes the median of each figure separately, and sums faults, connections and lost
    /// connections. The reason for an early end is that of the first run with a reason, and the
    /// interruption is that of the first interrupted run.
    #[must_use]
    pub fn median_of(runs: &[Self]) -> Self {
        let names: BTreeSet<&String> = runs.iter().flat_map(|run| run.commands.keys()).collect();
        let command = |name: &String| {
            let of_name: Vec<_> = runs.iter().filter_map(|run| run.commands.get(name)).collect();
            (name.clone(), median_command(&of_name))
        };
        let mut faults = BTreeMap::new();
        for (what, times) in runs.iter().flat_map(|run| &run.faults) {
            *faults.entry(what.clone()).or_default() += times;
        }
        let servers: Vec<_> = runs.iter().filter_map(|run| run.server).collect();
        Self {
            seconds: median(runs.iter().map(|run| run.seconds)),
            open_loop: runs.iter().any(|run| run.open_loop),
            offered: median_offered(runs),
            ended_early: runs.iter().find_map(|run| run.ended_early.clone()),
            connections: runs.iter().map(|run| run.connections).sum(),
            lost_connections: runs.iter().map(|run| run.lost_connections).sum(),
            commands: names.into_iter().map(command).collect(),
            server: (!servers.is_empty()).then(|| median_server(&servers)),
            // The times of different interruptions have no meaningful median.
            interruption: runs.iter().find_map(|run| run.interruption),
            flash: median_flash(runs.iter().filter_map(|run| run.flash).collect()),
            servers: median_servers(runs),
            load_cpu_seconds: median(runs.iter().map(|run| run.load_cpu_seconds)),
            faults,
        }
    }
}

/// Computes the median of each server figure, and sums the server's lost connections. All runs must
/// have the same servers in the same order.
fn median_servers(runs: &[Outcome]) -> Vec<ServerOutcome> {
    let servers = runs.first().map_or(0, |run| run.servers.len());
    let median_of = |number: usize| {
        let of_runs: Vec<_> = runs.iter().filter_map(|run| run.servers.get(number)).collect();
        let count =
            |figure: fn(&ServerOutcome) -> u64| whole(of_runs.iter().map(|server| figure(server)));
        let costs: Vec<ServerCost> = of_runs.iter().filter_map(|server| server.cost).collect();
        ServerOutcome {
            address: of_runs[0].address.clone(),
            requests: count(|server| server.requests),
            errors: count(|server| server.errors),
            hits: count(|server| server.hits),
            misses: count(|server| server.misses),
            lost_connections: of_runs.iter().map(|server| server.lost_connections).sum(),
            cost: (!costs.is_empty()).then(|| median_server(&costs)),
            flash: median_flash(of_runs.iter().filter_map(|server| server.flash).collect()),
        }
    };
    (0..servers).map(median_of).collect()
}

fn median_command(runs: &[&Command]) -> Command {
    let count = |figure: fn(&Command) -> u64| whole(runs.iter().map(|run| figure(run)));
    Command {
        requests: count(|c| c.requests),
        per_second: median(runs.iter().map(|run| run.per_second)),
        hits: count(|c| c.hits),
        misses: count(|c| c.misses),
        errors: count(|c| c.errors),
        never_answered: count(|c| c.never_answered),
        never_sent: count(|c| c.never_sent),
        value_bytes: count(|c| c.value_bytes),
        sent_bytes: count(|c| c.sent_bytes),
        received_bytes: count(|c| c.received_bytes),
        latency: median_latency(runs.iter().map(|run| run.latency)),
    }
}

fn median_offered(runs: &[Outcome]) -> Option<Offered> {
    let offered: Vec<Offered> = runs.iter().filter_map(|run| run.offered).collect();
    (!offered.is_empty()).then(|| Offered {
        per_second: median(offered.iter().map(|offered| offered.per_second)),
        due: whole(offered.iter().map(|offered| offered.due)),
        lateness: median_latency(offered.iter().map(|offered| offered.lateness)),
    })
}

fn median_latency(runs: impl Iterator<Item = Latency> + Clone) -> Latency {
    let micros = |figure: fn(Latency) -> f64| median(runs.clone().map(figure));
    Latency {
        p50: micros(|l| l.p50),
        p90: micros(|l| l.p90),
        p99: micros(|l| l.p99),
        p99_9: micros(|l| l.p99_9),
        p99_99: micros(|l| l.p99_99),
        max: micros(|l| l.max),
        mean: micros(|l| l.mean),
        deviation: micros(|l| l.deviation),
    }
}

fn median_server(runs: &[ServerCost]) -> ServerCost {
    let figure = |figure: fn(&ServerCost) -> f64| median(runs.iter().map(figure));
    let counted = |figure: fn(&ServerCost) -> Option<f64>| {
        let counted: Vec<f64> = runs.iter().filter_map(figure).collect();
        (!counted.is_empty()).then(|| median(counted))
    };
    ServerCost {
        pid: runs[0].pid,
        user_micros: figure(|s| s.user_micros),
        system_micros: figure(|s| s.system_micros),
        rss_before: whole(runs.iter().map(|run| run.rss_before)),
        rss_after: whole(runs.iter().map(|run| run.rss_after)),
        cycles: counted(|s| s.cycles),
        instructions: counted(|s| s.instructions),
        written_bytes: runs
            .iter()
            .map(|run| run.written_bytes)
            .collect::<Option<Vec<_>>>()
            .map(|bytes| whole(bytes.into_iter())),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "callers have no further use for it")]
fn median_flash(runs: Vec<FlashUse>) -> Option<FlashUse> {
    let count = |figure: fn(&FlashUse) -> u64| whole(runs.iter().map(figure));
    let shares: Vec<f64> = runs.iter().filter_map(|run| run.share_from_flash).collect();
    (!runs.is_empty()).then(|| FlashUse {
        hits: count(|f| f.hits),
        hits_from_flash: count(|f| f.hits_from_flash),
        share_from_flash: (!shares.is_empty()).then(|| median(shares)),
        failed_reads: count(|f| f.failed_reads),
        sets: count(|f| f.sets),
        written_bytes: count(|f| f.written_bytes),
        read_bytes: count(|f| f.read_bytes),
        items: count(|f| f.items),
        used_bytes: count(|f| f.used_bytes),
    })
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts far below 2^53"
)]
fn whole(numbers: impl Iterator<Item = u64>) -> u64 {
    median(numbers.map(|number| number as f64)).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle() {
        assert!((median([3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!((median([4.0, 1.0]) - 2.5).abs() < f64::EPSILON);
        assert!(median([]).abs() < f64::EPSILON);
    }

    #[test]
    fn each_figure_by_itself() {
        let run = |per_second, p50| {
            let latency = Latency { p50, ..Latency::default() };
            let total = Command { per_second, latency, ..Command::default() };
            let faults = BTreeMap::from([("late".to_owned(), 1)]);
            let commands = BTreeMap::from([("total".to_owned(), total)]);
            Outcome { commands, faults, ..Outcome::default() }
        };
        let median = Outcome::median_of(&[run(1.0, 30.0), run(2.0, 20.0), run(9.0, 10.0)]);
        assert!((median.total().per_second - 2.0).abs() < f64::EPSILON);
        assert!((median.total().latency.p50 - 20.0).abs() < f64::EPSILON);
        assert_eq!(median.faults["late"], 3);
    }
}
