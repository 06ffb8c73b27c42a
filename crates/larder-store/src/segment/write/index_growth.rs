//! Growing the index, and freeing an index word for a key whose buckets are full.

use crate::Refusal;
use crate::segment::cache::shared::{AbortOnUnwind, Shared};
use crate::segment::handle::state::Handle;
use crate::segment::index::buckets::BUCKET_SLOTS;
use crate::segment::item::witness::Witness;
use crate::segment::memory::allocator::{Alloc, INDEX_SHARE_FLASH};
use crate::segment::sync::wait_for_others;
use std::sync::Arc;

/// The index grows once more than this percentage of its words is in use. The simulator has a copy
/// of this percentage (`ITEMS_PER_BUCKET` in `simulate/ghost_table.rs` of `larder-capacity`).
const INDEX_LOAD: usize = 85;
/// The number of buckets that are added when [`INDEX_LOAD`] is exceeded.
const GROWTH_STEP: usize = 4;
/// In a cache without flash, the index grows until index, ghosts and tags use this share of all
/// segments, in percent. A cache of the smallest items needs this much. With flash, the bound is
/// [`INDEX_SHARE_FLASH`]. The bound does not limit the tag table, and the share may be higher after
/// the memory limit is lowered.
const INDEX_SHARE: usize = 45;
/// The maximum number of times that a write with full buckets waits for another handle to grow the
/// index: about 100 ms in all, the same limit as for readers (`room.rs`).
const WAITS_MAX: u32 = 1000;

/// The outcome of an attempt to grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Growth {
    /// Buckets were added.
    Done,
    /// Another handle is growing the index or adding the tag table.
    Busy,
    /// No segment is available for more buckets, or adding a bucket needs the keys of items on
    /// flash.
    Full,
}

impl Handle {
    /// Frees an index word for a key after its insert has failed: both buckets of the key were
    /// full, and no moves would have freed a word. Adds one bucket to each stripe, or as many
    /// buckets as memory allows. If none can be added, evicts the item with the lowest frequency in
    /// the key's buckets. A cache that does not evict refuses the write instead. `rounds` is the
    /// number of failed attempts of the write. While another handle grows the index and `rounds` is
    /// below [`WAITS_MAX`], this function only waits briefly.
    pub(crate) fn make_slot(&mut self, hash: u64, rounds: u32) -> Result<(), Refusal> {
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
        let Some(locked_slot) = stripe.coldest() else { return };
        if locked_slot.word.is_on_flash() {
            writer.remove_from_flash(shared, &stripe, &locked_slot);
            return shared.count_lost_on_flash(locked_slot.word);
        }
        let record = shared.record(locked_slot.word, Witness::locked(&stripe));
        writer.count_evicted(shared, &record);
        writer.remove(shared, &stripe, &locked_slot, &record);
    }

    /// Grows the index by [`GROWTH_STEP`] buckets if `used` words exceed [`INDEX_LOAD`].
    pub(crate) fn grow_if_full(&mut self, used: usize) {
        let words = self.shared.index.len() * BUCKET_SLOTS;
        if used * 100 > words * INDEX_LOAD {
            self.grow(GROWTH_STEP);
        }
    }

    /// Adds up to `steps` buckets. Returns [`Growth::Done`] if it added at least one.
    fn grow(&mut self, steps: usize) -> Growth {
        let shared = Arc::clone(&self.shared);
        let Ok(_growing) = shared.growth.try_lock() else { return Growth::Busy };
        for step in 0..steps {
            let new = shared.index.len();
            // The keys of items on flash are not in memory, so they can't be hashed again.
            if shared.flash.is_some() && !shared.index.can_grow_without_keys() {
                return if step > 0 { Growth::Done } else { Growth::Full };
            }
            let wants = shared.table().wants(new);
            if wants > 0 && !self.give_to_index(&shared, new, wants) {
                return if step > 0 { Growth::Done } else { Growth::Full };
            }
            self.pinned(|shared, pinned, _| {
                let witness = Witness::pinned(pinned);
                let rehash = |word| shared.hash(shared.record(word, witness).key());
                let abort_guard = AbortOnUnwind;
                shared.index.grow(rehash, |from, to| {
                    let [from, to] = [from, to].map(|bucket| shared.table().ghosts(bucket));
                    shared.set_ghosts(to, shared.ghosts(from));
                });
                std::mem::forget(abort_guard);
            });
        }
        Growth::Done
    }

    fn give_to_index(&mut self, shared: &Shared, bucket: usize, wants: usize) -> bool {
        let share = if shared.flash.is_some() { INDEX_SHARE_FLASH } else { INDEX_SHARE };
        let may = |alloc: &Alloc| (alloc.indexing + wants) * 100 <= shared.limit_segments() * share;
        if !may(&shared.alloc()) {
            return false;
        }
        // Untouched segments are preferred, because other segments must be zeroed.
        let taken: Vec<u32> = (0..wants)
            .map_while(|_| {
                // The index may use the reserve, because inserts into full buckets wait until the
                // index grows.
                let fresh = shared.take_fresh(shared.reserve() / 2);
                let free = fresh.or_else(|| shared.take(1));
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
