//! Emptying pages when few are free, on a thread of its own.
//!
//! A page of which nothing is wanted any more is emptied at once. A page of which no item was hit is given up without being read: its index words are removed in one walk
//! over the index. Otherwise the page is read again, block by block, and items that are kept are copied to
//! leaving segments, from where they are written to another page.

use super::super::handle::Handle;
use super::super::header::{Header, State};
use super::super::record::{OwnedSegment, Record, Witness};
use super::super::shared::{AbortOnUnwind, Shared};
use super::super::slot::Slot;
use super::super::sync::{Ordering, fence};
use super::format::{CHECKSUM_LEN, Origin, counted_len};
use super::pages::Page;
use super::tier::Flash;
use crate::Seconds;
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

pub(in super::super) fn run(handle: &mut Handle, flash: &Flash) {
    while !flash.queue.is_stopping() {
        handle.now = flash.now();
        let shared = Arc::clone(&handle.shared);
        let chosen = choose(&shared, flash, handle.now);
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
pub(in super::super) fn empty_next(
    handle: &mut Handle,
    flash: &Flash,
    before: impl FnOnce(bool),
) -> bool {
    let shared = Arc::clone(&handle.shared);
    let Some(emptying) = choose(&shared, flash, handle.now) else { return false };
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
    let is_void = |number: &u32| {
        let page = page(*number);
        page.items() == 0 || page.sequence() < shared.flush_floor() || page.last_expiry() <= now.0
    };
    let compacts = || {
        if free >= settings.compact_under as usize || !flash.may_rewrite() {
            return None;
        }
        let least = lists.full().min_by_key(|number| page(*number).bytes())?;
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
        if free >= drops_under.max(settings.compact_under as usize) {
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
            for block in 0..page.blocks().load(Ordering::Relaxed) {
                self.read_block(&shared, flash, &mut emptying, block);
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
        // Blocks have landed that were on their way when it was chosen.
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

    /// Reads a block again and copies what is kept of it.
    fn read_block(
        &mut self,
        shared: &Arc<Shared>,
        flash: &Flash,
        emptying: &mut Emptying,
        block: u32,
    ) {
        let segment = flash.block_segment;
        let (table, cas) = (shared.table(), shared.config.cas);
        let start = table.layout.start(segment);
        let len = flash.format.block_len;
        let offset = flash.format.block_offset(emptying.page, block);
        let into = table.region.place(start, len);
        // SAFETY: the segment is this thread's alone.
        if unsafe { flash.device.read(offset, into, len) }.is_err() {
            flash.note_error(table, None);
            return;
        }
        let end = start + len;
        let mut at = start;
        while at + 16 <= end {
            let header = Header(table.region.word(at).load(Ordering::Relaxed));
            let record_len = header.record_len(cas);
            if header.key_len() == 0
                || header.has(State::Chain)
                || at + record_len + CHECKSUM_LEN > end
            {
                return;
            }
            let origin =
                Origin { offset: offset + (at - start) as u64, sequence: emptying.sequence };
            // SAFETY: as above, and it is inside of the segment.
            let rest = unsafe { table.region.bytes(at + 8, record_len - 8) };
            let sum = table.region.word(at + record_len).load(Ordering::Relaxed);
            if sum != flash.format.checksum(header, rest, origin) {
                // What is behind it is found by the walk over the index.
                return;
            }
            table.region.word(at).store(header.with(State::Dead, false).0, Ordering::Relaxed);
            self.keep_item(shared, flash, emptying, (&OwnedSegment(segment), at), origin);
            at += flash.format.len_of(header);
        }
    }

    /// Copies an item to a leaving segment if it is kept. Otherwise its index word stays, for
    /// [`Handle::sweep`].
    fn keep_item(
        &mut self,
        shared: &Arc<Shared>,
        flash: &Flash,
        emptying: &mut Emptying,
        (segment, at): (&OwnedSegment, usize),
        origin: Origin,
    ) {
        let (table, cas) = (shared.table(), shared.config.cas);
        let record = Record::at(table, at, cas, Witness::owner(segment));
        let place = flash.format.place_of(origin.offset);
        let hash = shared.hash(record.key());
        let wanted = |slot: Slot| slot.is_on_flash() && slot.place() == place;
        let keeps = |slot: Slot, left: u64| {
            let is_unread_kept = matches!(emptying.reason, Reason::Compact { unread: true });
            (is_unread_kept || slot.freq() > 0) && left >= counted_len(slot.span()) as u64
        };
        let known = shared.index.lookup_in_any_tier(hash, |_, slot| wanted(slot).then_some(slot));
        if !known.is_some_and(|slot| keeps(slot, emptying.budget)) || record.is_past(self.now) {
            return;
        }
        let left = record.expiry().left(self.now);
        let bucket = usize::from(left.is_some_and(|left| left < flash.low_ttl()));
        while !self.prepare_to_leave(bucket, record.len()) {
            emptying.waits += 1;
            if emptying.waits > WAITS_MAX || !flash.queue.wait(SHORT_PATIENCE) {
                return;
            }
        }
        let (_, mut writer) = self.writer();
        let stripe = shared.index.lock(hash);
        let Some(found) = stripe.on_flash().find(|found| wanted(found.slot)) else { return };
        if emptying.sequence < shared.flush_floor() {
            return;
        }
        let whole = AbortOnUnwind;
        if let Some(offset) = writer.copy_for_leaving(shared, &record, bucket) {
            stripe.replace(&found, offset, 0);
            writer.count_back_in_memory(shared, found.slot, &record);
            emptying.budget -= (counted_len(found.slot.span()) as u64).min(emptying.budget);
            emptying.rescued += 1;
        }
        std::mem::forget(whole);
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
            let bytes = counted_len(place.slot.span()) as u64;
            writer.remove_from_flash(shared, &stripe, &place);
            flash.counts.objects_evicted.add(1);
            flash.counts.bytes_evicted.add(bytes);
            removed += 1;
        }
        removed
    }
}
