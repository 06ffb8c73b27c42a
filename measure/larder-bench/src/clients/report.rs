//! Writes results as tables, or as CSV lines for `scripts/bench-clients`.

use super::arguments::{Arguments, Mode};
use super::results::{Errors, Load, Times, micros};
use std::io::{self, Write};
use std::time::Duration;

pub(crate) struct Report<'r> {
    client: &'static str,
    arguments: &'r Arguments,
    out: &'r mut dyn Write,
    /// The heading of the current table.
    table: &'static str,
}

/// The header lines of the tables. Rows use the same column widths.
const TIMES: &str = "threads   mean µs    ± σ µs    p99 µs    max µs  errors";
const LOAD: &str = "threads  operations/s    CPU µs   mean µs    p50 µs    p99 µs  errors";
const MANY: &str = "keys of a get    CPU µs";

impl<'r> Report<'r> {
    pub(crate) fn new(
        client: &'static str,
        arguments: &'r Arguments,
        out: &'r mut dyn Write,
    ) -> Self {
        Self { client, arguments, out, table: "" }
    }

    fn mode(&self) -> &'static str {
        match self.arguments.mode {
            Mode::Shared => "shared",
            Mode::Pool => "pool",
            Mode::None => "none",
            Mode::Thread => "thread",
        }
    }

    /// Prints the header line of a table, unless the previous row belongs to the same table.
    fn head(&mut self, table: &'static str) -> io::Result<()> {
        if self.table == table {
            return Ok(());
        }
        let gap = if self.table.is_empty() { "" } else { "\n" };
        self.table = table;
        writeln!(self.out, "{gap}{table}")
    }

    fn csv(&mut self, threads: usize, name: &str, value: f64) -> io::Result<()> {
        let (client, mode) = (self.client, self.mode());
        writeln!(self.out, "{client},{mode},{threads},{name},{value:.3}")?;
        // Flushes each line, because scripts/bench-clients records the time at which it receives
        // the line.
        self.out.flush()
    }

    /// Prints the first error below its row.
    fn first_error(&mut self, errors: &Errors) -> io::Result<()> {
        match &errors.first {
            Some(error) => writeln!(self.out, "         first error: {error}"),
            None => Ok(()),
        }
    }

    pub(crate) fn times(&mut self, threads: usize, found: &Times) -> io::Result<()> {
        if self.arguments.csv {
            let (client, mode) = (self.client, self.mode());
            for (round, thread, time) in &found.times {
                let time = micros(*time);
                writeln!(self.out, "{client},{mode},{threads},{round},{thread},{time:.1}")?;
            }
            return self.csv(threads, "times_errors", found.errors.count as f64);
        }
        self.head(TIMES)?;
        let mut times: Vec<f64> = found.times.iter().map(|(.., time)| micros(*time)).collect();
        times.sort_unstable_by(f64::total_cmp);
        let (mean, deviation) = mean_and_deviation(&times);
        let p99 = times.get((times.len() * 99).div_ceil(100).max(1) - 1).unwrap_or(&0.0);
        let max = times.last().unwrap_or(&0.0);
        let errors = found.errors.count;
        writeln!(
            self.out,
            "{threads:>7} {mean:>9.1} {deviation:>9.1} {p99:>9.1} {max:>9.1} {errors:>7}"
        )?;
        self.first_error(&found.errors)
    }

    pub(crate) fn load(&mut self, threads: usize, found: &Load) -> io::Result<()> {
        let figures = [
            ("operations_per_s", found.per_second),
            ("cpu_us", found.cpu_micros),
            ("mean_us", found.mean()),
            ("p50_us", found.quantile(0.5)),
            ("p99_us", found.quantile(0.99)),
            ("errors", found.errors.count as f64),
        ];
        if self.arguments.csv {
            return figures.iter().try_for_each(|(name, value)| self.csv(threads, name, *value));
        }
        self.head(LOAD)?;
        let [rate, cpu, mean, p50, p99, errors] = figures.map(|(_, value)| value);
        writeln!(
            self.out,
            "{threads:>7} {rate:>13.0} {cpu:>9.2} {mean:>9.1} {p50:>9.1} {p99:>9.1} {errors:>7}"
        )?;
        self.first_error(&found.errors)
    }

    pub(crate) fn many(&mut self, keys: usize, cpu_micros: f64) -> io::Result<()> {
        if self.arguments.csv {
            return self.csv(1, &format!("get_many_{keys}_cpu_us"), cpu_micros);
        }
        self.head(MANY)?;
        writeln!(self.out, "{keys:>13} {cpu_micros:>9.2}")
    }

    /// Reports that operations succeed, so that the user can stop the server.
    pub(crate) fn ready(&mut self) -> io::Result<()> {
        if self.arguments.csv {
            return self.csv(1, "ready", 1.0);
        }
        writeln!(self.out, "operations succeed: stop the server now, and start it again")?;
        self.out.flush()
    }

    pub(crate) fn recovered(&mut self, outage: Duration) -> io::Result<()> {
        if self.arguments.csv {
            return self.csv(1, "outage_us", micros(outage));
        }
        writeln!(self.out, "operations failed for {:.1} ms", micros(outage) / 1e3)
    }
}

/// Returns the mean and the population standard deviation.
fn mean_and_deviation(times: &[f64]) -> (f64, f64) {
    let count = times.len().max(1) as f64;
    let mean = times.iter().sum::<f64>() / count;
    let variance = times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / count;
    (mean, variance.sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_and_deviations() {
        assert_eq!(mean_and_deviation(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]), (5.0, 2.0));
        assert_eq!(mean_and_deviation(&[]), (0.0, 0.0));
    }
}
