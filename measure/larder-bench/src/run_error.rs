//! Errors of runs.

use larder_protocol::encode::InvalidKey;
use larder_trace::TraceError;
use std::time::Duration;

/// The error of a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The server did not accept a connection.
    #[error("cannot connect to {address}: {error}; check that the server runs there")]
    Connect {
        /// The server's address.
        address: String,
        /// The system's error.
        error: std::io::Error,
    },
    /// The server refused the login.
    #[error("{0}; see --authenticate")]
    Login(String),
    /// The server did not answer a login in time.
    #[error("the login to {address} was not answered within {} s (--timeout)", timeout.as_secs_f64())]
    LoginTimeout {
        /// The server's address.
        address: String,
        /// The time limit.
        timeout: Duration,
    },
    /// The server did not accept a connection in time.
    #[error(
        "cannot connect to {address}: no connection within {} s (--connection-timeout); check that \
         the server accepts connections",
        timeout.as_secs_f64()
    )]
    ConnectTimeout {
        /// The server's address.
        address: String,
        /// The time limit.
        timeout: Duration,
    },
    /// The limit of open files is lower than the number of connections.
    #[error(
        "cannot open connection {number} of {connections}: {error}; raise the limit of open files \
         (ulimit -n)"
    )]
    OpenFiles {
        /// The number of the connection.
        number: usize,
        /// Number of connections that the run needs.
        connections: usize,
        /// The system's error.
        error: std::io::Error,
    },
    /// A signal arrived before the first request.
    #[error("interrupted before the first request")]
    Interrupted,
    /// A certificate, key or server name cannot be used.
    #[error("TLS: {0}")]
    Tls(String),
    /// The trace cannot be read, or the protocol has no command for its first request.
    #[error("trace {file}: {error}")]
    Trace {
        /// The trace's file.
        file: String,
        /// The error.
        error: TraceError,
    },
    /// The prefix is not valid in a key.
    #[error("--key-prefix: {0}")]
    KeyPrefix(InvalidKey),
    /// The distribution of value sizes has invalid parameters.
    #[error(
        "the distribution of value sizes has invalid parameters; see --data-size-list and \
         --data-size-lognormal"
    )]
    Sizes,
    /// The distribution of keys has invalid parameters.
    #[error("the distribution of keys has invalid parameters; see --key-zipf-exp and --key-stddev")]
    Pattern,
    /// The system failed to create an event queue, to register a socket with it, or to wait for
    /// events.
    #[error("the system's event queue failed: {0}; check the limit of open files (ulimit -n)")]
    System(std::io::Error),
}
