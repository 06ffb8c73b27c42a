//! Helpers for parsing the words of a request.

use super::error::{CommandError, Parsed};
use super::number::i64_of;
use super::request::Arguments;

/// Returns the next argument, or an empty word if there is none.
pub(super) fn next<'b>(arguments: &mut Arguments<'b>) -> &'b [u8] {
    arguments.next().unwrap_or_default()
}

/// Returns the argument at an index, or an empty word if there is none.
pub(super) fn nth<'b>(mut arguments: Arguments<'b>, index: usize) -> &'b [u8] {
    arguments.nth(index).unwrap_or_default()
}

/// Parses a signed 64-bit integer in canonical decimal form.
pub(super) fn integer<'b>(text: &'b [u8]) -> Parsed<'b, i64> {
    i64_of(text).ok_or(CommandError::NotInteger)
}

/// Returns whether a word is this name, in any case.
pub(super) fn is(word: &[u8], name: &str) -> bool {
    word.eq_ignore_ascii_case(name.as_bytes())
}
