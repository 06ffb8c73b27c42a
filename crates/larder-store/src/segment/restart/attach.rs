//! Restoring the region of an earlier process in place.
//!
//! The earlier process may have died at any point. Every item that it had acknowledged and not
//! evicted is in the region: an item's bytes are written before its index word, and the word before
//! the reply. Each thread had at most one unfinished change. This module completes or undoes each
//! of these changes, and repairs their traces in the region:
//!
//! | left by a thread that died | repair |
//! |---|---|
//! | a locked stripe, with a word in two slots or in a bucket that was split | one word stays ([`Index::repair`]) |
//! | a new bucket that the length of the index does not include yet | it is emptied |
//! | an open segment | it ends after its last record with an index word, and a handle may append to it |
//! | a record without a word, dead bytes that were not counted | segments that a handle block names, or that were open or being emptied, are read, and their dead bytes counted again |
//! | a write buffer of items that are demoted to flash | its items are written to flash again if an index word refers to them |
//! | a page on flash that was being written to | its complete items stay, and it counts as full |
//! | a chain that no record refers to any more, or not yet | it stays only if the item under the key of its owner refers to it |
//! | segments that were taken, or retired | they become free |
//! | no free segments for a requested flash tier | the oldest segments are dropped, if the cache evicts |
//! | an item that was counted without its word, or the reverse | the number of words is right, and the count of one size class is corrected |
//!
//! The restore reads the whole index, but only the segments named above. It reads all items only if
//! handles shared a block, or if the counts of items are unreliable or are for other size classes.
//! So a start with a million items usually takes a few milliseconds.

use super::survey::{CorruptRegion, Survey};
use crate::segment::cache::config::Config;
use crate::segment::cache::shared::{hash_of, stripes_for};
use crate::segment::flash::format::Format;
use crate::segment::flash::pages::Lists;
use crate::segment::index::buckets::Index;
use crate::segment::index::word::IndexWord;
use crate::segment::memory::allocator::{Alloc, RestoredUse};
use crate::segment::memory::header_page::RegionParameters;
use crate::segment::memory::read_buffers;
use crate::segment::memory::table::{SegmentState, Table};
use crate::segment::sync::Ordering;
use rapidhash::v3::RapidSecrets;

/// A restored region.
pub(crate) struct RestoredRegion {
    pub(crate) index: Index<Table>,
    pub(crate) alloc: Alloc,
    /// The number of items in memory and on flash.
    pub(crate) items: usize,
    /// Whether an earlier process died while it had handles.
    pub(crate) was_repaired: bool,
    /// The pages of the flash; `None` without flash, or if its content is not known.
    pub(crate) pages: Option<Lists>,
    /// The write buffers, each with the number of segments in the chain of its large item.
    pub(crate) write_buffers: Vec<(u32, usize)>,
}

/// The reason why a region was not restored.
pub(crate) enum AttachError {
    /// The region can't be used. It may have been partly changed.
    Corrupt(CorruptRegion),
    /// No memory is free for the flash tier within the limit, and the cache does not evict. The
    /// region can still be used without flash. If the device has other content than before, the
    /// items on flash are lost.
    NoRoomForFlash,
}

impl From<CorruptRegion> for AttachError {
    fn from(corrupt: CorruptRegion) -> Self {
        Self::Corrupt(corrupt)
    }
}

/// Restores a region of which the caller has exclusive use. `free` is the use that the allocator
/// records for free segments: in a region that was loaded from an image, their memory was never
/// touched. `flash` is the layout of items on flash. `is_known` is true if index words may refer to
/// such items.
///
/// # Errors
/// [`AttachError`]
pub(crate) fn attach(
    table: Table,
    parameters: &RegionParameters,
    config: &Config,
    free: RestoredUse,
    (flash, is_known): (Option<Format>, bool),
) -> Result<RestoredRegion, AttachError> {
    let (page, layout) = (table.header_page(), table.layout);
    let len = usize::try_from(page.shared.index_len.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
    let buckets_max = layout.segments * layout.buckets_per_segment();
    if !(parameters.buckets_first..=buckets_max).contains(&len)
        || !parameters.buckets_first.is_power_of_two()
    {
        return Err(CorruptRegion("the length of the index is out of range").into());
    }
    let seen = usize::try_from(page.uses.segments_seen.load(Ordering::Relaxed));
    let seen = seen.ok().filter(|seen| *seen <= layout.segments);
    let seen = seen.ok_or(CorruptRegion("the number of segments is out of range"))?;
    if page.flush_floor() > page.order.sequence.load(Ordering::Relaxed) {
        return Err(CorruptRegion("a flush has a sequence from the future").into());
    }
    let was_running = page.uses.running.load(Ordering::Relaxed) != 0;
    let secrets = RapidSecrets::seed(parameters.seed);

    let mut found = Survey::states(&table, seen)?;
    let pages = flash.filter(|_| is_known).map_or(0, |format| format.pages);
    let indexing = Survey::restore_index_parts(&table, &found, len, pages)?;
    if let Some(format) = flash {
        let new_pages = if is_known { 0 } else { table.segments_for_pages(format.pages) };
        let wanted = new_pages + read_buffers::segments_for(&layout, layout.segments_first) + 1;
        if !Survey::make_room(&table, &mut found, wanted, config.evict) {
            // This process has not failed, so it does not count as an attempt to restore the
            // region.
            page.uses.attempts.fetch_sub(1, Ordering::Relaxed);
            return Err(AttachError::NoRoomForFlash);
        }
    }
    table.clear_bucket(len);
    let index = Index::over(table, parameters.buckets_first, stripes_for(parameters.buckets_first));
    let pages = vec![(0, 0); pages];
    let mut survey = Survey { table: &index.buckets, cas: parameters.cas, found, flash, pages };
    if was_running {
        survey.suspect_blocks();
        // A tag may have been dropped and not counted, so make maintenance search for its items.
        survey.table.header_page().tags.drops.fetch_add(1, Ordering::Relaxed);
    }
    let rehash = |word: IndexWord| hash_of(&secrets, survey.record(word.offset()).key());
    let repaired = index.repair(|word| survey.is_valid_word(word), rehash);
    let mut references = survey.count_items(&index);
    survey.count_dead(&mut references);
    let mut items = survey.items();
    items -= survey.keep_chains(&index, &secrets);
    let alloc = survey.alloc(config, indexing, free)?;
    let was_repaired = repaired > 0 || was_running;
    survey.restore_counts(config, items, &index);
    let pages = is_known.then(|| survey.restore_pages()).transpose()?;
    let write_buffers = (0..)
        .zip(&survey.found)
        .filter(|(_, found)| found.state == SegmentState::WriteBuffer)
        .map(|(segment, found)| (segment, found.chained as usize))
        .collect();
    drop(references);
    Ok(RestoredRegion { index, alloc, items, was_repaired, pages, write_buffers })
}
