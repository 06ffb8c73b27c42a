//! The refusal of a command line.

/// The refusal of a command line, with memcached's exit status.
#[derive(Debug, PartialEq, Eq)]
pub struct OptionsRefusal {
    /// The message for the operator.
    pub message: String,
    /// The exit status: 1 for most invalid values; 64 (`EX_USAGE`) for other invalid values and for
    /// conflicting options.
    pub status: u8,
}

/// `EX_USAGE` from `sysexits.h`.
pub(super) const USAGE: u8 = 64;
