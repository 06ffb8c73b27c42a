//! A request of a trace.

use std::num::NonZeroU32;

/// A request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'l> {
    /// Nanoseconds since the first request of the trace; never decreases within a trace.
    pub at_nanos: u64,
    /// Resolution of the recorded time in nanoseconds; 10⁹ if the time has no decimals.
    pub unit_nanos: u64,
    /// The operation of the request.
    pub operation: Operation,
    /// The key: 1 to 250 bytes without spaces and control characters.
    pub key: &'l [u8],
    /// Recorded size of the value in bytes, at most 2^30. In Twitter's form, 0 if a get missed.
    pub value_len: u32,
    /// Recorded TTL of the value in seconds. `None` for no expiry and, in Twitter's form, for
    /// operations that set no TTL.
    pub ttl_secs: Option<NonZeroU32>,
}

/// An operation, with the name of its command in memcached's text protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of commands")]
pub enum Operation {
    Get,
    Gets,
    Set,
    Add,
    Replace,
    Cas,
    Append,
    Prepend,
    Delete,
    Incr,
    Decr,
}

impl Operation {
    /// All operations: set and get, then the others.
    pub const ALL: [Self; 11] = [
        Self::Set,
        Self::Get,
        Self::Gets,
        Self::Add,
        Self::Replace,
        Self::Cas,
        Self::Append,
        Self::Prepend,
        Self::Delete,
        Self::Incr,
        Self::Decr,
    ];

    /// Returns the name of the command in traces.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Gets => "gets",
            Self::Set => "set",
            Self::Add => "add",
            Self::Replace => "replace",
            Self::Cas => "cas",
            Self::Append => "append",
            Self::Prepend => "prepend",
            Self::Delete => "delete",
            Self::Incr => "incr",
            Self::Decr => "decr",
        }
    }

    /// Returns the operation with this name, or `None` for an unknown name.
    #[must_use]
    pub fn from_name(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| operation.name().as_bytes() == name)
    }
}
