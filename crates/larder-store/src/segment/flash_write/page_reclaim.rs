//! Emptying pages on a separate thread.
//!
//! A page without live items is emptied immediately. When few pages are free, a page with much free
//! space is rewritten, or the oldest page is dropped. The thread reads a rewritten page block by
//! block, and copies the items that it keeps to write buffers. The buffers are later written to
//! another page. The thread does the same with a dropped page that had hits. The thread does not
//! read other pages. Afterwards, walks over the index remove the index words that still refer to
//! the page.

use super::demotion::LARGE_BUCKET;
use crate::Seconds;
use crate::segment::cache::shared::{AbortOnUnwind, Shared};
use crate::segment::flash::format::{CHECKSUM_LEN, Origin, add_piece};
use crate::segment::flash::pages::Page;
use crate::segment::flash::tier::Flash;
use crate::segment::handle::state::Handle;
use crate::segment::index::word::IndexWord;
use crate::segment::item::header::{Header, State};
use crate::segment::item::record::Record;
use crate::segment::item::witness::{OwnedSegment, Witness};
use crate::segment::large_value::upload::Upload;
use crate::segment::sync::{Ordering, fence};
use std::sync::Arc;
use std::time::Duration;

/// When the oldest page is dropped, items with hits are kept until they fill this percentage of a
/// page.
const KEPT_SHARE: u64 = 15;
/// The thread that empties pages waits at most this long before it looks for work again.
const PATIENCE: Duration = Duration::from_millis(100);
/// A wait for the write queue, or for the reads of a page to end, checks again after at most this
/// time.
const SHORT_PATIENCE: Duration = Duration::from_millis(1);
/// The maximum number of successive waits for a write buffer, if a writing thread waits for a free
/// page. After that, items are dropped if no write buffer is available.
const WAITS_MAX: u32 = 100;

/// The maximum number of recently filled pages with blocks that are still being written: one for
/// each bucket and each writing thread.
const WRITING_PAGES_MAX: usize = 8;

/// A sweep removes the index words that refer to a page. It walks over the index at most this many
/// times. Emptying a page takes two sweeps.
const WALKS_MAX: u32 = 16;

/// The reason to empty a page. It determines which items are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// The page has no live items.
    Void,
    /// The page is the oldest, and free pages are needed. Items with hits are kept, up to
    /// [`KEPT_SHARE`].
    Drop,
    /// Much of the page is free. If `unread` is true, all items are kept. Otherwise, only items
    /// with hits are kept.
    Compact { unread: bool },
    /// Flash is off. No item is kept.
    Off,
}

/// A page that is being emptied, and the budget for items to keep.
struct PageReclaim {
    page: u32,
    sequence: u64,
    reason: Reason,
    /// The number of item bytes that may still be kept.
    budget: u64,
    rescued: u64,
    /// The number of waits since a write buffer was last available.
    waits: u32,
}

/// Counts of the index words that a sweep has removed.
#[derive(Clone, Copy, Debug, Default)]
struct SweepCounts {
    all: u64,
    /// The number of removed words whose items were not read since they were written to flash.
    unread: u64,
}

pub(crate) fn run(handle: &mut Handle, flash: &Flash) {
    while !flash.queue.is_stopping() {
        handle.now = flash.now().into();
        let shared = Arc::clone(&handle.shared);
        let chosen = choose(&shared, flash, handle.now.secs);
        match chosen {
            Some(emptying) => handle.empty(flash, emptying),
            None => {
                flash.queue.wait(PATIENCE);
            }
        }
    }
}

/// Chooses a page that must be emptied, and empties it on the calling thread. Before that, calls
/// `before`, with true if items may be lost. Returns false if no page must be emptied.
#[cfg(all(test, not(any(loom, shuttle, miri))))]
pub(crate) fn empty_next(handle: &mut Handle, flash: &Flash, before: impl FnOnce(bool)) -> bool {
    let shared = Arc::clone(&handle.shared);
    let Some(emptying) = choose(&shared, flash, handle.now.secs) else { return false };
    before(matches!(emptying.reason, Reason::Drop | Reason::Off));
    handle.empty(flash, emptying);
    true
}

