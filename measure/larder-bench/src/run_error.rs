//! Errors of runs.

use larder_protocol::encode::InvalidKey;
use larder_trace::TraceError;
use std::time::Duration;

/// The error of a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A connection could not be opened, and no other variant describes the cause. For example, the
    /// server refused the connection, closed it before it answered the login, or sent malformed
    /// bytes.
    #[error("cannot connect to {address}: {error}; check that the server runs there")]
    Connect {
        /// The server's address.
        address: String,
        /// The error.
        error: std::io::Error,
    },
    /// The server refused the login or sent an unexpected reply to it. Contains the error message.
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
    /// The process or the system has too many open files for the connections of the run.
    #[error(
        "cannot open connection {number} of {connections}: {error}; raise the limit of open files \
         (ulimit -n)"
    )]
    OpenFiles {
        /// The number of the connection that could not be opened, from 1.
        number: usize,
        /// Number of connections that the run needs.
        connections: usize,
        /// The system's error.
        error: std::io::Error,
    },
    /// A signal arrived before the first request of the run or its fill.
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
    /// The distribution of keys has invalid parameters, or the shares of the key spaces are all 0
    /// or add up to 2^32 or more.
    #[error("the distribution of keys has invalid parameters; see --key-zipf-exp and --key-stddev")]
    Pattern,
    /// The system failed to create an event queue, to register a socket with it, or to wait for
    /// events.
    #[error("the system's event queue failed: {0}; check the limit of open files (ulimit -n)")]
    System(std::io::Error),
}
