//! Result files: JSON, percentile distributions (`.hgrm`), and HDR interval logs (`.hlog`).

use crate::find_rate::{Bound, Search};
use crate::load::socket::opening::server_versions;
use crate::median::median;
use crate::outcome::Outcome;
use crate::run::measured::{Measured, Second};
use crate::settings::Settings;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::IntervalLogWriterBuilder;
use larder_target::Machine;
use serde::Serialize;
use std::collections::BTreeMap;
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
    /// The command line, without credentials.
    pub(crate) command_line: Vec<String>,
    #[serde(flatten)]
    pub(crate) versions: ServerVersions,
    pub(crate) units: Units,
    pub(crate) machine: Machine,
    pub(crate) settings: &'r Settings,
    pub(crate) runs: Vec<JsonRun<'r>>,
    /// The median of each figure.
    pub(crate) median: JsonMedian<'r>,
}

/// The versions that servers report.
#[derive(Debug, Serialize)]
pub(crate) struct ServerVersions {
    /// The version of the server, if there is only one server and it reports a version.
    server_version: Option<String>,
    /// With several servers, maps each server's address to its version, or to `None` if the server
    /// reports no version.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    server_versions: BTreeMap<String, Option<String>>,
}

impl ServerVersions {
    pub(crate) fn of(settings: &Settings) -> Self {
        let mut versions = server_versions(settings);
        if !settings.has_several_servers() {
            let server_version = versions.pop().flatten();
            return Self { server_version, server_versions: BTreeMap::new() };
        }
        let addresses = settings.servers.iter().map(|server| server.address.to_string());
        Self { server_version: None, server_versions: addresses.zip(versions).collect() }
    }
}

/// A run: its results, the percentiles for `--print-percentiles`, and the figures for each second.
#[derive(Debug, Serialize)]
pub(crate) struct JsonRun<'r> {
    #[serde(flatten)]
    outcome: &'r Outcome,
    percentiles: Percentiles,
    seconds_of_run: Vec<JsonSecond>,
}

impl<'r> JsonRun<'r> {
    pub(crate) fn new(run: &'r Measured, percentiles: &[f64]) -> Self {
        let latency = |histogram: &Histogram<u64>, percentile| {
            micros(histogram.value_at_percentile(percentile))
        };
        let by_command = |(name, histogram): (&String, &Histogram<u64>)| {
            let of_command = percentiles.iter().map(|p| (format!("p{p}"), latency(histogram, *p)));
            (name.clone(), of_command.collect())
        };
        let second = |(second, of): (usize, &Second)| JsonSecond {
            second,
            requests: of.requests,
            errors: of.errors,
            p50: latency(&of.latency, 50.0),
            p99: latency(&of.latency, 99.0),
            max: micros(of.latency.max()),
        };
        Self {
            outcome: &run.outcome,
            percentiles: run.histograms.iter().map(by_command).collect(),
            seconds_of_run: run.by_second.iter().enumerate().map(second).collect(),
        }
    }
}

/// The medians of all runs.
#[derive(Debug, Serialize)]
pub(crate) struct JsonMedian<'r> {
    #[serde(flatten)]
    outcome: &'r Outcome,
    percentiles: Percentiles,
}

impl<'r> JsonMedian<'r> {
    pub(crate) fn new(outcome: &'r Outcome, runs: &[JsonRun<'_>]) -> Self {
        let mut of_runs: BTreeMap<&String, BTreeMap<&String, Vec<f64>>> = BTreeMap::new();
        for (command, percentiles) in runs.iter().flat_map(|run| &run.percentiles) {
            for (name, latency) in percentiles {
                of_runs.entry(command).or_default().entry(name).or_default().push(*latency);
            }
        }
        let medians = |of_command: BTreeMap<&String, Vec<f64>>| {
            of_command.into_iter().map(|(name, of_runs)| (name.clone(), median(of_runs))).collect()
        };
        let percentiles =
            of_runs.into_iter().map(|(name, of_command)| (name.clone(), medians(of_command)));
        Self { outcome, percentiles: percentiles.collect() }
    }
}

/// Latencies in microseconds by command and percentile, such as `get` and `p99.9`.
type Percentiles = BTreeMap<String, BTreeMap<String, f64>>;

/// One second of a run. The last second can be shorter. Latencies are in microseconds.
#[derive(Debug, Serialize)]
struct JsonSecond {
    /// Index of this second in the run, from 0.
    second: usize,
    requests: u64,
    errors: u64,
    p50: f64,
    p99: f64,
    max: f64,
}

/// The units of the figures.
#[derive(Debug, Serialize)]
pub(crate) struct Units {
    latency: &'static str,
    cpu_time_per_request: &'static str,
    run_time: &'static str,
    data_and_memory: &'static str,
}

impl Units {
    pub(crate) const JSON: Self = Self {
        latency: "microseconds",
        cpu_time_per_request: "microseconds",
        run_time: "seconds",
        data_and_memory: "bytes",
    };
}

/// Returns a command line's words, with the `--authenticate` credentials replaced by `***`.
pub(crate) fn without_credentials(words: impl Iterator<Item = String>) -> Vec<String> {
    let mut follows = false;
    let shown = |word: String| {
        if std::mem::take(&mut follows) {
            return "***".to_owned();
        }
        // Short options without a value can precede the `a` in the same word, as in `-qa`.
        let short =
            word.strip_prefix('-').map(|short| short.trim_start_matches(['4', '6', 'q', 'R']));
        follows = short == Some("a") || word == "--authenticate";
        let credentials = short.and_then(|short| short.strip_prefix('a'));
        match credentials.or(word.strip_prefix("--authenticate=")) {
            Some(credentials) if !credentials.is_empty() => {
                format!("{}***", &word[..word.len() - credentials.len()])
            }
            _ => word,
        }
    };
    words.map(shown).collect()
}

