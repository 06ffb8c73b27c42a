//! Epoch-based reclamation (Fraser 2004), with a slot for each handle rather than for each thread.
//! It decides when memory that was removed from the index can be reused.
//!
//! A reader announces the current epoch in its slot before it reads the index, and clears the slot
//! when it no longer uses anything that it found. A writer that has removed the last index word
//! into a segment ends the epoch with [`Epoch::advance`]: readers that announce a later epoch
//! cannot find the segment. So the segment is free when [`Epoch::oldest`] has passed the epoch that
//! ended.
//!
//! ```text
//!   reader: slot = epoch ── fence ── reads the index ──────────── slot = 0
//!   writer: clears the index word ── fence ── epoch += 1 ── … ── fence ── reads all slots
//! ```
//! Both fences are sequentially consistent, so one of them is first in their order: either the
//! writer sees the reader's slot, or the reader sees the cleared word.

use crate::segment::sync::{AtomicU64, Ordering, fence};
use std::marker::PhantomData;

/// The content of a slot while its handle does not read.
const NOT_PINNED: u64 = 0;

/// The current epoch, counted from 1.
#[derive(Debug)]
pub(crate) struct Epoch(AtomicU64);

impl Epoch {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(1))
    }

    /// Ends the current epoch and returns it. Memory that the caller made unreachable before this
    /// call can be reused once [`Epoch::oldest`] returns a later epoch.
    pub(crate) fn advance(&self) -> u64 {
        fence(Ordering::SeqCst);
        self.0.fetch_add(1, Ordering::AcqRel)
    }

    /// Returns the oldest epoch that a reader has announced in these slots, or the current epoch if
    /// no handle reads. The result is never later than the epoch that was current when the call
    /// started, because a reader that starts during the call may find memory that is retired during
    /// the call.
    pub(crate) fn oldest<'s>(&self, slots: impl Iterator<Item = &'s PinSlot>) -> u64 {
        let current = self.0.load(Ordering::Acquire);
        fence(Ordering::SeqCst);
        let pinned = slots.map(|slot| slot.0.load(Ordering::Acquire));
        pinned.filter(|&epoch| epoch != NOT_PINNED).fold(current, u64::min)
    }
}

/// The epoch in which a handle started to read, visible to all handles; 0 while the handle does not
/// read.
#[derive(Debug, Default)]
pub(crate) struct PinSlot(AtomicU64);

impl PinSlot {
    /// Starts reading. Only the owner of the slot calls this function. If the slot was entered
    /// before, the call ends the reading in the old epoch. The store is `Release`, because a thread
    /// that sees the new epoch may reuse memory that this handle has read before.
    #[inline]
    pub(crate) fn enter(&self, epoch: &Epoch) {
        self.0.store(epoch.0.load(Ordering::Acquire), Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Ends reading: the handle no longer uses anything that it read.
    #[inline]
    pub(crate) fn leave(&self) {
        self.0.store(NOT_PINNED, Ordering::Release);
    }
}

/// Proof that the slot of a handle is entered for `'p`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pinned<'p>(PhantomData<&'p PinSlot>);

/// The owner's access to its slot. The slot is entered for a batch, or for a single read outside a
/// batch.
#[derive(Debug)]
pub(crate) struct Pin<S: AsRef<PinSlot>> {
    slot: S,
    in_batch: bool,
    /// Whether the slot is entered until the batch ends or pauses. False for a single read outside
    /// a batch.
    is_entered: bool,
}

impl<S: AsRef<PinSlot>> Pin<S> {
    /// Makes a pin that is not entered. `slot` must have no other owner.
    pub(crate) fn new(slot: S) -> Self {
        Self { slot, in_batch: false, is_entered: false }
    }

    /// Enters the slot until [`Pin::end_batch`]. In an open batch, enters it again if it was
    /// paused.
    pub(crate) fn begin_batch(&mut self, epoch: &Epoch) {
        self.in_batch = true;
        self.resume(epoch);
    }

    pub(crate) fn end_batch(&mut self) {
        self.pause();
        self.in_batch = false;
    }

    pub(crate) fn is_in_batch(&self) -> bool {
        self.in_batch
    }

    /// Leaves the slot until [`Pin::resume`], so that no thread waits for this pin although a batch
    /// is open. Nothing that was read before may be used afterwards.
    pub(crate) fn pause(&mut self) {
        self.slot.as_ref().leave();
        self.is_entered = false;
    }

    /// Enters the slot again if a batch is open.
    #[inline]
    pub(crate) fn resume(&mut self, epoch: &Epoch) {
        if self.in_batch && !self.is_entered {
            self.slot.as_ref().enter(epoch);
            self.is_entered = true;
        }
    }

    /// Moves an entered slot to the current epoch. Memory that this handle has read can then be
    /// reused. Nothing that was read before may be used afterwards.
    pub(crate) fn renew(&mut self, epoch: &Epoch) {
        if self.is_entered {
            self.slot.as_ref().enter(epoch);
        }
    }

    /// Returns a guard for reading. Uses the pin of the batch if it is entered, and otherwise a pin
    /// that ends with the guard.
    #[inline]
    pub(crate) fn read(&mut self, epoch: &Epoch) -> PinGuard<'_, S> {
        if !self.is_entered {
            self.slot.as_ref().enter(epoch);
        }
        PinGuard { pin: self }
    }
}

impl<S: AsRef<PinSlot>> Drop for Pin<S> {
    fn drop(&mut self) {
        self.end_batch();
    }
}

/// A guard that keeps the slot of its pin entered.
pub(crate) struct PinGuard<'p, S: AsRef<PinSlot>> {
    pin: &'p Pin<S>,
}

impl<S: AsRef<PinSlot>> PinGuard<'_, S> {
    #[inline]
    pub(crate) fn witness(&self) -> Pinned<'_> {
        Pinned(PhantomData)
    }
}

impl<S: AsRef<PinSlot>> Drop for PinGuard<'_, S> {
    #[inline]
    fn drop(&mut self) {
        if !self.pin.is_entered {
            self.pin.slot.as_ref().leave();
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::sync::Arc;

    struct Slot(Arc<PinSlot>);

    impl AsRef<PinSlot> for Slot {
        fn as_ref(&self) -> &PinSlot {
            &self.0
        }
    }

    #[test]
    fn an_epoch_ends_when_all_its_readers_have_left() {
        let epoch = Epoch::new();
        let slots = [Arc::new(PinSlot::default()), Arc::new(PinSlot::default())];
        let [mut first, mut second] = slots.clone().map(|slot| Pin::new(Slot(slot)));
        let oldest = || epoch.oldest(slots.iter().map(|slot| &**slot));
        assert_eq!(oldest(), 1, "no handle reads");
        first.begin_batch(&epoch);
        let ended = epoch.advance();
        assert!(oldest() <= ended, "the first reader may still see it");
        second.begin_batch(&epoch);
        drop(first.read(&epoch));
        assert!(oldest() <= ended, "a read inside a batch does not end it");
        first.renew(&epoch);
        assert!(oldest() > ended, "both readers started later");
        let ended = epoch.advance();
        second.end_batch();
        assert!(oldest() <= ended);
        drop(first);
        assert!(oldest() > ended, "no handle reads");
    }

    #[test]
    fn memory_retired_after_the_slots_were_read_is_not_free() {
        let epoch = Epoch::new();
        let slots = [PinSlot::default()];
        let oldest = epoch.oldest(slots.iter());
        // This reader finds memory that is retired afterwards.
        slots[0].enter(&epoch);
        assert!(epoch.advance() >= oldest, "a scan of the slots before that does not cover it");
    }
}
