//! The operations of a handle that serve requests: batches, lookups, uploads and updates.

use super::cache::shared::Shared;
use super::flash::pending_read::{self, ItemRead};
use super::flash::tier::Flash;
use super::handle::state::{Handle, Hint, lend, liveness, value};
use super::index::buckets::scan;
use super::index::word::{FREQ_MAX, IndexWord, count_hit, hash_prefix};
use super::item::record::Record;
use super::item::witness::Witness;
use super::large_value::lease::ChainLease;
use super::large_value::upload::Upload;
use super::memory::epoch::Pinned;
use super::memory::raw::Region;
use super::memory::raw::hardware::CACHE_LINE;
use super::sync::{AtomicU64, Ordering};
use crate::engine::*;
use std::num::NonZeroUsize;
use std::sync::Arc;

/// The number of cache lines that [`Lookups::prefetch_announced`] prefetches for each announced
/// item. They contain the header, the key, and a short value.
const ITEM_LINES: usize = 2;
/// The maximum number of bytes of an item's key and value that are prefetched before the item is
/// read. If the item is longer, the processor prefetches the rest during the read.
const AHEAD_LEN_MAX: usize = 2048;

impl Batches for Handle {
    fn begin_batch(&mut self, now: impl Into<Now>) {
        self.now = now.into();
        self.shared.flush_if_due(self.now.secs);
        self.sampler.follow(&self.shared.mrc);
        self.pin.begin_batch(&self.shared.epoch);
    }

    fn end_batch(&mut self) {
        self.end_writing();
        self.batch_reads.end_batch();
        self.pin.end_batch();
    }
}

impl Lookups for Handle {
    type Lease = ChainLease;

    #[inline]
    fn hash(&self, key: &[u8]) -> u64 {
        self.shared.hash(key)
    }

    #[expect(clippy::inline_always, reason = "a call costs `get` 1 % of its instructions")]
    #[inline(always)]
    fn announce(&mut self, hash: u64) {
        if self.hinted {
            self.hints.clear();
            (self.next_hint, self.hinted) = (0, false);
        }
        let table = self.shared.table();
        let index = &self.shared.index;
        let buckets = index.candidates_of(hash).map(|bucket| table.bucket_offset(bucket));
        table.region.prefetch(buckets[0]);
        let patterns = index.patterns(hash);
        self.hints.push(Hint { hash, patterns, buckets, slot: None });
    }

    #[inline]
    fn prefetch_announced(&mut self) {
        self.hinted = true;
        let region = &self.shared.table().region;
        let mut is_complete = true;
        for hint in &mut self.hints {
            if !hint.seek(region, 0) {
                // Few items are in their second bucket, so that bucket is not prefetched earlier.
                region.prefetch(hint.buckets[1]);
                is_complete = false;
            }
        }
        if !is_complete {
            for hint in self.hints.iter_mut().filter(|hint| hint.slot.is_none()) {
                hint.seek(region, 1);
            }
        }
    }

