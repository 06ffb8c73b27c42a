//! The limits on the length of keys in RESP.

use super::error::{CommandError, Parsed};

/// The maximum length of a key, in bytes. memcached's protocols have a lower limit.
pub const KEY_LEN_MAX: usize = 1024;

/// Checks that a key is neither empty nor too long.
///
/// # Errors
/// [`CommandError::KeyLength`]
pub fn checked_key<'b>(key: &'b [u8]) -> Parsed<'b, &'b [u8]> {
    match key.len() {
        1..=KEY_LEN_MAX => Ok(key),
        _ => Err(CommandError::KeyLength),
    }
}
