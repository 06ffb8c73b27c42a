//! The walk over all items, a few buckets at a time and without a lock.
//!
//! The walk visits each item that exists during the whole walk at least once, because the index
//! reports the items that move to buckets that the walk has already read (`index::moved_items`).
//! The walk may visit an item twice if the item moves. The walk reads items on flash while it
//! continues (`flash_read::walk_reads`), a bounded number at a time. The walk does not visit an
//! item that can't be read, or a large item for whose value no memory is free.

use super::cache::shared::Shared;
use super::flash_read::walk_reads::{OUTSTANDING_MAX, WalkReads};
use super::handle::state::{Handle, lend, liveness};
use super::index::buckets::BUCKET_SLOTS;
use super::index::moved_items::{LostReports, WalkId};
use super::item::record::Record;
use super::item::witness::Witness;
use super::large_value::lease::ChainLease;
use crate::{Item, Now, WalkPosition, WalkState};
use std::sync::Arc;
use std::task::Waker;

/// The state of a walk over all items.
#[derive(Debug)]
pub struct Walk {
    shared: Arc<Shared>,
    id: WalkId,
    /// The next bucket of the walk's stripe; `None` between two stripes.
    bucket: Option<usize>,
    /// The stripe that the walk reads now or enters next.
    stripe: usize,
    /// The hashes of moved items that the walk has not visited yet.
    moved: Vec<u64>,
    /// The items on flash that the walk has not visited yet.
    pub(crate) seeking: WalkReads,
}

/// The position after all buckets. Bucket numbers have 32 bits.
const POSITION_END: u64 = 1 << 32;
/// The maximum number of buckets in one step. It limits the length of a step in an index that is
/// nearly empty.
const BUCKETS_MAX: usize = 2048;
/// The number of buckets whose items are prefetched together.
const BUCKETS_AHEAD: usize = 4;

impl Walk {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        let id = shared.index.walks.begin();
        let (shared, seeking) = (Arc::clone(shared), WalkReads::default());
        Self { shared, id, bucket: None, stripe: 0, moved: Vec::new(), seeking }
    }

    /// Starts a walk at a position that [`Walk::position`] returned. With 0, it starts at the first
    /// bucket.
    pub(crate) fn from(shared: &Arc<Shared>, position: u64) -> Self {
        let mut walk = Self::new(shared);
        let stripes = shared.index.stripes();
        let bucket = usize::try_from(position).unwrap_or(usize::MAX).checked_sub(1);
        if position >= POSITION_END {
            walk.stripe = stripes;
        } else if let Some(bucket) = bucket {
            walk.stripe = bucket % stripes;
            walk.enter();
            walk.bucket = Some(bucket);
        }
        walk
    }

    /// Returns the position from which another walk can continue. It is the number of the next
    /// bucket plus one, or [`POSITION_END`] after the last bucket. The bucket also determines the
    /// stripe. Returns `Unsettled` while moved items or items on flash have yet to be visited.
    pub(crate) fn position(&self) -> WalkPosition {
        if !self.moved.is_empty() || self.seeking.len() > 0 {
            return WalkPosition::Unsettled;
        }
        let is_over = self.bucket.is_none() && self.stripe == self.shared.index.stripes();
        // A stripe's first bucket has the number of the stripe.
        let next = self.bucket.unwrap_or(self.stripe) as u64 + 1;
        WalkPosition::At(if is_over { POSITION_END } else { next })
    }

    /// Enters the next stripe. Returns false if no stripe is left.
    fn enter(&mut self) -> bool {
        let index = &self.shared.index;
        if self.stripe == index.stripes() {
            return false;
        }
        index.enter_stripe(self.id, self.stripe);
        self.bucket = Some(self.stripe);
        true
    }

    /// Leaves a stripe after its last bucket.
    fn leave(&mut self) {
        match self.shared.index.walks.leave(self.id, &mut self.moved) {
            Ok(()) => {
                self.bucket = None;
                self.stripe += 1;
            }
            Err(LostReports) => self.restart_stripe(),
        }
    }

    /// Takes the reports of moved items that the index has collected since the last step. Takes
    /// none while the walk has yet to visit items of earlier reports. The index then buffers the
    /// new reports, up to a maximum number.
    fn take_reports(&mut self) {
        if self.bucket.is_some()
            && self.moved.is_empty()
            && self.shared.index.walks.take(self.id, &mut self.moved) == Err(LostReports)
        {
            self.restart_stripe();
        }
    }

    /// Starts the stripe again after reports were lost. The walk then finds every item whose report
    /// was lost, because such an item is already in its new slot.
    fn restart_stripe(&mut self) {
        self.bucket = Some(self.stripe);
        self.moved.clear();
    }

    /// Returns whether [`OUTSTANDING_MAX`] or more reads are pending, so that the walk must not add
    /// another read.
    fn is_full(&self) -> bool {
        self.seeking.len() >= OUTSTANDING_MAX
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        self.shared.index.walks.end(self.id);
    }
}

