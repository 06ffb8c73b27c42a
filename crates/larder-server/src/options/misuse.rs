//! The refusal of a command line, with its exit status.

/// A command line that is refused, and the exit status that memcached gives it.
#[derive(Debug, PartialEq, Eq)]
pub struct Misuse {
    /// The message for the operator.
    pub message: String,
    /// 1 for a value that is refused by itself, 64 (`EX_USAGE`) for one that conflicts with others.
    pub status: u8,
}

/// `EX_USAGE` of `sysexits.h`.
pub(super) const USAGE: u8 = 64;
