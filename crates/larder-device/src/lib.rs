//! Flash devices: what a cache writes blocks to and reads items from.
//!
//! A [`Device`] is a range of bytes, of one or more files or block devices. Writes block the thread that
//! calls; reads are begun through a [`Reader`], one for each thread, and end on any thread.

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

/// Systems without descriptors have only devices of other crates, which return none.
#[cfg(not(unix))]
type RawFd = i32;

/// A range of bytes on flash.
#[expect(clippy::len_without_is_empty, reason = "a device always has at least one page")]
pub trait Device: Send + Sync + fmt::Debug {
    /// Its length in bytes: a multiple of the page length that it was opened for.
    fn len(&self) -> u64;

    /// Offsets, lengths and addresses of reads and writes are multiples of this power of two, in bytes.
    fn align(&self) -> usize;

    /// The descriptor and the offset in it of a place, for reads that are begun by a ring. `None` if reads
    /// have to go through [`Device::read`].
    fn descriptor(&self, offset: u64) -> Option<(RawFd, u64)>;

    /// Reads `len` bytes from `offset` on. It may be called from any thread, and blocks it.
    ///
    /// # Errors
    /// The system's. A read that ends before `len` bytes is `UnexpectedEof`.
    ///
    /// # Safety
    /// `into` has room for `len` bytes, and nobody else reads or writes them meanwhile.
    unsafe fn read(&self, offset: u64, into: *mut u8, len: usize) -> io::Result<()>;

    /// Writes `len` bytes at `offset`. It may be called from any thread, and blocks it.
    ///
    /// # Errors
    /// The system's. Any part may have been written.
    ///
    /// # Safety
    /// There are `len` initialised bytes at `from`. Others may change them through atomics meanwhile; which
    /// of their values is written is not specified.
    unsafe fn write(&self, offset: u64, from: *const u8, len: usize) -> io::Result<()>;

    /// Writes bytes that nobody changes meanwhile, as [`write`](Self::write) does.
    ///
    /// # Errors
    /// The system's. Any part may have been written.
    fn write_bytes(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        // SAFETY: the bytes are initialised, and they do not change while they are borrowed.
        unsafe { self.write(offset, bytes.as_ptr(), bytes.len()) }
    }

    /// What tells its content from others: what the last [`Device::begin`] has written, unless the device was
    /// changed since then.
    fn id(&self) -> Option<u128>;

    /// Says that earlier content is given up, and tells the next content from it by `id`.
    ///
    /// # Errors
    /// The system's: the earlier content may still be known by its id.
    fn begin(&self, id: u128) -> io::Result<()>;

    /// Makes what was written durable.
    ///
    /// # Errors
    /// The system's.
    fn sync(&self) -> io::Result<()>;
}

/// Where a read goes.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The first byte on the device.
    pub offset: u64,
    /// Where it is read to.
    pub into: *mut u8,
    /// The number of bytes.
    pub len: usize,
}

/// What is read, and who is told.
///
/// # Safety
/// The bytes at [`Target::place`] belong to the read until [`Target::finish`] is called.
pub unsafe trait Target: Send + Sync + 'static {
    /// What is read, and to where.
    fn place(&self) -> Place;

    /// The read has ended: all bytes are there, or the error says why not. It is called once, on any
    /// thread.
    fn finish(self: Arc<Self>, result: io::Result<()>);
}
