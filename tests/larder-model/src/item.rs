//! Items of the model, and their expiry.

use larder_protocol::Exptime;

/// A stored item.
#[derive(Clone, Debug, Default)]
pub(crate) struct Item {
    pub(crate) value: Vec<u8>,
    pub(crate) client_flags: u32,
    /// The first second at which the item is expired, in Unix time; `None` if it never expires.
    pub(crate) expires: Option<u32>,
    pub(crate) cas: u64,
    pub(crate) stale: bool,
    pub(crate) won: bool,
    pub(crate) binary_key: bool,
    pub(crate) fetched: bool,
    pub(crate) accessed: u32,
    pub(crate) stored: u32,
    pub(crate) tags: Vec<Vec<u8>>,
}

/// Returns the first second at which an item with this exptime is expired, or `None` if the item
/// never expires.
pub(crate) fn expiry(now: u32, exptime: Exptime) -> Option<u32> {
    let at = match exptime.0 {
        0 => return None,
        ..0 => 0,
        seconds @ 1..=2_592_000 => i64::from(now) + seconds,
        unix => unix,
    };
    Some(u32::try_from(at).unwrap_or(u32::MAX).max(now))
}

/// Returns the remaining TTL in seconds, or `None` if the item does not expire.
pub(crate) fn left(item: &Item, now: u32) -> Option<u32> {
    item.expires.map(|at| at - now)
}
