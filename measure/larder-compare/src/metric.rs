//! The metrics of a comparison, with their names and units.

use super::results::{CellResult, Record};
use serde::Serialize;

/// A metric that reports show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Number of requests per second that the server answered without an error.
    Throughput,
    /// Minimum latency.
    Min,
    /// Arithmetic mean of the latency.
    Mean,
    /// Median latency.
    P50,
    /// 90th percentile of the latency.
    P90,
    /// 99th percentile of the latency.
    P99,
    /// 99.9th percentile of the latency.
    P99_9,
    /// 99.99th percentile of the latency.
    P99_99,
    /// Maximum latency.
    Max,
    /// User and system CPU time of the server per request.
    Cpu,
    /// User CPU time of the server per request.
    UserCpu,
    /// CPU cycles of the server in user mode per request; only on machines with hardware counters.
    Cycles,
    /// Share of requested keys that were found.
    Hits,
    /// CPU time of the load generator, in percent of its cores. If it is near 100, the load
    /// generator may limit the results.
    LoadBusy,
    /// CPU time of other programs, in percent of all cores of the machine. High values make the
    /// results doubtful.
    OthersBusy,
    /// Number of items that the server holds per GiB of its memory limit.
    HeldByLimit,
    /// Number of items that the server holds per GiB of its resident memory.
    HeldByRss,
    /// Share of the found keys that were read from the server's flash tier.
    FromFlash,
    /// Time from the signal of a restart to the first reply of the new process.
    FirstAnswer,
    /// Time from the signal of a restart to the first hit in the new process.
    FirstHit,
    /// Number of items after a restart, in percent of the number before the restart.
    Kept,
}

impl Metric {
    /// All metrics, in the order of reports.
    pub const ALL: [Self; 21] = [
        Self::Throughput,
        Self::Min,
        Self::Mean,
        Self::P50,
        Self::P90,
        Self::P99,
        Self::P99_9,
        Self::P99_99,
        Self::Max,
        Self::Cpu,
        Self::UserCpu,
        Self::Cycles,
        Self::Hits,
        Self::LoadBusy,
        Self::OthersBusy,
        Self::HeldByLimit,
        Self::HeldByRss,
        Self::FromFlash,
        Self::FirstAnswer,
        Self::FirstHit,
        Self::Kept,
    ];

