//! The threads that write demoted items from write buffers to flash, and then make index words
//! refer to the written items.
//!
//! A write blocks only its own thread. If writes are slower than evictions, the queue fills up, and
//! further evicted items are dropped.

use super::demotion::LARGE_BUCKET;
use super::large_write::LargeWrite;
use super::page_reclaim;
use crate::segment::cache::shared::{AbortOnUnwind, Shared};
use crate::segment::flash::format::{Origin, span_of};
use crate::segment::flash::pages::{BUCKETS, Page};
use crate::segment::flash::tier::Flash;
use crate::segment::handle::state::{Handle, liveness};
use crate::segment::index::word::LARGE_SPAN;
use crate::segment::item::header::{Header, State};
use crate::segment::item::record::Record;
use crate::segment::item::witness::{OwnedSegment, Witness};
use crate::segment::memory::table::{SegmentState, Sequence};
use crate::segment::sync::Ordering;
use std::sync::Arc;
use std::time::Duration;

/// The number of writing threads. Most devices write several blocks faster in parallel than one
/// after the other.
const WRITERS: usize = 4;
/// The maximum time that the last handle waits for the threads of the tier to stop.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// A write that waits for a free page checks at least this often whether it still needs one.
const PAGE_PATIENCE: Duration = Duration::from_millis(100);

/// A block that was written. For a large item, this is its first block.
#[derive(Clone, Copy, Debug)]
struct WrittenBlock {
    /// The block's offset on the device.
    offset: u64,
    page: u32,
}

/// Blocks that are reserved for a write.
#[derive(Clone, Copy, Debug)]
struct Blocks {
    page: u32,
    /// The offset of the first block on the device.
    offset: u64,
    /// The sequence of the page.
    sequence: Sequence,
}

/// The outcome of writing a block.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    WrittenBlock(WrittenBlock),
    /// The write failed or was not necessary. It is not necessary if flash is off, if the items
    /// were flushed, or if the index does not refer to the large item any more.
    Failed,
    /// The tier is stopping.
    Stopped,
}

impl Shared {
    /// Starts the threads of the flash tier, unless they are running.
    pub(crate) fn start_flash(shared: &Arc<Self>) {
        let Some(flash) = &shared.flash else { return };
        flash.queue.set_stopping(false);
        if flash.begin_threads(WRITERS + 1) {
            (0..WRITERS).for_each(|_| spawn(shared, "flash-write", run));
            spawn(shared, "flash-reclaim", page_reclaim::run);
        }
    }

    /// Stops the threads of the flash tier if no other handles are left.
    pub(crate) fn stop_flash_if_last(&self) {
        if let Some(flash) = &self.flash
            && self.handles.load(Ordering::Acquire) <= flash.thread_count()
        {
            flash.stop(STOP_PATIENCE);
        }
    }
}

fn spawn(shared: &Arc<Shared>, name: &str, run: impl FnOnce(&mut Handle, &Flash) + Send + 'static) {
    let thread = std::thread::Builder::new().name(name.to_owned());
    let own = Arc::clone(shared);
    let spawned = thread.spawn(move || {
        let mut handle = Handle::new(Arc::clone(&own));
        handle.is_of_flash = true;
        if let Some(flash) = &own.flash {
            run(&mut handle, flash);
            drop(handle);
            flash.end_thread();
        }
    });
    // Without the threads, nothing is written. The queue fills up, and evicted items are dropped,
    // as in a cache without flash.
    if spawned.is_err()
        && let Some(flash) = &shared.flash
    {
        flash.end_thread();
    }
}

fn run(handle: &mut Handle, flash: &Flash) {
    while let Some((segment, chained)) = flash.queue.next() {
        handle.write_out(flash, (segment, chained));
        flash.queue.finish(chained);
        flash.note_room_by_write();
    }
}

/// Writes the next write buffer of the queue on the calling thread. Returns false if the queue is
/// empty.
#[cfg(all(test, not(any(loom, shuttle, miri))))]
pub(crate) fn write_next(handle: &mut Handle, flash: &Flash) -> bool {
    let next = flash.queue.try_next();
    if let Some((segment, chained)) = next {
        handle.write_out(flash, (segment, chained));
        flash.queue.finish(chained);
    }
    next.is_some()
}

