//! The walk over all items, a few buckets at a time and without a lock.
//!
//! Inserts may move items to other buckets: when the index grows, to a bucket that comes later, and
//! when a bucket is full, to the other candidate bucket. An item that moves may be shown twice, and in
//! the second case not at all.

use super::chain::ChainLease;
use super::handle::{Handle, lend, liveness};
use super::index::{BUCKET_SLOTS, Buckets};
use super::record::Witness;
use super::slot::Slot;
use super::sync::Ordering;
use crate::Item;

/// How far a walk over all items is.
#[derive(Debug, Default)]
pub struct Walk {
    /// The next bucket.
    bucket: usize,
}

/// The maximum number of buckets in one step, for an index that is nearly empty.
const BUCKETS_MAX: usize = 2048;
/// The number of buckets whose items are prefetched together.
const BUCKETS_AHEAD: usize = 4;

impl Handle {
    /// Shows the items of the next buckets, until `items` were shown or [`BUCKETS_MAX`] buckets were
    /// read; false at the end.
    pub(super) fn walk_buckets(
        &mut self,
        walk: &mut Walk,
        items: usize,
        mut visit: impl FnMut(&[u8], &Item<'_, ChainLease>),
    ) -> bool {
        let end = self.shared.index.len().min(walk.bucket + BUCKETS_MAX);
        let mut shown = 0;
        while walk.bucket < end && shown < items {
            let next = end.min(walk.bucket + BUCKETS_AHEAD);
            shown += self.show_buckets(walk.bucket..next, &mut visit);
            walk.bucket = next;
        }
        walk.bucket < self.shared.index.len()
    }

    fn show_buckets(
        &mut self,
        buckets: std::ops::Range<usize>,
        visit: &mut impl FnMut(&[u8], &Item<'_, ChainLease>),
    ) -> usize {
        self.pinned(|shared, pinned, now| {
            let slots = || {
                let words = buckets.clone().flat_map(|bucket| shared.table().bucket(bucket));
                let slots = words.map(|word| Slot(word.load(Ordering::Acquire)));
                slots.filter(|slot| !slot.is_empty())
            };
            slots().for_each(|slot| shared.table().region.prefetch(slot.offset()));
            let mut shown = 0;
            for slot in slots() {
                let record = shared.record(slot, Witness::pinned(pinned));
                if liveness(shared, &record, now).is_live() {
                    visit(record.key(), &lend(shared, &record));
                    shown += 1;
                }
            }
            shown
        })
    }
}

const _: () = assert!(
    BUCKETS_AHEAD * BUCKET_SLOTS <= 64,
    "prefetched items have to stay in the processor's cache"
);
