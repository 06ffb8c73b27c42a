//! Answers to [`FastSet`]s.

use super::encode::binary_success;
use crate::parse::binary::Head;
use crate::parse::fast_set::{FastSet, Success};

/// The answer to a [`FastSet`] that was stored; the item has this CAS.
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
