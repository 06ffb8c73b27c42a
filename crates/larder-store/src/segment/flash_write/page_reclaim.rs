//! Emptying pages when few are free, on a thread of its own.
//!
//! A page of which nothing is wanted any more is emptied at once. A page of which no item was hit is given up without being read: its index words are removed in one walk
//! over the index. Otherwise the page is read again, block by block, and items that are kept are copied to
//! write buffers, from where they are written to another page.

use super::demotion::LARGE_BUCKET;
use crate::Seconds;
use crate::segment::cache::shared::{AbortOnUnwind, Shared};
use crate::segment::flash::format::{CHECKSUM_LEN, Origin, add_piece};
use crate::segment::flash::pages::Page;
use crate::segment::flash::tier::Flash;
use crate::segment::handle::state::Handle;
use crate::segment::index::slot::Slot;
use crate::segment::item::header::{Header, State};
use crate::segment::item::record::Record;
use crate::segment::item::witness::{OwnedSegment, Witness};
use crate::segment::large_value::upload::Upload;
use crate::segment::sync::{Ordering, fence};
use std::sync::Arc;
use std::time::Duration;

/// The part of a page, in percent, that is kept of items that were hit, where the oldest page is given up.
const KEPT_SHARE: u64 = 15;
/// How long to wait for a change before looking again.
const PATIENCE: Duration = Duration::from_millis(100);
/// How long to wait for the queue of writes, or for reads of a page to end.
const SHORT_PATIENCE: Duration = Duration::from_millis(1);
/// How often the emptying of a page waits for the queue of writes; then what can't be kept is given up.
const WAITS_MAX: u32 = 100;

/// As many of the pages that were filled last may have blocks that are being written, a page for each bucket and
/// each thread that writes.
const LANDING_PAGES_MAX: usize = 8;

/// How often the index is walked through for the words into a page.
const WALKS_MAX: u32 = 16;

/// Why a page is emptied, which says what is kept of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// None of its items is wanted.
    Void,
    /// It is the oldest, and pages are needed: items that were hit are kept, up to a share.
    Drop,
    /// Much of it is free: all items are kept, or those that were hit.
    Compact { unread: bool },
    /// It fails.
    Failing,
}

