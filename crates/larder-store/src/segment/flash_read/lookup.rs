//! Items on flash in lookups and updates.
//!
//! A key whose index word refers to flash is `Pending` until the item was read and delivered.
//! Before that, the cache can't tell whether the item has this key, because only 14 to 20 bits of
//! the key's hash are compared with an index word.

use crate::engine::Liveness;
use crate::eviction::Queue;
use crate::segment::cache::shared::Shared;
use crate::segment::flash::pages::Page;
use crate::segment::flash::pending_read::{ItemRead, find};
use crate::segment::handle::state::Handle;
use crate::segment::index::buckets::{LockedSlot, LockedStripe};
use crate::segment::index::word::{IndexWord, LARGE_SPAN};
use crate::segment::item::flash_copy::FlashCopy;
use crate::segment::item::new_record::NewRecord;
use crate::segment::item::record::Record;
use crate::segment::item::witness::Witness;
use crate::segment::memory::table::Table;
use crate::segment::sync::Ordering;
use crate::segment::write::writer::Writer;
use crate::{HashedKey, Now};
use std::sync::Arc;

/// The result of an update's search for a key on flash.
pub(crate) enum UpdateSearch<'i> {
    Nothing,
    /// The update must read the item first.
    Pending,
    /// Index words match the key, and the update need not read their items.
    Unread,
    /// The head of a large item was read, but no segments were free for its value.
    NoRoom,
    /// The item was read.
    Item(LockedSlot<'i>, Arc<dyn ItemRead>),
}

/// Returns the liveness of an item that was read from flash.
pub(crate) fn liveness_on_flash(
    shared: &Shared,
    read: &dyn ItemRead,
    record: &Record<'_>,
    now: Now,
) -> Liveness {
    if read.origin().sequence < shared.flush_floor() {
        Liveness::Flushed
    } else if record.is_past(now) {
        Liveness::Expired
    } else if record.has_extension() && shared.has_dropped_tag(record) {
        Liveness::Flushed
    } else {
        Liveness::Live
    }
}

impl Handle {
    /// Copies an item from flash to memory after a repeated hit, unless the copy would have to wait
    /// for memory.
    #[cold]
    #[inline(never)]
    pub(crate) fn recache(&mut self, hash: u64, word: IndexWord) {
        // A copy of a large value would evict other items, which would have to be written to flash,
        // too.
        let has_writes = self.shared.flash.as_ref().is_some_and(|flash| flash.queue.len() > 0);
        if word.span() == LARGE_SPAN && has_writes {
            return;
        }
        let Some(read) = self.batch_reads.find(word).map(Arc::clone) else { return };
        self.keeps_unwritten = true;
        self.evacuate_before_write();
        self.copy_to_memory(hash, &*read);
        self.evacuate_after_write();
        self.keeps_unwritten = false;
        self.flush_slot_delta();
        if !self.pin.is_in_batch() {
            self.end_writing();
        }
        self.pin.resume(&self.shared.epoch);
    }

    fn copy_to_memory(&mut self, hash: u64, read: &dyn ItemRead) {
        let shared = Arc::clone(&self.shared);
        let record = shared.record_in_buffer(read);
        let (len, expiry) = (record.len(), record.expiry());
        let (_, mut writer) = self.writer();
        let kind = writer.kind(&shared, Queue::Main, expiry, record.item_len());
        // The copy may need 16 bytes more, for a link and an exact expiry.
        if !writer.has_room(&shared, kind, len + 16) {
            let Ok(segment) = self.try_segment() else { return };
            let (_, mut writer) = self.writer();
            writer.open(&shared, kind, segment);
        }
        let (_, mut writer) = self.writer();
        let stripe = shared.index.lock(hash);
        let Some(locked_slot) =
            stripe.on_flash().find(|locked_slot| locked_slot.word.is_same_item(read.word()))
        else {
            return;
        };
        // Make no copy if another thread has copied the item and already evicted the copy.
        if read.has_given_value_away()
            || !liveness_on_flash(&shared, read, &record, writer.now).is_live()
        {
            return;
        }
        let flash_copy = FlashCopy::of(read.word(), read.origin().sequence);
        let copy = NewRecord { flash_copy: Some(flash_copy), ..NewRecord::copy_of(&record) };
        if let Some(offset) = writer.write(&shared, kind, &copy) {
            if let Some(chain) = copy.chain {
                let first = shared.table().entry(chain.first);
                first.chain_copy().store(flash_copy.chain_word(), Ordering::Relaxed);
            }
            shared.table().set_chain_owner(copy.chain.map(|chain| chain.first), offset);
            if let Some(flash) = &shared.flash {
                let page = Page::new(shared.table(), flash.format.page_of(locked_slot.word));
                page.copies().fetch_add(1, Ordering::Relaxed);
            }
            stripe.replace(&locked_slot, offset, 0);
            if copy.chain.is_some() {
                writer.count_chain(&shared, offset, shared.chain_segments_of(&record));
                read.give_value_away();
            }
            if let Some(flash) = &shared.flash {
                flash.counts.recached.add(1);
            }
            writer.count_back_in_memory(&shared, locked_slot.word, &record);
        }
    }
}

