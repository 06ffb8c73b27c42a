//! Read buffers: segments that are each divided into buffers of one length.
//!
//! Read buffers use a 64th of the memory limit, but at most 64 MiB, and at least four segments. The
//! last unused segment is only for long reads. So a long read never has to wait for all short reads
//! to end.

use super::layout::Layout;

/// The length of the shortest buffer in bytes.
const LEN_MIN: usize = 1 << 10;
/// A buffer is long if it is longer than a segment divided by this number.
const LONG_PART: usize = 8;
/// The number of segments for buffers is the number of all segments divided by this number, within
/// the two bounds below.
const SHARE: usize = 64;
const SEGMENTS_MIN: usize = 4;
const BYTES_MAX: usize = 64 << 20;

/// A part of a segment that a read writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buffer {
    /// The offset of the buffer in the region.
    pub(crate) offset: usize,
    /// The length of the buffer in bytes: a power of two.
    pub(crate) len: usize,
}

/// A segment that is divided into buffers.
#[derive(Debug)]
struct Part {
    segment: u32,
    /// The length of the buffers in bytes; 0 while the segment is not divided.
    len: usize,
    /// The numbers of the free buffers.
    free: Vec<u32>,
    /// Whether the segment hands out no further buffers. It can be divided differently once all of
    /// its buffers are free.
    is_draining: bool,
}

/// All buffers.
#[derive(Debug)]
pub(crate) struct Buffers {
    parts: Vec<Part>,
}

/// Returns the number of segments for read buffers under a limit of `limit` segments.
pub(crate) fn segments_for(layout: &Layout, limit: usize) -> usize {
    (limit / SHARE).clamp(SEGMENTS_MIN, (BYTES_MAX / layout.segment_len).max(SEGMENTS_MIN))
}

impl Buffers {
    pub(crate) fn new(segments: impl Iterator<Item = u32>) -> Self {
        Self {
            parts: segments
                .map(|segment| Part { segment, len: 0, free: Vec::new(), is_draining: false })
                .collect(),
        }
    }

    /// Takes a buffer of at least `wanted` bytes. `wanted` is at most the length of a segment.
    /// Returns `None` if no buffer is free. For a short read, also returns `None` if only the last
    /// unused segment could serve it. Calls `begin` with the buffer's segment if none of the
    /// segment's buffers was in use.
    pub(crate) fn take(
        &mut self,
        layout: &Layout,
        wanted: usize,
        begin: impl Fn(u32),
    ) -> Option<Buffer> {
        let len = wanted.next_power_of_two().max(LEN_MIN);
        let is_long = len > layout.segment_len / LONG_PART;
        let unused = self.parts.iter().filter(|part| part.len == 0).count();
        let may_begin = is_long || unused > 1;
        let fits = |part: &Part| part.len == len && !part.free.is_empty() && !part.is_draining;
        let begins = |part: &Part| part.len == 0 && may_begin;
        let found = self.parts.iter().position(fits);
        let found = found.or_else(|| self.parts.iter().position(begins))?;
        let part = &mut self.parts[found];
        if part.len == 0 {
            begin(part.segment);
            let count = u32::try_from(layout.segment_len / len).expect("a segment is short");
            (part.len, part.free) = (len, (0..count).rev().collect());
        }
        let number = part.free.pop().expect("the segment was chosen because it has a free buffer");
        Some(Buffer { offset: layout.start(part.segment) + number as usize * len, len })
    }

    /// Makes a buffer free again. Once all buffers of its segment are free, the segment can be
    /// divided differently.
    pub(crate) fn give(&mut self, layout: &Layout, buffer: Buffer) {
        let segment = layout.segment_of(buffer.offset);
        let part = self.parts.iter_mut().find(|part| part.segment == segment);
        let part = part.expect("buffers are in segments of buffers");
        let number = (buffer.offset - layout.start(segment)) / buffer.len;
        part.free.push(u32::try_from(number).expect("a segment is short"));
        if part.free.len() * part.len == layout.segment_len {
            (part.len, part.free, part.is_draining) = (0, Vec::new(), false);
        }
    }

    /// Stops handing out buffers of the segment with the most free bytes, for a short read that
    /// found no buffer. Does nothing for a long read, or if a segment has buffers of the wanted
    /// length or is draining already.
    pub(crate) fn make_room(&mut self, layout: &Layout, wanted: usize) {
        let len = wanted.next_power_of_two().max(LEN_MIN);
        let is_long = len > layout.segment_len / LONG_PART;
        if is_long || self.parts.iter().any(|part| part.is_draining || part.len == len) {
            return;
        }
        if let Some(part) = self.parts.iter_mut().max_by_key(|part| part.free.len() * part.len) {
            part.is_draining = part.len != 0;
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::segment::memory::layout::Shape;

    #[test]
    fn buffers_do_not_overlap_and_long_reads_always_have_a_segment() {
        let layout = Layout::new(Shape::new(64 << 20, 0, 1, 1).unwrap(), 64 << 20, 4096);
        let segment_len = layout.segment_len;
        let mut buffers = Buffers::new(0..3);
        let mut taken = Vec::new();
        while let Some(buffer) = buffers.take(&layout, 1500, |_| ()) {
            assert_eq!(buffer.len, 2048);
            taken.push(buffer.offset);
        }
        assert_eq!(taken.len(), 2 * segment_len / 2048, "all segments except the last");
        taken.sort_unstable();
        assert!(taken.windows(2).all(|two| two[1] - two[0] >= 2048));
        let long = buffers.take(&layout, segment_len, |_| ()).unwrap();
        assert_eq!(buffers.take(&layout, segment_len, |_| ()), None);
        buffers.give(&layout, long);
        for offset in taken {
            buffers.give(&layout, Buffer { offset, len: 2048 });
        }
        assert!(
            (0..3).all(|_| buffers.take(&layout, segment_len, |_| ()).is_some()),
            "all buffers are free again"
        );
    }
}
