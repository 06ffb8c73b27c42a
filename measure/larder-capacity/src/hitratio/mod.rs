//! `larder bench hitratio`: measures the miss ratio of a server.
//!
//! A stream of look-aside requests (a get, and a set if it missed) is replayed to a server and to
//! simulated caches of the same capacity. docs/hitratio.md describes streams, columns and capacity.

mod arguments;
mod catalogue;
mod error;
mod measurement;
mod mixture;
mod replay;
mod report;
mod simulated;
mod stream;
mod trace;
mod workload;

pub use arguments::{Arguments, Selected, Share};
pub use catalogue::{NAMED, NamedWorkload};
pub use error::Error;
pub use replay::{HitStats, Replayed, replay};
pub use report::Row;
pub use simulated::{Bound, Overheads, Simulated, simulate};
pub use stream::{Counted, Footprint, Stream};
pub use trace::{open, read};
pub use workload::{NoDistribution, Traits, TtlShare, Workload};

use measurement::Measurement;

/// Runs `larder bench hitratio`: prints a table, and writes a JSON file if one was requested.
///
/// # Errors
/// A stream cannot be generated or read, the server cannot be started or reached, its memory limit
/// is unknown, a replay fails (see [`replay()`]), or the results cannot be written.
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
