//! Publishing an item. The item is first written to memory of this handle. Then one store to its
//! index word publishes it, under the lock of its stripe.

use super::change::{Shortage, Update};
use crate::eviction::Queue;
use crate::segment::item::new_record::NewRecord;
use crate::segment::item::record::Record;

/// The assumed overhead of an item in bytes, in addition to its key and value. The choice of the
/// item's size class uses this number.
const ITEM_HEAD: usize = 16;

impl Update<'_, '_> {
    /// Writes an item, makes its index word refer to it, and marks the old item dead. Returns the
    /// offset of the new item.
    pub(super) fn publish<'v>(
        &mut self,
        new: &NewRecord<'_>,
        keep_chain: bool,
    ) -> Result<usize, Shortage<'v>> {
        let (shared, hash) = (self.shared, self.key.hash);
        let unread = self.is_unread.then(|| self.stripe.on_flash().next()).flatten();
        let (queue, freq, ghosts) = match self.live() {
            Some(found) => (found.record.entry().kind().queue, found.locked_slot.freq(), None),
            None if let Some(locked_slot) = &unread => {
                let was_hit = locked_slot.freq() > 0;
                (if was_hit { Queue::Main } else { Queue::Small }, 0, None)
            }
            None => {
                let words = shared.table().ghosts(self.stripe.bucket());
                let ghosts = shared.ghosts(words);
                let is_remembered = ghosts.holds(hash, shared.ghost_epoch());
                let queue = if is_remembered { Queue::Main } else { Queue::Small };
                (queue, 0, is_remembered.then_some((words, ghosts)))
            }
        };
        let bytes = new.chain_len() + new.inline_len() + self.key.bytes.len() + ITEM_HEAD;
        let kind = self.writer.kind(shared, queue, new.attributes.expiry, bytes);
        let Some(offset) = self.writer.write(shared, kind, new) else {
            return Err(Shortage::Room(kind, new.len_at_most()));
        };
        shared.table().set_chain_owner(new.chain.map(|chain| chain.first), offset);
        match &self.found {
            Some(found) => {
                self.writer.handle_shared.block.note_dying(shared.table(), found.record.segment());
                self.stripe.replace(&found.locked_slot, offset, freq);
            }
            None if let Some(locked_slot) = &unread => {
                // Other words may match the key's pattern, too. Their items were not read, so one
                // of them may be the key's old item. All of these words are removed before the new
                // word is stored. If the process dies in between, a later lookup can't find the old
                // item.
                for other in self.stripe.on_flash().skip(1) {
                    self.stripe.report_to_walks();
                    self.writer.remove_from_flash(shared, self.stripe, &other);
                }
                self.stripe.replace(locked_slot, offset, freq);
                self.writer.count_off_flash(shared, locked_slot.word);
            }
            None => {
                let witness = self.witness;
                let rehash = |word| shared.hash(shared.record(word, witness).key());
                if self.stripe.insert(offset, freq, rehash).is_err() {
                    let record =
                        Record::at(shared.table(), offset, shared.config.cas, self.witness);
                    self.writer.unwrite(shared, &record);
                    if let Some(chain) = new.chain {
                        shared.table().entry(chain.first).clear_owner();
                    }
                    return Err(Shortage::Slot);
                }
                self.writer.writing.slots += 1;
            }
        }
        strict_assert!(
            Record::at(shared.table(), offset, shared.config.cas, self.witness)
                .has_key(self.key.bytes),
            "the item that was written is read back"
        );
        if let Some((words, ghosts)) = ghosts {
            shared.set_ghosts(words, ghosts.forget(hash));
        }
        self.account(new, keep_chain);
        Ok(offset)
    }

    /// Counts a published item, and subtracts the item that it replaced.
    fn account(&mut self, new: &NewRecord<'_>, keep_chain: bool) {
        let (shared, attributes) = (self.shared, &new.attributes);
        let value_len = new.chain_len() + new.inline_len();
        let (class, footprint) =
            shared.class_and_footprint(self.key.bytes.len(), value_len, attributes.client_flags);
        let (table, handle_shared) = (shared.table(), self.writer.handle_shared);
        let Some(found) = &self.found else {
            return handle_shared.block.add_item(table, class, footprint);
        };
        if !self.is_live {
            self.writer.count_reclaimed(shared, &found.record, false);
        }
        if found.is_on_flash() {
            if let Some(read) = self.read.filter(|_| keep_chain) {
                read.give_value_away();
            }
            handle_shared.block.add_item(table, class, footprint);
            return self.writer.count_off_flash(shared, found.locked_slot.word);
        }
        let (old_class, old_footprint) = shared.class_and_footprint_of(&found.record);
        if (old_class, old_footprint) != (class, footprint) {
            handle_shared.block.add_item(table, class, footprint);
            handle_shared.block.remove_item(table, old_class, old_footprint);
        }
        self.writer.mark_counted_dead(shared, &found.record, keep_chain);
    }
}
