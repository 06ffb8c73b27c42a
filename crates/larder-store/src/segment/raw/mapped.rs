//! The region as a mapping.

use super::super::header_page::HeaderPage;
use super::super::index::BUCKET_SLOTS;
use super::super::sync::{AtomicU32, AtomicU64};
use super::prefetch;
use memmap2::MmapRaw;
use std::io;

/// The mapping.
#[derive(Debug)]
pub(in super::super) struct Region {
    map: MmapRaw,
    /// The last offset at which words may begin: a bucket's length before the end of the mapping.
    last: usize,
}

/// Bytes of a bucket, the longest thing of fixed length.
const FIXED_LEN: usize = BUCKET_SLOTS * 8;

impl Region {
    /// Maps `len` bytes of zeroed memory. Pages are taken from the system as they are touched.
    pub(in super::super) fn new(len: usize) -> io::Result<Self> {
        // What is behind the end is never touched; it makes the check of a word's place one compare.
        let options = memmap2::MmapOptions::new().len(len + FIXED_LEN).no_reserve_swap().clone();
        Ok(Self { map: MmapRaw::from(options.map_anon()?), last: len })
    }

    /// Where something of at most [`FIXED_LEN`] bytes begins.
    #[inline]
    fn fixed(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.last, "inside the region");
        self.map.as_mut_ptr().wrapping_add(offset)
    }

    #[inline]
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset <= self.map.len() && len <= self.map.len() - offset, "inside the region");
        self.map.as_mut_ptr().wrapping_add(offset)
    }

    /// The word at a multiple of 8.
    #[inline]
    pub(in super::super) fn word(&self, offset: usize) -> &AtomicU64 {
        strict_assert!(offset.is_multiple_of(8));
        let pointer = self.fixed(offset).cast::<AtomicU64>();
        // SAFETY: inside the mapping and aligned (the mapping is page-aligned, all users pass
        // multiples of 8); sentence 1: everybody uses atomics here.
        unsafe { &*pointer }
    }

    /// Where a word that [`word`](Self::word) or [`bucket`](Self::bucket) gave out is.
    #[inline]
    pub(in super::super) fn offset_of(&self, word: &AtomicU64) -> usize {
        std::ptr::from_ref(word).addr() - self.map.as_ptr().addr()
    }

    /// What the region says of itself, at its start.
    #[inline]
    pub(in super::super) fn header_page(&self) -> &HeaderPage {
        let pointer = self.map.as_mut_ptr().cast::<HeaderPage>();
        // SAFETY: every region is longer than the header page and is aligned to a page; it consists of
        // atomics alone, for which all bytes are valid.
        unsafe { &*pointer }
    }

    /// The words of a bucket, at a multiple of 64.
    #[inline]
    pub(in super::super) fn bucket(&self, offset: usize) -> &[AtomicU64; BUCKET_SLOTS] {
        strict_assert!(offset.is_multiple_of(64));
        let pointer = self.fixed(offset).cast::<[AtomicU64; BUCKET_SLOTS]>();
        // SAFETY: as in `word`, for all of them.
        unsafe { &*pointer }
    }

    /// The half word at a multiple of 4.
    #[inline]
    pub(in super::super) fn half(&self, offset: usize) -> &AtomicU32 {
        strict_assert!(offset.is_multiple_of(4));
        let pointer = self.fixed(offset).cast::<AtomicU32>();
        // SAFETY: as in `word`, for multiples of 4.
        unsafe { &*pointer }
    }

    /// Published bytes.
    ///
    /// # Safety
    /// The caller holds a pin, stripe lock or lease that keeps these bytes from being recycled for
    /// as long as the slice is used, and they were published (sentences 2 and 3).
    #[inline]
    pub(in super::super) unsafe fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        // SAFETY: inside the mapping, initialised (mapped memory is zeroed), unchanging by the
        // caller's promise.
        unsafe { std::slice::from_raw_parts(self.at(offset, len), len) }
    }

    /// Writes bytes that nobody can see yet.
    ///
    /// # Safety
    /// The caller owns the place: it is in its open segment or upload, and no index word refers to
    /// it (sentence 2).
    #[inline]
    pub(in super::super) unsafe fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: inside the mapping, not overlapping (a published source never overlaps an
        // unpublished place), and nobody reads it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    /// Gives the memory of a place back to the system; it reads as zeroes afterwards.
    ///
    /// # Safety
    /// Nobody else reads or writes the place until the caller passes it on, and it begins and ends
    /// at pages of the system.
    pub(in super::super) unsafe fn discard(&self, offset: usize, len: usize) {
        #[cfg(target_os = "linux")]
        let advice = memmap2::UncheckedAdvice::DontNeed;
        #[cfg(not(target_os = "linux"))]
        let advice = memmap2::UncheckedAdvice::Free;
        // SAFETY: by the caller's promise nobody minds that these bytes change.
        let given = unsafe { self.map.unchecked_advise_range(advice, offset, len) };
        // It is used as before if the system does not take it.
        drop(given);
    }

    /// Asks the system to back what is touched from now on with huge pages.
    pub(in super::super) fn use_huge_pages(&self) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        return self.map.advise(memmap2::Advice::HugePage);
        #[cfg(not(target_os = "linux"))]
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Starts fetching the line at `offset`.
    #[inline]
    pub(in super::super) fn prefetch(&self, offset: usize) {
        prefetch(self.map.as_ptr().wrapping_add(offset));
    }
}
