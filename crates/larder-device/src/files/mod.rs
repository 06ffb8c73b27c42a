//! Files and block devices that form one device. The device's pages are numbered consecutively
//! across all files, and no page spans two files.
//!
//! ```text
//! file 0   [ header │ page 0 │ page 1 │ … ]
//! file 1   [ header │ page k │ page k+1 │ … ]
//! ```

mod direct;
mod header;
mod opening;
mod spec;

pub use opening::{FilesError, Opening};

use crate::{Device, transfer};
use header::{Header, Page};
use spec::ALIGN_MIN;
pub use spec::{FileSpec, HEADER_LEN};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};

/// Files and block devices as one range of bytes. The files stay locked while this value exists.
#[derive(Debug)]
pub struct Files {
    parts: Vec<Part>,
    page_len: u64,
    align: usize,
    is_direct: bool,
}

/// One of the files.
#[derive(Debug)]
struct Part {
    file: File,
    /// The offset of the file's pages on the device, in bytes.
    base: u64,
    /// The total length of the file's pages in bytes.
    len: u64,
}

impl Files {
    /// Opens files and block devices for pages of `page_len` bytes. Waits up to
    /// [`Opening::patience`] until no other process uses them. Creates missing files, and sets the
    /// sizes of all files. Existing bytes within the new sizes do not change.
    ///
    /// # Errors
    /// [`FilesError`]: a file cannot be used. The message names the file and the remedy.
    ///
    /// # Panics
    /// `page_len` is not a power of two, or is less than 4 KiB.
    pub fn open(specs: &[FileSpec], page_len: u64, opening: &Opening) -> Result<Self, FilesError> {
        assert!(page_len.is_power_of_two(), "a page length of {page_len} bytes");
        assert!(page_len >= HEADER_LEN, "a page length of {page_len} bytes");
        let opened = opening::open_all(specs, page_len, opening)?;
        let mut files = Self { parts: Vec::new(), page_len, align: ALIGN_MIN, is_direct: true };
        let mut base = 0;
        for (file, len) in opened {
            let direct_align = direct::enable(&file);
            files.is_direct &= direct_align.is_some();
            files.align = files.align.max(direct_align.unwrap_or(0));
            files.parts.push(Part { file, base, len });
            base += len;
        }
        Ok(files)
    }

    /// Returns whether reads and writes of all files bypass the system's page cache. If not, the
    /// page cache uses memory in addition to the cache's own memory.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Returns the id that the last call to [`Files::set_id`] has written to the headers. Returns
    /// `None` if a header is missing or damaged, or if it was written for a different number, order
    /// or size of the files, or for a different page length.
    #[must_use]
    pub fn id(&self) -> Option<u128> {
        let mut ids = (0..self.parts.len()).map(|index| self.id_of(index));
        let first = ids.next()??;
        ids.all(|id| id == Some(first)).then_some(first)
    }

    fn id_of(&self, index: usize) -> Option<u128> {
        let part = &self.parts[index];
        let page = Page::read(part.file.as_fd(), self.align).ok()?;
        let header = Header::from_page(&page)?;
        (header == self.header(index, header.id)).then_some(header.id)
    }

    /// Writes headers with `id` to all files, and makes them durable. [`Files::id`] then returns
    /// `id`.
    ///
    /// # Errors
    /// Returns the operating system's error. Each file may then have the old id, the new id, or
    /// none. [`Files::id`] returns `None` unless all files have the same id.
    pub fn set_id(&self, id: u128) -> io::Result<()> {
        for (index, part) in self.parts.iter().enumerate() {
            self.header(index, id).to_page().write(part.file.as_fd())?;
        }
        self.sync()
    }

    fn header(&self, index: usize, id: u128) -> Header {
        Header {
            id,
            index: index as u64,
            files: self.parts.len() as u64,
            len: self.parts[index].len,
            page_len: self.page_len,
        }
    }

    /// Returns the file that contains an offset of the device, or `None` if the offset is beyond
    /// the end of the device.
    fn part(&self, offset: u64) -> Option<&Part> {
        let after = self.parts.partition_point(|part| part.base <= offset);
        self.parts[..after].last().filter(|part| offset - part.base < part.len)
    }

    /// Returns the file that contains a device range, and the range's offset in that file. Fails
    /// with `InvalidInput` if the range is not within one file.
    fn range(&self, offset: u64, len: usize) -> io::Result<(&Part, u64)> {
        let part = self.part(offset).ok_or(io::ErrorKind::InvalidInput)?;
        let from = offset - part.base;
        if len as u64 > part.len - from {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok((part, HEADER_LEN + from))
    }
}

impl Device for Files {
    fn len(&self) -> u64 {
        self.parts.iter().map(|part| part.len).sum()
    }

    fn align(&self) -> usize {
        self.align
    }

    fn descriptor(&self, offset: u64) -> Option<(RawFd, u64)> {
        let part = self.part(offset)?;
        Some((part.file.as_raw_fd(), HEADER_LEN + (offset - part.base)))
    }

    unsafe fn read(&self, offset: u64, into: *mut u8, len: usize) -> io::Result<()> {
        let (part, from) = self.range(offset, len)?;
        // SAFETY: by the caller's promise, `into` has space for `len` bytes, which no other thread
        // uses.
        unsafe { transfer::read_all(part.file.as_fd(), from, into, len, self.align) }
    }

    unsafe fn write(&self, offset: u64, from: *const u8, len: usize) -> io::Result<()> {
        let (part, to) = self.range(offset, len)?;
        // SAFETY: by the caller's promise, `from` points to `len` initialised bytes.
        unsafe { transfer::write_all(part.file.as_fd(), to, from, len) }
    }

    fn id(&self) -> Option<u128> {
        self.id()
    }

    fn set_id(&self, id: u128) -> io::Result<()> {
        self.set_id(id)
    }

    fn sync(&self) -> io::Result<()> {
        self.parts.iter().try_for_each(|part| part.file.sync_data())
    }
}
