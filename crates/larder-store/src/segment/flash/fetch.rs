//! Reading items: requests begin reads for keys whose index words refer to flash, and use what was read
//! until their batch ends.

use super::super::handle::Handle;
use super::super::slot::Slot;
use super::super::sync::{Ordering, fence};
use super::fetching::Fetch;
use super::format::Origin;
use super::read::Read;
use super::reading::{Asked, Reading};
use crate::Begun;
use std::sync::Arc;
use std::task::Waker;

/// The outcome of an attempt to read.
enum Attempt {
    Begun(Arc<dyn Reading>),
    /// The item is not there any more.
    Gone,
    Later,
}

impl Handle {
    /// Begins to read what may be the item with this hash.
    pub(in super::super) fn fetch_item(
        &mut self,
        hash: u64,
        waker: &Waker,
        into: &mut Vec<Fetch>,
    ) -> Begun {
        let mut wanted: [Option<Slot>; 4] = [None; 4];
        self.pinned(|shared, _, now| {
            let Some(flash) = &shared.flash else { return };
            let mut places = wanted.iter_mut();
            shared.index.lookup_in_any_tier(hash, |_, slot| -> Option<()> {
                if slot.is_on_flash() && flash.readable(shared.table(), slot, now).is_some() {
                    // More than one is another key's with the same 20 bits.
                    if let Some(place) = places.next() {
                        *place = Some(slot);
                    }
                }
                None
            });
        });
        let mut begun = Begun::Nothing;
        for slot in wanted.into_iter().flatten() {
            if self.fetching.find(slot).is_some() {
                continue;
            }
            match self.begin_read(hash, slot, waker) {
                Attempt::Begun(read) => {
                    into.push(Fetch(read));
                    begun = Begun::Begun;
                }
                Attempt::Gone => (),
                Attempt::Later => return Begun::Later,
            }
        }
        begun
    }

    fn begin_read(&mut self, hash: u64, slot: Slot, waker: &Waker) -> Attempt {
        let shared = Arc::clone(&self.shared);
        let Some(flash) = &shared.flash else { return Attempt::Gone };
        if let Some(read) = flash.known_read(slot)
            && read.join(waker)
        {
            return Attempt::Begun(read);
        }
        let Some((page, sequence)) = flash.readable(shared.table(), slot, self.now) else {
            return Attempt::Gone;
        };
        let align = flash.device.align();
        let (start, end) = flash.format.extent(slot, align);
        let len = usize::try_from(end - start).expect("an item fits a segment");
        let now = self.now;
        let buffer = flash.take_buffer(&shared.table().layout, len);
        let Some(buffer) = buffer else {
            flash.counts.without_buffer.add(1);
            flash.wait_for_reads(waker);
            return Attempt::Later;
        };
        // Either this thread sees that the word has changed, or the thread that empties the page sees the
        // read.
        page.reads().fetch_add(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        let is_there = self.pinned(|shared, _, _| {
            let same = |_, other: Slot| other.is_same_item(slot).then_some(());
            shared.index.lookup_in_any_tier(hash, same).is_some()
        });
        let origin = Origin { offset: flash.format.offset_of(slot), sequence };
        if !is_there || page.sequence() != sequence {
            flash.end_read(shared.table(), slot, buffer);
            return Attempt::Gone;
        }
        let times = (page.base(), now);
        let read =
            Arc::new(Read::new(&shared, (hash, slot), origin, (start, len), buffer, times, waker));
        flash.counts.reading.add(1);
        if self.fetching.reader(flash).begin(Arc::clone(&read)).is_err() {
            flash.counts.reading.take_off(1);
            flash.wait_for_reads(waker);
            return Attempt::Later;
        }
        flash.counts.reads.add(1);
        let read: Arc<dyn Reading> = read;
        flash.note_read(&read);
        Attempt::Begun(read)
    }

    /// Has look-ups find what was read, until the batch ends; false if the read is still under way.
    pub(in super::super) fn deliver_item(&mut self, fetch: &Fetch) -> bool {
        let read = &fetch.0;
        match read.ask() {
            Asked::UnderWay => return false,
            Asked::Whole if self.fetching.find(read.slot()).is_some() => read.leave(),
            Asked::Whole => self.fetching.delivered.push(Arc::clone(read)),
            // The request is repeated, and the item read again.
            Asked::Aborted => (),
            Asked::Failed => self.remove_lost(&**read),
        }
        true
    }

    /// Removes the index word of an item that could not be read.
    fn remove_lost(&mut self, read: &dyn Reading) {
        let shared = Arc::clone(&self.shared);
        let (_, mut writer) = self.writer();
        if writer.remove_word(&shared, read.hash(), read.slot())
            && let Some(flash) = &shared.flash
        {
            flash.counts.missed.add(1);
        }
        if !self.pin.is_in_batch() {
            self.end_writing();
        }
    }
}
