//! The command line of `larder bench hitratio`.

use super::catalogue::{NAMED, NamedWorkload};
use super::workload::{Traits, TtlShare, Workload};
use super::{Error, Overheads, Stream, trace};
use clap::Args;
use larder_target::blocking::BATCH_MAX;
use larder_target::target::{ServerArguments, Target};
use serde::Serialize;
use std::path::PathBuf;
use std::str::FromStr;

/// Replay a stream of look-aside requests and compare the miss ratio with simulated caches
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would show it")]
    pub server: ServerArguments,
    /// Simulate caches only, without a server
    #[arg(long, conflicts_with_all = ["command", "server", "port", "unix_socket", "pid"], help_heading = "Server")]
    pub simulate_only: bool,
    /// Memory limits as shares of the stream's footprint (the size of all its keys and values),
    /// such as 1%,10%, instead of --memory-mb. Servers get the limit rounded up to whole MiB
    #[arg(long, value_delimiter = ',', conflicts_with_all = ["memory_mb", "server", "port", "unix_socket", "pid"], help_heading = "Server")]
    pub footprint: Vec<Share>,
    /// Maximum number of gets in a batch; the next batch is sent after all replies
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=BATCH_MAX as i64), help_heading = "Server")]
    pub pipeline: u16,
    /// Number of connections. Batches of requests use them round-robin. Use the number of server
    /// threads to give each thread a connection
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024), help_heading = "Server")]
    pub connections: u16,

    /// Generated streams: zipf, onehit, scan, drift, lognormal, sizeshift or ttl. Names joined by +
    /// make one stream with all of these properties
    #[arg(long, value_delimiter = ',', default_value = "zipf", value_parser = named_traits, help_heading = STREAM)]
    pub stream: Vec<(String, Traits)>,
    /// Named workloads, or `all`. Each defines its keys, value sizes, number of requests and memory
    /// limit; --memory-mb or --footprint replaces the limit. docs/hitratio.md lists them
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = named_workloads, conflicts_with_all = ["stream", "requests", "keys", "key_zipf_exp", "data_size", "one_hit", "ttl_mix", "rate"], help_heading = STREAM)]
    pub workload: Vec<Selected>,
    /// File with a trace to replay instead of a generated stream: one request per line, in Larder's
    /// form, time_secs,key,size[,ttl], or in that of Twitter's cache traces. docs/hitratio.md
    /// describes both
    #[arg(long, conflicts_with_all = ["stream", "workload"], help_heading = STREAM)]
    pub trace: Option<PathBuf>,
    /// Number of requests of a generated stream
    #[arg(short = 'n', long, default_value_t = 5_000_000, value_parser = clap::value_parser!(u32).range(1..), help_heading = STREAM)]
    pub requests: u32,
    /// Number of keys in a generated stream
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..), help_heading = STREAM)]
    pub keys: u32,
    /// Exponent of the Zipf distribution of keys; 0 is uniform
    #[arg(long, default_value_t = 1.0, help_heading = STREAM)]
    pub key_zipf_exp: f64,
    /// Size of each value in bytes, for streams without a size distribution (lognormal, sizeshift)
    #[arg(short = 'd', long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(..=1 << 30), help_heading = STREAM)]
    pub data_size: u32,
    /// Share of the requests of an `onehit` stream whose keys are requested only once
    #[arg(long, default_value = "30%", help_heading = STREAM)]
    pub one_hit: Share,
    /// Shares of the keys of a `ttl` stream with their TTLs in seconds; the other keys never expire
    #[arg(long, value_name = "SHARE:SECS,...", value_delimiter = ',', default_value = "30%:5,30%:30", value_parser = ttl_share, help_heading = STREAM)]
    pub ttl_mix: Vec<TtlShare>,
    /// Requests per second of a stream with TTLs
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..), help_heading = STREAM)]
    pub rate: u32,
    /// Replay speed of a stream with TTLs, as a multiple of its own speed. TTLs are divided by this
    /// factor. A stream without TTLs is always replayed as fast as the server answers
    #[arg(long, default_value_t = 1.0, value_parser = speed, help_heading = STREAM)]
    pub speed: f64,
    /// Seed of the random numbers. The same seed generates the same stream
    #[arg(long, default_value_t = 1, help_heading = STREAM)]
    pub seed: u64,

    /// Overhead of each item in the simulated LRU, in bytes beyond its key and value
    #[arg(long, default_value_t = 56, help_heading = SIMULATED)]
    pub overhead: u32,
    /// Overhead of each item in the simulated S3-FIFO, in bytes beyond its key and value
    #[arg(long, default_value_t = 31, help_heading = SIMULATED)]
    pub s3fifo_overhead: u32,

    /// Write the settings and all results to this file as JSON
    #[arg(long, help_heading = "Output")]
    pub json_out_file: Option<PathBuf>,
}

