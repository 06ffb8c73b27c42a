//! Why connections are closed.

use crate::error::ErrorKind;

/// Why a connection was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum CloseReason {
    /// It was idle for longer than [`idle_time`](crate::Builder::idle_time).
    Idle,
    /// It was open for as long as [`lifetime`](crate::Builder::lifetime) allows.
    Lifetime,
    /// The server had closed it, or had sent on it what nobody had asked for while it was idle.
    ServerClosed,
    /// It failed, as by a reset.
    Failed,
    /// The server did not answer in time.
    Timeout,
    /// The server answered what the request can't have, or an error after which nothing more can be expected.
    Unexpected,
    /// The call that had it was dropped, interrupted or failed before all of its replies had come.
    Abandoned,
    /// The client was closed or dropped, its list of servers no longer has this one, or the runtime has ended.
    ClientClosed,
}

impl CloseReason {
    /// Every reason.
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

    /// Its name, as the label `reason` has it.
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

    /// The reason of a connection on which a call has failed.
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
