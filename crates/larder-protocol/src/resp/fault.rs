//! Protocol violations. [`crate::reply::resp`] has the messages.

/// A protocol violation. The server closes the connection after the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// The length of the array is not a number, or is too large.
    ArrayLength,
    /// The line with the length of the array is too long.
    LongArrayLength,
    /// The array is too long for a client that has not logged in.
    UnauthenticatedArrayLength,
    /// An element of the array starts with this byte rather than `$`.
    NotBulk(u8),
    /// The length of a bulk string is malformed, negative or too large.
    BulkLength {
        /// True if the length is too large, false if it is malformed or negative.
        too_long: bool,
    },
    /// The line with the length of a bulk string is too long.
    LongBulkLength,
    /// The bulk string is too long for a client that has not logged in.
    UnauthenticatedBulkLength,
    /// An inline request is too long.
    LongLine,
    /// A quote in an inline request is not closed, or a word follows a closing quote immediately.
    Quotes,
    /// The request is longer than the server allows.
    TooLong,
}
