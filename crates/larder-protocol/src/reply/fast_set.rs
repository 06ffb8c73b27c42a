//! Replies to [`FastSet`] requests.

use super::encode::binary_success;
use crate::parse::binary::Head;
use crate::parse::fast_set::{FastSet, Success};

/// Writes the reply to a stored [`FastSet`]. `cas` is the CAS of the item.
#[inline]
pub fn fast_stored(set: &FastSet<'_>, cas: u64, out: &mut Vec<u8>) {
    match set.success() {
        Success::Classic => out.extend_from_slice(b"STORED\r\n"),
        Success::Meta => out.extend_from_slice(b"HD\r\n"),
        Success::Binary(head) => {
            if let Some(head) = Head::read(head) {
                binary_success(&head.binary_head(), &[], cas, out);
            }
        }
    }
}