impl Json<'_> {
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        write_json(self, path)
    }
}

/// The contents of the `--find-rate` JSON file.
#[derive(Debug, Serialize)]
pub(crate) struct SearchJson<'r> {
    /// Version of `larder`.
    pub(crate) version: &'static str,
    /// Start of the first run, as a Unix time in seconds.
    pub(crate) time: u64,
    /// The command line, without credentials.
    pub(crate) command_line: Vec<String>,
    #[serde(flatten)]
    pub(crate) versions: ServerVersions,
    pub(crate) machine: Machine,
    pub(crate) units: Units,
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

/// Writes a run's histograms: `PREFIX_run_N_COMMAND.hgrm` for each command, and `PREFIX_run_N.hlog`
/// with the total of each second.
pub(crate) fn write_histograms(
    prefix: &str,
    run: usize,
    measured: &Measured,
    start_time: SystemTime,
) -> io::Result<()> {
    for (name, histogram) in &measured.histograms {
        let path = PathBuf::from(format!("{prefix}_run_{run}_{name}.hgrm"));
        write_distribution(histogram, &mut BufWriter::new(File::create(path)?))?;
    }
    let path = format!("{prefix}_run_{run}.hlog");
    write_log(&measured.by_second, start_time, &mut BufWriter::new(File::create(path)?))
}

/// Writes a percentile distribution in the format that HdrHistogram's plotters read, with values in
/// milliseconds.
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

fn write_log(by_second: &[Second], start_time: SystemTime, out: &mut impl Write) -> io::Result<()> {
    // HdrHistogram's tools read only the compressed encoding.
    let mut serializer = V2DeflateSerializer::new();
    let mut log = IntervalLogWriterBuilder::new()
        .add_comment("[Histogram log format version 1.3]")
        .add_comment("latencies in nanoseconds")
        .with_start_time(start_time)
        .with_base_time(start_time)
        .with_max_value_divisor(1e6)
        .begin_log_with(out, &mut serializer)?;
    for (start, second) in by_second.iter().enumerate() {
        let start = Duration::from_secs(start as u64);
        log.write_histogram(&second.latency, start, Duration::from_secs(1), None)
            .map_err(|error| io::Error::other(format!("{error:?}")))?;
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "histograms have three digits")]
fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
fn millis(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::stats::histogram;

    #[test]
    fn credentials_are_not_shown() {
        let shown = |line: &str| {
            let words = line.split(' ').map(str::to_owned);
            without_credentials(words).join(" ")
        };
        assert_eq!(shown("larder bench -a u:p -c 1"), "larder bench -a *** -c 1");
        assert_eq!(shown("bench --authenticate u:p -t 2"), "bench --authenticate *** -t 2");
        assert_eq!(shown("bench --authenticate=u:p -au:p"), "bench --authenticate=*** -a***");
        assert_eq!(shown("bench -qa u:p -4Rau:p"), "bench -qa *** -4Ra***");
        assert_eq!(
            shown("bench -aa -q -x 1 --arrivals fixed"),
            "bench -a*** -q -x 1 --arrivals fixed"
        );
    }

    #[test]
    fn interval_logs_are_compressed_and_complete() {
        use hdrhistogram::serialization::Deserializer;
        use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
        let mut latency = histogram();
        (1..=1000).for_each(|millis| latency.record(millis * 1_000_000).unwrap());
        let seconds =
            [9, 8].map(|requests| Second { latency: latency.clone(), requests, errors: 1 });
        let mut log = Vec::new();
        write_log(&seconds, SystemTime::now(), &mut log).unwrap();
        let intervals: Vec<_> = IntervalLogIterator::new(&log)
            .filter_map(|entry| match entry.unwrap() {
                LogEntry::Interval(interval) => Some(interval),
                _ => None,
            })
            .collect();
        assert_eq!(intervals.len(), 2);
        for (start, (interval, second)) in intervals.iter().zip(&seconds).enumerate() {
            assert_eq!(interval.start_timestamp(), Duration::from_secs(start as u64));
            // The Base64 encoding of the compressed format's cookie.
            assert!(interval.encoded_histogram().starts_with("HISTF"), "{interval:?}");
            let bytes = base64_decoded(interval.encoded_histogram());
            let read: Histogram<u64> = Deserializer::new().deserialize(&mut &bytes[..]).unwrap();
            assert_eq!(read, second.latency);
        }
    }

    fn base64_decoded(text: &str) -> Vec<u8> {
        const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let bits = |byte: &u8| LETTERS.iter().position(|letter| letter == byte);
        let mut bytes = Vec::new();
        for four in text.as_bytes().chunks(4) {
            let sixes: Vec<usize> = four.iter().filter_map(bits).collect();
            let all = sixes.iter().enumerate().fold(0, |all, (at, six)| all | six << (18 - 6 * at));
            let three = u32::try_from(all).unwrap().to_be_bytes();
            bytes.extend_from_slice(&three[1..sixes.len()]);
        }
        bytes
    }
}
