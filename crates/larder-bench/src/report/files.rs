//! Result files: JSON, percentile distributions (`.hgrm`), and HDR interval logs (`.hlog`).

use crate::find_rate::{Bound, Search};
use crate::outcome::Outcome;
use crate::run::Measured;
use crate::settings::Settings;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2Serializer;
use hdrhistogram::serialization::interval_log::IntervalLogWriterBuilder;
use larder_target::Machine;
use serde::Serialize;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The contents of the JSON file.
#[derive(Debug, Serialize)]
pub(crate) struct Json<'r> {
    /// Version of `larder`.
    pub(crate) version: &'static str,
    /// Start of the first run, as a Unix time in seconds.
    pub(crate) time: u64,
    pub(crate) machine: Machine,
    pub(crate) settings: &'r Settings,
    pub(crate) runs: Vec<&'r Outcome>,
    /// The median of each figure by itself.
    pub(crate) median: &'r Outcome,
}

impl Json<'_> {
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        write_json(self, path)
    }
}

/// The contents of the JSON file of `--find-rate`.
#[derive(Debug, Serialize)]
pub(crate) struct SearchJson<'r> {
    /// Version of `larder`.
    pub(crate) version: &'static str,
    pub(crate) machine: Machine,
    pub(crate) settings: &'r Settings,
    pub(crate) bound: Bound,
    #[serde(flatten)]
    pub(crate) search: &'r Search,
}

impl SearchJson<'_> {
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        write_json(self, path)
    }
}

fn write_json(contents: &impl Serialize, path: &Path) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    serde_json::to_writer_pretty(&mut file, contents)?;
    file.write_all(b"\n")?;
    file.flush()
}

/// Writes a run's histograms: `PREFIX_run_N_COMMAND.hgrm` for each command, and the total by second
/// as `PREFIX_run_N.hlog`.
pub(crate) fn write_histograms(
    prefix: &str,
    run: usize,
    measured: &Measured,
    begun: SystemTime,
) -> io::Result<()> {
    for (name, histogram) in &measured.histograms {
        let path = PathBuf::from(format!("{prefix}_run_{run}_{name}.hgrm"));
        write_distribution(histogram, &mut BufWriter::new(File::create(path)?))?;
    }
    let path = format!("{prefix}_run_{run}.hlog");
    write_log(&measured.by_second, begun, &mut BufWriter::new(File::create(path)?))
}

/// Writes the format that HdrHistogram's plotters read, with values in milliseconds.
fn write_distribution(histogram: &Histogram<u64>, out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "{:>12} {:>14} {:>10} {:>14}\n",
        "Value", "Percentile", "TotalCount", "1/(1-Percentile)"
    )?;
    let mut total = 0;
    for value in histogram.iter_quantiles(5) {
        total += value.count_since_last_iteration();
        let (millis, quantile) = (millis(value.value_iterated_to()), value.quantile_iterated_to());
        write!(out, "{millis:12.3} {quantile:2.12} {total:10}")?;
        if quantile < 1.0 {
            writeln!(out, " {:14.2}", 1.0 / (1.0 - quantile))?;
        } else {
            writeln!(out)?;
        }
    }
    let (mean, deviation) = (histogram.mean() / 1e6, histogram.stdev() / 1e6);
    writeln!(out, "#[Mean    = {mean:12.3}, StdDeviation   = {deviation:12.3}]")?;
    let (max, count) = (millis(histogram.max()), histogram.len());
    writeln!(out, "#[Max     = {max:12.3}, Total count    = {count:12}]")?;
    let (buckets, steps) = (histogram.buckets(), 2048);
    writeln!(out, "#[Buckets = {buckets:12}, SubBuckets     = {steps:12}]")?;
    out.flush()
}

fn write_log(
    by_second: &[Histogram<u64>],
    begun: SystemTime,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut serializer = V2Serializer::new();
    let mut log = IntervalLogWriterBuilder::new()
        .add_comment("latencies in nanoseconds")
        .with_start_time(begun)
        .with_base_time(begun)
        .with_max_value_divisor(1e6)
        .begin_log_with(out, &mut serializer)?;
    for (second, histogram) in by_second.iter().enumerate() {
        let start = Duration::from_secs(second as u64);
        log.write_histogram(histogram, start, Duration::from_secs(1), None)
            .map_err(|error| io::Error::other(format!("{error:?}")))?;
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
fn millis(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}
