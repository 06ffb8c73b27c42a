//! How far a handle's search for expired items is; see `expire`.

/// Where a handle's search is.
#[derive(Debug, Default)]
pub(super) struct Crawl {
    /// The next segment.
    pub(super) segment: u32,
    /// A segment that is being walked.
    pub(super) walk: Option<SegmentWalk>,
    /// Of [`Shared::crawls`], those that it has begun.
    pub(super) begun: u32,
    /// Pauses are left out on this round: somebody has asked for it.
    pub(super) at_once: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct SegmentWalk {
    pub(super) segment: u32,
    pub(super) sequence: u64,
    /// The next record's offset in the region.
    pub(super) at: usize,
    /// The earliest expiry that was left.
    pub(super) first_expiry: u32,
}
