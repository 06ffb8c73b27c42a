//! Errors of `larder bench hitratio`.

use super::workload::NoDistribution;
use larder_target::target::TargetError;
use larder_trace::TraceError;
use std::io;

/// Errors of `larder bench hitratio`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server could not be started or reached, or its memory limit is unknown.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The trace is unreadable or invalid.
    #[error("trace {path}: {error}")]
    Trace {
        /// Path of the trace.
        path: String,
        /// The cause.
        error: TraceError,
    },
    /// A stream cannot be generated.
    #[error(transparent)]
    Stream(#[from] NoDistribution),
    /// The replay failed: the connection failed, a reply of the server was malformed, or the reply
    /// to a get was an error.
    #[error("connection failed during the replay: {0}; see the server's log")]
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
