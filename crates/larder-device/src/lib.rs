//! Flash devices. A cache writes blocks to them and reads items from them.
//!
//! A [`Device`] is a range of bytes in one or more files or block devices. Its reads and writes
//! block the calling thread. For asynchronous reads, each thread has its own [`Reader`]. These
//! reads may complete on any thread.

#[cfg(unix)]
mod files;
#[cfg(unix)]
mod memory;
mod pool;
mod reader;
#[cfg(target_os = "linux")]
mod ring;
#[cfg(unix)]
mod transfer;

#[cfg(unix)]
pub use files::{FileSpec, Files, FilesError, HEADER_LEN, Opening};

#[cfg(unix)]
pub use memory::{Faults, Memory};
pub use pool::Pool;
pub use reader::Reader;

use std::fmt;
use std::io;
use std::sync::Arc;

#[cfg(unix)]
use std::os::fd::RawFd;

/// Stands in for the type of a file descriptor on systems without file descriptors, where
/// [`Device::descriptor`] returns `None`.
#[cfg(not(unix))]
type RawFd = i32;

/// A range of bytes on flash.
#[expect(clippy::len_without_is_empty, reason = "a device always has at least one page")]
pub trait Device: Send + Sync + fmt::Debug {
    /// Returns the length in bytes, which is a multiple of the page length with which the device
    /// was opened.
    fn len(&self) -> u64;

    /// Returns the alignment in bytes, a power of two. Offsets, lengths and addresses of reads and
    /// writes must be multiples of it.
    fn align(&self) -> usize;

    /// Converts a device offset for a read through a ring. Returns the descriptor of the file that
    /// contains it, and the offset in that file. Returns `None` if reads must use [`Device::read`],
    /// or if the offset is beyond the end of the device.
    fn descriptor(&self, offset: u64) -> Option<(RawFd, u64)>;

    /// Reads `len` bytes, starting at `offset`. Any thread may call this function. The call blocks
    /// until the read has completed.
    ///
    /// # Errors
    /// Returns the operating system's error, or `UnexpectedEof` if the read ends before `len`
    /// bytes.
    ///
    /// # Safety
    /// `into` has space for `len` bytes, and no other thread reads or writes them until this
    /// function returns.
    unsafe fn read(&self, offset: u64, into: *mut u8, len: usize) -> io::Result<()>;

    /// Writes `len` bytes at `offset`. Any thread may call this function. The call blocks until the
    /// write has completed.
    ///
    /// # Errors
    /// Returns the operating system's error. Any part may have been written.
    ///
    /// # Safety
    /// `from` points to `len` initialised bytes. Other threads may change them through atomics
    /// during the write. It is then unspecified which values are written.
    unsafe fn write(&self, offset: u64, from: *const u8, len: usize) -> io::Result<()>;

    /// Writes borrowed bytes, which no thread can change during the write. Otherwise like
    /// [`write`](Self::write).
    ///
    /// # Errors
    /// Returns the operating system's error. Any part may have been written.
    fn write_bytes(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        // SAFETY: the bytes are initialised, and they do not change while they are borrowed.
        unsafe { self.write(offset, bytes.as_ptr(), bytes.len()) }
    }

    /// Returns the identifier that the last [`Device::set_id`] assigned to the content. Returns
    /// `None` if there was no such call, or if the files or their sizes have changed since then.
    fn id(&self) -> Option<u128>;

    /// Assigns the identifier `id` to the content that is written from now on. Earlier content
    /// becomes invalid.
    ///
    /// # Errors
    /// Returns the operating system's error. The device may then have the earlier id, the new id,
    /// or none.
    fn set_id(&self, id: u128) -> io::Result<()>;

    /// Makes all completed writes durable.
    ///
    /// # Errors
    /// Returns the operating system's error.
    fn sync(&self) -> io::Result<()>;
}

/// The parameters of a read.
#[derive(Clone, Copy, Debug)]
pub struct ReadParameters {
    /// The offset of the first byte on the device.
    pub offset: u64,
    /// The address of the buffer for the bytes.
    pub into: *mut u8,
    /// The number of bytes.
    pub len: usize,
}

/// A read, and the function to call when it completes.
///
/// # Safety
/// From the start of the read until the call to [`Target::finish`], [`Target::parameters`] must
/// return the same values, and only the threads that execute the read may use the bytes that the
/// parameters describe.
pub unsafe trait Target: Send + Sync + 'static {
    /// Returns the parameters of the read.
    fn parameters(&self) -> ReadParameters;

    /// Receives the result of the completed read. Called exactly once, on any thread. If the result
    /// is `Ok`, all bytes were read.
    fn finish(self: Arc<Self>, result: io::Result<()>);
}
