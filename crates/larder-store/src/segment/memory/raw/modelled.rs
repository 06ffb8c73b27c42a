//! The region for model checks under loom, whose atomics can't be placed in mapped memory. Each
//! word is a separate atomic, made at its first access. Each byte has a cell that fails the model
//! if a write and another access are not ordered by happens-before.
//!
//! A model's threads must touch all words and bytes that they share before [`Region::freeze`]. If a
//! thread created an atomic later, the creation would order the thread's earlier accesses before
//! those of the other threads that use the atomic.

use crate::segment::index::buckets::BUCKET_SLOTS;
use crate::segment::memory::header_page::HeaderPage;
use crate::segment::sync::{AtomicU32, AtomicU64};
use loom::cell;
use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The words of a bucket, which is one cache line.
type Line = [AtomicU64; BUCKET_SLOTS];

/// Objects of one kind, keyed by their offset. No object is moved or dropped before the region is
/// dropped.
#[derive(Debug, Default)]
struct Objects<T>(Mutex<HashMap<usize, Box<T>>>);

impl<T> Objects<T> {
    fn at(&self, offset: usize, is_frozen: bool, make: impl FnOnce() -> T) -> &T {
        let mut made = self.0.lock().expect("a model stops at its first failure");
        let made = made.entry(offset).or_insert_with(|| {
            assert!(!is_frozen, "offset {offset} is touched for the first time by a thread");
            Box::new(make())
        });
        // SAFETY: the box neither moves nor drops its content until the region is dropped, and no
        // thread has mutable access to the content.
        unsafe { &*std::ptr::from_ref::<T>(made) }
    }
}

/// The region of a model.
#[derive(Debug)]
pub(crate) struct Region {
    header_page: HeaderPage,
    lines: Objects<Line>,
    halves: Objects<AtomicU32>,
    counters: Objects<[std::sync::atomic::AtomicU64; 2]>,
    accesses: Objects<cell::UnsafeCell<()>>,
    bytes: Box<[UnsafeCell<u8>]>,
    is_frozen: AtomicBool,
}

// SAFETY: `accesses` fails the model before two threads race for a byte.
unsafe impl Sync for Region {}

impl Region {
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        Ok(Self {
            header_page: HeaderPage::default(),
            lines: Objects::default(),
            halves: Objects::default(),
            counters: Objects::default(),
            accesses: Objects::default(),
            bytes: (0..len).map(|_| UnsafeCell::new(0)).collect(),
            is_frozen: AtomicBool::new(false),
        })
    }

    /// Makes the model fail if a thread, from now on, accesses a word or byte that was never
    /// accessed before.
    #[cfg(test)]
    pub(crate) fn freeze(&self) {
        self.is_frozen.store(true, Ordering::SeqCst);
    }

    fn is_frozen(&self) -> bool {
        self.is_frozen.load(Ordering::SeqCst)
    }

    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        &self.bucket(offset & !63)[offset % 64 / 8]
    }

    pub(crate) fn pointer_to(&self, _: usize, _: usize) -> *mut u8 {
        unreachable!("models have no flash")
    }

    pub(crate) fn offset_of(&self, _: &AtomicU64) -> usize {
        unreachable!("models do not announce lookups")
    }

    pub(crate) fn header_page(&self) -> &HeaderPage {
        &self.header_page
    }

    pub(crate) fn bucket(&self, offset: usize) -> &Line {
        self.lines.at(offset, self.is_frozen(), Line::default)
    }

    pub(crate) fn half(&self, offset: usize) -> &AtomicU32 {
        self.halves.at(offset, self.is_frozen(), AtomicU32::default)
    }

    fn access(&self, offset: usize) -> &cell::UnsafeCell<()> {
        self.accesses.at(offset, self.is_frozen(), || cell::UnsafeCell::new(()))
    }

    /// Returns published bytes, as in the region over mapped memory.
    ///
    /// # Safety
    /// The same as for the region over mapped memory.
    pub(crate) unsafe fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        (offset..offset + len).for_each(|at| self.access(at).with(|_| ()));
        let bytes: *const [UnsafeCell<u8>] = &raw const self.bytes[offset..offset + len];
        // SAFETY: an `UnsafeCell<u8>` has the layout of its byte. No thread writes to the bytes:
        // the caller promises it, and `access` has just checked it.
        unsafe { &*(bytes as *const [u8]) }
    }

    /// Writes bytes that no other thread can see yet.
    ///
    /// # Safety
    /// The same as for the region over mapped memory.
    pub(crate) unsafe fn write(&self, offset: usize, bytes: &[u8]) {
        for (at, byte) in (offset..).zip(bytes) {
            self.access(at).with_mut(|_| ());
            // SAFETY: `access` has just checked that no other thread uses the byte.
            unsafe { *self.bytes[at].get() = *byte };
        }
    }

    /// Does nothing.
    ///
    /// # Safety
    /// The same as for the region over mapped memory.
    pub(crate) unsafe fn discard(&self, _: usize, _: usize) -> bool {
        false
    }

    pub(crate) fn of_file(_: std::fs::File, _: usize) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn memory_len(len: usize) -> usize {
        len
    }

    pub(crate) fn is_file(&self) -> bool {
        false
    }

    pub(crate) fn commit(&self, _: usize, _: usize) -> io::Result<()> {
        Ok(())
    }

    pub(crate) fn populate(&self, _: usize, _: usize) {}

    pub(crate) fn counters(&self, offset: usize) -> &[std::sync::atomic::AtomicU64; 2] {
        self.counters.at(offset, false, Default::default)
    }

    pub(crate) fn use_huge_pages(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn prefetch(&self, offset: usize) {
        super::hardware::prefetch(&raw const self.bytes[offset]);
    }

    pub(crate) fn prefetch_range_for_write(&self, _: Range<usize>) {}

    pub(crate) fn prefetch_for_write<const LINES: usize>(&self, _: usize) {}
}
