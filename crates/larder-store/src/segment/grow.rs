//! Growing the index, and making room in it for a key whose buckets are full.

use super::alloc::Alloc;
use super::handle::Handle;
use super::index::BUCKET_SLOTS;
use super::record::Witness;
use super::shared::Shared;
use super::sync::wait_for_others;
use crate::Refusal;
use std::sync::Arc;

/// Share of the index words in use, in percent, from which the index grows.
const INDEX_LOAD: usize = 85;
/// Buckets added at a time.
const GROWTH_STEP: usize = 4;
/// Share of all segments that index and ghosts may have, in percent: what the smallest items need.
const INDEX_SHARE: usize = 45;
/// How often a crowded write waits for another handle that grows the index.
const WAITS_MAX: u32 = 160;

/// What came of growing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Growth {
    /// There are more buckets.
    Done,
    /// Another handle is at it.
    Busy,
    /// No memory is left for it.
    Full,
}

impl Handle {
    /// Finds an index word for a key whose buckets are full, and those that their items could move
    /// to: adds a bucket to every stripe. Where there is no memory for that, it drops the coldest
    /// neighbour.
    pub(super) fn make_slot(&mut self, hash: u64, rounds: u32) -> Result<(), Refusal> {
        match self.grow(self.shared.index.stripes()) {
            Growth::Done => Ok(()),
            Growth::Busy if rounds < WAITS_MAX => {
                self.pin.pause();
                wait_for_others(rounds);
                Ok(())
            }
            Growth::Busy | Growth::Full if self.shared.config.evict => {
                self.evict_coldest(hash);
                Ok(())
            }
            Growth::Busy | Growth::Full => Err(Refusal::OutOfMemory),
        }
    }

    fn evict_coldest(&mut self, hash: u64) {
        let (shared, mut writer) = self.writer();
        let stripe = shared.index.lock(hash);
        let Some(place) = stripe.coldest() else { return };
        let record = shared.record(place.slot, Witness::locked(&stripe));
        writer.count_evicted(shared, &record);
        writer.remove(shared, &stripe, &place, &record);
    }

    /// Grows the index a little if `used` words are enough for that.
    pub(super) fn grow_if_full(&mut self, used: usize) {
        let words = self.shared.index.len() * BUCKET_SLOTS;
        if used * 100 > words * INDEX_LOAD {
            self.grow(GROWTH_STEP);
        }
    }

    /// Adds up to `steps` buckets.
    fn grow(&mut self, steps: usize) -> Growth {
        let shared = Arc::clone(&self.shared);
        let Ok(_growing) = shared.growth.try_lock() else { return Growth::Busy };
        for step in 0..steps {
            let new = shared.index.len();
            let wants = shared.table().wants(new);
            if wants > 0 && !self.give_to_index(&shared, new, wants) {
                return if step > 0 { Growth::Done } else { Growth::Full };
            }
            self.pinned(|shared, pinned, _| {
                let witness = Witness::pinned(pinned);
                let rehash = |slot| shared.hash(shared.record(slot, witness).key());
                shared.index.grow(rehash, |from, to| {
                    let [from, to] = [from, to].map(|bucket| shared.table().ghosts(bucket));
                    shared.set_ghosts(to, shared.ghosts(from));
                });
            });
        }
        Growth::Done
    }

    fn give_to_index(&mut self, shared: &Shared, bucket: usize, wants: usize) -> bool {
        let may =
            |alloc: &Alloc| (alloc.indexing + wants) * 100 <= shared.limit_segments() * INDEX_SHARE;
        if !may(&shared.alloc()) {
            return false;
        }
        // A segment that was used before has to be cleared, so that others are preferred.
        let taken: Vec<u32> = (0..wants)
            .map_while(|_| {
                // Out of the reserve if need be: all inserts wait for it.
                let fresh = shared.alloc().take_fresh(shared.reserve() / 2);
                let free = fresh.or_else(|| shared.alloc().take(1));
                free.or_else(|| self.take_segment().ok())
            })
            .collect();
        if taken.len() < wants {
            shared.free(&taken);
            return false;
        }
        shared.alloc().indexing += wants;
        shared.table().extend(bucket, taken.into_iter());
        true
    }
}
