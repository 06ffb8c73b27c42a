//! Flash devices, to which a cache writes blocks and from which it reads items.
//!
//! A [`Device`] is a range of bytes, of one or more files or block devices. Its reads and writes
//! block the calling thread. Asynchronous reads are started through a [`Reader`], one for each
//! thread, and may end on any thread.

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

/// Stands for a file descriptor on systems that have none. [`Device::descriptor`] returns `None`
/// there.
#[cfg(not(unix))]
type RawFd = i32;

/// A range of bytes on flash.
#[expect(clippy::len_without_is_empty, reason = "a device always has at least one page")]
pub trait Device: Send + Sync + fmt::Debug {
    /// Returns the length in bytes: a multiple of the page length that the device was opened for.
    fn len(&self) -> u64;

    /// Returns the alignment in bytes, a power of two. Offsets, lengths and addresses of reads and
    /// writes are multiples of it.
    fn align(&self) -> usize;

    /// Returns the descriptor of the file that contains an offset, and the offset in that file, for
    /// reads through a ring. Returns `None` if reads must use [`Device::read`], or if the device
    /// does not have the offset.
    fn descriptor(&self, offset: u64) -> Option<(RawFd, u64)>;

    /// Reads `len` bytes from `offset` on. Any thread may call this. The call blocks until the read
    /// has ended.
    ///
    /// # Errors
    /// Returns the operating system's error, or `UnexpectedEof` if the read ends before `len`
    /// bytes.
    ///
    /// # Safety
    /// `into` has room for `len` bytes, and no other thread reads or writes them until this
    /// returns.
    unsafe fn read(&self, offset: u64, into: *mut u8, len: usize) -> io::Result<()>;

    /// Writes `len` bytes at `offset`. Any thread may call this. The call blocks until the write
    /// has ended.
    ///
    /// # Errors
    /// Returns the operating system's error. Any part may have been written.
    ///
    /// # Safety
    /// `from` has `len` initialised bytes. Other threads may change them through atomics during the
    /// write. It is not specified which values are then written.
    unsafe fn write(&self, offset: u64, from: *const u8, len: usize) -> io::Result<()>;

    /// Writes bytes that no thread changes during the write, like [`write`](Self::write).
    ///
    /// # Errors
    /// Returns the operating system's error. Any part may have been written.
    fn write_bytes(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        // SAFETY: the bytes are initialised, and they do not change while they are borrowed.
        unsafe { self.write(offset, bytes.as_ptr(), bytes.len()) }
    }

    /// Returns the identifier that the last [`Device::set_id`] has given to the content. Returns
    /// `None` if there was no such call, or if the files or their sizes have changed since.
    fn id(&self) -> Option<u128>;

    /// Makes `id` the identifier of the content that is written from now on. The earlier content is
    /// no longer valid.
    ///
    /// # Errors
    /// Returns the operating system's error. The device may have the earlier id, the new one, or
    /// none.
    fn set_id(&self, id: u128) -> io::Result<()>;

    /// Makes all written bytes durable.
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
    /// The address that the bytes are read to.
    pub into: *mut u8,
    /// The number of bytes.
    pub len: usize,
}

/// A read, and the function to call at its end.
///
/// # Safety
/// From the start of the read until the call of [`Target::finish`], [`Target::parameters`] returns
/// the same values, and only the threads that execute the read use the bytes at these
/// parameters.
pub unsafe trait Target: Send + Sync + 'static {
    /// Returns the parameters of the read.
    fn parameters(&self) -> ReadParameters;

    /// Receives the result of the read when it has ended. It is called once, on any thread. If the
    /// result is `Ok`, all bytes were read.
    fn finish(self: Arc<Self>, result: io::Result<()>);
}
