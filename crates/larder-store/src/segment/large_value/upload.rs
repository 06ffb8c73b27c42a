//! Uploads: large values that arrive in pieces. An upload fills its own segments as bytes arrive.

use crate::Refusal;
use crate::segment::cache::shared::Shared;
use crate::segment::memory::table::SegmentState;
use crate::segment::sync::Ordering;
use std::sync::Arc;

/// Uploads may together use at most this percentage of all segments. A single upload of half the
/// limit fits.
const UPLOAD_SHARE: usize = 62;
/// All values that are being read from flash may together use the number of all segments divided by
/// this number. Further reads wait. A value that is read alone may use more.
const FLASH_READ_PART: usize = 4;

/// A value that arrives in pieces. The segments belong only to the upload until the value is
/// stored. Dropping the upload earlier frees the segments immediately, because no reader has seen
/// them.
#[derive(Debug)]
pub struct Upload {
    shared: Arc<Shared>,
    pub(crate) segments: Vec<u32>,
    /// The announced length in bytes.
    pub(crate) len: usize,
    pub(crate) filled: usize,
    /// Whether the value is read from flash: see `Alloc::reading`.
    is_flash_read: bool,
}

impl Upload {
    pub(crate) fn new(shared: &Arc<Shared>, len: usize) -> Self {
        let shared = Arc::clone(shared);
        Self { shared, segments: Vec::new(), len, filled: 0, is_flash_read: false }
    }

    /// Returns an upload for a value that is read from flash.
    pub(crate) fn for_flash_read(shared: &Arc<Shared>, len: usize) -> Self {
        let mut upload = Self::new(shared, len);
        upload.is_flash_read = true;
        upload
    }

    /// Returns whether the upload must not take more memory.
    pub(crate) fn is_at_limit(&self) -> bool {
        let limit = self.shared.limit_segments();
        let alloc = self.shared.alloc();
        let (held, max) = if self.is_flash_read {
            // Allow a single read more memory, because it may need more than the share of flash
            // reads.
            let is_only = alloc.reading == self.segments.len();
            (
                alloc.reading,
                if is_only { limit * UPLOAD_SHARE / 100 } else { limit / FLASH_READ_PART },
            )
        } else {
            (alloc.uploading, limit * UPLOAD_SHARE / 100)
        };
        held >= max
    }

    /// Adds an empty segment.
    pub(crate) fn add_segment(&mut self, segment: u32) {
        self.segments.push(segment);
        *self.shared.alloc().held_by_values(self.is_flash_read) += 1;
    }

    /// Subtracts `count` segments, which no longer belong to the upload, from the number of
    /// segments that uploads hold.
    fn count_out(&self, count: usize) {
        *self.shared.alloc().held_by_values(self.is_flash_read) -= count;
    }

    /// Refuses an upload of another cache, whose segment numbers have no meaning in this cache.
    pub(crate) fn check_owner(&self, shared: &Arc<Shared>) -> Result<(), Refusal> {
        if Arc::ptr_eq(&self.shared, shared) { Ok(()) } else { Err(Refusal::WrongUpload) }
    }

    /// Refuses an upload that can't be stored, because it belongs to another cache or is
    /// incomplete.
    pub(crate) fn check_complete(&self, shared: &Arc<Shared>) -> Result<(), Refusal> {
        self.check_owner(shared)?;
        if self.filled == self.len { Ok(()) } else { Err(Refusal::WrongUpload) }
    }

    /// Returns the number of segments that a value of the announced length needs.
    pub(crate) fn segments_wanted(&self) -> usize {
        self.len.div_ceil(self.shared.segment_len())
    }

    /// Copies as many bytes as fit into the current segment. Returns the number of copied bytes: 0
    /// if the upload is complete or needs another segment.
    pub(crate) fn fill(&mut self, bytes: &[u8]) -> usize {
        let segment_len = self.shared.segment_len();
        let room = self.segments.len() * segment_len - self.filled;
        let at = self.filled % segment_len;
        let taken = bytes.len().min(room).min(segment_len - at).min(self.len - self.filled);
        if let Some(&segment) = self.segments.get(self.filled / segment_len) {
            let start = self.shared.table().layout.start(segment);
            // SAFETY: the segment belongs to this upload and is not published.
            unsafe { self.shared.table().region.write(start + at, &bytes[..taken]) };
        }
        self.filled += taken;
        taken
    }

