//! Errors of calls.

use larder_protocol::encode::InvalidKey;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error as ThisError;

/// The error of a call.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    /// The server of the call. `None` if the call failed in a codec, or before it had chosen a
    /// server.
    server: Option<Arc<str>>,
    is_ambiguous: bool,
    /// Whether the breaker ignores the error, because another call reports the same failure or this
    /// call had too little time. Metrics count the error in any case.
    pub(crate) is_echo: bool,
}

/// The kind of an error.
#[derive(Clone, Debug, ThisError)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No server accepts this key, or this topic of statistics.
    #[error("{0}")]
    Key(InvalidKey),
    /// The value is longer than [`larder_protocol::VALUE_LEN_MAX`].
    #[error("value too long: {0} bytes is more than any server accepts")]
    ValueTooLong(usize),
    /// The server is unreachable or has too many connections, the TLS handshake failed, or the
    /// reply to the login is missing or unexpected. While a client is built, this kind also means
    /// that a setting is invalid or that discovery failed.
    #[error("cannot connect: {0}")]
    Connect(Arc<io::Error>),
    /// The server refused the login, or the user name is invalid. The client has not sent the
    /// request. Only an operator can correct the login, so the error is not a
    /// [fault](Error::is_fault): the client neither fails over to another server nor treats a
    /// lookup as a miss. `get_or_compute` still computes the value. Later calls try to log in
    /// again.
    #[error("login refused: {0}")]
    Login(Box<str>),
    /// The breaker of the server is open after several faults in a row. The call failed without
    /// sending a request.
    #[error(
        "server unavailable after several failures; next attempt within {retry_in:?}; last error: {cause}"
    )]
    Unavailable {
        /// The longest time until the breaker admits a call. If another call's probe ends earlier,
        /// the breaker may admit a call earlier.
        retry_in: Duration,
        /// The last fault of the server, such as an untrusted certificate.
        cause: Arc<Self>,
    },
    /// All connections were in use until the deadline.
    #[error("all connections of the pool were in use until the deadline: raise `connections`")]
    PoolTimeout,
    /// The server did not reply by the deadline. With shared connections, another cause is
    /// possible: a caller had given up and no reply arrived for a second, so the client closed the
    /// connection.
    #[error("timeout: no reply from the server by the deadline")]
    Timeout,
    /// The connection failed with an I/O error.
    #[error("connection failed: {0}")]
    Io(Arc<io::Error>),
    /// The connection ended without an I/O error, usually because the server closed it.
    #[error("connection closed by the server")]
    Closed,
    /// The reply, or an earlier reply on the same connection, does not match its request.
    #[error("unexpected reply {0:?}")]
    Unexpected(Box<str>),
    /// The server refused the request. A retry cannot succeed.
    #[error("request refused: {0}")]
    Refused(Box<str>),
    /// The server reported an error of its own.
    #[error("server error: {0}")]
    Server(Box<str>),
    /// The codec cannot encode the value.
    #[error("cannot encode the value: {0}")]
    Encode(Arc<dyn std::error::Error + Send + Sync>),
    /// The codec cannot decode the item as the requested type.
    #[error("cannot decode the value: {0}")]
    Decode(Arc<dyn std::error::Error + Send + Sync>),
    /// A [`Waiter`](crate::Waiter) ended the call.
    #[error("call interrupted")]
    Interrupted,
    /// The client was closed before or during the call.
    #[error("client closed")]
    ClientClosed,
}

/// The error of a call that computes a value.
#[derive(Clone, Debug, ThisError)]
pub enum ComputeError<E> {
    /// The call was interrupted, the client is closed, the key is invalid, or the value cannot be
    /// encoded. After other failures of the cache, the client computes the value and reports no
    /// error.
    #[error(transparent)]
    Cache(Error),
    /// The computation failed with this error.
    #[error(transparent)]
    Compute(E),
}

impl<E> From<Error> for ComputeError<E> {
    fn from(error: Error) -> Self {
        Self::Cache(error)
    }
}

impl ErrorKind {
    /// The names of the error kinds that calls to a server can return. The other kinds occur before
    /// a server is chosen, or while a codec converts a value.
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

    /// Returns the name of the kind, as used in [metrics](crate::metrics).
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

    /// Creates the error of a call whose requested change has certainly not happened and will not
    /// happen.
    pub(crate) fn definite(kind: ErrorKind) -> Self {
        Self::new(kind, false)
    }

    /// Marks the error as ambiguous: the change may have happened.
    pub(crate) fn ambiguous(self) -> Self {
        Self { is_ambiguous: true, ..self }
    }

    /// Makes the breaker ignore the error, because the error does not report a new fault.
    #[must_use]
    pub(crate) fn echo(self) -> Self {
        Self { is_echo: true, ..self }
    }

    /// Sets the server, unless the error already names one.
    pub(crate) fn of(mut self, server: &Arc<str>) -> Self {
        self.server.get_or_insert_with(|| Arc::clone(server));
        self
    }

    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// Returns whether the requested change may have happened. If the result is false, the change
    /// has not happened and will not happen.
    #[must_use]
    pub fn is_ambiguous(&self) -> bool {
        self.is_ambiguous
    }

    /// Returns the server of the call. Returns `None` if the call failed in a codec, or before it
    /// had chosen a server.
    #[must_use]
    pub fn server(&self) -> Option<&str> {
        self.server.as_deref()
    }

    /// Returns whether the client may repeat the call on another server: this server is at fault
    /// and has certainly changed nothing. Returns false after a timeout, because the call has no
    /// time left.
    pub(crate) fn may_try_another_server(&self) -> bool {
        self.is_fault() && !self.is_ambiguous && !matches!(self.kind, ErrorKind::Timeout)
    }

    /// Returns whether the server or the network is at fault. Returns false for `Refused` and
    /// `Server` errors, refused logins, `PoolTimeout`, and errors of the caller or a codec.
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