/// A page that is being emptied, and what is left of it to keep.
struct Emptying {
    page: u32,
    sequence: u64,
    reason: Reason,
    /// The bytes that may be kept still.
    budget: u64,
    rescued: u64,
    /// How often it has waited for the queue of writes.
    waits: u32,
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

/// Empties a page on the calling thread, if one has to be. `before` is told whether items may be lost.
#[cfg(all(test, not(any(loom, shuttle, miri))))]
pub(crate) fn empty_next(handle: &mut Handle, flash: &Flash, before: impl FnOnce(bool)) -> bool {
    let shared = Arc::clone(&handle.shared);
    let Some(emptying) = choose(&shared, flash, handle.now.secs) else { return false };
    before(matches!(emptying.reason, Reason::Drop | Reason::Failing));
    handle.empty(flash, emptying);
    true
}

/// The page that is emptied next, if one has to be.
fn choose(shared: &Shared, flash: &Flash, now: Seconds) -> Option<Emptying> {
    let (table, settings) = (shared.table(), flash.settings());
    let mut lists = flash.lists();
    let page = |number: u32| Page::new(table, number as usize);
    // What can't be read any more takes index words alone.
    let is_lost = |number: &u32| flash.is_off() || Flash::is_failing(page(*number));
    let failing = lists.full().find(is_lost);
    let free = lists.free();
    // One free page is kept for what is rewritten.
    let drops_under = (settings.drop_under as usize).max(2).min(flash.format.pages.div_ceil(4));
    let is_short = free < drops_under.max(settings.compact_under as usize);
    let is_void = |number: &u32| {
        let page = page(*number);
        // As long as others are free, its items that were copied to memory can come back.
        let is_unused =
            page.items() == 0 && (is_short || page.copies().load(Ordering::Relaxed) == 0);
        let is_void =
            is_unused || page.sequence() < shared.flush_floor() || page.last_expiry() <= now.0;
        // What is being written to it counts when the write has ended.
        is_void && page.reads().load(Ordering::Acquire) == 0
    };
    let compacts = || {
        if free >= settings.compact_under as usize || !flash.may_rewrite() {
            return None;
        }
        // What the last ones hold may be on its way, and counts when its write has ended.
        let is_written = |(age, number): &(usize, u32)| {
            *age >= LANDING_PAGES_MAX || page(*number).reads().load(Ordering::Acquire) == 0
        };
        let written = lists.full().rev().enumerate().filter(is_written);
        let (_, least) = written.min_by_key(|(_, number)| page(*number).bytes())?;
        let (sum, count) = lists
            .full()
            .fold((0, 0), |(sum, count), number| (sum + page(number).bytes(), count + 1_u64));
        // Half a page at most: what is rewritten is written twice.
        let mean = (sum / count).min(flash.format.page_len() / 2);
        #[expect(clippy::cast_precision_loss, reason = "a share need not be exact")]
        let is_sparse = (page(least).bytes() as f64) < mean as f64 * settings.max_frag;
        let reason = Reason::Compact { unread: !settings.drop_unread };
        is_sparse.then_some((reason, least))
    };
    let void = || lists.full().find(is_void).map(|number| (Reason::Void, number));
    let chosen = failing.map(|number| (Reason::Failing, number)).or_else(void).or_else(|| {
        if !is_short {
            return None;
        }
        compacts().or_else(|| {
            let oldest = lists.full().next().filter(|_| free < drops_under)?;
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
        Reason::Void | Reason::Failing => 0,
    };
    let sequence = page(number).sequence();
    Some(Emptying { page: number, sequence, reason, budget, rescued: 0, waits: 0 })
}

impl Handle {
    fn empty(&mut self, flash: &Flash, mut emptying: Emptying) {
        let shared = Arc::clone(&self.shared);
        let page = Page::new(shared.table(), emptying.page as usize);
        let keeps = match emptying.reason {
            Reason::Void | Reason::Failing => false,
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
            // What could not be kept for lack of threads is found by the next process.
            self.end_writing();
            return flash.lists().put_back(shared.table(), emptying.page);
        }
        let mut evicted = self.sweep(&shared, flash, &emptying);
        self.flush_slot_delta();
        self.end_writing();
        self.wait_for_readers_of(flash, page, &emptying);
        // Writes to it have ended that were under way when it was chosen.
        evicted += self.sweep(&shared, flash, &emptying);
        self.flush_slot_delta();
        self.end_writing();
        flash.counts.compact_rescues.add(emptying.rescued);
        if matches!(emptying.reason, Reason::Compact { .. }) {
            flash.counts.compact_lost.add(evicted);
        }
        if evicted > 0 {
            shared.age_ghosts(evicted);
        }
        self.wait_for_readers_of(flash, page, &emptying);
        let is_bad = emptying.reason == Reason::Failing;
        if page.reads().load(Ordering::Acquire) == 0 {
            // One that is put back is emptied again, and counts then.
            match emptying.reason {
                Reason::Drop => flash.counts.page_evictions.add(1),
                Reason::Compact { .. } | Reason::Void | Reason::Failing => {
                    flash.counts.page_reclaims.add(1);
                }
            }
            flash.lists().give_back(shared.table(), emptying.page, is_bad);
        } else {
            flash.lists().put_back(shared.table(), emptying.page);
        }
        flash.queue.notify();
    }

    /// Waits until no read of a page that no index word refers to is under way or in use.
    fn wait_for_readers_of(&self, flash: &Flash, page: Page<'_>, emptying: &Emptying) {
        fence(Ordering::SeqCst);
        while page.reads().load(Ordering::Acquire) > 0 && !flash.queue.is_stopping() {
            // Some may have ended, while the request that waits for them can't go on.
            flash.abort_reads(Seconds(u32::MAX), Some(emptying.page as usize));
            flash.queue.wait(SHORT_PATIENCE);
        }
    }

    /// Reads a block again and copies what is kept of it, or of the large item that begins there. Returns how
    /// many blocks that were.
    fn read_block(
        &mut self,
        shared: &Arc<Shared>,
        flash: &Flash,
        emptying: &mut Emptying,
        block: u32,
    ) -> u32 {
        let segment = flash.block_segment;
        let (table, cas) = (shared.table(), shared.config.cas);
        let start = table.layout.start(segment);
        let len = flash.format.block_len;
        let offset = flash.format.block_offset(emptying.page, block);
        let into = table.region.place(start, len);
        // SAFETY: the segment is this thread's alone.
        if unsafe { flash.device.read(offset, into, len) }.is_err() {
            flash.note_error(table, None);
            return 1;
        }
        let end = start + len;
        let mut at = start;
        while at + 16 <= end {
            let header = Header(table.region.word(at).load(Ordering::Relaxed));
            let is_large = header.has(State::Link);
            let checked_len = header.record_len(cas) + if is_large { CHECKSUM_LEN } else { 0 };
            if header.key_len() == 0 || at + checked_len + CHECKSUM_LEN > end {
                return 1;
            }
            let origin =
                Origin { offset: offset + (at - start) as u64, sequence: emptying.sequence };
            // SAFETY: as above, and it is inside of the segment.
            let rest = unsafe { table.region.bytes(at + 8, checked_len - 8) };
            let sum = table.region.word(at + checked_len).load(Ordering::Relaxed);
            if sum != flash.format.checksum(header, rest, origin) {
                // What is behind it is found by the walk over the index.
                return 1;
            }
            table.region.word(at).store(header.with(State::Dead, false).0, Ordering::Relaxed);
            let item = (&OwnedSegment(segment), at);
            if is_large {
                return self.keep_large(shared, flash, emptying, item, origin);
            }
            let place = flash.format.place_of(origin.offset);
            self.keep_item(shared, flash, emptying, item, (place, 0));
            at += flash.format.len_of(header);
        }
        1
    }

    /// The same for a large item, of which only the head was read.
    fn keep_large(
        &mut self,
        shared: &Arc<Shared>,
        flash: &Flash,
        emptying: &mut Emptying,
        (segment, at): (&OwnedSegment, usize),
        origin: Origin,
    ) -> u32 {
        let (table, cas) = (shared.table(), shared.config.cas);
        let record = Record::at(table, at, cas, Witness::owner(segment));
        let value_len = record.value_len();
        let Some(len) = flash.format.large_len(value_len) else { return 1 };
        let blocks = u32::try_from(len.div_ceil(flash.format.block_len)).unwrap_or(1);
        let place = flash.format.large_place(origin.offset, len);
        if !self.is_kept(shared, flash, emptying, &record, place) {
            return blocks;
        }
        let sum = table.region.word(at + record.len()).load(Ordering::Relaxed);
        let value = origin.offset + flash.format.head_len as u64;
        let read = self.read_value(shared, flash, (value, value_len), sum);
        let Some(upload) = read else { return blocks };
        let Some(first) = upload.link_all() else { return blocks };
        record.set_chain(first);
        if self.keep_item(shared, flash, emptying, (segment, at), (place, upload.segments.len())) {
            upload.release_all();
        }
        blocks
    }

    /// Reads a large value into segments of its own; `None` if there is no memory for it, or if it is not
    /// what was written there.
    fn read_value(
        &mut self,
        shared: &Shared,
        flash: &Flash,
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
            let into = table.region.place(table.layout.start(*segment), len);
            // SAFETY: the segment belongs to the upload.
            if unsafe { flash.device.read(offset + at as u64, into, len) }.is_err() {
                flash.note_error(table, None);
                return None;
            }
        }
        let pieces = (0..upload.segments.len()).map(|i| upload.piece(i));
        (pieces.fold(0, add_piece) == sum).then_some(upload)
    }

    /// Whether the item at a place is kept.
    fn is_kept(
        &self,
        shared: &Shared,
        flash: &Flash,
        emptying: &Emptying,
        record: &Record<'_>,
        place: u64,
    ) -> bool {
        let hash = shared.hash(record.key());
        let known = shared.index.lookup_in_any_tier(hash, |_, slot| {
            (slot.is_on_flash() && slot.place() == place).then_some(slot)
        });
        known.is_some_and(|slot| {
            let is_unread_kept = matches!(emptying.reason, Reason::Compact { unread: true });
            let len = flash.format.counted_len(slot) as u64;
            (is_unread_kept || slot.freq() > 0) && emptying.budget >= len
        }) && !record.is_past(self.now)
            && !shared.has_dropped_tag(record)
    }

    /// Copies an item to a write buffer if it is kept, along with its chain of `chained` segments; true if
    /// it was. Otherwise its index word stays, for [`Handle::sweep`].
    fn keep_item(
        &mut self,
        shared: &Arc<Shared>,
        flash: &Flash,
        emptying: &mut Emptying,
        (segment, at): (&OwnedSegment, usize),
        (place, chained): (u64, usize),
    ) -> bool {
        let (table, cas) = (shared.table(), shared.config.cas);
        let record = Record::at(table, at, cas, Witness::owner(segment));
        if !self.is_kept(shared, flash, emptying, &record, place) {
            return false;
        }
        let left = record.expiry().left(self.now);
        let bucket = match chained {
            0 => usize::from(left.is_some_and(|left| left < flash.low_ttl())),
            _ => LARGE_BUCKET,
        };
        while !self.prepare_demotion(bucket, record.len(), chained) {
            emptying.waits += 1;
            if emptying.waits > WAITS_MAX || !flash.queue.wait(SHORT_PATIENCE) {
                return false;
            }
        }
        let hash = shared.hash(record.key());
        let (_, mut writer) = self.writer();
        let stripe = shared.index.lock(hash);
        let is_its = |slot: Slot| slot.is_on_flash() && slot.place() == place;
        let Some(found) = stripe.on_flash().find(|found| is_its(found.slot)) else { return false };
        if emptying.sequence < shared.flush_floor() {
            return false;
        }
        let whole = AbortOnUnwind;
        let is_kept = writer.demote(shared, &stripe, &found, &record, bucket);
        if is_kept {
            writer.count_back_in_memory(shared, found.slot, &record);
            let len = flash.format.counted_len(found.slot) as u64;
            emptying.budget -= len.min(emptying.budget);
            emptying.rescued += 1;
        }
        std::mem::forget(whole);
        is_kept
    }

    /// Removes all index words that refer to a page, and returns how many there were.
    fn sweep(&mut self, shared: &Arc<Shared>, flash: &Flash, emptying: &Emptying) -> u64 {
        let mut removed = 0;
        let mut bucket = 0;
        let is_of_page =
            |slot: Slot| slot.is_on_flash() && flash.format.page_of(slot) == emptying.page as usize;
        // The index may grow meanwhile: what is split moves to buckets behind those that were read. An insert
        // may move a word to an earlier bucket, so the walk is repeated until no word is left. Words that are
        // not found now would not find anything later: their sequence will be another.
        for _ in 0..WALKS_MAX {
            if Page::new(shared.table(), emptying.page as usize).items() == 0 {
                break;
            }
            while bucket < shared.index.len() {
                let mut is_found = false;
                shared.index.for_each_in(bucket, |slot| is_found |= is_of_page(slot));
                if is_found {
                    removed += self.sweep_bucket(shared, flash, bucket, &is_of_page);
                }
                bucket += 1;
            }
            bucket = 0;
        }
        removed
    }

    fn sweep_bucket(
        &mut self,
        shared: &Arc<Shared>,
        flash: &Flash,
        bucket: usize,
        is_wanted: &impl Fn(Slot) -> bool,
    ) -> u64 {
        let (_, mut writer) = self.writer();
        let stripe = shared.index.lock(bucket as u64);
        let mut removed = 0;
        for place in stripe.words_of(bucket).filter(|place| is_wanted(place.slot)) {
            let bytes = flash.format.counted_len(place.slot) as u64;
            writer.remove_from_flash(shared, &stripe, &place);
            flash.counts.objects_evicted.add(1);
            flash.counts.bytes_evicted.add(bytes);
            removed += 1;
        }
        removed
    }
}
