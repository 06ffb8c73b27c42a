//! Flash devices, to which a cache writes blocks and from which it reads items.
//!
//! A [`Device`] is a range of bytes, of one or more files or block devices. Writes block the
//! calling thread. Reads are started through a [`Reader`], one for each thread, and may end on any
//! thread.

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

/// Systems without descriptors have only devices of other crates, which return no descriptor.
#[cfg(not(unix))]
type RawFd = i32;

/// A range of bytes on flash.
#[expect(clippy::len_without_is_empty, reason = "a device always has at least one page")]
pub trait Device: Send + Sync + fmt::Debug {
    /// The length in bytes: a multiple of the page length that the device was opened for.
    fn len(&self) -> u64;

    /// The alignment in bytes, a power of two. Offsets, lengths and addresses of reads and writes
    /// are multiples of it.
    fn align(&self) -> usize;

    /// The descriptor of an offset, and the offset within that descriptor, for reads through a
    /// ring. `None` if reads must use [`Device::read`].
    fn descriptor(&self, offset: u64) -> Option<(RawFd, u64)>;

    /// Reads `len` bytes from `offset` on. Any thread may call it; it blocks.
    ///
    /// # Errors
    /// The system's. A read that ends before `len` bytes is `UnexpectedEof`.
    ///
    /// # Safety
    /// `into` has room for `len` bytes, and no other thread reads or writes them until this
    /// returns.
    unsafe fn read(&self, offset: u64, into: *mut u8, len: usize) -> io::Result<()>;

    /// Writes `len` bytes at `offset`. Any thread may call it; it blocks.
    ///
    /// # Errors
    /// The system's. Any part may have been written.
    ///
    /// # Safety
    /// `from` has `len` initialised bytes. Other threads may change them through atomics during the
    /// write; which of their values is written is not specified.
    unsafe fn write(&self, offset: u64, from: *const u8, len: usize) -> io::Result<()>;

    /// Writes bytes that no thread changes during the write, like [`write`](Self::write).
    ///
    /// # Errors
    /// The system's. Any part may have been written.
    fn write_bytes(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        // SAFETY: the bytes are initialised, and they do not change while they are borrowed.
        unsafe { self.write(offset, bytes.as_ptr(), bytes.len()) }
    }

    /// The identifier of the content: the one that the last [`Device::begin`] has written, unless
    /// the device was changed since then.
    fn id(&self) -> Option<u128>;

    /// Discards the earlier content, and identifies the next content by `id`.
    ///
    /// # Errors
    /// The system's: the device may still have the earlier id.
    fn begin(&self, id: u128) -> io::Result<()>;

    /// Makes all written bytes durable.
    ///
    /// # Errors
    /// The system's.
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
/// The bytes at [`Target::parameters`] belong to the read until [`Target::finish`] is called.
pub unsafe trait Target: Send + Sync + 'static {
    /// The parameters of the read.
    fn parameters(&self) -> ReadParameters;

    /// Ends the read: all bytes were read, or the error is the reason why not. Called once, on any
    /// thread.
    fn finish(self: Arc<Self>, result: io::Result<()>);
}
