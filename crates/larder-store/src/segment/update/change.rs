//! Applies an update's changes to the found item, under the stripe's lock.

use crate::engine::Liveness;
use crate::eviction::Kind;
use crate::segment::cache::shared::Shared;
use crate::segment::flash::pending_read::ItemRead;
use crate::segment::index::buckets::{LockedSlot, LockedStripe};
use crate::segment::item::extension::Extension;
use crate::segment::item::header::State;
use crate::segment::item::new_record::NewRecord;
use crate::segment::item::record::Record;
use crate::segment::item::witness::Witness;
use crate::segment::large_value::builder::Plan;
use crate::segment::large_value::upload::Upload;
use crate::segment::memory::cas::NoCasLeft;
use crate::segment::memory::table::Table;
use crate::segment::sync::Ordering;
use crate::segment::write::writer::Writer;
use crate::{
    Access, Attributes, Change, HashedKey, KEY_LEN_MAX, NewCas, NewTags, NewValue, Refusal,
};
use std::sync::Arc;

/// The reason why an attempt made no change. If a resource is missing, the update provides it
/// without a lock and starts over. Otherwise the update must be refused.
#[derive(Debug)]
pub(crate) enum Shortage<'v> {
    /// No open segment has room for an item of this kind and this length in bytes.
    Room(Kind, usize),
    /// The index has no empty slot for the key.
    Slot,
    /// A large value has to be assembled in segments of its own first.
    LargeValue(Plan, NewValue<'v>),
    /// The update must be refused for this reason.
    Refused(Refusal),
}

impl From<NoCasLeft> for Shortage<'_> {
    #[cold]
    fn from(_: NoCasLeft) -> Self {
        Self::Refused(Refusal::NoCas)
    }
}

pub(super) type Stripe<'i> = LockedStripe<'i, Table>;

/// The item that an update found. It may have expired or been flushed.
pub(super) struct FoundItem<'i> {
    pub(super) locked_slot: LockedSlot<'i>,
    pub(super) record: Record<'i>,
    pub(super) liveness: Liveness,
}

impl FoundItem<'_> {
    /// Returns whether the item was read from flash.
    pub(super) fn is_on_flash(&self) -> bool {
        self.locked_slot.word.is_on_flash()
    }
}

/// One update of one key, under its stripe's lock.
pub(super) struct Update<'u, 'h> {
    pub(super) shared: &'u Arc<Shared>,
    pub(super) stripe: &'u Stripe<'u>,
    pub(super) key: HashedKey<'u>,
    pub(super) witness: Witness<'u>,
    pub(super) found: Option<FoundItem<'u>>,
    /// The read that delivered the item; `None` if the item is in memory.
    pub(super) read: Option<&'u dyn ItemRead>,
    /// Whether `found` is a live item.
    pub(super) is_live: bool,
    /// Whether the item may be on flash and the update does not need to read it.
    pub(super) is_unread: bool,
    pub(super) writer: &'u mut Writer<'h>,
}

