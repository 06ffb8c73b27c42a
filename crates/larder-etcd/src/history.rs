//! Repairs a key that was deleted or overwritten by mistake. etcd keeps earlier values of a key
//! until it compacts its history.

use crate::client::requests::Range;
use crate::client::{EarlierValue, Etcd};
use larder_replica::{CoordinatorError, Revision};
use std::time::Instant;

/// [`restore`] reads at most this many earlier revisions of a key.
const MALFORMED_MAX: usize = 10;

/// Replaces a malformed value with the last valid value before it. Returns false if it finds no
/// such value. If the current value is valid or absent, does nothing and returns true. If another
/// process changes the key at the same time, does not replace the value, and returns true.
///
/// # Errors
/// [`CoordinatorError`]: the value may have been replaced.
pub(crate) fn restore(
    etcd: &mut Etcd,
    key: &str,
    is_valid: impl Fn(&[u8]) -> bool,
) -> Result<bool, CoordinatorError> {
    let found = etcd.read(&[Range::One(key.to_owned())])?.into_iter().flatten().next();
    let Some(current) = found.filter(|found| !is_valid(&found.value)) else { return Ok(true) };
    let mut revision = current.revision;
    for _ in 0..MALFORMED_MAX {
        let EarlierValue::Found(before) = etcd.read_at(key, revision - 1)? else {
            return Ok(false);
        };
        if is_valid(&before.value) {
            etcd.replace(key, current.revision, &before.value)?;
            return Ok(true);
        }
        revision = before.revision;
    }
    Ok(false)
}

/// Writes the last value of a deleted key again. The key had a value at the revision `existed_at`.
/// Returns false if etcd no longer has that value. If another process writes the key at the same
/// time, does not write it, and returns true.
///
/// # Errors
/// [`CoordinatorError`]: the value may have been written.
pub(crate) fn restore_deleted(
    etcd: &mut Etcd,
    key: &str,
    existed_at: Revision,
) -> Result<bool, CoordinatorError> {
    let (_, mut absent_at) = etcd.read_since(Instant::now(), &[Range::One(key.to_owned())])?;
    let mut last = None;
    let mut low = existed_at;
    // Binary search for the revision that deleted the key.
    while absent_at > low {
        let middle = low + (absent_at - low) / 2;
        match etcd.read_at(key, middle)? {
            EarlierValue::Found(found) => {
                last = Some(found.value);
                low = middle + 1;
            }
            EarlierValue::Absent => absent_at = middle,
            // This revision is compacted. Later ones may still be available.
            EarlierValue::Unknown => low = middle + 1,
        }
    }
    let Some(last) = last else { return Ok(false) };
    etcd.replace(key, 0, &last)?;
    Ok(true)
}