impl Writer<'_> {
    /// Searches flash for a key that is not in memory. `is_shown` is true if the update depends on
    /// the item. If `is_shown` is false, the result is an item only if the cache does not evict and
    /// the item was read.
    pub(crate) fn find_on_flash<'i>(
        &self,
        shared: &Shared,
        stripe: &LockedStripe<'i, Table>,
        key: HashedKey<'_>,
        is_shown: bool,
    ) -> UpdateSearch<'i> {
        let Some(flash) = &shared.flash else { return UpdateSearch::Nothing };
        let mut found = UpdateSearch::Nothing;
        for locked_slot in stripe.on_flash() {
            if !is_shown && shared.config.evict {
                return UpdateSearch::Unread;
            }
            match find(self.delivered, locked_slot.word) {
                Some(read) if shared.record_in_buffer(&**read).key() == key.bytes => {
                    let has_value = read.has_value();
                    let item = || UpdateSearch::Item(locked_slot, Arc::clone(read));
                    return if has_value || !is_shown { item() } else { UpdateSearch::NoRoom };
                }
                Some(_) => (),
                None if flash
                    .readable(shared.table(), locked_slot.word, self.now.secs)
                    .is_some() =>
                {
                    found = if is_shown { UpdateSearch::Pending } else { UpdateSearch::Unread };
                }
                None => (),
            }
        }
        found
    }

    /// Removes index words that match a key and whose pages have expired or were flushed, before
    /// the key gets another word. Otherwise such a page could become readable again: if it is not
    /// full, an item with a later expiry may be written there.
    pub(crate) fn remove_unreadable(&mut self, shared: &Shared, stripe: &LockedStripe<'_, Table>) {
        let Some(flash) = shared.flash.as_ref().filter(|flash| !flash.is_off()) else { return };
        for locked_slot in stripe.on_flash() {
            if flash.readable(shared.table(), locked_slot.word, self.now.secs).is_none() {
                self.remove_from_flash(shared, stripe, &locked_slot);
            }
        }
    }

    /// Subtracts an item from the counts of its page and of this handle, because its index word no
    /// longer refers to flash.
    pub(crate) fn count_off_flash(&self, shared: &Shared, word: IndexWord) {
        let Some(flash) = &shared.flash else { return };
        let bytes = flash.format.counted_len(word);
        Page::new(shared.table(), flash.format.page_of(word)).remove(bytes);
        self.handle_shared.block.remove_item(shared.table(), 0, bytes);
    }

    /// Counts an item that was copied back to memory from flash.
    pub(crate) fn count_back_in_memory(
        &self,
        shared: &Shared,
        word: IndexWord,
        record: &Record<'_>,
    ) {
        let (class, footprint) = shared.class_and_footprint_of(record);
        self.handle_shared.block.add_item(shared.table(), class, footprint);
        self.count_off_flash(shared, word);
    }

    /// Removes an index word that refers to flash, and subtracts its item from the counts.
    pub(crate) fn remove_from_flash(
        &mut self,
        shared: &Shared,
        stripe: &LockedStripe<'_, Table>,
        locked_slot: &LockedSlot<'_>,
    ) {
        stripe.remove(locked_slot);
        self.writing.slots -= 1;
        self.count_off_flash(shared, locked_slot.word);
    }

    /// Removes the index word of an item on flash. Returns false if the word does not exist any
    /// more.
    pub(crate) fn remove_word(&mut self, shared: &Shared, hash: u64, word: IndexWord) -> bool {
        let stripe = shared.index.lock(hash);
        let locked_slot = stripe.on_flash().find(|locked_slot| locked_slot.word.is_same_item(word));
        let is_there = locked_slot.is_some();
        if let Some(locked_slot) = locked_slot {
            self.remove_from_flash(shared, &stripe, &locked_slot);
        }
        is_there
    }
}

impl Shared {
    /// Returns the record of an item that was read from flash. The read must be complete.
    pub(crate) fn record_in_buffer<'r>(&'r self, read: &'r dyn ItemRead) -> Record<'r> {
        let (offset, buffer) = read.item();
        Record::at(self.table(), offset, self.config.cas, Witness::buffered(buffer))
    }

    /// Counts the first hit of an item on flash.
    pub(crate) fn count_first_hit_on_flash(&self, word: IndexWord) {
        if let Some(flash) = &self.flash {
            let page = Page::new(self.table(), flash.format.page_of(word));
            page.hits().fetch_add(1, Ordering::Relaxed);
        }
    }
}