    #[inline]
    fn get<R>(
        &mut self,
        key: HashedKey<'_>,
        access: Access,
        read: impl FnOnce(&Item<'_, ChainLease>) -> R,
    ) -> Lookup<R> {
        let looked = self.find(key, |shared, found, now| {
            let item = lend(shared, &found.record);
            if access == Access::Tracked {
                found.count_access(shared, now.secs);
            }
            read(&item)
        });
        if access == Access::Tracked {
            self.sample_unless_pending(key, &looked);
        }
        looked
    }

    #[inline]
    fn get_recorded<R>(
        &mut self,
        key: HashedKey<'_>,
        read: impl FnOnce(&Item<'_, ChainLease>) -> (Access, R),
    ) -> Lookup<R> {
        let mut access = Access::Tracked;
        let looked = self.find(key, |shared, found, now| {
            let (recorded, result) = read(&lend(shared, &found.record));
            if recorded == Access::Tracked {
                found.count_access(shared, now.secs);
            }
            access = recorded;
            result
        });
        if access == Access::Tracked {
            self.sample_unless_pending(key, &looked);
        }
        looked
    }

    #[inline]
    fn content<R>(
        &mut self,
        key: HashedKey<'_>,
        read: impl FnOnce(&Content<'_, ChainLease>) -> R,
    ) -> Lookup<R> {
        self.sample_read(key);
        self.find(key, |shared, found, now| {
            found.count_access(shared, now.secs);
            let record = &found.record;
            let cas = record.cas();
            let (client_flags, value) = match record.plain_value() {
                Some(value) => (0, Value::Whole(value)),
                None => (record.client_flags(), value(shared, record)),
            };
            read(&Content { client_flags, cas, value })
        })
    }
}

impl Uploads for Handle {
    type Upload = Upload;

    fn upload_len_min(&self) -> usize {
        self.shared.table().layout.inline_max() + 1
    }

    fn upload(&mut self, len: usize) -> Result<Upload, Refusal> {
        let max = self
            .shared
            .config
            .item_size_max
            .min(self.shared.limit_bytes.load(Ordering::Relaxed) / 2);
        if len > max {
            return Err(Refusal::TooLarge);
        }
        Ok(Upload::new(&self.shared, len))
    }

    fn extend(&mut self, upload: &mut Upload, mut bytes: &[u8]) -> Result<(), Refusal> {
        upload.check_owner(&self.shared)?;
        loop {
            bytes = &bytes[upload.fill(bytes)..];
            if bytes.is_empty() {
                return Ok(());
            }
            if upload.filled == upload.len {
                return Err(Refusal::TooLarge);
            }
            let extended = self.extend_segments(upload);
            if !self.pin.is_in_batch() {
                self.end_writing();
            }
            self.pin.resume(&self.shared.epoch);
            extended?;
        }
    }

    fn memory_of(&self, upload: &Upload) -> usize {
        upload.segments.len() * self.shared.segment_len()
    }

    fn uploaded<'u>(&self, upload: &'u Upload, offset: usize) -> &'u [u8] {
        upload.bytes_from(offset)
    }

    fn excess_memory(&self) -> ExcessMemory {
        self.shared.excess_memory()
    }
}

impl Updates for Handle {
    fn update<'v, R>(
        &mut self,
        key: HashedKey<'_>,
        upload: &mut Option<Upload>,
        decide: impl FnMut(Lookup<&Item<'_, ChainLease>>) -> (Change<'v>, R),
    ) -> Result<Updated<R>, Refusal> {
        self.update_shown(key, upload, true, decide)
    }

    fn update_unread<'v, R>(
        &mut self,
        key: HashedKey<'_>,
        upload: &mut Option<Upload>,
        decide: impl FnMut(Lookup<&Item<'_, ChainLease>>) -> (Change<'v>, R),
    ) -> Result<Updated<R>, Refusal> {
        self.update_shown(key, upload, false, decide)
    }

    fn tag(&mut self, name: &[u8]) -> Result<Tag, Refusal> {
        let tag = self.tag_named(name);
        if !self.pin.is_in_batch() {
            self.end_writing();
        }
        self.pin.resume(&self.shared.epoch);
        tag
    }

    fn drop_tag(&mut self, name: &[u8]) -> bool {
        self.shared.drop_tag_named(name)
    }

    fn has_tags(&self) -> bool {
        true
    }

    fn flush(&mut self, at: Option<Seconds>) {
        match at {
            Some(at) => self.shared.flush_later(at),
            None => self.shared.flush_now(),
        }
    }

    fn flush_generation(&self) -> u64 {
        self.shared.flush_generation()
    }
}

impl Hint {
    /// Searches one of the key's two buckets for an index word that matches the key's pattern.
    /// Prefetches the item of the first such word. Returns false if no word matches.
    #[inline]
    fn seek(&mut self, region: &Region, choice: usize) -> bool {
        let (bucket, pattern) = (self.buckets[choice], self.patterns[choice]);
        let found = scan(region.bucket(bucket), pattern, |slot, word| Some((slot, word)));
        let Some((slot, word)) = found else { return false };
        for line in 0..ITEM_LINES {
            region.prefetch(word.offset() + line * CACHE_LINE);
        }
        self.slot = NonZeroUsize::new(region.offset_of(slot));
        true
    }
}

impl Handle {
    /// Removes and returns the hint of this lookup: the offset of a slot that probably refers to
    /// the item. [`Lookups::prefetch_announced`] found the slot by the key's hash prefix and growth
    /// bits. Returns `None` if it found no slot, or if the lookup was not announced.
    #[inline]
    fn hint(&mut self, hash: u64) -> Option<NonZeroUsize> {
        match self.hints.get(self.next_hint) {
            Some(hint) if hint.hash == hash => {
                self.next_hint += 1;
                hint.slot
            }
            _ => self.seek_hint(hash),
        }
    }