impl Handle {
    /// Writes a write buffer to flash, and retires it. If the tier is stopping, puts it back in the
    /// queue.
    fn write_out(&mut self, flash: &Flash, (segment, chained): (u32, usize)) {
        let shared = Arc::clone(&self.shared);
        self.now = flash.now().into();
        let owned = OwnedSegment(segment);
        let outcome = if usize::from(shared.table().entry(segment).kind().lifetime) == LARGE_BUCKET
        {
            self.write_large(&shared, flash, &owned)
        } else {
            self.write_block(&shared, flash, &owned)
        };
        let written = match outcome {
            Outcome::WrittenBlock(written) => Some(written),
            Outcome::Failed => None,
            // Put the write buffer back. The tier's threads write it when they are started again,
            // in this process or in the next one.
            Outcome::Stopped => return flash.queue.push(segment, chained),
        };
        let evicted = self.switch_words(&shared, flash, &owned, written);
        if let Some(written) = written {
            // The page may be emptied from now on: until now, the count of reads has prevented
            // this.
            let page = Page::new(shared.table(), written.page as usize);
            page.reads().fetch_sub(1, Ordering::AcqRel);
        }
        self.flush_slot_delta();
        self.end_writing();
        shared.table().entry(segment).set_state(SegmentState::Retired);
        shared.retire(segment, 1);
        shared.collect();
        if evicted > 0 {
            shared.age_ghosts(evicted);
        }
    }

    /// Reserves the next `count` blocks for a write buffer. Waits for a free page if necessary.
    /// Fails if the write is not necessary any more, or if the tier is stopping.
    fn next_blocks(
        &self,
        shared: &Shared,
        flash: &Flash,
        segment: &OwnedSegment,
        (mut bucket, count): (usize, u32),
    ) -> Result<Blocks, Outcome> {
        let table = shared.table();
        loop {
            let floor = shared.flush_floor();
            let written = table.entry(segment.0).sequence().load(Ordering::Relaxed);
            if flash.is_off() || written < floor {
                return Err(Outcome::Failed);
            }
            let blocks = flash.format.blocks_of_page();
            let next = flash.lists().next_blocks(table, bucket, (count, blocks), floor);
            if let Some((page, block)) = next {
                let sequence = Page::new(table, page as usize).sequence();
                let offset = flash.format.block_offset(page, block);
                return Ok(Blocks { page, offset, sequence });
            }
            let sequence = table.header_page().next_sequence(&mut shared.alloc());
            if flash.lists().open(table, bucket, sequence, self.now.secs) {
                flash.counts.page_allocs.add(1);
                flash.queue.notify();
            } else {
                // If no page is full, there are so few pages that no other page will become free.
                // Then all items share one page.
                let patience = if flash.lists().full().next().is_some() {
                    PAGE_PATIENCE
                } else {
                    bucket = (bucket + 1) % BUCKETS;
                    PAGE_PATIENCE / 100
                };
                flash.counts.waiting_for_page.add(1);
                let is_running = flash.queue.wait(patience);
                flash.counts.waiting_for_page.take_off(1);
                if !is_running {
                    return Err(Outcome::Stopped);
                }
            }
        }
    }

    /// Writes a write buffer to the next block of its bucket's page.
    fn write_block(&self, shared: &Shared, flash: &Flash, segment: &OwnedSegment) -> Outcome {
        let (table, layout) = (shared.table(), &shared.table().layout);
        let entry = table.entry(segment.0);
        let bucket = usize::from(entry.kind().lifetime);
        let blocks = match self.next_blocks(shared, flash, segment, (bucket, 1)) {
            Ok(blocks) => blocks,
            Err(outcome) => return outcome,
        };
        let Blocks { offset, sequence, .. } = blocks;
        let start = layout.start(segment.0);
        let end = start + entry.written().load(Ordering::Acquire) as usize;
        for (at, header) in records(shared, flash, segment) {
            let record_len = header.record_len(shared.config.cas);
            // SAFETY: the range is in the segment, which belongs to this thread, and only headers
            // in it change.
            let rest = unsafe { table.region.bytes(at + 8, record_len - 8) };
            let origin = Origin { offset: offset + (at - start) as u64, sequence };
            let sum = flash.format.checksum(header, rest, origin);
            table.region.word(at + record_len).store(sum, Ordering::Relaxed);
        }
        let len = (end - start).next_multiple_of(flash.device.align());
        if end < start + len {
            // A later read of the block ends at this zero word.
            table.region.word(end).store(0, Ordering::Relaxed);
        }
        let from = table.region.pointer_to(start, len);
        // SAFETY: the range is in the region, all of which is initialised. Other threads change
        // only headers in it, through atomics.
        let result = unsafe { flash.device.write(offset, from, len) };
        self.end_write(shared, flash, blocks, len, result.is_ok())
    }

