//! Why a measurement fails.

use super::workload::NoDistribution;
use larder_target::target::TargetError;
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
        /// The error.
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