impl<'u> Update<'u, '_> {
    /// Returns the item that was found, if it is live.
    pub(super) fn live(&self) -> Option<&FoundItem<'u>> {
        self.found.as_ref().filter(|_| self.is_live)
    }

    fn live_cas(&self) -> u64 {
        self.live().map_or(0, |found| found.record.cas())
    }

    /// Applies a change. Returns the item's CAS after the change. Returns 0 if there is no live
    /// item, if the item was not read, or if items have no CAS.
    pub(super) fn apply<'v>(
        &mut self,
        change: Change<'v>,
        upload: &mut Option<Upload>,
    ) -> Result<u64, Shortage<'v>> {
        match change {
            Change::Keep => Ok(self.live_cas()),
            Change::MarkAccessed => {
                self.mark_accessed();
                Ok(self.live_cas())
            }
            Change::CountHit => {
                self.count_hit();
                Ok(self.live_cas())
            }
            Change::Remove => {
                self.remove();
                Ok(0)
            }
            Change::SetAttributes { attributes, cas, access } => {
                self.set_attributes(attributes, cas, access)
            }
            Change::Put { attributes, cas, value, fetched, tags } => {
                if !(1..=KEY_LEN_MAX).contains(&self.key.bytes.len()) {
                    return Err(Shortage::Refused(Refusal::TooLarge));
                }
                let cas = self.choose_cas(cas)?;
                let is_new = value.makes_item(|| self.live().map(|found| found.record.value_len()));
                let new = |value| NewRecord {
                    attributes,
                    cas,
                    fetched,
                    accessed: self.writer.now.secs,
                    extension: self.extension(&attributes, 0),
                    tags_and_key: self.key.bytes,
                    value,
                    chain: None,
                    flash_copy: None,
                };
                match value {
                    _ if self.may_have(tags) => {
                        self.put_tagged(new([&[]; 3]), tags, value, upload)?;
                    }
                    NewValue::Bytes(bytes) if self.is_inline(bytes.len()) => {
                        let new = new([bytes, &[], &[]]);
                        self.publish(&new, false)?;
                    }
                    _ => self.put(new([&[]; 3]), value, upload)?,
                }
                if is_new {
                    self.writer.handle_shared.stats.store();
                }
                Ok(cas)
            }
        }
    }

    /// Returns whether the new item may have tags. With [`NewTags::Same`], returns whether the old
    /// item has an extension.
    fn may_have(&self, tags: NewTags<'_>) -> bool {
        match tags {
            NewTags::None => false,
            NewTags::Same => self.live().is_some_and(|found| found.record.has_extension()),
            NewTags::These(_) => true,
        }
    }

    /// Returns whether a value of this length in bytes can be stored inline.
    fn is_inline(&self, len: usize) -> bool {
        let max = self.shared.table().layout.inline_max();
        len <= max && len <= self.shared.config.item_size_max
    }

    fn count_hit(&self) {
        if let Some(found) = self.live()
            && self.stripe.count_hit(&found.locked_slot)
        {
            if found.is_on_flash() {
                self.shared.count_first_hit_on_flash(found.locked_slot.word);
            } else {
                found.record.count_first_hit();
            }
        }
    }

    fn mark_accessed(&self) {
        self.count_hit();
        if let Some(found) = self.live() {
            found.record.note_access(self.writer.now.secs);
        }
    }

    fn remove(&mut self) {
        if let Some(found) = self.found.take() {
            if !self.is_live {
                self.writer.count_reclaimed(self.shared, &found.record, false);
            }
            if found.is_on_flash() {
                self.writer.remove_from_flash(self.shared, self.stripe, &found.locked_slot);
            } else {
                self.writer.remove(self.shared, self.stripe, &found.locked_slot, &found.record);
            }
        } else if self.is_unread {
            for locked_slot in self.stripe.on_flash() {
                self.writer.remove_from_flash(self.shared, self.stripe, &locked_slot);
            }
        }
    }

    fn choose_cas(&mut self, cas: NewCas) -> Result<u64, NoCasLeft> {
        let mut old = self.live_cas();
        match cas {
            _ if !self.shared.config.cas => Ok(0),
            NewCas::Fresh => {
                let words = &self.shared.table().header_page().cas;
                if self.is_unread {
                    // The CAS of the item on flash is not known. It is at most the floor, unless a
                    // client chose a value that the counter does not follow.
                    old = words.floor.load(Ordering::Relaxed);
                }
                self.writer.writing.cas.draw(words, &self.shared.cas_limit, old)
            }
            NewCas::Same => Ok(old),
            NewCas::Exactly(cas) => Ok(cas),
        }
    }

    /// Returns the extension of an item with this key, or `None` if the item needs no extension.
    /// `tags_len` is in bytes.
    #[inline]
    pub(super) fn extension(&self, attributes: &Attributes, tags_len: usize) -> Option<Extension> {
        let early = attributes.expiry.early_millis();
        Extension::of(self.key.bytes.len(), early, attributes.binary_key, tags_len)
    }

    fn set_attributes<'v>(
        &mut self,
        attributes: Attributes,
        cas: NewCas,
        access: Access,
    ) -> Result<u64, Shortage<'v>> {
        let Some(&FoundItem { record, .. }) = self.live() else { return Ok(0) };
        let cas = self.choose_cas(cas)?;
        // A reader must not see the old attributes with the new CAS or the reverse, so a new CAS
        // needs a new record.
        if cas == record.cas() && record.set_attributes(&attributes) {
            if access == Access::Tracked {
                self.mark_accessed();
            }
            return Ok(cas);
        }
        let read = access == Access::Tracked;
        let new = NewRecord {
            attributes,
            cas,
            fetched: read || record.header.has(State::Fetched),
            accessed: if read { self.writer.now.secs } else { record.accessed() },
            extension: self.extension(&attributes, record.tags_len()),
            tags_and_key: record.tags_and_key(),
            value: [record.inline_value(), &[], &[]],
            chain: record.chain(),
            flash_copy: None,
        };
        self.publish_with_chain_of(&record, &new)?;
        Ok(cas)
    }
}