    /// Writes a write buffer's large item to a page's next blocks.
    fn write_large(&self, shared: &Arc<Shared>, flash: &Flash, segment: &OwnedSegment) -> Outcome {
        let Some(item) = LargeWrite::of(shared, flash, segment) else { return Outcome::Failed };
        let expires = item.expiry.left(self.now);
        let bucket = usize::from(expires.is_some_and(|left| left < flash.low_ttl()));
        let count = item.len.div_ceil(flash.format.block_len);
        let count = u32::try_from(count).expect("a page has few blocks");
        let blocks = match self.next_blocks(shared, flash, segment, (bucket, count)) {
            Ok(blocks) => blocks,
            Err(outcome) => return outcome,
        };
        let Blocks { offset, sequence, .. } = blocks;
        let result = item.write(shared, flash, segment, Origin { offset, sequence });
        self.end_write(shared, flash, blocks, item.len, result.is_ok())
    }

    fn end_write(
        &self,
        shared: &Shared,
        flash: &Flash,
        Blocks { page, offset, .. }: Blocks,
        len: usize,
        is_written: bool,
    ) -> Outcome {
        let table = shared.table();
        if is_written {
            flash.note_write();
            flash.counts.bytes_written.add(len as u64);
            return Outcome::WrittenBlock(WrittenBlock { offset, page });
        }
        let entry = Page::new(table, page as usize);
        flash.note_failed_write(table, entry);
        entry.reads().fetch_sub(1, Ordering::AcqRel);
        flash.lists().abandon(table, page);
        flash.queue.notify();
        Outcome::Failed
    }

    /// Makes the index words of a write buffer's items refer to flash, or evicts the items if they
    /// were not written. Removes items that are no longer valid. Returns the number of evicted
    /// items.
    fn switch_words(
        &mut self,
        shared: &Arc<Shared>,
        flash: &Flash,
        segment: &OwnedSegment,
        written: Option<WrittenBlock>,
    ) -> u64 {
        let (table, cas) = (shared.table(), shared.config.cas);
        let start = table.layout.start(segment.0);
        let mut evicted = 0;
        if written.is_some() {
            let live =
                records(shared, flash, segment).filter(|(_, header)| !header.has(State::Dead));
            let cas = live.map(|(at, _)| Record::at(table, at, cas, Witness::owner(segment)).cas());
            table.header_page().cas.raise_floor(cas.max().unwrap_or(0));
        }
        for (at, header) in records(shared, flash, segment) {
            let hash = shared.hash(Record::at(table, at, cas, Witness::owner(segment)).key());
            if header.has(State::Dead) {
                // Wait for the thread that marked the item dead: it holds the lock of the stripe
                // until it has counted the item's bytes as dead in this segment.
                drop(shared.index.lock(hash));
                continue;
            }
            let (_, mut writer) = self.writer();
            let stripe = shared.index.lock(hash);
            let Some(locked_slot) = stripe.find(|word| word.offset() == at) else { continue };
            let record = Record::at(table, at, cas, Witness::locked(&stripe));
            let abort_guard = AbortOnUnwind;
            if !liveness(shared, &record, writer.now).is_live() {
                writer.count_reclaimed(shared, &record, false);
                writer.remove(shared, &stripe, &locked_slot, &record);
            } else if let Some(written) = written {
                let offset = written.offset + (at - start) as u64;
                let large_len =
                    record.chain().and_then(|_| flash.format.large_len(record.value_len()));
                let (on_flash, span) = match large_len {
                    Some(len) => (flash.format.large_flash_offset(offset, len), LARGE_SPAN),
                    None => {
                        (flash.format.flash_offset_of(offset), span_of(flash.format.len_of(header)))
                    }
                };
                let word = locked_slot.word.on_flash(on_flash, span);
                writer.move_to_flash(shared, &stripe, &locked_slot, word, &record);
                if large_len.is_some() {
                    shared.mark_dead(&record, false);
                }
                flash.counts.objects_written.add(1);
                let bucket = Page::new(table, written.page as usize).public_bucket();
                writer.report_eviction(shared, &record, Some(bucket));
            } else {
                writer.evict(shared, &stripe, &locked_slot, &record, hash);
                evicted += 1;
            }
            std::mem::forget(abort_guard);
        }
        evicted
    }
}

/// Returns the offset and header of each record in a complete write buffer.
fn records<'s>(
    shared: &'s Shared,
    flash: &'s Flash,
    segment: &OwnedSegment,
) -> impl Iterator<Item = (usize, Header)> + use<'s> {
    let table = shared.table();
    let written = table.entry(segment.0).written().load(Ordering::Acquire) as usize;
    let mut at = table.layout.start(segment.0);
    let end = at + written;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let header = Header(table.region.word(at).load(Ordering::Acquire));
        let this = at;
        at += flash.format.len_of(header);
        Some((this, header))
    })
}
