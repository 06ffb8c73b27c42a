//! The names of the two queues.

/// The two queues of S3-FIFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// New items. Items without a hit are evicted from this queue.
    Small = 0,
    /// Items that were hit in the small queue or on flash, or set again soon after their eviction.
    Main = 1,
}

impl Queue {
    /// Both queues, sorted by number.
    pub const ALL: [Self; 2] = [Self::Small, Self::Main];

    /// Returns the other queue.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Small => Self::Main,
            Self::Main => Self::Small,
        }
    }
}
