//! `larder bench fill`: measures the number of items that a server holds per GiB of its memory
//! limit and per GiB of its resident memory.
//!
//! [`measure`] sets items until their total size is [`Settings::fill`] times the memory limit. Then
//! it looks up all keys, or a random sample of them, to count the items that the server still
//! holds. It does not rely on the server's own item statistics.

use crate::values::Values;
use clap::Args;
use larder_target::blocking::{BATCH_MAX, Connection, Item};
use larder_target::target::{OpenTarget, ServerArguments, Target, TargetError};
use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;
use serde::Serialize;
use std::io::{self, Write};
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

/// Measure the number of items that a server holds per GiB of memory limit and of resident memory
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would show it")]
    pub server: ServerArguments,
    /// Value sizes in bytes, one measurement per size. A server that was already running still
    /// holds the items of the previous size, which change the result. Restart it for each size, or
    /// use --command
    #[arg(short = 'd', long, value_delimiter = ',', default_value = "10,50,100,230,1000,4000")]
    pub data_sizes: Vec<usize>,
    /// Size of each key in bytes: `key` followed by digits
    #[arg(long, default_value_t = 13, value_parser = clap::value_parser!(u16).range(4..=250))]
    pub key_size: u16,
    /// Total size of all items to set, as a multiple of the memory limit
    #[arg(long, default_value_t = 3.0, value_parser = times)]
    pub fill: f64,
    /// Maximum number of keys to look up after the sets. If there are more keys, a random sample of
    /// this size is looked up
    #[arg(long, default_value_t = 2_000_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub probes: u32,
    /// Number of requests in each batch
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=BATCH_MAX as i64))]
    pub pipeline: u16,
    /// Seconds to wait after the last set before reading the resident memory
    #[arg(long, default_value_t = 2.0)]
    pub settle: f64,
    /// Write all results to this file as JSON
    #[arg(long)]
    pub json_out_file: Option<PathBuf>,
}

/// The parameters of one measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Settings {
    /// Size of each value.
    pub value_bytes: usize,
    /// Size of each key, at least 4.
    pub key_bytes: usize,
    /// Total size of all items to set, with an assumed overhead of 24 bytes each, as a multiple of
    /// the memory limit.
    pub fill: f64,
    /// Maximum number of keys to look up after the sets.
    pub probes_max: u32,
    /// Number of requests in each batch, at most [`BATCH_MAX`].
    pub pipeline: u16,
    /// Time to wait after the last set before reading the resident memory.
    pub settle: Duration,
}

/// The result of one measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FillResult {
    /// Size of each value.
    pub value_bytes: usize,
    /// Size of each key.
    pub key_bytes: usize,
    /// Number of sets that the measurement sent.
    pub offered: u64,
    /// Number of sets that the server rejected.
    pub refused: u64,
    /// Number of keys that the measurement looked up after the sets.
    pub probed: u64,
    /// Number of looked-up keys that the server returned.
    pub found: u64,
    /// Number of returned values that differed from the stored value.
    pub wrong: u64,
    /// Number of items that the server holds: exact if all keys were looked up, otherwise an
    /// estimate from the sample.
    pub items: f64,
    /// Half the width of the 95 % confidence interval of `items`; 0 if all keys were looked up.
    pub items_error: f64,
    /// The server's memory limit.
    pub limit_bytes: u64,
    /// The server's resident memory before the first set; `None` if the system does not report it.
    pub rss_empty_bytes: Option<u64>,
    /// The server's resident memory after the last set and [`Settings::settle`]; `None` if the
    /// system does not report it.
    pub rss_bytes: Option<u64>,
}

const GIB: f64 = (1u64 << 30) as f64;

impl FillResult {
    /// Returns the number of items per GiB of the memory limit.
    #[must_use]
    pub fn items_per_gib_limit(&self) -> f64 {
        self.items * GIB / self.limit_bytes as f64
    }

    /// Returns the number of items per GiB of resident memory, or `None` if the system does not
    /// report that memory.
    #[must_use]
    pub fn items_per_gib_rss(&self) -> Option<f64> {
        Some(self.items * GIB / self.rss_bytes? as f64)
    }

    /// Returns the overhead per item in bytes: the memory limit divided by the number of items,
    /// minus the sizes of key and value.
    #[must_use]
    pub fn overhead_bytes(&self) -> f64 {
        self.limit_bytes as f64 / self.items - (self.key_bytes + self.value_bytes) as f64
    }
}

