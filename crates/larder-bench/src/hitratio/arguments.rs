//! The command line of `larder bench hitratio`.

use super::catalogue::{NAMED, NamedWorkload};
use super::workload::{Traits, TtlShare, Workload};
use super::{Error, Overheads, Stream, trace};
use crate::blocking::BATCH_MAX;
use crate::target::{ServerArguments, Target};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;
use std::str::FromStr;

/// Replay a stream of look-aside requests and report the miss ratio, next to simulated caches.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would show it")]
    pub server: ServerArguments,
    /// Ask no server: simulate only
    #[arg(long, conflicts_with_all = ["command", "server", "port", "unix_socket", "pid"], help_heading = "Server")]
    pub simulate_only: bool,
    /// Shares of the footprint (all keys and values of the stream, without overhead), such as
    /// 1%,10%, rather than a number of MiB: servers are started with as many MiB, rounded up
    #[arg(long, value_delimiter = ',', conflicts_with_all = ["memory_mb", "server", "port", "unix_socket", "pid"], help_heading = "Server")]
    pub footprint: Vec<Share>,
    /// Requests under way at once
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=BATCH_MAX as i64), help_heading = "Server")]
    pub pipeline: u16,
    /// Connections that batches of requests go to in turn, so that all threads of a server take part
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024), help_heading = "Server")]
    pub connections: u16,

    /// zipf, onehit, scan, drift, lognormal, sizeshift, ttl; several at once joined by +
    #[arg(long, value_delimiter = ',', default_value = "zipf", value_parser = named_traits, help_heading = STREAM)]
    pub stream: Vec<(String, Traits)>,
    /// Workloads with their own keys, sizes, number of requests and memory limit, by name, or all.
    /// --memory-mb and --footprint replace the limit. docs/hitratio.md has the list
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = named_workloads, conflicts_with_all = ["stream", "requests", "keys", "key_zipf_exp", "data_size", "one_hit", "ttl_mix", "rate"], help_heading = STREAM)]
    pub workload: Vec<Selected>,
    /// A trace, rather than a stream that is made up: time_secs,key,size[,ttl] a line
    #[arg(long, conflicts_with_all = ["stream", "workload"], help_heading = STREAM)]
    pub trace: Option<PathBuf>,
    /// How many are made up
    #[arg(short = 'n', long, default_value_t = 5_000_000, value_parser = clap::value_parser!(u32).range(1..), help_heading = STREAM)]
    pub requests: u32,
    /// Keys to choose from
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..), help_heading = STREAM)]
    pub keys: u32,
    /// Exponent of Zipf
    #[arg(long, default_value_t = 1.0, help_heading = STREAM)]
    pub key_zipf_exp: f64,
    /// Bytes in a value, unless sizes differ
    #[arg(short = 'd', long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(..=1 << 30), help_heading = STREAM)]
    pub data_size: u32,
    /// Share of the requests that are for keys never asked for again, with `onehit`
    #[arg(long, default_value = "30%", help_heading = STREAM)]
    pub one_hit: Share,
    /// Shares of the keys that live so many seconds, with `ttl`; the rest never expires
    #[arg(long, value_name = "SHARE:SECS,...", value_delimiter = ',', default_value = "30%:5,30%:30", value_parser = ttl_share, help_heading = STREAM)]
    pub ttl_mix: Vec<TtlShare>,
    /// Requests in a second of the stream's own time
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..), help_heading = STREAM)]
    pub rate: u32,
    /// How much faster than its own time a stream with TTLs is played; TTLs shrink with it. Without
    /// TTLs a stream is played as fast as the server answers
    #[arg(long, default_value_t = 1.0, value_parser = speed, help_heading = STREAM)]
    pub speed: f64,
    /// Equal seeds make equal streams
    #[arg(long, default_value_t = 1, help_heading = STREAM)]
    pub seed: u64,

    /// Bytes that an item takes in the simulated LRU beside its key and value
    #[arg(long, default_value_t = 56, help_heading = SIMULATED)]
    pub overhead: u32,
    /// The same in the simulated S3-FIFO
    #[arg(long, default_value_t = 31, help_heading = SIMULATED)]
    pub s3fifo_overhead: u32,

    /// Write everything as JSON
    #[arg(long, help_heading = "Output")]
    pub json_out_file: Option<PathBuf>,
}

const STREAM: &str = "Stream";
const SIMULATED: &str = "Simulated caches";

/// The workloads that a name of `--workload` stands for.
#[derive(Clone, Debug)]
pub struct Selected(Vec<&'static NamedWorkload>);

fn named_workloads(name: &str) -> Result<Selected, String> {
    let is_wanted = |workload: &&NamedWorkload| name == "all" || name == workload.name;
    let selected: Vec<_> = NAMED.iter().filter(is_wanted).collect();
    if selected.is_empty() {
        let names: Vec<_> = NAMED.iter().map(|workload| workload.name).collect();
        return Err(format!("`{name}` is none of all, {}", names.join(", ")));
    }
    Ok(Selected(selected))
}

/// A part of a whole, from 0 to 1; `10%` or `0.1` when typed.
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
        share.map(Self).ok_or_else(|| "a share, as in 10% or 0.1".to_owned())
    }
}

fn named_traits(text: &str) -> Result<(String, Traits), String> {
    Ok((text.to_owned(), text.parse()?))
}

fn ttl_share(text: &str) -> Result<TtlShare, String> {
    let parsed = text
        .split_once(':')
        .and_then(|(share, secs)| Some((share.parse::<Share>().ok()?, secs.parse().ok()?)));
    let (share, secs) = parsed.ok_or("shares with seconds, as in 30%:5,30%:30")?;
    Ok(TtlShare { share: share.0, secs })
}

fn speed(text: &str) -> Result<f64, String> {
    let speed = text.parse().ok().filter(|speed| *speed > 0.0 && *speed <= 1e6);
    speed.ok_or_else(|| "more than 0 and at most 1,000,000".to_owned())
}

impl Arguments {
    pub(super) fn overheads(&self) -> Overheads {
        Overheads { lru: self.overhead, s3fifo: self.s3fifo_overhead }
    }

    /// Whom to ask; none is nobody.
    pub(super) fn targets(&self) -> Result<Vec<Option<Target>>, Error> {
        if self.simulate_only {
            return Ok(vec![None]);
        }
        Ok(self.server.targets()?.into_iter().map(Some).collect())
    }

    /// One after the other: each takes much memory.
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

    /// What is to be made up, by name.
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
