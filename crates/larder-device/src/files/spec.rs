//! The specification of a device's files.

use std::path::PathBuf;

/// The length, in bytes, of the header at the start of each file. The header is not part of the
/// device.
pub const HEADER_LEN: u64 = 4096;

/// The minimum alignment of offsets, lengths and addresses, in bytes.
pub(super) const ALIGN_MIN: usize = 512;

/// A file or block device, and its size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSpec {
    /// The path of a block device or a file. A file is created if it does not exist.
    pub path: PathBuf,
    /// The number of bytes for pages, rounded down to whole pages. The header takes additional
    /// space. If a block device has no space left for the header, it gets one page less.
    pub bytes: u64,
}