/// Errors of a measurement.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server could not be started or reached, or its memory limit is unknown.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The connection failed, a reply of the server was malformed, or the reply to a get was an
    /// error.
    #[error("connection failed while {doing} items: {error}; see the server's log")]
    Connection {
        /// The phase: `setting` or `probing`.
        doing: &'static str,
        /// The cause.
        error: io::Error,
    },
    /// Keys of this size have too few digits to number all items, or the numbers exceed 32 bits.
    #[error("keys of {key_bytes} bytes are too short for {items} items; increase --key-size")]
    ShortKeys {
        /// The highest key number: the number of items to set, plus those of earlier measurements
        /// on the same server.
        items: u64,
        /// The configured key size.
        key_bytes: usize,
    },
    /// The results could not be written.
    #[error("cannot write {place}: {error}")]
    Output {
        /// The file, or the table.
        place: String,
        /// The system's error.
        error: io::Error,
    },
}

/// Runs `larder bench fill`: prints a table, and writes a JSON file if one was requested.
///
/// # Errors
/// The server cannot be started or reached, its memory limit is unknown, a measurement fails (see
/// [`measure`]), or the results cannot be written.
pub fn command(arguments: &Arguments) -> Result<(), Error> {
    let mut rows = Vec::new();
    print(HEADER)?;
    for target in arguments.server.targets()? {
        let mut first_key = 0;
        for &value_bytes in &arguments.data_sizes {
            let mut server = target.open(arguments.server.protocol, arguments.server.memory_mb)?;
            let held = measure(&mut server, first_key, &arguments.settings(value_bytes))?;
            if !target.is_fresh() {
                first_key += held.offered;
            }
            print(&line(&target, &held))?;
            rows.push(Row { server: target.name(), held });
        }
    }
    arguments.json_out_file.as_ref().map_or(Ok(()), |path| write_json(path, &rows))
}

#[derive(Serialize)]
struct Row {
    server: String,
    #[serde(flatten)]
    held: FillResult,
}

impl Arguments {
    fn settings(&self, value_bytes: usize) -> Settings {
        Settings {
            value_bytes,
            key_bytes: usize::from(self.key_size),
            fill: self.fill,
            probes_max: self.probes,
            pipeline: self.pipeline,
            settle: Duration::try_from_secs_f64(self.settle).unwrap_or_default(),
        }
    }
}

fn times(text: &str) -> Result<f64, String> {
    let times = text.parse().ok().filter(|times| (0.1..=1000.0).contains(times));
    times.ok_or_else(|| "expected a number between 0.1 and 1000".to_owned())
}

const HEADER: &str = "server             value      items      ± items/GiB limit items/GiB RSS  RSS MiB \
                      overhead refused wrong\n";

fn line(target: &Target, held: &FillResult) -> String {
    let rss =
        held.rss_bytes.map_or("-".to_owned(), |rss| format!("{:.1}", rss as f64 / 1_048_576.0));
    let per_rss = held.items_per_gib_rss().map_or("-".to_owned(), |items| format!("{items:.0}"));
    format!(
        "{:<17} {:>6} {:>10.0} {:>6.0} {:>15.0} {per_rss:>13} {rss:>8} {:>8.1} {:>7} {:>5}\n",
        target.name(),
        held.value_bytes,
        held.items,
        held.items_error,
        held.items_per_gib_limit(),
        held.overhead_bytes(),
        held.refused,
        held.wrong,
    )
}

fn print(text: &str) -> Result<(), Error> {
    let output = |error| Error::Output { place: "the table".to_owned(), error };
    io::stdout().lock().write_all(text.as_bytes()).map_err(output)
}

fn write_json(path: &PathBuf, rows: &[Row]) -> Result<(), Error> {
    let write = || {
        let mut file = io::BufWriter::new(std::fs::File::create(path)?);
        serde_json::to_writer_pretty(&mut file, rows)?;
        file.flush()
    };
    write().map_err(|error| Error::Output { place: path.display().to_string(), error })
}

/// Fills a server with items of one size, and counts the items that it still holds. Keys are
/// numbered from `first_key`, because measurements on the same server must use different keys.
///
/// # Errors
/// The connection fails, a reply of the server is malformed, the reply to a get is an error, the
/// keys are too short to number all items, or the numbers exceed 32 bits.
pub fn measure(
    server: &mut OpenTarget,
    first_key: u64,
    settings: &Settings,
) -> Result<FillResult, Error> {
    let item_bytes = (settings.key_bytes + settings.value_bytes + TYPICAL_OVERHEAD) as f64;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of items")]
    let offered = (settings.fill * server.limit_bytes as f64 / item_bytes).ceil() as u64;
    let keys = number(first_key, settings)?..number(first_key + offered, settings)?;

    let filling = Filling { settings, values: Values::new(settings.value_bytes) };
    let rss_empty_bytes = server.resident_bytes();
    let stored = broke("setting", filling.set_all(&mut server.connection, keys.clone()))?;
    std::thread::sleep(settings.settle);
    let rss_bytes = server.resident_bytes();
    let probe = broke("probing", filling.probe(&mut server.connection, keys))?;
    let (items, items_error) = estimate(offered as f64, probe.found as f64, probe.probed as f64);
    Ok(FillResult {
        value_bytes: settings.value_bytes,
        key_bytes: settings.key_bytes,
        offered,
        refused: offered - stored,
        probed: probe.probed,
        found: probe.found,
        wrong: probe.wrong,
        items,
        items_error,
        limit_bytes: server.limit_bytes,
        rss_empty_bytes,
        rss_bytes,
    })
}

