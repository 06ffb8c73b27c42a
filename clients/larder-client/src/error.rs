//! What can go wrong.

use larder_protocol::encode::InvalidKey;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error as ThisError;

/// Why a call failed.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    /// The server that it was for.
    server: Option<Arc<str>>,
    is_ambiguous: bool,
    /// Whether another call has failed by the same event: it says nothing new of the server.
    pub(crate) is_echo: bool,
}

/// What went wrong.
#[derive(Clone, Debug, ThisError)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The server can't have such a key.
    #[error("{0}")]
    Key(InvalidKey),
    /// The value is longer than any server takes.
    #[error("the value has {0} bytes, more than any server takes")]
    ValueTooLong(usize),
    /// The server can't be reached, or TLS with it can't be begun.
    #[error("the server can't be reached: {0}")]
    Connect(Arc<io::Error>),
    /// The server refused the login, or it can't be one. Nothing was asked of the server. As others than the server
    /// have to set that right, it is no [fault](Error::is_fault): it is never taken for a miss, no other server is asked
    /// instead, and later calls try to log in again.
    #[error("the login was refused: {0}")]
    Login(Box<str>),
    /// The server failed several times in a row, so it is left alone for a moment, and was not asked.
    #[error(
        "the server failed several times, and is tried again within {retry_in:?}; the last error: {cause}"
    )]
    Unavailable {
        /// A call after this time tries again, unless another one does so before.
        retry_in: Duration,
        /// Why the server failed the last time, for example a certificate that is not trusted.
        cause: Arc<Self>,
    },
    /// All connections were in use until the deadline.
    #[error("all connections were in use until the deadline: raise the limit of the pool")]
    PoolTimeout,
    /// The server did not answer until the deadline.
    #[error("the server did not answer in time")]
    Timeout,
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Io(Arc<io::Error>),
    /// The server closed the connection.
    #[error("the server closed the connection")]
    Closed,
    /// The server's answer is not one to this request.
    #[error("the server answered {0:?}, which is no answer to the request")]
    Unexpected(Box<str>),
    /// The server refused the request, and would do so again.
    #[error("the server refused the request: {0}")]
    Refused(Box<str>),
    /// The server could not do what was asked.
    #[error("the server failed: {0}")]
    Server(Box<str>),
    /// The value can't be encoded.
    #[error("the value can't be encoded: {0}")]
    Encode(Arc<dyn std::error::Error + Send + Sync>),
    /// What was found is no value of the type that was asked for.
    #[error("the value can't be decoded: {0}")]
    Decode(Arc<dyn std::error::Error + Send + Sync>),
    /// A [`Waiter`](crate::Waiter) ended the call.
    #[error("the call was interrupted")]
    Interrupted,
    /// The client is closed.
    #[error("the client is closed")]
    ClientClosed,
}

/// Why a value was neither found nor computed.
#[derive(Clone, Debug, ThisError)]
pub enum ComputeError<E> {
    /// The call was interrupted, the client is closed, the server can't have such a key, or the value can't be encoded. A
    /// cache that fails is no error: the value is computed then.
    #[error(transparent)]
    Cache(Error),
    /// The computation failed, with this.
    #[error(transparent)]
    Compute(E),
}

impl<E> From<Error> for ComputeError<E> {
    fn from(error: Error) -> Self {
        Self::Cache(error)
    }
}

impl ErrorKind {
    /// The name of every kind that a call to a server can fail with: those of the others begin no call.
    pub(crate) const NAMES: [&str; 12] = [
        "connect",
        "login",
        "unavailable",
        "pool_timeout",
        "timeout",
        "io",
        "closed",
        "unexpected",
        "refused",
        "server",
        "interrupted",
        "client_closed",
    ];

    /// Its name in [metrics](crate::metrics).
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Connect(_) => "connect",
            Self::Login(_) => "login",
            Self::Unavailable { .. } => "unavailable",
            Self::PoolTimeout => "pool_timeout",
            Self::Timeout => "timeout",
            Self::Io(_) => "io",
            Self::Closed => "closed",
            Self::Unexpected(_) => "unexpected",
            Self::Refused(_) => "refused",
            Self::Server(_) => "server",
            Self::Interrupted => "interrupted",
            Self::ClientClosed => "client_closed",
            Self::Key(_) => "key",
            Self::ValueTooLong(_) => "value_too_long",
            Self::Encode(_) => "encode",
            Self::Decode(_) => "decode",
        }
    }

    pub(crate) fn connect(error: io::Error) -> Self {
        Self::Connect(Arc::new(error))
    }
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, is_ambiguous: bool) -> Self {
        Self { kind, server: None, is_ambiguous, is_echo: false }
    }

    /// Nothing has happened.
    pub(crate) fn definite(kind: ErrorKind) -> Self {
        Self::new(kind, false)
    }

    /// Something may have happened.
    pub(crate) fn ambiguous(self) -> Self {
        Self { is_ambiguous: true, ..self }
    }

    /// It says nothing new of the server.
    #[must_use]
    pub(crate) fn echo(self) -> Self {
        Self { is_echo: true, ..self }
    }

    pub(crate) fn of(mut self, server: &Arc<str>) -> Self {
        self.server.get_or_insert_with(|| Arc::clone(server));
        self
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// Whether the change that was asked for may have happened. Otherwise it has not, and will not.
    #[must_use]
    pub fn is_ambiguous(&self) -> bool {
        self.is_ambiguous
    }

    /// The server that the call was for, if it was for one.
    #[must_use]
    pub fn server(&self) -> Option<&str> {
        self.server.as_deref()
    }

    /// Whether the server, or the way to it, is at fault rather than the request.
    #[must_use]
    pub fn is_fault(&self) -> bool {
        match self.kind {
            ErrorKind::Connect(_) | ErrorKind::Timeout | ErrorKind::Io(_) => true,
            ErrorKind::Closed | ErrorKind::Unexpected(_) | ErrorKind::Unavailable { .. } => true,
            ErrorKind::Key(_) | ErrorKind::ValueTooLong(_) | ErrorKind::PoolTimeout => false,
            ErrorKind::Login(_) | ErrorKind::Refused(_) | ErrorKind::Server(_) => false,
            ErrorKind::Encode(_) | ErrorKind::Decode(_) => false,
            ErrorKind::Interrupted | ErrorKind::ClientClosed => false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(server) = &self.server {
            write!(f, "{server}: ")?;
        }
        self.kind.fmt(f)?;
        f.write_str(if self.is_ambiguous { "; the change may have happened" } else { "" })
    }
}

impl std::error::Error for Error {}

impl From<InvalidKey> for Error {
    fn from(error: InvalidKey) -> Self {
        Self::definite(ErrorKind::Key(error))
    }
}
