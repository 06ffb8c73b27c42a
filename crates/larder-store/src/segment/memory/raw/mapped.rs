//! The region, as words and bytes in mapped memory.

use super::hardware::{CACHE_LINE, prefetch, prefetch_for_write};
use super::system::Memory;
use crate::segment::index::buckets::BUCKET_SLOTS;
use crate::segment::memory::header_page::HeaderPage;
use crate::segment::sync::{AtomicU32, AtomicU64};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicU64 as Counter;

/// The region.
#[derive(Debug)]
pub(crate) struct Region {
    memory: Memory,
    /// The last offset at which words may begin: a bucket's length before the end of the memory.
    last: usize,
}

/// The bytes of a bucket, the longest object of fixed length.
const FIXED_LEN: usize = BUCKET_SLOTS * 8;

impl Region {
    /// A region of `len` bytes of zeroes.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        // The bytes behind the end are never touched; with them the check of a word's place is one
        // comparison.
        Ok(Self { memory: Memory::new(Self::memory_len(len))?, last: len })
    }

    /// A region of `len` bytes in a file of [`Region::memory_len`] bytes.
    pub(crate) fn of_file(file: File, len: usize) -> io::Result<Self> {
        Ok(Self { memory: Memory::of_file(file, Self::memory_len(len))?, last: len })
    }

    /// The bytes of memory behind a region of `len` bytes.
    pub(crate) fn memory_len(len: usize) -> usize {
        len + FIXED_LEN
    }

    /// Whether the region is in a file.
    pub(crate) fn is_file(&self) -> bool {
        self.memory.is_file()
    }

    /// Takes the memory of a place from the system, if the region is in a file.
    ///
    /// # Errors
    /// The file system has no room.
    pub(crate) fn commit(&self, offset: usize, len: usize) -> io::Result<()> {
        self.memory.commit(offset, len)
    }

    /// Has the system map the pages of a place at once.
    pub(crate) fn populate(&self, offset: usize, len: usize) {
        self.memory.populate(offset, len);
    }

    /// Two counters at a multiple of 8, whose values no other thread relies on: model checks do not look
    /// at them.
    #[inline]
    pub(crate) fn counters(&self, offset: usize) -> &[Counter; 2] {
        strict_assert!(offset.is_multiple_of(8));
        let pointer = self.fixed(offset).cast::<[Counter; 2]>();
        // SAFETY: as in `word`, for both.
        unsafe { &*pointer }
    }

    /// The address of an object of at most [`FIXED_LEN`] bytes.
    #[inline]
    fn fixed(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.last, "inside the region");
        self.memory.start().wrapping_add(offset)
    }

    #[inline]
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(
            offset <= self.memory.len() && len <= self.memory.len() - offset,
            "inside the region"
        );
        self.memory.start().wrapping_add(offset)
    }

    /// The word at a multiple of 8.
    #[inline]
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        strict_assert!(offset.is_multiple_of(8));
        let pointer = self.fixed(offset).cast::<AtomicU64>();
        // SAFETY: inside the memory and aligned (the mapping is page-aligned, all users pass
        // multiples of 8); rule 1: all accesses are atomic.
        unsafe { &*pointer }
    }

    /// The offset of a word that [`word`](Self::word) or [`bucket`](Self::bucket) has returned.
    #[inline]
    pub(crate) fn offset_of(&self, word: &AtomicU64) -> usize {
        std::ptr::from_ref(word).addr() - self.memory.start().addr()
    }

    /// The header page, at the start of the region.
    #[inline]
    pub(crate) fn header_page(&self) -> &HeaderPage {
        let pointer = self.memory.start().cast::<HeaderPage>();
        // SAFETY: every region is longer than the header page and is aligned to a page; it consists of
        // atomics alone, for which all bytes are valid.
        unsafe { &*pointer }
    }

    /// The words of a bucket, at a multiple of 64.
    #[inline]
    pub(crate) fn bucket(&self, offset: usize) -> &[AtomicU64; BUCKET_SLOTS] {
        strict_assert!(offset.is_multiple_of(64));
        let pointer = self.fixed(offset).cast::<[AtomicU64; BUCKET_SLOTS]>();
        // SAFETY: as in `word`, for all of them.
        unsafe { &*pointer }
    }

    /// The half word at a multiple of 4.
    #[inline]
    pub(crate) fn half(&self, offset: usize) -> &AtomicU32 {
        strict_assert!(offset.is_multiple_of(4));
        let pointer = self.fixed(offset).cast::<AtomicU32>();
        // SAFETY: as in `word`, for multiples of 4.
        unsafe { &*pointer }
    }

    /// Published bytes.
    ///
    /// # Safety
    /// The caller holds a pin, stripe lock or lease that keeps these bytes from being recycled for
    /// as long as the slice is used, and they were published (rules 2 and 3).
    #[inline]
    pub(crate) unsafe fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        // SAFETY: inside the memory, initialised (mapped memory is zeroed), unchanging by the
        // caller's promise.
        unsafe { std::slice::from_raw_parts(self.at(offset, len), len) }
    }

    /// Writes bytes that no other thread can see yet.
    ///
    /// # Safety
    /// The caller owns the place: it is in its open segment or upload, or a free block that it has taken,
    /// and no index word refers to it (rules 2 and 3).
    #[inline]
    pub(crate) unsafe fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: inside the memory, not overlapping (a published source never overlaps an
        // unpublished place), and nobody reads it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    /// The address of a place that a device reads or writes.
    #[inline]
    pub(crate) fn place(&self, offset: usize, len: usize) -> *mut u8 {
        self.at(offset, len)
    }

    /// Gives the memory of a place back to the system, and returns whether it reads as zeroes now.
    /// Otherwise its content is not specified.
    ///
    /// # Safety
    /// Nobody else reads or writes the place until the caller passes it on, and it begins and ends
    /// at pages of the system.
    pub(crate) unsafe fn discard(&self, offset: usize, len: usize) -> bool {
        // SAFETY: by the caller's promise.
        unsafe { self.memory.discard(offset, len) }
    }

    /// Asks the system for huge pages for memory that is touched from now on.
    pub(crate) fn use_huge_pages(&self) -> io::Result<()> {
        self.memory.use_huge_pages()
    }

    /// Prefetches the cache line at `offset`.
    #[inline]
    pub(crate) fn prefetch(&self, offset: usize) {
        prefetch(self.memory.start().wrapping_add(offset));
    }

    /// Prefetches the cache lines of some bytes, which will be written.
    #[inline]
    pub(crate) fn prefetch_range_for_write(&self, bytes: Range<usize>) {
        let mut line = bytes.start & !(CACHE_LINE - 1);
        while line < bytes.end {
            prefetch_for_write(self.memory.start().wrapping_add(line));
            line += CACHE_LINE;
        }
    }

    /// Prefetches `LINES` cache lines from `offset` on, which will be written. They may lie behind the
    /// region's end.
    #[inline]
    pub(crate) fn prefetch_for_write<const LINES: usize>(&self, offset: usize) {
        let first = self.memory.start().wrapping_add(offset);
        for line in 0..LINES {
            prefetch_for_write(first.wrapping_add(line * CACHE_LINE));
        }
    }
}