/// Reads a block into the block segment. If that fails, reads it in pieces, and zeroes the pieces
/// that fail, or that remain when the tier stops. Returns whether the first read succeeded.
fn read_whole(shared: &Shared, flash: &Flash, page: u32, offset: u64) -> bool {
    let table = shared.table();
    let (start, len) = (table.layout.start(flash.block_segment), flash.format.block_len);
    let read = |at: usize, len: usize| {
        let into = table.region.pointer_to(start + at, len);
        // SAFETY: the range is in the block segment, which belongs only to this thread.
        unsafe { flash.device.read(offset + at as u64, into, len) }.is_ok()
    };
    if read(0, len) {
        return true;
    }
    flash.note_failed_read(table, Page::new(table, page as usize));
    let piece_len = flash.device.align();
    for piece in (0..len).step_by(piece_len) {
        if flash.queue.is_stopping() || !read(piece, piece_len) {
            let words = (piece..piece + piece_len).step_by(8);
            words.for_each(|at| table.region.word(start + at).store(0, Ordering::Relaxed));
        }
    }
    false
}

/// Takes the next page that must be emptied. Returns `None` if no page must be emptied.
fn choose(shared: &Shared, flash: &Flash, now: Seconds) -> Option<PageReclaim> {
    let (table, settings) = (shared.table(), flash.settings());
    let mut lists = flash.lists();
    lists.end_rests(table, now);
    let page = |number: u32| Page::new(table, number as usize);
    // While flash is off, its items can't be read. They only occupy index slots.
    let lost = lists.full().next().filter(|_| flash.is_off());
    let free = lists.free();
    // At least two, because one free page is reserved for rewritten items.
    let drops_under = (settings.drop_under as usize).max(2).min(flash.format.pages.div_ceil(4));
    let is_short = free < drops_under.max(settings.compact_under as usize);
    // Rewriting a page may lose items, too, if a write needs a free page. A cache that does not
    // evict must keep its items, and writes only the buffers that an earlier process has left.
    let may_lose = shared.config.evict;
    let is_void = |number: &u32| {
        let page = page(*number);
        // While other pages are free, items that were copied to memory can return to this page.
        let is_unused =
            page.items() == 0 && (is_short || page.copies().load(Ordering::Relaxed) == 0);
        let is_void =
            is_unused || page.sequence() < shared.flush_floor() || page.last_expiry() <= now.0;
        // The page counts the items of a block only after the block's write has ended.
        is_void && page.reads().load(Ordering::Acquire) == 0
    };
    let compacts = || {
        if !may_lose || free >= settings.compact_under as usize || !flash.may_rewrite() {
            return None;
        }
        // The writes of blocks in the most recently filled pages may still be under way. A page
        // counts the items of a block only when the write has ended, and seems nearly empty until
        // then.
        let is_written = |(age, number): &(usize, u32)| {
            *age >= WRITING_PAGES_MAX || page(*number).reads().load(Ordering::Acquire) == 0
        };
        let written = lists.full().rev().enumerate().filter(is_written);
        let (_, least) = written.min_by_key(|(_, number)| page(*number).bytes())?;
        let (sum, count) = lists
            .full()
            .fold((0, 0), |(sum, count), number| (sum + page(number).bytes(), count + 1_u64));
        // The mean counts as at most half a page, because rewriting a fuller page would free little
        // space for many written items.
        let mean = (sum / count).min(flash.format.page_len() / 2);
        #[expect(clippy::cast_precision_loss, reason = "the share is approximate")]
        let is_sparse = (page(least).bytes() as f64) < mean as f64 * settings.max_frag;
        let reason = Reason::Compact { unread: !settings.drop_unread };
        is_sparse.then_some((reason, least))
    };
    let void = || lists.full().find(is_void).map(|number| (Reason::Void, number));
    let chosen = lost.map(|number| (Reason::Off, number)).or_else(void).or_else(|| {
        if !is_short {
            return None;
        }
        compacts().or_else(|| {
            let oldest = lists.full().next().filter(|_| may_lose && free < drops_under)?;
            Some((Reason::Drop, oldest))
        })
    });
    let (reason, number) = chosen?;
    if matches!(reason, Reason::Compact { .. }) {
        flash.note_rewriting();
    }
    lists.take(table, number);
    let budget = match reason {
        Reason::Drop => flash.format.page_len() * KEPT_SHARE / 100,
        Reason::Compact { .. } => u64::MAX,
        Reason::Void | Reason::Off => 0,
    };
    let sequence = page(number).sequence();
    Some(PageReclaim { page: number, sequence, reason, budget, rescued: 0, waits: 0 })
}

