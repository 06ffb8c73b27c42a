//! Going through all items, a few buckets at a time, without a lock.
//!
//! Items stay in their buckets but for two reasons, both inserts': a growing index moves some to a
//! bucket that comes later, and a crowded one moves some to the other bucket they may be in. The
//! first kind may be shown twice, the second twice or not at all.

use super::chain::ChainLease;
use super::handle::{Handle, lend, liveness};
use super::index::{BUCKET_SLOTS, Buckets};
use super::record::Witness;
use super::slot::Slot;
use super::sync::Ordering;
use crate::Item;

/// Where a walk over all items is.
#[derive(Debug, Default)]
pub struct Walk {
    /// The next bucket.
    bucket: usize,
}

/// Buckets looked at in one step, for an index that is nearly empty.
const BUCKETS_MAX: usize = 2048;
/// Buckets whose items are fetched together.
const BUCKETS_AHEAD: usize = 4;

impl Handle {
    /// Shows items until `items` were or many buckets were empty; false when it is through.
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

const _: () = assert!(BUCKETS_AHEAD * BUCKET_SLOTS <= 64, "what is fetched has to stay cached");
