//! The walk over all items, a few buckets at a time and without a lock.
//!
//! An item that is there during the whole walk is shown at least once, because the walk is told of the
//! items that move behind it; see `moves`. Items that move may be shown twice.

use super::chain::ChainLease;
use super::handle::{Handle, lend, liveness};
use super::index::{BUCKET_SLOTS, Buckets};
use super::moves::{Lost, WalkId};
use super::record::{Record, Witness};
use super::shared::Shared;
use super::slot::Slot;
use super::sync::Ordering;
use crate::{Item, Seconds};
use std::sync::Arc;

/// How far a walk over all items is.
#[derive(Debug)]
pub struct Walk {
    shared: Arc<Shared>,
    id: WalkId,
    /// The next bucket of the stripe that the walk is in; `None` between two stripes.
    bucket: Option<usize>,
    /// The stripe that the walk is in or enters next.
    stripe: usize,
    /// The hashes of moved items that are still to be shown.
    moved: Vec<u64>,
}

/// The maximum number of buckets in one step, for an index that is nearly empty.
const BUCKETS_MAX: usize = 2048;
/// The number of buckets whose items are prefetched together.
const BUCKETS_AHEAD: usize = 4;

impl Walk {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        let id = shared.index.walks.begin();
        Self { shared: Arc::clone(shared), id, bucket: None, stripe: 0, moved: Vec::new() }
    }

    /// Enters the next stripe; false if there is none.
    fn enter(&mut self) -> bool {
        let index = &self.shared.index;
        if self.stripe == index.stripes() {
            return false;
        }
        index.enter_stripe(self.id, self.stripe);
        self.bucket = Some(self.stripe);
        true
    }

    /// Leaves a stripe whose buckets were all read.
    fn leave(&mut self) {
        match self.shared.index.walks.leave(self.id, &mut self.moved) {
            Ok(()) => {
                self.bucket = None;
                self.stripe += 1;
            }
            Err(Lost) => self.begin_stripe_again(),
        }
    }

    /// Takes the reports since the last step. While the walk has not shown the previous ones, they are
    /// left where their number is bounded.
    fn take_reports(&mut self) {
        if self.bucket.is_some()
            && self.moved.is_empty()
            && self.shared.index.walks.take(self.id, &mut self.moved) == Err(Lost)
        {
            self.begin_stripe_again();
        }
    }

    /// Whoever moved an item before the reports were lost had stored it in its new place by then.
    fn begin_stripe_again(&mut self) {
        self.bucket = Some(self.stripe);
        self.moved.clear();
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        self.shared.index.walks.end(self.id);
    }
}

impl Handle {
    /// Shows the next items, until about `items` were shown or [`BUCKETS_MAX`] buckets were read; false
    /// at the end.
    pub(super) fn walk_step(
        &mut self,
        walk: &mut Walk,
        items: usize,
        mut visit: impl FnMut(&[u8], &Item<'_, ChainLease>),
    ) -> bool {
        assert!(Arc::ptr_eq(&self.shared, &walk.shared), "the walk belongs to another cache");
        walk.take_reports();
        // Half of the step is left for buckets, so that each step advances. A stripe is begun again each
        // time that more items move than are reported, without limit.
        let mut shown = self.show_moved(walk, items / 2, &mut visit);
        let mut read = 0;
        loop {
            let Some(bucket) = walk.bucket else {
                shown += self.show_moved(walk, items.saturating_sub(shown).max(1), &mut visit);
                if !walk.moved.is_empty() {
                    return true;
                }
                if !walk.enter() {
                    return false;
                }
                continue;
            };
            // The length is read after the last bucket was, because a split may have moved items from
            // it to a new one.
            let index = &walk.shared.index;
            let left = index.len().saturating_sub(bucket).div_ceil(index.stripes());
            if left == 0 {
                walk.leave();
                continue;
            }
            let (count, stripes) = (left.min(BUCKETS_AHEAD), index.stripes());
            let next = bucket + count * stripes;
            shown += self.show_buckets((bucket..next).step_by(stripes), &mut visit);
            walk.bucket = Some(next);
            read += count;
            if shown >= items || read >= BUCKETS_MAX {
                return true;
            }
        }
    }

    fn show_buckets(
        &mut self,
        buckets: impl Iterator<Item = usize> + Clone,
        visit: &mut impl FnMut(&[u8], &Item<'_, ChainLease>),
    ) -> usize {
        self.pinned(|shared, pinned, now| {
            let table = shared.table();
            let slots = || {
                let words = buckets.clone().flat_map(|bucket| table.bucket(bucket));
                let slots = words.map(|word| Slot(word.load(Ordering::Acquire)));
                slots.filter(|slot| !slot.is_empty() && !slot.is_on_flash())
            };
            buckets.clone().for_each(|bucket| table.region.prefetch(table.bucket_offset(bucket)));
            slots().for_each(|slot| table.region.prefetch(slot.offset()));
            let records = slots().map(|slot| shared.record(slot, Witness::pinned(pinned)));
            records.filter(|record| show(shared, record, now, visit)).count()
        })
    }

    /// Shows the items with up to `hashes` of the hashes of moved items, wherever they are now.
    fn show_moved(
        &mut self,
        walk: &mut Walk,
        hashes: usize,
        visit: &mut impl FnMut(&[u8], &Item<'_, ChainLease>),
    ) -> usize {
        let rest = walk.moved.len().saturating_sub(hashes);
        self.pinned(|shared, pinned, now| {
            let mut shown = 0;
            while walk.moved.len() > rest
                && let Some(hash) = walk.moved.pop()
            {
                // Of two keys with the same hash both may have moved: the look-up never ends early.
                shared.index.lookup(hash, |_, slot| -> Option<()> {
                    let record = shared.record(slot, Witness::pinned(pinned));
                    if shared.hash(record.key()) == hash && show(shared, &record, now, visit) {
                        shown += 1;
                    }
                    None
                });
            }
            shown
        })
    }
}

/// Shows an item if it is live, and returns whether it is.
fn show(
    shared: &Arc<Shared>,
    record: &Record<'_>,
    now: Seconds,
    visit: &mut impl FnMut(&[u8], &Item<'_, ChainLease>),
) -> bool {
    let is_live = liveness(shared, record, now).is_live();
    if is_live {
        visit(record.key(), &lend(shared, record));
    }
    is_live
}

const _: () = assert!(
    BUCKETS_AHEAD * BUCKET_SLOTS <= 64,
    "prefetched items have to stay in the processor's cache"
);