impl Handle {
    fn empty(&mut self, flash: &Flash, mut emptying: PageReclaim) {
        let shared = Arc::clone(&self.shared);
        let page = Page::new(shared.table(), emptying.page as usize);
        let keeps = match emptying.reason {
            Reason::Void | Reason::Off => false,
            Reason::Drop => page.hits().load(Ordering::Relaxed) > 0,
            Reason::Compact { .. } => true,
        };
        if keeps {
            let (mut block, blocks) = (0, page.blocks().load(Ordering::Relaxed));
            while block < blocks {
                block += self.read_block(&shared, flash, &mut emptying, block);
            }
        }
        if flash.queue.is_stopping() {
            // The tier stops. The items that were not kept yet stay on the page, for the next
            // threads of this process or for the next process.
            self.end_writing();
            return flash.lists().put_back(shared.table(), emptying.page);
        }
        let mut swept = self.sweep(&shared, flash, &emptying);
        self.flush_slot_delta();
        self.end_writing();
        self.wait_for_readers_of(flash, page, &emptying);
        // Sweep again: writes that were under way when the page was chosen have ended by now.
        let again = self.sweep(&shared, flash, &emptying);
        swept = SweepCounts { all: swept.all + again.all, unread: swept.unread + again.unread };
        self.flush_slot_delta();
        self.end_writing();
        flash.counts.compact_rescues.add(emptying.rescued);
        if let Reason::Compact { unread: keeps_unread } = emptying.reason {
            let skipped = if keeps_unread { 0 } else { swept.unread };
            flash.counts.compact_skipped.add(skipped);
            flash.counts.compact_lost.add(swept.all - skipped);
        }
        if swept.all > 0 {
            shared.age_ghosts(swept.all);
        }
        self.wait_for_readers_of(flash, page, &emptying);
        if page.reads().load(Ordering::Acquire) == 0 {
            // A page that is put back is counted when it is emptied again.
            match emptying.reason {
                Reason::Drop => flash.counts.page_evictions.add(1),
                Reason::Compact { .. } | Reason::Void | Reason::Off => {
                    flash.counts.page_reclaims.add(1);
                }
            }
            if Flash::is_failing(page) {
                flash.lists().rest(shared.table(), emptying.page, flash.now());
            } else {
                flash.lists().give_back(shared.table(), emptying.page);
            }
        } else {
            flash.lists().put_back(shared.table(), emptying.page);
        }
        flash.queue.notify();
    }

    /// Waits until no read of a page is under way or in use and no write to it is under way, or
    /// until the tier is stopping. New reads do not start, because no index word refers to the page
    /// any more.
    fn wait_for_readers_of(&self, flash: &Flash, page: Page<'_>, emptying: &PageReclaim) {
        fence(Ordering::SeqCst);
        while page.reads().load(Ordering::Acquire) > 0 && !flash.queue.is_stopping() {
            // Aborts reads that have ended and whose requests cannot continue.
            flash.abort_reads(Seconds(u32::MAX), Some(emptying.page as usize));
            flash.queue.wait(SHORT_PATIENCE);
        }
    }

    /// Reads a block, and copies to write buffers the items that are to be kept. If a large item
    /// starts in the block, handles the whole item. Returns the number of blocks that it has
    /// handled: more than one for a large item.
    fn read_block(
        &mut self,
        shared: &Arc<Shared>,
        flash: &Flash,
        emptying: &mut PageReclaim,
        block: u32,
    ) -> u32 {
        let segment = flash.block_segment;
        let (table, cas) = (shared.table(), shared.config.cas);
        let start = table.layout.start(segment);
        let len = flash.format.block_len;
        let offset = flash.format.block_offset(emptying.page, block);
        let has_holes = !read_whole(shared, flash, emptying.page, offset);
        let end = start + len;
        let mut at = start;
        while at + 16 <= end {
            let header = Header(table.region.word(at).load(Ordering::Relaxed));
            if header.key_len() == 0 && !has_holes {
                return 1;
            }
            let is_large = header.has(State::Link);
            let checked_len = header.record_len(cas) + if is_large { CHECKSUM_LEN } else { 0 };
            if header.key_len() == 0 || at + checked_len + CHECKSUM_LEN > end {
                // The length of an item that could not be read is unknown.
                at += flash.format.unit();
                continue;
            }
            let origin =
                Origin { offset: offset + (at - start) as u64, sequence: emptying.sequence };
            // SAFETY: the range is inside the block segment, which belongs only to this thread.
            let rest = unsafe { table.region.bytes(at + 8, checked_len - 8) };
            let sum = table.region.word(at + checked_len).load(Ordering::Relaxed);
            if sum != flash.format.checksum(header, rest, origin) {
                at += flash.format.unit();
                continue;
            }
            table.region.word(at).store(header.with(State::Dead, false).0, Ordering::Relaxed);
            let item = (&OwnedSegment(segment), at);
            if is_large {
                return self.keep_large(shared, flash, emptying, item, origin);
            }
            let flash_offset = flash.format.flash_offset_of(origin.offset);
            self.keep_item(shared, flash, emptying, item, (flash_offset, 0));
            at += flash.format.len_of(header);
        }
        1
    }

