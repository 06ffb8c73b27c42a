//! How far a handle's search for expired items is; see `reclaim::expiry`.

/// How far a handle's search is.
#[derive(Debug, Default)]
pub(crate) struct Crawl {
    /// The segment to look at next.
    pub(crate) segment: u32,
    /// The segment whose records are being read.
    pub(crate) walk: Option<SegmentWalk>,
    /// The count of requested searches (`Shared::crawls`) at the last look.
    pub(crate) begun: u32,
    /// Pauses are skipped in this round, because an operator has asked for it.
    pub(crate) at_once: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentWalk {
    pub(crate) segment: u32,
    pub(crate) sequence: u64,
    /// The next record's offset in the region.
    pub(crate) at: usize,
    /// The earliest expiry among the items that have not expired.
    pub(crate) first_expiry: u32,
}
