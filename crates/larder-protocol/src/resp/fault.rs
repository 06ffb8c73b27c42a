//! What breaks the protocol. The words are in [`crate::reply::resp`].

/// Bytes that break the protocol. The connection is closed after the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// The length of the array is no number, or too large.
    ArrayLength,
    /// The line with the length of the array is too long.
    LongArrayLength,
    /// The array is too long for a client that has not logged in.
    UnauthenticatedArrayLength,
    /// An element of the array begins with this byte rather than `$`.
    NotBulk(u8),
    /// The length of a bulk string is no number, or too large.
    BulkLength {
        /// Whether it is too large.
        too_long: bool,
    },
    /// The line with the length of a bulk string is too long.
    LongBulkLength,
    /// The bulk string is too long for a client that has not logged in.
    UnauthenticatedBulkLength,
    /// An inline request is too long.
    LongLine,
    /// A quote of an inline request is not closed, or followed by a letter.
    Quotes,
    /// The request is longer than the server keeps.
    TooLong,
}
