//! Demotion without a write. If an item was copied from flash to memory and has not changed, an
//! eviction makes its index word refer to the copy on flash again. After the page of the copy was
//! emptied, an eviction has to write the item.

use crate::Seconds;
use crate::segment::cache::shared::Shared;
use crate::segment::flash::pages::{Page, PageState};
use crate::segment::flash::tier::Flash;
use crate::segment::index::buckets::{LockedSlot, LockedStripe};
use crate::segment::index::word::IndexWord;
use crate::segment::item::record::Record;
use crate::segment::memory::table::Table;
use crate::segment::sync::{Ordering, fence};
use crate::segment::write::writer::Writer;

impl Shared {
    /// Returns whether an item can be demoted without a write, unless the page of its copy is
    /// emptied at the same time.
    pub(crate) fn has_copy_on_flash(&self, word: IndexWord, record: &Record<'_>) -> bool {
        self.copy_on_flash(word, record).is_some()
    }

    /// Returns the index word for an item's copy on flash, and the page of the copy. Returns `None`
    /// if there is no usable copy.
    fn copy_on_flash(&self, word: IndexWord, record: &Record<'_>) -> Option<(IndexWord, Page<'_>)> {
        let (flash, copy) = (self.flash.as_ref()?, record.flash_copy()?);
        let word = copy.word(word);
        let (page, sequence) = flash.readable(self.table(), word, Seconds(0))?;
        let is_there = copy.is_of(sequence)
            && matches!(page.state(), PageState::Open | PageState::Full)
            && !Flash::is_failing(page);
        is_there.then_some((word, page))
    }
}

impl Writer<'_> {
    /// Makes the index word of an item refer to its copy on flash. Returns false if there is no
    /// usable copy. The caller marks the record dead.
    pub(crate) fn demote_to_copy(
        &mut self,
        shared: &Shared,
        stripe: &LockedStripe<'_, Table>,
        locked_slot: &LockedSlot<'_>,
        record: &Record<'_>,
    ) -> bool {
        let Some((word, page)) = shared.copy_on_flash(locked_slot.word, record) else {
            return false;
        };
        // Count this as a read of the page. Then either this thread sees that the page is being
        // emptied, or the thread that empties the page waits for this thread and then also removes
        // the new index word.
        page.reads().fetch_add(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        let is_there = shared.has_copy_on_flash(locked_slot.word, record);
        if is_there {
            self.move_to_flash(shared, stripe, locked_slot, word, record);
            page.copies().fetch_sub(1, Ordering::Relaxed);
            if let Some(flash) = &shared.flash {
                flash.counts.returned.add(1);
            }
        }
        page.reads().fetch_sub(1, Ordering::AcqRel);
        is_there
    }

    /// Makes the index word of an item in memory refer to flash, and moves the item from the counts
    /// of memory to the counts of flash.
    pub(crate) fn move_to_flash(
        &self,
        shared: &Shared,
        stripe: &LockedStripe<'_, Table>,
        locked_slot: &LockedSlot<'_>,
        word: IndexWord,
        record: &Record<'_>,
    ) {
        let Some(flash) = &shared.flash else { return };
        let (table, block) = (shared.table(), self.handle_shared.block);
        let (class, footprint) = shared.class_and_footprint_of(record);
        let bytes = flash.format.counted_len(word);
        // Count first: a thread that finds the index word must find a page with items.
        Page::new(table, flash.format.page_of(word)).add(bytes, record.expiry());
        stripe.move_to_flash(locked_slot, word);
        block.remove_item(table, class, footprint);
        block.add_item(table, 0, bytes);
    }
}