    /// Returns the metric's name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Throughput => "Throughput",
            Self::Min => "Latency min",
            Self::Mean => "Latency average",
            Self::P50 => "Latency p50",
            Self::P90 => "Latency p90",
            Self::P99 => "Latency p99",
            Self::P99_9 => "Latency p99.9",
            Self::P99_99 => "Latency p99.99",
            Self::Max => "Latency max",
            Self::Cpu => "CPU per request",
            Self::UserCpu => "User CPU per request",
            Self::Cycles => "User cycles per request",
            Self::Hits => "Hits",
            Self::LoadBusy => "Load's cores busy",
            Self::OthersBusy => "Machine busy with others",
            Self::HeldByLimit => "Items per GiB of limit",
            Self::HeldByRss => "Items per GiB of RSS",
            Self::FromFlash => "Hits from flash",
            Self::FirstAnswer => "First answer after the signal",
            Self::FirstHit => "First hit after the signal",
            Self::Kept => "Items kept",
        }
    }

    /// Returns the metric's unit.
    #[must_use]
    pub fn unit(self) -> Unit {
        match self {
            Self::Throughput => Unit::PerSecond,
            Self::Hits | Self::LoadBusy | Self::OthersBusy | Self::FromFlash | Self::Kept => {
                Unit::Percent
            }
            Self::HeldByLimit | Self::HeldByRss => Unit::Items,
            Self::Cycles => Unit::Cycles,
            _ => Unit::Micros,
        }
    }

    /// Returns the metric's short name, for file names and CSV columns.
    #[must_use]
    pub fn slug(self) -> &'static str {
        match self {
            Self::Throughput => "throughput",
            Self::Min => "min",
            Self::Mean => "average",
            Self::P50 => "p50",
            Self::P90 => "p90",
            Self::P99 => "p99",
            Self::P99_9 => "p99.9",
            Self::P99_99 => "p99.99",
            Self::Max => "max",
            Self::Cpu => "cpu",
            Self::UserCpu => "user-cpu",
            Self::Cycles => "cycles",
            Self::Hits => "hits",
            Self::LoadBusy => "load-busy",
            Self::OthersBusy => "others-busy",
            Self::HeldByLimit => "held-by-limit",
            Self::HeldByRss => "held-by-rss",
            Self::FromFlash => "from-flash",
            Self::FirstAnswer => "first-answer",
            Self::FirstHit => "first-hit",
            Self::Kept => "kept",
        }
    }

    /// Returns whether reports compare servers by this metric, with a plot and a ratio to the
    /// baseline.
    #[must_use]
    pub fn is_compared(self) -> bool {
        !matches!(
            self,
            Self::Hits | Self::LoadBusy | Self::OthersBusy | Self::FromFlash | Self::Kept
        )
    }

    /// Returns whether higher values are better.
    #[must_use]
    pub fn more_is_better(self) -> bool {
        matches!(
            self,
            Self::Throughput | Self::Hits | Self::HeldByLimit | Self::HeldByRss | Self::Kept
        )
    }

    /// Returns the value of the metric in a record, or `None` if the metric does not apply or is
    /// unknown. In a failed cell, only [`OthersBusy`](Self::OthersBusy) can be known. `load_cores`
    /// is the number of cores of the load generator.
    #[must_use]
    pub fn of(self, record: &Record, load_cores: usize) -> Option<f64> {
        if self == Self::OthersBusy {
            return record.other_cpu_percent;
        }
        if self == Self::Min {
            return record.latency_profile.as_ref().map(|profile| profile.min_micros);
        }
        if let Some(restart) = &record.restart
            && record.failure().is_none()
        {
            let micros = |secs: Option<f64>| secs.map(|secs| secs * 1e6);
            match self {
                Self::FirstAnswer => return micros(restart.answered_secs),
                Self::FirstHit => return micros(restart.hit_secs),
                Self::Kept => {
                    let share = restart.items_after as f64 / restart.items_before.max(1) as f64;
                    return Some(100.0 * share);
                }
                _ => (),
            }
        }
        match &record.result {
            CellResult::Measured(outcome) => self.of_outcome(outcome, load_cores),
            CellResult::Filled(filled) => {
                let per_gib = |bytes: u64| filled.items * GIB / bytes as f64;
                match self {
                    Self::HeldByLimit => Some(per_gib(filled.limit_bytes)),
                    Self::HeldByRss => filled.rss_bytes.map(per_gib),
                    _ => None,
                }
            }
            CellResult::Failed(_) => None,
        }
    }

    fn of_outcome(self, outcome: &larder_bench::Outcome, load_cores: usize) -> Option<f64> {
        let total = outcome.commands.get("total")?;
        match self {
            Self::Throughput => Some(total.per_second),
            Self::Mean => Some(total.latency.mean),
            Self::P50 => Some(total.latency.p50),
            Self::P90 => Some(total.latency.p90),
            Self::P99 => Some(total.latency.p99),
            Self::P99_9 => Some(total.latency.p99_9),
            Self::P99_99 => Some(total.latency.p99_99),
            Self::Max => Some(total.latency.max),
            Self::Cpu => known(outcome.server.map(|cost| cost.user_micros + cost.system_micros)),
            Self::UserCpu => known(outcome.server.map(|cost| cost.user_micros)),
            Self::Cycles => outcome.server.and_then(|cost| cost.cycles),
            Self::Hits => {
                let asked = total.hits + total.misses;
                (asked > 0).then(|| 100.0 * total.hits as f64 / asked as f64)
            }
            Self::LoadBusy => {
                Some(100.0 * outcome.load_cpu_seconds / (outcome.seconds * load_cores as f64))
            }
            Self::FromFlash => {
                outcome.flash.and_then(|flash| flash.share_from_flash).map(|share| 100.0 * share)
            }
            Self::Min | Self::OthersBusy | Self::HeldByLimit | Self::HeldByRss => None,
            Self::FirstAnswer | Self::FirstHit | Self::Kept => None,
        }
    }
}

