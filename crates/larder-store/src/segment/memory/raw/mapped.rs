//! The region in mapped memory, or in an allocation on systems without mappings.

use super::hardware::{CACHE_LINE, prefetch, prefetch_for_write};
use super::system::Memory;
use crate::segment::index::buckets::BUCKET_SLOTS;
use crate::segment::memory::header_page::HeaderPage;
use crate::segment::sync::{AtomicU32, AtomicU64};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicU64 as Counter;

/// The region: words and bytes, addressed by offsets from its start.
#[derive(Debug)]
pub(crate) struct Region {
    memory: Memory,
    /// The last offset at which an object may start: [`FIXED_LEN`] before the end of the memory.
    last: usize,
}

/// The length of a bucket in bytes. A bucket is the longest object of fixed length.
const FIXED_LEN: usize = BUCKET_SLOTS * 8;

impl Region {
    /// Returns a region of `len` bytes of zeroes.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        // The memory is [`FIXED_LEN`] bytes longer than the region, so that one comparison checks
        // the offset of an object of any fixed length.
        Ok(Self { memory: Memory::new(Self::memory_len(len))?, last: len })
    }

    /// Returns a region of `len` bytes in a file of [`Region::memory_len`] bytes.
    pub(crate) fn of_file(file: File, len: usize) -> io::Result<Self> {
        Ok(Self { memory: Memory::of_file(file, Self::memory_len(len))?, last: len })
    }

    /// Returns the number of memory bytes that a region of `len` bytes needs.
    pub(crate) fn memory_len(len: usize) -> usize {
        len + FIXED_LEN
    }

    /// Returns whether the region is in a file.
    pub(crate) fn is_file(&self) -> bool {
        self.memory.is_file()
    }

    /// Allocates the file space of a range if the region is in a file. Does nothing for other
    /// regions, or on systems other than Linux.
    ///
    /// # Errors
    /// The file system is full.
    pub(crate) fn commit(&self, offset: usize, len: usize) -> io::Result<()> {
        self.memory.commit(offset, len)
    }

    /// Makes the system map the pages of a range now.
    pub(crate) fn populate(&self, offset: usize, len: usize) {
        self.memory.populate(offset, len);
    }

    /// Returns the two counters at `offset`, a multiple of 8. No thread orders other accesses by
    /// their values, so the counters are not atomics of the model checker.
    #[inline]
    pub(crate) fn counters(&self, offset: usize) -> &[Counter; 2] {
        strict_assert!(offset.is_multiple_of(8));
        let pointer = self.fixed(offset).cast::<[Counter; 2]>();
        // SAFETY: both counters are inside the memory (`fixed`) and aligned, because all users pass
        // multiples of 8. Rule 1: all accesses are atomic.
        unsafe { &*pointer }
    }

    /// Returns the address of an object of at most [`FIXED_LEN`] bytes. Panics if it is outside the
    /// memory.
    #[inline]
    fn fixed(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.last, "the object is inside the region");
        self.memory.start().wrapping_add(offset)
    }

    #[inline]
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(
            offset <= self.memory.len() && len <= self.memory.len() - offset,
            "the bytes are inside the region"
        );
        self.memory.start().wrapping_add(offset)
    }

    /// Returns the word at `offset`, a multiple of 8.
    #[inline]
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        strict_assert!(offset.is_multiple_of(8));
        let pointer = self.fixed(offset).cast::<AtomicU64>();
        // SAFETY: the pointer is inside the memory and aligned (the mapping is page-aligned, and
        // all users pass multiples of 8). Rule 1: all accesses are atomic.
        unsafe { &*pointer }
    }

    /// Returns the offset of a word that [`word`](Self::word) or [`bucket`](Self::bucket) has
    /// returned.
    #[inline]
    pub(crate) fn offset_of(&self, word: &AtomicU64) -> usize {
        std::ptr::from_ref(word).addr() - self.memory.start().addr()
    }

    /// Returns the header page, at the start of the region.
    #[inline]
    pub(crate) fn header_page(&self) -> &HeaderPage {
        let pointer = self.memory.start().cast::<HeaderPage>();
        // SAFETY: every region is longer than the header page and is aligned to a page. The page
        // consists only of atomics, for which all bytes are valid.
        unsafe { &*pointer }
    }

    /// Returns the words of the bucket at `offset`, a multiple of 64.
    #[inline]
    pub(crate) fn bucket(&self, offset: usize) -> &[AtomicU64; BUCKET_SLOTS] {
        strict_assert!(offset.is_multiple_of(64));
        let pointer = self.fixed(offset).cast::<[AtomicU64; BUCKET_SLOTS]>();
        // SAFETY: the eight words are inside the memory (`fixed`) and aligned, because all users
        // pass multiples of 64. Rule 1: all accesses are atomic.
        unsafe { &*pointer }
    }

    /// Returns the 32-bit word at `offset`, a multiple of 4.
    #[inline]
    pub(crate) fn half(&self, offset: usize) -> &AtomicU32 {
        strict_assert!(offset.is_multiple_of(4));
        let pointer = self.fixed(offset).cast::<AtomicU32>();
        // SAFETY: the pointer is inside the memory (`fixed`) and aligned, because all users pass
        // multiples of 4. Rule 1: all accesses are atomic.
        unsafe { &*pointer }
    }

    /// Returns the published bytes of a range.
    ///
    /// # Safety
    /// The bytes were written before, and no thread changes them while the slice is used. For that,
    /// the caller holds the pin, stripe lock or lease under which they are published, or owns the
    /// bytes (rules 2 and 3).
    #[inline]
    pub(crate) unsafe fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        // SAFETY: the bytes are inside the memory and initialised (mapped memory is zeroed). They
        // do not change, by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.at(offset, len), len) }
    }

    /// Writes bytes that no other thread can see yet.
    ///
    /// # Safety
    /// The caller owns the bytes, and no reader can see them: they are in its open segment or
    /// upload, in a free block that it has taken, after the published end of a chain whose stripe
    /// it has locked, or in a region that no other thread can access (rules 2 and 3).
    #[inline]
    pub(crate) unsafe fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: the range is inside the memory. Source and target do not overlap, because the
        // source is outside the region or published, and the target is not. No thread reads the
        // target.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    /// Returns the address of a range that a device reads or writes.
    #[inline]
    pub(crate) fn pointer_to(&self, offset: usize, len: usize) -> *mut u8 {
        self.at(offset, len)
    }

    /// Gives the memory of a range back to the system. Returns true if the range reads as zeroes
    /// now; otherwise its content is not specified.
    ///
    /// # Safety
    /// No other thread reads or writes the range until the caller passes it on. The range starts
    /// and ends at boundaries of system pages.
    pub(crate) unsafe fn discard(&self, offset: usize, len: usize) -> bool {
        // SAFETY: the caller promises the same: no other access until it passes the range on, and
        // whole pages.
        unsafe { self.memory.discard(offset, len) }
    }

    /// Requests huge pages from the system for memory that is first accessed from now on.
    pub(crate) fn use_huge_pages(&self) -> io::Result<()> {
        self.memory.use_huge_pages()
    }

    /// Prefetches the cache line at `offset`.
    #[inline]
    pub(crate) fn prefetch(&self, offset: usize) {
        prefetch(self.memory.start().wrapping_add(offset));
    }

    /// Prefetches the cache lines of a range for writing.
    #[inline]
    pub(crate) fn prefetch_range_for_write(&self, bytes: Range<usize>) {
        let mut line = bytes.start & !(CACHE_LINE - 1);
        while line < bytes.end {
            prefetch_for_write(self.memory.start().wrapping_add(line));
            line += CACHE_LINE;
        }
    }

    /// Prefetches `LINES` cache lines from `offset` on for writing. The lines may lie beyond the
    /// region's end.
    #[inline]
    pub(crate) fn prefetch_for_write<const LINES: usize>(&self, offset: usize) {
        let first = self.memory.start().wrapping_add(offset);
        for line in 0..LINES {
            prefetch_for_write(first.wrapping_add(line * CACHE_LINE));
        }
    }
}
