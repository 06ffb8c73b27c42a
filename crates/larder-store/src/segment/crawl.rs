//! How far a handle's search for expired items is; see `expire`.

/// How far a handle's search is.
#[derive(Debug, Default)]
pub(super) struct Crawl {
    /// The segment to look at next.
    pub(super) segment: u32,
    /// The segment whose records are being read.
    pub(super) walk: Option<SegmentWalk>,
    /// The count of requested searches (`Shared::crawls`) at the last look.
    pub(super) begun: u32,
    /// Pauses are skipped in this round, because an operator has asked for it.
    pub(super) at_once: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct SegmentWalk {
    pub(super) segment: u32,
    pub(super) sequence: u64,
    /// The next record's offset in the region.
    pub(super) at: usize,
    /// The earliest expiry among the items that have not expired.
    pub(super) first_expiry: u32,
}
