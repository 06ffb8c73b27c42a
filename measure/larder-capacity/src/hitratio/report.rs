//! Writes the results as a table and as JSON.

use super::{Arguments, Error, Footprint, HitStats, Replayed, Simulated, Stream, Workload};
use serde::Serialize;
use std::io::{self, Write};
use std::path::Path;

/// The results of one stream at one capacity on one server.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The stream's name.
    pub stream: String,
    /// The server's name; `None` with `--simulate-only`.
    pub server: Option<String>,
    /// Number and total size of the stream's keys and values.
    pub footprint: Footprint,
    /// Memory limit of the server and the simulated caches.
    pub capacity_bytes: u64,
    /// Result of the server; `None` with `--simulate-only`.
    pub replayed: Option<Replayed>,
    /// Results of the simulated caches.
    pub simulated: Simulated,
}

/// The contents of the JSON file: the settings that influence the results, and the results.
#[derive(Serialize)]
struct Report<'r> {
    version: &'static str,
    trace: Option<&'r Path>,
    workloads: Vec<Workload>,
    seed: u64,
    speed: f64,
    pipeline: u16,
    connections: u16,
    overheads: super::Overheads,
    rows: &'r [Row],
}

const MIB: f64 = (1u64 << 20) as f64;

pub(super) fn print_header() -> Result<(), Error> {
    print(
        "server         limit MiB  of all  miss by   server      LRU  S3-FIFO   Bélády    bound\n",
    )
}

pub(super) fn print_stream(
    stream: &Stream,
    footprint: Footprint,
    lengthened: u64,
) -> Result<(), Error> {
    let (requests, keys) = (stream.requests.len(), footprint.keys);
    let mib = footprint.bytes as f64 / MIB;
    print(&format!("{}: {requests} requests for {keys} keys, {mib:.1} MiB\n", stream.name))?;
    if lengthened == 0 {
        return Ok(());
    }
    print(&format!("  {lengthened} TTLs are below 1 s at this speed and are replayed as 1 s\n"))
}

pub(super) fn print_row(row: &Row) -> Result<(), Error> {
    let Simulated { lru, s3fifo, optimum, bound } = &row.simulated;
    let served = row.replayed.map(|replayed| replayed.stats);
    let objects = [lru.miss_ratio(), s3fifo.miss_ratio(), optimum.miss_ratio(), bound.miss_ratio];
    let bytes = [lru, s3fifo, optimum].map(|stats| stats.byte_miss_ratio());
    let bytes = [bytes[0], bytes[1], bytes[2], bound.byte_miss_ratio];
    let place = format!(
        "{:<13} {:>10.1} {:>6.1}%",
        row.server.as_deref().unwrap_or("(simulated)"),
        row.capacity_bytes as f64 / MIB,
        100.0 * row.capacity_bytes as f64 / row.footprint.bytes.max(1) as f64,
    );
    let by_object = ratios(served.map(|stats| stats.miss_ratio()), objects);
    let by_byte = ratios(served.map(|stats| stats.byte_miss_ratio()), bytes);
    print(&format!("{place}  object  {by_object}\n{:32}  byte    {by_byte}\n", ""))?;
    row.replayed.map_or(Ok(()), |replayed| print(&faults(&replayed)))
}

/// If only the end of the stream is counted, prints the numbers of misses and hits.
pub(super) fn print_counted(row: &Row, stream: &Stream) -> Result<(), Error> {
    if stream.counted.first() == 0 {
        return Ok(());
    }
    let counts = |stats: HitStats| format!("{} missed, {} hit", stats.misses, stats.hits());
    let server = row.replayed.map_or_else(|| "-".to_owned(), |replayed| counts(replayed.stats));
    let last = row.simulated.lru.requests;
    print(&format!("  of the last {last}: server {server}; LRU {}\n", counts(row.simulated.lru)))
}

fn ratios(server: Option<f64>, others: [f64; 4]) -> String {
    let server = server.map_or_else(|| format!("{:>8}", "-"), |ratio| format!("{ratio:8.4}"));
    others.iter().fold(server, |line, ratio| format!("{line} {ratio:8.4}"))
}

/// Returns warnings about rejected sets, wrong values and delays, which distort the miss ratio of a
/// replay.
fn faults(replayed: &Replayed) -> String {
    let mut text = String::new();
    if replayed.refused > 0 {
        text += &format!("  the server refused {} sets\n", replayed.refused);
    }
    if replayed.wrong > 0 {
        text += &format!("  the server returned {} wrong values\n", replayed.wrong);
    }
    if replayed.behind_seconds > BEHIND_MAX {
        text += &format!(
            "  the replay fell up to {:.1} s behind the times of the stream\n",
            replayed.behind_seconds
        );
    }
    text
}

/// Delay of a replay in seconds above which a warning is printed. TTLs are whole seconds, so
/// shorter delays have little effect.
const BEHIND_MAX: f64 = 0.5;

fn print(text: &str) -> Result<(), Error> {
    let output = |error| Error::Output { place: "the table".to_owned(), error };
    io::stdout().lock().write_all(text.as_bytes()).map_err(output)
}

pub(super) fn write_json(path: &Path, arguments: &Arguments, rows: &[Row]) -> Result<(), Error> {
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        trace: arguments.trace.as_deref(),
        workloads: arguments.workloads().map(|(_, workload)| workload).collect(),
        seed: arguments.seed,
        speed: arguments.speed,
        pipeline: arguments.pipeline,
        connections: arguments.connections,
        overheads: arguments.overheads(),
        rows,
    };
    let write = || {
        let mut file = io::BufWriter::new(std::fs::File::create(path)?);
        serde_json::to_writer_pretty(&mut file, &report)?;
        file.flush()
    };
    write().map_err(|error| Error::Output { place: path.display().to_string(), error })
}