    /// Removes and returns the hint of a lookup that is not the next announced lookup. Such a
    /// lookup is the second of its request, or the caller skipped announced lookups. Keeps the
    /// hints of later lookups. Returns `None` in the same cases as [`Handle::hint`].
    #[cold]
    fn seek_hint(&mut self, hash: u64) -> Option<NonZeroUsize> {
        let first = self.next_hint.saturating_sub(1);
        let ahead = self.hints.get(first..)?.iter().position(|hint| hint.hash == hash)?;
        self.next_hint = first + ahead + 1;
        self.hints.get(first + ahead)?.slot
    }

    /// Looks a key up without a lock, and passes a live item to `read`. Copies the item from flash
    /// to memory afterwards if [`IndexHit::second_hit`] selects it.
    #[inline]
    fn find<R>(
        &mut self,
        key: HashedKey<'_>,
        read: impl FnOnce(&Arc<Shared>, &IndexHit<'_>, Now) -> R,
    ) -> Lookup<R> {
        let hint = self.hint(key.hash);
        let ahead = self.hints.get(self.next_hint + 1).and_then(|hint| hint.slot);
        let (looked, second_hit) = self.pinned_with_reads(|shared, guard, now, delivered| {
            let witness = Witness::pinned(guard);
            if let Some(slot) = ahead {
                prefetch_rest(shared, slot, witness);
            }
            let hinted = hint.and_then(|slot| {
                let slot = shared.table().region.word(slot.get());
                let word = IndexWord(slot.load(Ordering::Acquire));
                if !word.is_in_memory_with(hash_prefix(key.hash)) {
                    return None;
                }
                verified(shared, key, slot, word, witness)
            });
            let found = match hinted.or_else(|| find_in_memory(shared, key, witness)) {
                Some(found) => found,
                None if shared.flash.is_none() => return (Lookup::Miss, None),
                None => match look_up_on_flash(shared, delivered, key, guard, now.secs) {
                    FlashLookup::Found(found) => found,
                    FlashLookup::Pending => return (Lookup::Pending, None),
                    FlashLookup::Flushed => return (Lookup::Flushed, None),
                    FlashLookup::Nothing => return (Lookup::Miss, None),
                },
            };
            let looked = liveness(shared, &found.record, now).lookup(|| read(shared, &found, now));
            let second_hit = if found.word.is_on_flash() { found.second_hit(shared) } else { None };
            (looked, second_hit)
        });
        if let Some(word) = second_hit {
            self.recache(key.hash, word);
        }
        looked
    }

    #[inline]
    fn sample_unless_pending<R>(&mut self, key: HashedKey<'_>, looked: &Lookup<R>) {
        if !matches!(looked, Lookup::Pending) {
            self.sample_read(key);
        }
    }

    fn update_shown<'v, R>(
        &mut self,
        key: HashedKey<'_>,
        upload: &mut Option<Upload>,
        is_shown: bool,
        decide: impl FnMut(Lookup<&Item<'_, ChainLease>>) -> (Change<'v>, R),
    ) -> Result<Updated<R>, Refusal> {
        let handles_alternate = self.shared.handles_alternate();
        if handles_alternate {
            self.pin.pause();
        }
        let updated = self.update_item(key, upload, is_shown, decide);
        if handles_alternate || !self.pin.is_in_batch() {
            self.end_writing();
        }
        self.pin.resume(&self.shared.epoch);
        if !matches!(updated, Err(Refusal::Pending)) {
            self.sample_write(key);
        }
        updated
    }
}

/// Prefetches the rest of a long item that the lookup after the next one will read. The item's
/// header is in the processor's cache by now, so its length can be read without a wait.
#[inline]
fn prefetch_rest(shared: &Shared, slot: NonZeroUsize, witness: Witness<'_>) {
    let region = &shared.table().region;
    let word = IndexWord(region.word(slot.get()).load(Ordering::Acquire));
    if word.is_empty() || word.is_on_flash() {
        return;
    }
    let (start, header) = (word.offset(), shared.record(word, witness).header);
    let end = start + (header.key_len() + header.inline_len()).min(AHEAD_LEN_MAX) + 16;
    // The function that copies a value reads the end of the value first. So the loop also
    // prefetches the cache line of the last byte, unless the item is longer than `AHEAD_LEN_MAX`.
    let mut at = (start & !(CACHE_LINE - 1)) + ITEM_LINES * CACHE_LINE;
    while at < end {
        region.prefetch(at);
        at += CACHE_LINE;
    }
}

