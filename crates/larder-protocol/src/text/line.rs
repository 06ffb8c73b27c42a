//! Lines of classic and meta text: their length, their end, and the error for a malformed line.

/// The maximum length of a text line in bytes, including its LF. Like memcached, the server closes
/// a connection that sends more without an LF. A retrieval line may have any length. The parser
/// checks up to this many of its bytes before it returns the first key.
pub(crate) const LINE_LEN_MAX: usize = 2048;

/// The reply to a line with a missing, malformed or too long word.
pub(crate) const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";

/// Returns the line without the optional CR before its LF.
#[inline]
pub(crate) fn without_cr(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}
