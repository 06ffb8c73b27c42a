//! Reasons for closing connections.

use crate::error::ErrorKind;

/// The reason why a connection was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum CloseReason {
    /// The connection was idle for longer than [`idle_time`](crate::Builder::idle_time).
    Idle,
    /// The connection reached its [`lifetime`](crate::Builder::lifetime).
    Lifetime,
    /// The server closed the connection, or sent unsolicited bytes on it while it was idle.
    ServerClosed,
    /// The connection failed with an I/O error, for example a reset.
    Failed,
    /// The server did not reply in time.
    Timeout,
    /// The server sent an unexpected reply, or an error after which the connection is unusable.
    Unexpected,
    /// The call on the connection was dropped, was interrupted, or failed before all of its replies
    /// had arrived.
    Abandoned,
    /// The client was closed or dropped, discovery removed the server from the list, or the runtime
    /// shut down.
    ClientClosed,
}

impl CloseReason {
    /// All reasons.
    pub const ALL: [Self; 8] = [
        Self::Idle,
        Self::Lifetime,
        Self::ServerClosed,
        Self::Failed,
        Self::Timeout,
        Self::Unexpected,
        Self::Abandoned,
        Self::ClientClosed,
    ];

    /// Returns the value of the label `reason` in reported metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Lifetime => "lifetime",
            Self::ServerClosed => "server_closed",
            Self::Failed => "failed",
            Self::Timeout => "timeout",
            Self::Unexpected => "unexpected",
            Self::Abandoned => "abandoned",
            Self::ClientClosed => "client_closed",
        }
    }

    /// Returns the reason for closing a connection after a call failed with this error.
    pub(crate) fn of(error: &ErrorKind) -> Self {
        match error {
            ErrorKind::Closed => Self::ServerClosed,
            ErrorKind::Io(_) | ErrorKind::Connect(_) => Self::Failed,
            ErrorKind::Timeout => Self::Timeout,
            ErrorKind::Interrupted => Self::Abandoned,
            ErrorKind::ClientClosed => Self::ClientClosed,
            _ => Self::Unexpected,
        }
    }
}