    /// Keeps a large item whose head was read, if [`Handle::is_kept`] allows it: reads its value,
    /// and copies the item to a write buffer. Returns the number of blocks that the item occupies.
    fn keep_large(
        &mut self,
        shared: &Arc<Shared>,
        flash: &Flash,
        emptying: &mut PageReclaim,
        (segment, at): (&OwnedSegment, usize),
        origin: Origin,
    ) -> u32 {
        let (table, cas) = (shared.table(), shared.config.cas);
        let record = Record::at(table, at, cas, Witness::owner(segment));
        let value_len = record.value_len();
        let Some(len) = flash.format.large_len(value_len) else { return 1 };
        let blocks = u32::try_from(len.div_ceil(flash.format.block_len)).unwrap_or(1);
        let flash_offset = flash.format.large_flash_offset(origin.offset, len);
        if !self.is_kept(shared, flash, emptying, &record, flash_offset) {
            return blocks;
        }
        let segments = value_len.div_ceil(table.layout.segment_len);
        while !shared.has_room_for_large(segments) {
            if !self.wait_for_writes(shared, flash, emptying, segments) {
                return blocks;
            }
        }
        emptying.waits = 0;
        let sum = table.region.word(at + record.len()).load(Ordering::Relaxed);
        let value = origin.offset + flash.format.head_len as u64;
        let read = self.read_value(shared, flash, emptying.page, (value, value_len), sum);
        let Some(upload) = read else { return blocks };
        let Some(first) = upload.link_all() else { return blocks };
        record.set_chain(first);
        if self.keep_item(
            shared,
            flash,
            emptying,
            (segment, at),
            (flash_offset, upload.segments.len()),
        ) {
            upload.release_all();
        }
        blocks
    }

    /// Reads a large value into segments of its own. Returns `None` if no segments are free, if the
    /// read fails, or if the checksum does not match.
    fn read_value(
        &mut self,
        shared: &Shared,
        flash: &Flash,
        page: u32,
        (offset, len): (u64, usize),
        sum: u64,
    ) -> Option<Upload> {
        let (table, align) = (shared.table(), flash.device.align());
        let mut upload = self.with_all_segments(Upload::new(&self.shared, len)).ok()?;
        self.pin.resume(&shared.epoch);
        upload.fill_with(len);
        for (i, segment) in upload.segments.iter().enumerate() {
            let at = i * table.layout.segment_len;
            let len = (len - at).min(table.layout.segment_len).next_multiple_of(align);
            let into = table.region.pointer_to(table.layout.start(*segment), len);
            // SAFETY: the segment belongs to the upload, which no other thread can access.
            if unsafe { flash.device.read(offset + at as u64, into, len) }.is_err() {
                flash.note_failed_read(table, Page::new(table, page as usize));
                return None;
            }
        }
        let pieces = (0..upload.segments.len()).map(|i| upload.piece(i));
        (pieces.fold(0, add_piece) == sum).then_some(upload)
    }

    /// Returns whether to keep the item at `flash_offset`: its index word still exists, the reason
    /// for emptying the page and the budget allow it, and it is neither expired nor invalidated by
    /// a tag.
    fn is_kept(
        &self,
        shared: &Shared,
        flash: &Flash,
        emptying: &PageReclaim,
        record: &Record<'_>,
        flash_offset: u64,
    ) -> bool {
        let hash = shared.hash(record.key());
        let known = shared.index.lookup_in_any_tier(hash, |_, word| {
            (word.is_on_flash() && word.flash_offset() == flash_offset).then_some(word)
        });
        known.is_some_and(|word| {
            let is_unread_kept = matches!(emptying.reason, Reason::Compact { unread: true });
            let len = flash.format.counted_len(word) as u64;
            (is_unread_kept || word.freq() > 0) && emptying.budget >= len
        }) && !record.is_past(self.now)
            && !shared.has_dropped_tag(record)
    }

