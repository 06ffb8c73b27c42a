//! What classic and meta text say of a line: its length, its end, and the error of a malformed one.

/// The longest text line in bytes, its LF included. memcached closes a connection that sends more
/// without an LF; lines of keys to get are the exception: they may go on for ever, and their first
/// so many bytes are looked at before any key is answered.
pub(crate) const LINE_LEN_MAX: usize = 2048;

/// The answer to a line that lacks a word, or has one that is too long or no number.
pub(crate) const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";

/// The line without the one CR that may precede its LF.
#[inline]
pub(crate) fn without_cr(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}
