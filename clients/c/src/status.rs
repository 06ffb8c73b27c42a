//! The status codes of calls.

use larder_client::{ErrorKind, StoreOutcome};

/// The status of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum Status {
    /// The call succeeded.
    Ok = 0,
    /// The item does not exist.
    NotFound = 1,
    /// The item was not stored, because the call's condition does not hold. Each call documents its
    /// condition.
    NotStored = 2,
    /// The item was not stored, because it was changed after its CAS was read.
    Exists = 3,
    /// The value to increment or decrement is not a number.
    NotANumber = 4,

    /// An argument is NULL, a string is not UTF-8, or an address or a TLS setting is invalid.
    InvalidArgument = 16,
    /// The key is empty or too long.
    Key = 17,
    /// The value is longer than any server accepts.
    ValueTooLong = 18,
    /// The server is unreachable or refuses connections, its name cannot be resolved, or the TLS
    /// handshake failed.
    Connect = 19,
    /// The server has failed several times in a row, so the call failed without sending a request.
    Unavailable = 20,
    /// All connections were in use until the deadline.
    PoolTimeout = 21,
    /// The server did not reply by the deadline.
    Timeout = 22,
    /// The connection failed, or the server closed it.
    Connection = 23,
    /// The server's reply, or an earlier reply on the same connection, does not match its request.
    Unexpected = 24,
    /// The server refused the request. A retry cannot succeed.
    Refused = 25,
    /// The server reported an error of its own.
    Server = 26,
    /// The server refused the login, or the user name is invalid.
    Login = 27,
    /// The client failed with another error.
    Other = 28,
    /// The call panicked because of a bug in this library.
    Panic = 29,
}

impl From<&ErrorKind> for Status {
    fn from(kind: &ErrorKind) -> Self {
        match kind {
            ErrorKind::Key(_) => Self::Key,
            ErrorKind::ValueTooLong(_) => Self::ValueTooLong,
            ErrorKind::Connect(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
                Self::InvalidArgument
            }
            ErrorKind::Connect(_) => Self::Connect,
            ErrorKind::Unavailable { .. } => Self::Unavailable,
            ErrorKind::PoolTimeout => Self::PoolTimeout,
            ErrorKind::Timeout => Self::Timeout,
            ErrorKind::Io(_) | ErrorKind::Closed => Self::Connection,
            ErrorKind::Unexpected(_) => Self::Unexpected,
            ErrorKind::Refused(_) => Self::Refused,
            ErrorKind::Server(_) => Self::Server,
            ErrorKind::Login(_) => Self::Login,
            _ => Self::Other,
        }
    }
}

impl From<StoreOutcome> for Status {
    fn from(stored: StoreOutcome) -> Self {
        match stored {
            StoreOutcome::Stored => Self::Ok,
            StoreOutcome::NotStored => Self::NotStored,
            StoreOutcome::Exists => Self::Exists,
            StoreOutcome::NotFound => Self::NotFound,
        }
    }
}
