//! Keys: how long they may be.

use super::error::{CommandError, Parsed};

/// The longest key in bytes.
pub const KEY_LEN_MAX: usize = 1024;

/// A key, if it is not too long, and not empty.
///
/// # Errors
/// [`CommandError::KeyLength`]
pub fn checked_key<'b>(key: &'b [u8]) -> Parsed<'b, &'b [u8]> {
    match key.len() {
        1..=KEY_LEN_MAX => Ok(key),
        _ => Err(CommandError::KeyLength),
    }
}
