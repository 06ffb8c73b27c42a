//! Enables direct I/O if a file supports it, and determines the required alignment.

use std::fs::File;

/// Makes reads and writes of a file bypass the page cache. Returns the alignment in bytes that they
/// then require, or `None` if the file system does not support direct I/O or requires an alignment
/// above [`HEADER_LEN`].
///
/// [`HEADER_LEN`]: super::spec::HEADER_LEN
#[cfg(target_os = "linux")]
pub(super) fn enable(file: &File) -> Option<usize> {
    use super::header::Page;
    use super::spec::{ALIGN_MIN, HEADER_LEN};
    use std::os::fd::AsFd;

    let align = reported_align(file).or_else(|| block_len(file)).unwrap_or(ALIGN_MAX);
    let is_possible = align.is_power_of_two() && align as u64 <= HEADER_LEN;
    if is_possible && set_flags(file, libc::O_DIRECT) {
        // Try a read, because some file systems accept the flag but refuse reads.
        if Page::read(file.as_fd(), ALIGN_MIN).is_ok() {
            return Some(align);
        }
        set_flags(file, 0);
    }
    None
}

#[cfg(not(target_os = "linux"))]
pub(super) fn enable(_file: &File) -> Option<usize> {
    None
}

/// The alignment in bytes that is assumed if the system reports none. It suits all common devices.
#[cfg(target_os = "linux")]
const ALIGN_MAX: usize = 4096;

/// Replaces the changeable flags of an open file. Returns false if the system refuses them.
#[cfg(target_os = "linux")]
fn set_flags(file: &File, flags: libc::c_int) -> bool {
    use std::os::fd::AsRawFd;

    // SAFETY: the call takes no pointers, and the descriptor is open.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags) == 0 }
}

/// Returns the alignment in bytes that the file system reports. Returns `None` on kernels before
/// 6.1, or if the file system reports that direct I/O is not supported.
#[cfg(target_os = "linux")]
fn reported_align(file: &File) -> Option<usize> {
    use std::mem::MaybeUninit;
    use std::os::fd::AsRawFd;

    let mut stat = MaybeUninit::<libc::statx>::zeroed();
    let (flags, mask) = (libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN);
    // SAFETY: the path is a C string, and `about` has space for the result.
    let answer =
        unsafe { libc::statx(file.as_raw_fd(), c"".as_ptr(), flags, mask, stat.as_mut_ptr()) };
    // SAFETY: the struct consists of integers. If the system wrote nothing, they are zeros, which
    // are valid.
    let stat = unsafe { stat.assume_init() };
    if answer != 0 || stat.stx_mask & libc::STATX_DIOALIGN == 0 {
        return None;
    }
    let align = stat.stx_dio_mem_align.max(stat.stx_dio_offset_align);
    usize::try_from(align).ok().filter(|align| *align > 0)
}

/// Returns the length of a block device's logical blocks in bytes, or `None` for other files.
#[cfg(target_os = "linux")]
fn block_len(file: &File) -> Option<usize> {
    use std::os::fd::AsRawFd;

    let mut len: libc::c_int = 0;
    // SAFETY: the request writes one `int`. Files that are not block devices refuse it.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), libc::BLKSSZGET, &raw mut len) };
    if answer == 0 { usize::try_from(len).ok() } else { None }
}