    /// Copies an item, with its chain of `chained` segments, to a write buffer if the item is to be
    /// kept. Returns whether it copied the item. Otherwise the index word stays until
    /// [`Handle::sweep`].
    fn keep_item(
        &mut self,
        shared: &Arc<Shared>,
        flash: &Flash,
        emptying: &mut PageReclaim,
        (segment, at): (&OwnedSegment, usize),
        (flash_offset, chained): (u64, usize),
    ) -> bool {
        let (table, cas) = (shared.table(), shared.config.cas);
        let record = Record::at(table, at, cas, Witness::owner(segment));
        if !self.is_kept(shared, flash, emptying, &record, flash_offset) {
            return false;
        }
        let left = record.expiry().left(self.now);
        let bucket = match chained {
            0 => usize::from(left.is_some_and(|left| left < flash.low_ttl())),
            _ => LARGE_BUCKET,
        };
        while !self.prepare_demotion(bucket, record.len(), chained) {
            // Do not wait as long again for a large value: it occupies memory by now, and
            // `keep_large` has already waited.
            let is_too_long = chained > 0 && emptying.waits > WAITS_MAX;
            if is_too_long || !self.wait_for_writes(shared, flash, emptying, chained) {
                return false;
            }
        }
        emptying.waits = 0;
        let hash = shared.hash(record.key());
        let (_, mut writer) = self.writer();
        let stripe = shared.index.lock(hash);
        let is_its = |word: IndexWord| word.is_on_flash() && word.flash_offset() == flash_offset;
        let Some(found) = stripe.on_flash().find(|found| is_its(found.word)) else { return false };
        if emptying.sequence < shared.flush_floor() {
            return false;
        }
        let whole = AbortOnUnwind;
        let is_kept = writer.demote(shared, &stripe, &found, &record, bucket);
        if is_kept {
            writer.count_back_in_memory(shared, found.word, &record);
            let len = flash.format.counted_len(found.word) as u64;
            emptying.budget -= len.min(emptying.budget);
            emptying.rescued += 1;
        }
        std::mem::forget(whole);
        is_kept
    }

    /// Waits for the write queue to change. `chained` is the number of segments in the chain of the
    /// item that waits. Returns false if the item is not to be kept, because writes need the page,
    /// the item can't be written at all, or the tier is stopping.
    fn wait_for_writes(
        &mut self,
        shared: &Shared,
        flash: &Flash,
        emptying: &mut PageReclaim,
        chained: usize,
    ) -> bool {
        emptying.waits += 1;
        let is_needed = emptying.waits > WAITS_MAX && flash.counts.waiting_for_page.get() > 0;
        let is_possible = !flash.is_off() && shared.may_write_large(chained);
        // Lets other handles use the open segments of this handle while it waits.
        self.end_writing();
        is_possible && !is_needed && flash.queue.wait(SHORT_PATIENCE)
    }

    /// Removes the index words that refer to a page.
    fn sweep(
        &mut self,
        shared: &Arc<Shared>,
        flash: &Flash,
        emptying: &PageReclaim,
    ) -> SweepCounts {
        let mut swept = SweepCounts::default();
        let mut bucket = 0;
        let is_of_page = |word: IndexWord| {
            word.is_on_flash() && flash.format.page_of(word) == emptying.page as usize
        };
        // The index may grow at the same time: a split moves words to buckets that the walk has not
        // reached. An insert may move a word to an earlier bucket, so the walk is repeated until no
        // word is left. A word that is left after the last walk does no harm: a later use of the
        // page has another sequence, so a lookup through this word finds nothing.
        for _ in 0..WALKS_MAX {
            if Page::new(shared.table(), emptying.page as usize).items() == 0 {
                break;
            }
            while bucket < shared.index.len() {
                let mut is_found = false;
                shared.index.for_each_in(bucket, |word| is_found |= is_of_page(word));
                if is_found {
                    self.sweep_bucket(shared, flash, bucket, &is_of_page, &mut swept);
                }
                bucket += 1;
            }
            bucket = 0;
        }
        swept
    }

    fn sweep_bucket(
        &mut self,
        shared: &Arc<Shared>,
        flash: &Flash,
        bucket: usize,
        is_wanted: &impl Fn(IndexWord) -> bool,
        swept: &mut SweepCounts,
    ) {
        let (_, mut writer) = self.writer();
        let stripe = shared.index.lock(bucket as u64);
        for found in stripe.words_of(bucket).filter(|found| is_wanted(found.word)) {
            let bytes = flash.format.counted_len(found.word) as u64;
            writer.remove_from_flash(shared, &stripe, &found);
            flash.counts.objects_evicted.add(1);
            flash.counts.bytes_evicted.add(bytes);
            swept.all += 1;
            swept.unread += u64::from(found.word.freq() == 0);
        }
    }
}