/// Returns the item that an index word refers to, or `None` if the item's key is not `key`.
#[inline]
fn verified<'p>(
    shared: &'p Shared,
    key: HashedKey<'_>,
    slot: &'p AtomicU64,
    word: IndexWord,
    witness: Witness<'p>,
) -> Option<IndexHit<'p>> {
    let record = shared.record(word, witness);
    if record.has_key(key.bytes) { Some(IndexHit { slot, word, record }) } else { None }
}

/// Looks a key up in memory without a hint: the key was not announced, or its hint did not lead to
/// the item.
#[inline(never)]
fn find_in_memory<'p>(
    shared: &'p Shared,
    key: HashedKey<'_>,
    witness: Witness<'p>,
) -> Option<IndexHit<'p>> {
    shared.index.lookup(key.hash, |slot, word| verified(shared, key, slot, word, witness))
}

/// The result of a lookup for a key that was not found in memory.
enum FlashLookup<'p> {
    Found(IndexHit<'p>),
    /// The item may be on flash, and has not been read yet.
    Pending,
    Flushed,
    Nothing,
}

/// Looks up a key that was not found in memory. Searches flash, and searches memory again, because
/// another thread may have copied the item back.
#[cold]
#[inline(never)]
fn look_up_on_flash<'p>(
    shared: &'p Shared,
    delivered: &'p [Arc<dyn ItemRead>],
    key: HashedKey<'_>,
    guard: Pinned<'p>,
    now: Seconds,
) -> FlashLookup<'p> {
    let Some(flash) = &shared.flash else { return FlashLookup::Nothing };
    let mut is_pending = false;
    let found = shared.index.lookup_in_any_tier(key.hash, |slot, word| {
        let (mut is_flushed, mut has_value) = (false, true);
        let record = if !word.is_on_flash() {
            shared.record(word, Witness::pinned(guard))
        } else if let Some(read) = pending_read::find(delivered, word) {
            has_value = read.has_value();
            is_flushed = read.origin().sequence < shared.flush_floor();
            shared.record_in_buffer(&**read)
        } else {
            is_pending |= flash.readable(shared.table(), word, now).is_some();
            return None;
        };
        if record.key() != key.bytes {
            return None;
        }
        if !has_value {
            flash.counts.without_buffer.add(1);
        }
        has_value.then_some((IndexHit { slot, word, record }, is_flushed))
    });
    match found {
        Some((_, true)) => FlashLookup::Flushed,
        Some((found, false)) => FlashLookup::Found(found),
        None if is_pending => FlashLookup::Pending,
        None => FlashLookup::Nothing,
    }
}

/// An item that a lookup has found, its slot, and the word that the lookup has read in this slot.
pub(super) struct IndexHit<'p> {
    pub(super) slot: &'p AtomicU64,
    pub(super) word: IndexWord,
    pub(super) record: Record<'p>,
}

impl IndexHit<'_> {
    #[expect(clippy::inline_always, reason = "a call costs `get` 1 % of its instructions")]
    #[inline(always)]
    fn count_access(&self, shared: &Shared, now: Seconds) {
        if count_hit(self.slot, self.word) {
            self.count_first_hit(shared);
        }
        self.record.note_access(now);
    }

    /// Counts a second hit on flash if the item was hit on flash before, and is hit again now. For
    /// one in `recache_rate` of these hits, returns the item's index word, and the caller copies
    /// the item to memory. Otherwise returns `None`.
    #[cold]
    #[inline(never)]
    fn second_hit(&self, shared: &Shared) -> Option<IndexWord> {
        let freq = IndexWord(self.slot.load(Ordering::Relaxed)).freq();
        let was_hit = self.word.freq() > 0 && (freq > self.word.freq() || freq == FREQ_MAX);
        let is_recached = was_hit && shared.flash.as_ref().is_some_and(Flash::count_second_hit);
        is_recached.then_some(self.word)
    }

    #[inline]
    fn count_first_hit(&self, shared: &Shared) {
        if self.word.is_on_flash() {
            shared.count_first_hit_on_flash(self.word);
        } else {
            self.record.count_first_hit();
        }
    }
}
