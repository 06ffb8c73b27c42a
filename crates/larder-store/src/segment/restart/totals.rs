//! The allocator and item counts of a restored region.

use super::survey::{CorruptRegion, Survey};
use crate::eviction::{GhostClock, GhostEpoch, Sealed};
use crate::segment::cache::config::Config;
use crate::segment::cache::shared::{class_fingerprint, narrow};
use crate::segment::index::buckets::Index;
use crate::segment::memory::allocator::{Alloc, QueueEntry, RestoredUse};
use crate::segment::memory::handle_block::Block;
use crate::segment::memory::open_segment::Open;
use crate::segment::memory::table::{SegmentState, Table};
use crate::segment::sync::Ordering;

impl Survey<'_> {
    /// Sets the state of a free segment, and returns its use. Also ensures that the segment has
    /// memory, because a process may have returned the memory to the system just before it changed
    /// the state.
    fn restore_free(&self, segment: u32, free: RestoredUse) -> RestoredUse {
        let (entry, layout) = (self.entry(segment), &self.table.layout);
        let (start, len) = (layout.start(segment), layout.segment_len);
        if free == RestoredUse::Untouched {
            entry.restore_state(SegmentState::Fresh);
            return free;
        }
        let region = &self.table.region;
        if region.commit(start, len).is_err() && layout.has_whole_pages {
            // SAFETY: no thread uses the segment, and it starts and ends at page boundaries.
            let is_zero = unsafe { region.discard(start, len) };
            if is_zero {
                entry.restore_state(SegmentState::Fresh);
                return RestoredUse::Untouched;
            }
        }
        entry.restore_state(SegmentState::Free);
        RestoredUse::Free
    }

    /// Makes an allocator. Queues the sealed segments in the order in which they were opened.
    /// Handles can adopt the segments that were open when the process ended.
    pub(super) fn alloc(
        &self,
        config: &Config,
        indexing: usize,
        free: RestoredUse,
    ) -> Result<Alloc, CorruptRegion> {
        let (table, layout) = (self.table, &self.table.layout);
        let page = table.header_page();
        let mut uses: Vec<RestoredUse> = (0..)
            .zip(&self.found)
            .map(|(segment, found)| match found.state {
                SegmentState::Fresh => RestoredUse::Untouched,
                SegmentState::Sealed | SegmentState::Chain | SegmentState::WriteBuffer => {
                    RestoredUse::Taken
                }
                _ if table.entry(segment).is(SegmentState::Pages) => RestoredUse::Taken,
                _ if table.entry(segment).is(SegmentState::Tags) => RestoredUse::Taken,
                _ if table.entry(segment).is(SegmentState::Buckets) => RestoredUse::Taken,
                _ if table.entry(segment).is(SegmentState::Ghosts) => RestoredUse::Taken,
                _ => RestoredUse::Free,
            })
            .collect();
        for (segment, used) in (0..).zip(&mut uses) {
            if *used == RestoredUse::Free {
                *used = self.restore_free(segment, free);
            }
        }
        let epoch = u8::try_from(page.order.ghost_epoch.load(Ordering::Relaxed));
        let ghosts = GhostClock::new(GhostEpoch::from_index(epoch.unwrap_or_default()));
        let (limit, segments) = (narrow(layout.segments_first), narrow(layout.segments));
        let mut alloc = Alloc::restored(limit, segments, config.size_exponent, &uses, ghosts);
        alloc.indexing = indexing;
        let mut sealed: Vec<(u64, u32)> = (0..)
            .zip(&self.found)
            .filter(|(_, found)| found.state == SegmentState::Sealed)
            .map(|(segment, _)| (table.entry(segment).sequence().load(Ordering::Relaxed), segment))
            .collect();
        sealed.sort_unstable();
        let next = page.order.sequence.load(Ordering::Relaxed);
        if sealed.last().is_some_and(|(sequence, _)| *sequence >= next) {
            return Err(CorruptRegion("a segment has a sequence from the future"));
        }
        for (_, segment) in sealed {
            let (entry, found) = (table.entry(segment), &self.found[segment as usize]);
            entry.leases().store(0, Ordering::Relaxed);
            entry.reopen();
            let written = entry.written().load(Ordering::Relaxed);
            let live = written.saturating_sub(entry.dead()) as usize;
            let chained = found.chained as usize * layout.segment_len;
            let (kind, base) = (entry.kind(), entry.base());
            let (queue, sequence) = (kind.queue, entry.sequence().load(Ordering::Relaxed));
            alloc.queues.add_chain(segment, queue, found.chained);
            if found.was_open {
                entry.restore_state(SegmentState::Open);
                let (at, end) = (found.end, layout.start(segment) + layout.segment_len);
                let (chained, items) = (found.chained as usize, found.items);
                let open =
                    Open { segment, kind, sequence, base, at, end, noted: None, chained, items };
                alloc.orphans.push(open);
                alloc.open += 1;
                continue;
            }
            let (bytes, items) = ((live + chained) as u64, found.items);
            alloc.enqueue(QueueEntry::of(table, segment), Sealed { queue, bytes, items });
        }
        alloc.note_flush(page.flush_floor());
        Ok(alloc)
    }

    /// Makes the item counts of the size classes add up to the number of items. If the counts are
    /// unreliable or are for other size classes, reads all items to count them.
    pub(super) fn restore_counts(&self, config: &Config, items: usize, index: &Index<Table>) {
        let (table, uses) = (self.table, &self.table.header_page().uses);
        let blocks = || (0..table.layout.blocks).map(|number| Block::new(table, number));
        let classes = config.classes.count();
        let sum = |class| {
            blocks()
                .map(|block| block.counts(table, class))
                .fold([0_u64; 2], |sum, counts| [0, 1].map(|i| sum[i].wrapping_add(counts[i])))
        };
        let mut sums: Vec<[u64; 2]> = (0..classes).map(sum).collect();
        let counted = sums.iter().fold(0_u64, |all, [items, _]| all.wrapping_add(*items));
        let difference = (items as u64).wrapping_sub(counted).cast_signed();
        let fingerprint = class_fingerprint(&config.classes);
        let is_known = uses.classes.load(Ordering::Relaxed) == fingerprint;
        if !is_known || difference.unsigned_abs() > table.layout.blocks as u64 {
            sums.fill([0; 2]);
            index.retain(|_, word| {
                if word.is_on_flash() {
                    let [count, sum] = &mut sums[0];
                    *count += 1;
                    *sum += self.flash.map_or(0, |format| format.counted_len(word)) as u64;
                    return true;
                }
                let record = self.record(word.offset());
                let (key_len, value_len) = (record.key().len(), record.value_len());
                let bytes = config.classes.footprint(key_len, value_len, record.client_flags());
                let [count, sum] = &mut sums[config.classes.class_of(bytes)];
                *count += 1;
                *sum += bytes as u64;
                true
            });
        } else if let Some(largest) = sums.iter_mut().max_by_key(|[items, _]| items.cast_signed()) {
            let [count, bytes] = *largest;
            let mean = bytes / count.max(1);
            let added = mean.wrapping_mul(difference.cast_unsigned());
            *largest = [count.wrapping_add_signed(difference), bytes.wrapping_add(added)];
        }
        // If this process dies now, the next process reads all items.
        uses.classes.store(0, Ordering::Release);
        for (i, block) in blocks().enumerate() {
            for (class, sum) in sums.iter().enumerate() {
                block.set_counts(table, class, if i == 0 { *sum } else { [0; 2] });
            }
        }
        uses.classes.store(fingerprint, Ordering::Release);
        uses.has_shared_block.store(0, Ordering::Relaxed);
    }
}
