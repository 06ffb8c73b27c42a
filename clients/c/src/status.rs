//! What calls return.

use larder_client::{ErrorKind, StoreOutcome};

/// What a call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum Status {
    /// It was done.
    Ok = 0,
    /// There is no such item.
    NotFound = 1,
    /// Nothing was stored, because of what was there, or was not.
    NotStored = 2,
    /// Nothing was stored, because the item was changed since its CAS was seen.
    Exists = 3,
    /// The value is not a number.
    NotANumber = 4,

    /// An argument is NULL or not UTF-8, or an address is none.
    InvalidArgument = 16,
    /// No server can have such a key.
    Key = 17,
    /// No server takes a value of this length.
    ValueTooLong = 18,
    /// The server can't be reached.
    Connect = 19,
    /// The server failed so often that it is left alone for a moment.
    Unavailable = 20,
    /// All connections were in use until the deadline.
    PoolTimeout = 21,
    /// The server did not answer until the deadline.
    Timeout = 22,
    /// The connection failed, or the server closed it.
    Connection = 23,
    /// The server's answer is not one to this request.
    Unexpected = 24,
    /// The server refused the request, and would do so again.
    Refused = 25,
    /// The server could not do what was asked.
    Server = 26,
    /// The server refused the login.
    Login = 27,
    /// Another error of the client.
    Other = 28,
    /// A fault of this library.
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
    fn from(stored: Stored) -> Self {
        match stored {
            StoreOutcome::Stored => Self::Ok,
            StoreOutcome::NotStored => Self::NotStored,
            StoreOutcome::Exists => Self::Exists,
            StoreOutcome::NotFound => Self::NotFound,
        }
    }
}