    /// Copies all of `bytes`. The upload must have enough segments.
    pub(crate) fn fill_all(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let taken = self.fill(bytes);
            assert!(taken > 0, "the caller has taken enough segments");
            bytes = &bytes[taken..];
        }
    }

    /// Returns the bytes that were written to segment number `i`. Returns an empty slice if there
    /// is no such segment.
    pub(crate) fn piece(&self, i: usize) -> &[u8] {
        let Some(&segment) = self.segments.get(i) else { return &[] };
        let table = self.shared.table();
        let segment_len = self.shared.segment_len();
        let len = (self.filled - i * segment_len).min(segment_len);
        // SAFETY: this upload wrote these bytes and no other thread can change them.
        unsafe { table.region.bytes(table.layout.start(segment), len) }
    }

    /// Returns the written bytes from `offset` on, up to the end of their segment. Returns an empty
    /// slice if `offset` is not below the number of written bytes.
    pub(crate) fn bytes_from(&self, offset: usize) -> &[u8] {
        if offset >= self.filled {
            return &[];
        }
        let segment_len = self.shared.segment_len();
        &self.piece(offset / segment_len)[offset % segment_len..]
    }

    /// Returns the chain's number of segments: all segments of the upload, except the last segment
    /// if its content fits into the item.
    pub(crate) fn chain_len(&self) -> usize {
        let rest = self.len % self.shared.segment_len();
        let inline = rest <= self.shared.table().layout.inline_max();
        self.segments.len() - usize::from(inline && rest > 0)
    }

    /// Returns the part of the value that is stored inline in the item.
    pub(crate) fn tail(&self) -> &[u8] {
        if self.chain_len() < self.segments.len() { self.piece(self.chain_len()) } else { &[] }
    }

    /// Links the segments of the chain. Returns the first segment, or `None` if the chain is empty.
    pub(crate) fn link_chain(&self) -> Option<u32> {
        self.link(self.segments.get(..self.chain_len())?)
    }

    /// Links all segments, of which the last need not be full. Returns the first segment, or `None`
    /// if the upload has no segments.
    pub(crate) fn link_all(&self) -> Option<u32> {
        self.link(&self.segments)
    }

    fn link(&self, chain: &[u32]) -> Option<u32> {
        let table = self.shared.table();
        let nexts = chain.iter().skip(1).map(|next| next + 1).chain([0]);
        for (&segment, next) in chain.iter().zip(nexts) {
            let entry = table.entry(segment);
            entry.next().store(next, Ordering::Relaxed);
            entry.leases().store(0, Ordering::Relaxed);
            entry.clear_owner();
            entry.chain_copy().store(0, Ordering::Relaxed);
            entry.set_state(SegmentState::Chain);
        }
        let first = chain.first().copied();
        strict_assert!(
            first.is_none_or(|first| self.shared.chain_segments(first).eq(chain.iter().copied())),
            "the linked chain has the same segments"
        );
        first
    }

    /// Gives the chain to an item, and frees the other segments. Returns the number of segments in
    /// the chain.
    pub(crate) fn release_chain(self) -> usize {
        let chain_len = self.chain_len();
        self.release(chain_len)
    }

    /// Gives all segments to an item, like [`Upload::release_chain`], after [`Upload::link_all`].
    pub(crate) fn release_all(self) -> usize {
        let len = self.segments.len();
        self.release(len)
    }

    fn release(mut self, count: usize) -> usize {
        self.segments.drain(..count);
        self.count_out(count);
        count
    }

    /// Records that a device has written a value of `len` bytes to the segments. There must be
    /// enough segments. Frees the segments that the value does not need.
    pub(crate) fn fill_with(&mut self, len: usize) {
        (self.len, self.filled) = (len, len);
        let unused = self.segments.split_off(self.segments_wanted());
        self.count_out(unused.len());
        self.shared.free(&unused);
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if !self.segments.is_empty() {
            strict_assert!(
                self.segments.iter().all(|segment| {
                    let entry = self.shared.table().entry(*segment);
                    !entry.is(SegmentState::Chain) || entry.owner().is_none()
                }),
                "no record has the segments of an upload"
            );
            self.count_out(self.segments.len());
            self.shared.free(&self.segments);
        }
    }
}
