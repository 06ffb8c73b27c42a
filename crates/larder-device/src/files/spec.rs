//! The files that a device is made of, as its caller names them.

use std::path::PathBuf;

/// The bytes at the beginning of each file that are not part of the device.
pub const HEADER_LEN: u64 = 4096;

/// Offsets, lengths and addresses are multiples of this at least, in bytes.
pub(super) const ALIGN_MIN: usize = 512;

/// A file or block device, and how much of it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSpec {
    /// A file, which is created if there is none, or a block device.
    pub path: PathBuf,
    /// How many bytes of pages it has; rounded down to whole pages. The header comes on top in a file; a
    /// block device without room for that has a page less.
    pub bytes: u64,
}