impl Handle {
    /// Visits the next items. Stops after about `items` items, after [`BUCKETS_MAX`] buckets, at
    /// the end of the walk, or if items must be read from flash first. If `items` is 0, reads no
    /// buckets, and visits only items that have moved or were read from flash.
    pub(crate) fn walk_step(
        &mut self,
        walk: &mut Walk,
        items: usize,
        waker: &Waker,
        mut visit: impl FnMut(&[u8], &Item<'_, ChainLease>),
    ) -> WalkState {
        assert!(Arc::ptr_eq(&self.shared, &walk.shared), "the walk belongs to another cache");
        walk.seeking.wake_later(waker);
        walk.take_reports();
        let mut visited = self.visit_read(&mut walk.seeking, &mut visit);
        let state = if items == 0 {
            self.visit_moved(walk, BUCKETS_MAX, &mut visit);
            if walk.moved.is_empty() { WalkState::Waiting } else { WalkState::More }
        } else {
            // At most half of the step is for moved items, so that each step also reads buckets.
            // The number of steps of a walk has no bound, because each loss of reports starts the
            // stripe again.
            visited += self.visit_moved(walk, items / 2, &mut visit);
            self.walk_buckets(walk, items, visited, &mut visit)
        };
        let will_be_woken = self.begin_walk_reads(&mut walk.seeking, &mut visit);
        match state {
            WalkState::End if walk.seeking.len() == 0 => WalkState::End,
            WalkState::End | WalkState::Waiting if will_be_woken => WalkState::Waiting,
            _ => WalkState::More,
        }
    }

    /// Does the part of a step that reads buckets, after `visited` items were visited. Returns
    /// `Waiting` if items must be read from flash first.
    fn walk_buckets(
        &mut self,
        walk: &mut Walk,
        items: usize,
        mut visited: usize,
        visit: &mut impl FnMut(&[u8], &Item<'_, ChainLease>),
    ) -> WalkState {
        let mut read = 0;
        loop {
            if walk.is_full() {
                return WalkState::Waiting;
            }
            let Some(bucket) = walk.bucket else {
                visited += self.visit_moved(walk, items.saturating_sub(visited).max(1), visit);
                if !walk.moved.is_empty() {
                    return WalkState::More;
                }
                if !walk.enter() {
                    return WalkState::End;
                }
                continue;
            };
            // The walk reads the length of the index after each group of buckets, because a split
            // may have moved items from these buckets to new buckets.
            let index = &walk.shared.index;
            let left = index.len().saturating_sub(bucket).div_ceil(index.stripes());
            if left == 0 {
                walk.leave();
                continue;
            }
            let (count, stripes) = (left.min(BUCKETS_AHEAD), index.stripes());
            let next = bucket + count * stripes;
            let buckets = (bucket..next).step_by(stripes);
            visited += self.visit_buckets(&mut walk.seeking, buckets, visit);
            walk.bucket = Some(next);
            read += count;
            if visited >= items || read >= BUCKETS_MAX {
                return WalkState::More;
            }
        }
    }

    /// Visits the items of these buckets that are in memory, and adds the items on flash to the
    /// pending reads. Returns the number of visited items.
    fn visit_buckets(
        &mut self,
        seeking: &mut WalkReads,
        buckets: impl Iterator<Item = usize> + Clone,
        visit: &mut impl FnMut(&[u8], &Item<'_, ChainLease>),
    ) -> usize {
        self.pinned(|shared, pinned, now| {
            let (table, index) = (shared.table(), &shared.index);
            buckets.clone().for_each(|bucket| table.region.prefetch(table.bucket_offset(bucket)));
            for bucket in buckets.clone() {
                index.for_each_in(bucket, |word| {
                    if !word.is_on_flash() {
                        table.region.prefetch(word.offset());
                    }
                });
            }
            let mut visited = 0;
            for bucket in buckets {
                index.for_each_in(bucket, |word| {
                    if word.is_on_flash() {
                        seeking.add(shared, index.hash_like(bucket, word), word, now.secs);
                    } else {
                        let record = shared.record(word, Witness::pinned(pinned));
                        visited += usize::from(visit_live(shared, &record, now, visit));
                    }
                });
            }
            visited
        })
    }

    /// Looks up at most `hashes` of the reported hashes, and visits their items at their current
    /// locations. Returns the number of visited items.
    fn visit_moved(
        &mut self,
        walk: &mut Walk,
        hashes: usize,
        visit: &mut impl FnMut(&[u8], &Item<'_, ChainLease>),
    ) -> usize {
        let rest = walk.moved.len().saturating_sub(hashes);
        let mut visited = 0;
        while walk.moved.len() > rest
            && !walk.is_full()
            && let Some(hash) = walk.moved.pop()
        {
            visited += self.visit_matching(&mut walk.seeking, hash, visit);
        }
        visited
    }

    /// Visits the items in memory whose words match a hash, and adds the items on flash to the
    /// pending reads. Does not stop at the first match, because the index words of several keys may
    /// match. Returns the number of visited items.
    pub(crate) fn visit_matching(
        &mut self,
        seeking: &mut WalkReads,
        hash: u64,
        visit: &mut impl FnMut(&[u8], &Item<'_, ChainLease>),
    ) -> usize {
        self.pinned(|shared, pinned, now| {
            let mut visited = 0;
            shared.index.lookup_in_any_tier(hash, |_, word| -> Option<()> {
                if word.is_on_flash() {
                    seeking.add(shared, hash, word, now.secs);
                } else {
                    let record = shared.record(word, Witness::pinned(pinned));
                    visited += usize::from(visit_live(shared, &record, now, visit));
                }
                None
            });
            visited
        })
    }
}

/// Visits an item if it is live. Returns whether it is live.
fn visit_live(
    shared: &Arc<Shared>,
    record: &Record<'_>,
    now: Now,
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
    "prefetched items must stay in the processor's cache until they are visited"
);