const STREAM: &str = "Stream";
const SIMULATED: &str = "Simulated caches";

/// The workloads that a name in `--workload` selects: one or, for `all`, every workload.
#[derive(Clone, Debug)]
pub struct Selected(Vec<&'static NamedWorkload>);

fn named_workloads(name: &str) -> Result<Selected, String> {
    let is_wanted = |workload: &&NamedWorkload| name == "all" || name == workload.name;
    let selected: Vec<_> = NAMED.iter().filter(is_wanted).collect();
    if selected.is_empty() {
        let names: Vec<_> = NAMED.iter().map(|workload| workload.name).collect();
        return Err(format!("unknown workload `{name}`; expected all, {}", names.join(", ")));
    }
    Ok(Selected(selected))
}

/// A fraction above 0 and at most 1, given as `10%` or `0.1`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Share(pub f64);

impl Share {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rounds")]
    pub(super) fn of(self, bytes: u64) -> u64 {
        (self.0 * bytes as f64) as u64
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number: Option<f64> = match text.strip_suffix('%') {
            Some(percent) => percent.parse().ok().map(|percent: f64| percent / 100.0),
            None => text.parse().ok(),
        };
        let share = number.filter(|share| *share > 0.0 && *share <= 1.0);
        share.map(Self).ok_or_else(|| "expected a share such as 10% or 0.1".to_owned())
    }
}

fn named_traits(text: &str) -> Result<(String, Traits), String> {
    Ok((text.to_owned(), text.parse()?))
}

fn ttl_share(text: &str) -> Result<TtlShare, String> {
    let parsed = text
        .split_once(':')
        .and_then(|(share, secs)| Some((share.parse::<Share>().ok()?, secs.parse().ok()?)));
    let (share, secs) = parsed.ok_or("expected SHARE:SECS, such as 30%:5,30%:30")?;
    Ok(TtlShare { share: share.0, secs })
}

fn speed(text: &str) -> Result<f64, String> {
    let speed = text.parse().ok().filter(|speed| *speed > 0.0 && *speed <= 1e6);
    speed.ok_or_else(|| "expected a number above 0 and at most 1,000,000".to_owned())
}

impl Arguments {
    pub(super) fn overheads(&self) -> Overheads {
        Overheads { lru: self.overhead, s3fifo: self.s3fifo_overhead }
    }

    /// Returns the servers that receive the replay. With `--simulate-only`, returns a single
    /// `None`.
    pub(super) fn targets(&self) -> Result<Vec<Option<Target>>, Error> {
        if self.simulate_only {
            return Ok(vec![None]);
        }
        Ok(self.server.targets()?.into_iter().map(Some).collect())
    }

    /// Returns the streams. The iterator generates them lazily, because each stream takes much
    /// memory.
    pub(super) fn streams(&self) -> impl Iterator<Item = Result<Stream, Error>> {
        let trace = self.trace.iter().map(|path| {
            let path_name = || path.display().to_string();
            trace::open(path).map_err(|error| Error::Trace { path: path_name(), error })
        });
        let synthetic = self.workloads().map(|(name, workload)| Ok(workload.stream(name)?));
        let named = self.workload.iter().flat_map(|selected| &selected.0);
        let named = named.map(|workload| Ok(workload.stream(self.seed)?));
        trace.chain(named).chain(synthetic)
    }

    /// Returns the name and the parameters of each stream of `--stream`; empty with `--trace` or
    /// `--workload`.
    pub(super) fn workloads(&self) -> impl Iterator<Item = (&str, Workload)> {
        let is_default = self.trace.is_none() && self.workload.is_empty();
        let wanted = if is_default { self.stream.as_slice() } else { &[] };
        wanted.iter().map(|(name, traits)| (name.as_str(), self.workload(*traits)))
    }

    fn workload(&self, traits: Traits) -> Workload {
        Workload {
            traits,
            requests: self.requests as usize,
            keys: self.keys,
            exponent: self.key_zipf_exp,
            value_bytes: self.data_size,
            one_hit_share: self.one_hit.0,
            ttl_mix: self.ttl_mix.clone(),
            per_sec: self.rate,
            seed: self.seed,
        }
    }
}
