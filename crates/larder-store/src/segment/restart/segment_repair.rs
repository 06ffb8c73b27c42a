//! Segment repairs: dead bytes, flash write buffers, pages and chains.

use super::survey::{CorruptRegion, Reference, Survey};
use crate::segment::cache::shared::{hash_of, narrow};
use crate::segment::flash::pages::{Lists, Page, PageState};
use crate::segment::index::buckets::Index;
use crate::segment::item::header::State;
use crate::segment::memory::table::{SegmentState, Table};
use crate::segment::sync::Ordering;
use rapidhash::v3::RapidSecrets;

impl<'t> Survey<'t> {
    /// Seals open segments, and counts the dead bytes of suspect segments. Frees a suspect segment
    /// without records. If its records are not valid or contradict the index words, frees the
    /// segment and clears these words. Prepares write buffers for another write.
    pub(super) fn count_dead(&mut self, references: &mut [Reference<'t>]) {
        references.sort_unstable_by_key(|reference| reference.offset);
        for segment in 0..narrow(self.found.len()) {
            let found = self.found[segment as usize];
            if !found.is_suspect {
                continue;
            }
            let start = self.table.layout.start(segment);
            let range = start..start + self.table.layout.segment_len;
            let first = references.partition_point(|reference| reference.offset < range.start);
            let after = references.partition_point(|reference| reference.offset < range.end);
            let own = &references[first..after];
            if found.state == SegmentState::WriteBuffer {
                self.restore_write_buffer(segment, own);
                continue;
            }
            let end = match (found.state, own.last()) {
                (SegmentState::Open, None) => start,
                (SegmentState::Open, Some(last)) if self.is_valid(last.offset) => {
                    last.offset + self.record(last.offset).len()
                }
                _ => found.end,
            };
            let dead = self.dead_bytes(start, end, own);
            if dead.is_none() {
                own.iter().for_each(|reference| reference.slot.store(0, Ordering::Relaxed));
            }
            let entry = self.entry(segment);
            let found = &mut self.found[segment as usize];
            match dead {
                Some(dead) if end > start => {
                    let written = u32::try_from(end - start).expect("a segment is short");
                    entry.written().store(written, Ordering::Relaxed);
                    entry.restore_dead(dead);
                    entry.restore_state(SegmentState::Sealed);
                    (found.state, found.end) = (SegmentState::Sealed, end);
                }
                _ => {
                    entry.restore_state(SegmentState::Free);
                    (found.state, found.items, found.end) = (SegmentState::Free, 0, start);
                }
            }
        }
    }

    /// Prepares a write buffer for another write. The buffer ends after the last record with an
    /// index word. Records without an index word are marked dead. If the buffer can't be used,
    /// frees it and clears the index words into it. A buffer can't be used if it has no record with
    /// an index word, if its records are not valid, or if there is no flash.
    fn restore_write_buffer(&mut self, segment: u32, references: &[Reference<'_>]) {
        let start = self.table.layout.start(segment);
        let found = self.found[segment as usize];
        let mut wanted = references.iter().peekable();
        let (mut at, mut end) = (start, None);
        while let (Some(format), true) = (self.flash, wanted.peek().is_some()) {
            if !self.is_valid(at) {
                break;
            }
            let record = self.record(at);
            if wanted.next_if(|reference| reference.offset == at).is_none() {
                record.restore_dead();
            }
            at += format.len_of(record.header);
            end = wanted.peek().is_none().then_some(at);
        }
        let end = end.filter(|end| *end <= found.end);
        let entry = self.entry(segment);
        let found = &mut self.found[segment as usize];
        if let Some(end) = end {
            let written = u32::try_from(end - start).expect("a segment is short");
            entry.written().store(written, Ordering::Relaxed);
            entry.leases().store(0, Ordering::Relaxed);
            found.end = end;
        } else {
            references.iter().for_each(|reference| reference.slot.store(0, Ordering::Relaxed));
            entry.restore_state(SegmentState::Free);
            (found.state, found.items, found.end) = (SegmentState::Free, 0, start);
        }
    }

    /// Returns the total length in bytes of the dead records from `start` to `end`. Marks the
    /// records without an index word dead. Returns `None` if the range does not consist of valid
    /// records, or if one of the `references` does not refer to a live record.
    fn dead_bytes(&self, start: usize, end: usize, references: &[Reference<'_>]) -> Option<u32> {
        let mut references = references.iter().peekable();
        let (mut at, mut dead) = (start, 0);
        while at < end {
            let record = self.record(at);
            // A record that was never published may have partly overwritten a dead record. Its
            // block still ends where the dead record's header says, but the words after the header
            // may be from either record.
            let is_dead_block = record.header.has(State::Dead)
                && record.header.key_len() > 0
                && at + record.len() <= end;
            if !is_dead_block && !self.is_valid(at) {
                return None;
            }
            let is_live = references.next_if(|reference| reference.offset == at).is_some();
            let is_dead = record.header.has(State::Dead);
            match (is_live, is_dead) {
                (true, true) => return None,
                (true, false) => (),
                (false, _) => {
                    record.restore_dead();
                    dead += record.len();
                }
            }
            at += record.len();
        }
        (at == end && references.next().is_none()).then(|| u32::try_from(dead).ok()).flatten()
    }

    /// Returns the lists of the flash's pages. The full pages are in the order in which they were
    /// opened.
    pub(super) fn restore_pages(&self) -> Result<Lists, CorruptRegion> {
        let next = self.table.header_page().order.sequence.load(Ordering::Relaxed);
        let (mut free, mut full) = (Vec::new(), Vec::new());
        for (number, (items, bytes)) in self.pages.iter().enumerate().rev() {
            let (page, number) = (Page::new(self.table, number), narrow(number));
            page.restore(*items, *bytes);
            match page.state() {
                PageState::Free => free.push(number),
                PageState::Resting => {
                    page.set_state(PageState::Free);
                    free.push(number);
                }
                _ => full.push((page.sequence(), number)),
            }
            if page.sequence() >= next {
                return Err(CorruptRegion("a page has a sequence from the future"));
            }
        }
        full.sort_unstable();
        for (_, number) in &full {
            Page::new(self.table, *number as usize).set_state(PageState::Full);
        }
        let full = full.into_iter().map(|(_, number)| number).collect();
        Ok(Lists::restored(free, full))
    }

    /// Keeps the chains that items refer to, and frees the segments of other chains. Returns the
    /// number of items that were removed because part of their chain is missing.
    pub(super) fn keep_chains(&mut self, index: &Index<Table>, secrets: &RapidSecrets) -> usize {
        let segments = 0..narrow(self.found.len());
        let mut is_kept = vec![false; self.found.len()];
        let mut removed = 0;
        for first in segments.clone() {
            if self.found[first as usize].state != SegmentState::Chain {
                continue;
            }
            let owner = self.entry(first).owner().filter(|offset| self.may_be_record(*offset));
            let Some(key) = owner.map(|offset| self.key(offset)) else { continue };
            let hash = hash_of(secrets, key);
            let named = index.lookup(hash, |_, word| {
                let record = self.is_valid(word.offset()).then(|| self.record(word.offset()))?;
                let is_owner = record.key() == key;
                let chain = record.chain().filter(|chain| is_owner && chain.first == first)?;
                Some((record, chain))
            });
            let Some((record, _)) = named else { continue };
            let wanted = record.chain_segments(self.table.layout.segment_len);
            let chain = self.chain(first, wanted, &is_kept);
            let holder = record.segment() as usize;
            if let Some(chain) = chain {
                chain.iter().for_each(|segment| is_kept[*segment as usize] = true);
                if let Some(last) = chain.last() {
                    self.entry(*last).next().store(0, Ordering::Relaxed);
                }
                self.found[holder].chained += narrow(chain.len());
                self.entry(first).set_owner(record.offset);
            } else {
                let stripe = index.lock(hash);
                if let Some(locked_slot) = stripe.find(|word| word.offset() == record.offset) {
                    stripe.remove(&locked_slot);
                    record.mark_dead();
                    self.found[holder].items -= 1;
                    removed += 1;
                }
            }
        }
        for segment in segments {
            if self.found[segment as usize].state != SegmentState::Chain {
                continue;
            }
            let entry = self.entry(segment);
            if is_kept[segment as usize] {
                entry.leases().store(0, Ordering::Relaxed);
            } else {
                entry.restore_state(SegmentState::Free);
                self.found[segment as usize].state = SegmentState::Free;
            }
        }
        removed
    }

    /// Returns the first `wanted` segments of a chain, or `None` if the chain is shorter, or if one
    /// of these segments belongs to another chain.
    fn chain(&self, first: u32, wanted: usize, is_kept: &[bool]) -> Option<Vec<u32>> {
        let mut chain = Vec::with_capacity(wanted);
        let mut next = Some(first);
        while chain.len() < wanted {
            let segment = next?;
            let found = self.found.get(segment as usize)?;
            let is_usable = found.state == SegmentState::Chain
                && !is_kept[segment as usize]
                && !chain.contains(&segment);
            if !is_usable {
                return None;
            }
            chain.push(segment);
            next = self.entry(segment).next().load(Ordering::Relaxed).checked_sub(1);
        }
        Some(chain)
    }
}
