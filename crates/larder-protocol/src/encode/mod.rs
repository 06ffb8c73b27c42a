//! Request encoders for clients. Each protocol has a module with one function per command.
//!
//! Each function appends a request, or a part of a request, to a buffer. A function allocates only
//! to grow the buffer. Keys are checked beforehand ([`WireKey`], [`MetaKey`]), and values are sent
//! with their lengths, so stored data can neither end a request early nor start another one.
//! [`crate::answer`] reads the replies.
//!
//! ```
//! use larder_protocol::Exptime;
//! use larder_protocol::encode::{MetaKey, NewItem, WireKey, classic, meta};
//!
//! const WITH_VALUE: meta::GetFlags = meta::GetFlags::NONE.value().client_flags();
//!
//! let now_unix_secs = 1_700_000_000;
//! let (mut out, key) = (Vec::new(), WireKey::new(b"user:1")?);
//! let expiry = Exptime::after(60, now_unix_secs);
//! classic::set(key, &NewItem { expiry, ..NewItem::of(b"ann") }, false, &mut out);
//! classic::get([key], &mut out);
//! // Meta sends any key: this one, which has a space, in base64.
//! meta::get(MetaKey::new(b"user 1")?, WITH_VALUE, &meta::GetOptions::default(), &mut out);
//! assert_eq!(out, b"set user:1 0 60 3\r\nann\r\nget user:1\r\nmg dXNlciAx b v f\r\n");
//! # Ok::<(), larder_protocol::encode::InvalidKey>(())
//! ```

pub mod binary;
pub mod classic;
mod flags;
mod key;
pub mod meta;
pub mod resp;

pub use key::{BASE64_KEY_LEN_MAX, InvalidKey, MetaKey, NumberedKeys, WireKey};

use crate::request::{Exptime, RELATIVE_SECS_MAX};
use crate::text::number::push_len;

/// The bytes that follow a value.
pub const VALUE_END: &[u8] = b"\r\n";

/// The value of an item to store, with its client flags and expiry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewItem<'v> {
    /// The value: at most [`VALUE_LEN_MAX`](crate::VALUE_LEN_MAX) bytes. Servers have lower limits,
    /// usually 1 MiB, and refuse a longer value as too large.
    pub value: &'v [u8],
    /// Client flags, which the server does not interpret. Append and prepend ignore them.
    pub client_flags: u32,
    /// The expiry of the item. Append and prepend ignore this field.
    pub expiry: Exptime,
}

impl<'v> NewItem<'v> {
    /// Returns an item that never expires, with client flags of 0.
    #[inline]
    #[must_use]
    pub const fn of(value: &'v [u8]) -> Self {
        Self { value, client_flags: 0, expiry: Exptime::NEVER }
    }
}

impl Exptime {
    /// No expiry: the item never expires.
    pub const NEVER: Self = Self(0);
    /// An expiry in the past: the item has already expired.
    pub const PAST: Self = Self(-1);

    /// Returns the expiry of an item that lives for `ttl_secs` seconds, or [`NEVER`](Self::NEVER)
    /// for 0.
    ///
    /// Requests contain a TTL of up to 30 days unchanged. Servers interpret a larger number as Unix
    /// time, so this function adds the current time to it. Text requests have 31 bits for a Unix
    /// time, so an item with a TTL of more than 30 days expires in January 2038 at the latest.
    #[inline]
    #[must_use]
    pub const fn after(ttl_secs: u32, now_unix_secs: u64) -> Self {
        let ttl_secs = ttl_secs as i64;
        if ttl_secs <= RELATIVE_SECS_MAX {
            return Self(ttl_secs);
        }
        let at = now_unix_secs.saturating_add(ttl_secs.cast_unsigned());
        Self(if at < i32::MAX as u64 { at.cast_signed() } else { i32::MAX as i64 })
    }

    /// Returns the number, clamped to the range of a signed 32-bit integer.
    #[inline]
    fn wire(self) -> i32 {
        i32::try_from(self.0).unwrap_or(if self.0 < 0 { i32::MIN } else { i32::MAX })
    }
}

/// Writes an expiry in decimal digits.
#[inline]
fn push_expiry(expiry: Exptime, out: &mut Vec<u8>) {
    match expiry.wire() {
        0 => out.push(b'0'),
        secs => out.extend_from_slice(itoa::Buffer::new().format(secs).as_bytes()),
    }
}

/// Writes the length of a value, a line end, the value, and another line end.
#[inline]
fn push_value(value: &[u8], out: &mut Vec<u8>) {
    push_len(value.len(), b"\r\n", out);
    push_block(value, out);
}

/// Writes a value and its line end.
#[inline]
fn push_block(value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(value);
    out.extend_from_slice(VALUE_END);
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_700_000_000;
    const MONTH: u32 = 30 * 24 * 3600;

    #[test]
    fn a_long_ttl_is_sent_as_unix_time() {
        assert_eq!(Exptime::after(0, NOW), Exptime::NEVER);
        assert_eq!(Exptime::after(MONTH, NOW), Exptime(2_592_000));
        assert_eq!(Exptime::after(MONTH + 1, NOW), Exptime(1_702_592_001));
        assert_eq!(Exptime::after(u32::MAX, NOW), Exptime(i32::MAX.into()));
        assert_eq!(Exptime::after(MONTH + 1, u64::MAX), Exptime(i32::MAX.into()));
    }

    #[test]
    fn an_expiry_beyond_31_bits_is_clamped() {
        assert_eq!(Exptime(i64::MAX).wire(), i32::MAX);
        assert_eq!(Exptime(i64::MIN).wire(), i32::MIN);
        assert_eq!(Exptime::PAST.wire(), -1);
    }
}
