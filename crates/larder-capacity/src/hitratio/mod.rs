//! `larder bench hitratio`: measures the miss ratio of a server.
//!
//! A stream of look-aside requests (a get, and a set if it missed) is replayed to a server and to
//! simulated caches of the same capacity. docs/hitratio.md describes streams, columns and capacity.

mod arguments;
mod catalogue;
mod mixture;
mod replay;
mod report;
mod simulated;
mod stream;
mod trace;
mod workload;

pub use arguments::{Arguments, Selected, Share};
pub use catalogue::{NAMED, NamedWorkload};
pub use replay::{HitStats, Replayed, replay};
pub use report::Row;
pub use simulated::{Bound, Overheads, Simulated, simulate};
pub use stream::{Counted, Footprint, Stream};
pub use trace::{open, read};
pub use workload::{NoDistribution, Traits, TtlShare, Workload};

use larder_target::target::{OpenTarget, Target, TargetError};
use larder_trace::TraceError;
use std::io;

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server could not be started or reached.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The trace cannot be used.
    #[error("trace {path}: {error}")]
    Trace {
        /// The trace's file.
        path: String,
        /// What is wrong with it.
        error: TraceError,
    },
    /// A stream cannot be generated.
    #[error(transparent)]
    Stream(#[from] NoDistribution),
    /// The connection to the server failed.
    #[error("the replay stopped: {0}; see the server's log")]
    Replay(#[source] io::Error),
    /// The results could not be written.
    #[error("cannot write {place}: {error}")]
    Output {
        /// The file, or the table.
        place: String,
        /// The system's error.
        error: io::Error,
    },
}

/// Runs `larder bench hitratio`: prints a table, and writes a JSON file if one was requested.
///
/// # Errors
/// A stream cannot be generated or read, the server cannot be reached or closes the connection, or
/// the results cannot be written.
pub fn command(arguments: &Arguments) -> Result<(), Error> {
    let mut rows = Vec::new();
    report::print_header()?;
    for stream in arguments.streams() {
        let mut stream = stream?;
        let speed = if stream.has_ttls() { arguments.speed } else { 1.0 };
        let lengthened = stream.speed_up(speed);
        let footprint = stream.footprint();
        report::print_stream(&stream, footprint, lengthened)?;
        Measurement { arguments, stream: &stream, footprint }.measure(&mut rows)?;
    }
    arguments
        .json_out_file
        .as_ref()
        .map_or(Ok(()), |path| report::write_json(path, arguments, &rows))
}

/// Measures one stream at each capacity on each server.
struct Measurement<'m> {
    arguments: &'m Arguments,
    stream: &'m Stream,
    footprint: Footprint,
}

impl Measurement<'_> {
    fn measure(&self, rows: &mut Vec<Row>) -> Result<(), Error> {
        for memory in self.capacities() {
            let mut simulated = None;
            for target in self.arguments.targets()? {
                let row = self.row(target.as_ref(), memory, &mut simulated)?;
                report::print_row(&row)?;
                report::print_counted(&row, self.stream)?;
                rows.push(row);
            }
        }
        Ok(())
    }

    /// The capacities in bytes. None is the limit that the server reports.
    fn capacities(&self) -> Vec<Option<u64>> {
        let given = self.arguments.server.memory_mb.or(self.stream.memory_mb).map(|mb| mb << 20);
        match self.arguments.footprint.as_slice() {
            [] => vec![given],
            shares => shares.iter().map(|share| Some(share.of(self.footprint.bytes))).collect(),
        }
    }

    fn row(
        &self,
        target: Option<&Target>,
        memory: Option<u64>,
        simulated: &mut Option<(u64, Simulated)>,
    ) -> Result<Row, Error> {
        let memory_mb = memory.map(|bytes| bytes.div_ceil(1 << 20));
        let open = |target: &Target| target.open(self.arguments.server.protocol, memory_mb);
        let mut server = target.map(open).transpose()?;
        let capacity =
            server.as_ref().map_or(memory.unwrap_or(64 << 20), |server| server.limit_bytes);
        let simulated = simulated.filter(|(of, _)| *of == capacity).unwrap_or_else(|| {
            (capacity, simulate(self.stream, capacity, self.arguments.overheads()))
        });
        let replayed = server.as_mut().map(|server| self.replay(server)).transpose()?;
        Ok(Row {
            stream: self.stream.name.clone(),
            server: target.map(Target::name),
            footprint: self.footprint,
            capacity_bytes: capacity,
            replayed,
            simulated: simulated.1,
        })
    }

    fn replay(&self, server: &mut OpenTarget) -> Result<Replayed, Error> {
        let mut connections = Vec::new();
        for _ in 0..self.arguments.connections {
            connections.push(server.connect()?);
        }
        replay(&mut connections, self.stream, self.arguments.pipeline).map_err(Error::Replay)
    }
}