/// Assumed overhead of an item in bytes. The value is deliberately low: a value above the server's
/// overhead could lead to too few sets to fill the server.
const TYPICAL_OVERHEAD: usize = 24;

/// Converts a key number to 32 bits. Fails if the number has more digits than the key size allows,
/// or does not fit 32 bits.
fn number(keys: u64, settings: &Settings) -> Result<u32, Error> {
    let fits = keys.to_string().len() + KEY_PREFIX.len() <= settings.key_bytes;
    let short = || Error::ShortKeys { items: keys, key_bytes: settings.key_bytes };
    u32::try_from(keys).ok().filter(|_| fits).ok_or_else(short)
}

const KEY_PREFIX: &str = "key";

fn broke<T>(doing: &'static str, result: io::Result<T>) -> Result<T, Error> {
    result.map_err(|error| Error::Connection { doing, error })
}

/// Estimates how many of `all` keys the server holds, if it returned `found` of a sample of
/// `probed` keys. The second result is half the width of the 95 % confidence interval.
fn estimate(all: f64, found: f64, probed: f64) -> (f64, f64) {
    let share = found / probed.max(1.0);
    let left_out = 1.0 - probed / all;
    (all * share, 1.96 * all * (share * (1.0 - share) / probed.max(1.0) * left_out.max(0.0)).sqrt())
}

struct Filling<'f> {
    settings: &'f Settings,
    values: Values,
}

#[derive(Default)]
struct Probe {
    probed: u64,
    found: u64,
    wrong: u64,
}

impl Filling<'_> {
    fn key(&self, number: u32) -> Vec<u8> {
        let digits = self.settings.key_bytes - KEY_PREFIX.len();
        format!("{KEY_PREFIX}{number:0digits$}").into_bytes()
    }

    /// Sets all keys. Returns the number of sets that the server accepted.
    fn set_all(&self, connection: &mut Connection, keys: Range<u32>) -> io::Result<u64> {
        let mut stored = 0;
        for start in keys.clone().step_by(usize::from(self.settings.pipeline)) {
            let end = keys.end.min(start + u32::from(self.settings.pipeline));
            let names: Vec<_> = (start..end).map(|number| (number, self.key(number))).collect();
            stored += connection.set(names.iter().map(|(number, key)| Item {
                key,
                value: self.values.value(*number, self.settings.value_bytes),
                ttl_secs: 0,
            }))? as u64;
        }
        Ok(stored)
    }

    fn probe(&self, connection: &mut Connection, keys: Range<u32>) -> io::Result<Probe> {
        let mut probe = Probe::default();
        for numbers in
            sample(keys, self.settings.probes_max).chunks(usize::from(self.settings.pipeline))
        {
            let names: Vec<_> = numbers.iter().map(|number| self.key(*number)).collect();
            probe.probed += numbers.len() as u64;
            connection.get(&names, |index, value| {
                let Some(value) = value else { return };
                probe.found += 1;
                let right = value == self.values.value(numbers[index], self.settings.value_bytes);
                probe.wrong += u64::from(!right);
            })?;
        }
        Ok(probe)
    }
}

/// Returns all keys, or a random sample of `most` keys if there are more.
#[expect(clippy::cast_possible_truncation, reason = "indices into a range of u32")]
fn sample(keys: Range<u32>, most: u32) -> Vec<u32> {
    if keys.end - keys.start <= most {
        return keys.collect();
    }
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    let chosen = rand::seq::index::sample(&mut random, keys.len(), most as usize);
    chosen.into_iter().map(|index| keys.start + index as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_tells_its_error() {
        assert_eq!(estimate(1000.0, 400.0, 1000.0), (400.0, 0.0));
        // The sample has 2,500 of the 10,000 keys, and the server holds 40 % of them: 1.96 × 10,000
        // × √(0.24 / 2,500 × 0.75) = 166.3
        let (items, error) = estimate(10_000.0, 1000.0, 2500.0);
        assert!((items - 4000.0).abs() < 1e-6 && (error - 166.3).abs() < 0.1, "{items} ± {error}");
    }

    #[test]
    fn a_sample_has_no_key_twice() {
        let mut sample = sample(100..1100, 500);
        sample.sort_unstable();
        sample.dedup();
        assert_eq!(sample.len(), 500);
        assert!(sample.iter().all(|key| (100..1100).contains(key)));
    }
}