/// Replaces a cost of 0 by `None`. Each request takes CPU time, so a cost of 0 means that the time
/// is below the system's resolution of about 10 ms, or is not reported.
fn known(cost: Option<f64>) -> Option<f64> {
    cost.filter(|cost| *cost > 0.0)
}

const GIB: f64 = (1u64 << 30) as f64;

/// The unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Requests per second.
    PerSecond,
    /// Microseconds.
    Micros,
    /// Percent.
    Percent,
    /// Items per GiB.
    Items,
    /// CPU cycles.
    Cycles,
}

impl Unit {
    /// Returns the unit's name on an axis.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PerSecond => "requests/s",
            Self::Micros => "µs",
            Self::Percent => "%",
            Self::Items => "items/GiB",
            Self::Cycles => "cycles",
        }
    }

    /// Formats a number without the unit, rounded for readability. Times of 9,995 or more have
    /// thousands separators. Rates and counts of 9,995 or more are in thousands (k), and from
    /// 999,500 in millions (M).
    #[must_use]
    pub fn number(self, value: f64) -> String {
        let size = value.abs();
        match self {
            Self::PerSecond | Self::Items | Self::Cycles if size >= 999_500.0 => {
                digits(value / 1e6) + " M"
            }
            Self::PerSecond | Self::Items | Self::Cycles if size >= 9_995.0 => {
                digits(value / 1e3) + " k"
            }
            Self::Micros if size >= 9_995.0 => thousands(value),
            _ => digits(value),
        }
    }

    /// Formats a number with its unit, scaled for readability.
    #[must_use]
    pub fn quantity(self, value: f64) -> String {
        match self {
            Self::Micros if value.abs() >= 999_500.0 => digits(value / 1e6) + " s",
            Self::Micros if value.abs() >= 999.5 => digits(value / 1e3) + " ms",
            _ => self.number(value) + " " + self.name(),
        }
    }
}

/// Formats a number with all digits before the decimal point. Numbers from 99.95 have no decimals,
/// numbers from 9.995 have one, numbers from 0.0995 have two, and smaller numbers have four.
/// Trailing zeros are removed.
fn digits(value: f64) -> String {
    let size = value.abs();
    let decimals = match size {
        _ if size >= 99.95 || size == 0.0 => 0,
        _ if size >= 9.995 => 1,
        _ if size >= 0.0995 => 2,
        _ => 4,
    };
    let text = format!("{value:.decimals$}");
    if text.contains('.') {
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    text
}

fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits.as_str()), |d| ("-", d));
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .filter_map(|group| std::str::from_utf8(group).ok())
        .collect();
    format!("{sign}{}", groups.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example;
    use larder_bench::ServerCost;

    #[test]
    fn a_cost_that_was_not_measured_is_unknown() {
        let mut record = example::records(&example::setup()).remove(0);
        let CellResult::Measured(outcome) = &mut record.result else { panic!("{record:?}") };
        assert!(Metric::UserCpu.of_outcome(outcome, 1).is_some());
        for server in [None, Some(ServerCost::default())] {
            outcome.server = server;
            assert_eq!(Metric::Cpu.of_outcome(outcome, 1), None);
            assert_eq!(Metric::UserCpu.of_outcome(outcome, 1), None);
        }
    }

    #[test]
    fn quantities_are_scaled() {
        for (unit, value, expected) in [
            (Unit::PerSecond, 0.0, "0 requests/s"),
            (Unit::PerSecond, 950.0, "950 requests/s"),
            (Unit::PerSecond, 123_456.0, "123 k requests/s"),
            (Unit::PerSecond, 1_234_567.0, "1.23 M requests/s"),
            (Unit::PerSecond, 1_000_000.0, "1 M requests/s"),
            (Unit::Micros, 0.0312, "0.0312 µs"),
            (Unit::Micros, 1.5, "1.5 µs"),
            (Unit::Micros, 999.0, "999 µs"),
            (Unit::Micros, 1500.0, "1.5 ms"),
            (Unit::Micros, 2_500_000.0, "2.5 s"),
            (Unit::Percent, 100.0, "100 %"),
            (Unit::Percent, 99.93, "99.9 %"),
        ] {
            assert_eq!(unit.quantity(value), expected);
        }
        assert_eq!(Unit::Micros.number(1_234_567.0), "1,234,567");
    }
}
