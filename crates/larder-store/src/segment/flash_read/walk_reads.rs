//! Items on flash in walks.
//!
//! A walk that comes to an index word on flash *seeks* its item: it begins to read it, goes on, and shows the
//! item when it was read, if the word is there still. If the word has changed meanwhile, the item was
//! removed, has come back to memory, or is elsewhere on flash: then its two buckets are looked through again.
//! They follow from the word and its bucket, so that this takes no key, and it does not matter where in the
//! index the walk is by then.
//!
//! Requests come first: beyond one read, which waits for room as a request's would, a walk begins reads only
//! while nobody waits for room and half of those that a handle may have are left; and what was read for a
//! walk is given up for a request at once. Large items are read one by one, because each takes memory from
//! others; one that finds no memory is not shown.

use super::lookup::liveness_on_flash;
use super::request::{Attempt, Purpose};
use crate::segment::cache::shared::Shared;
use crate::segment::flash::pending_read::{ReadState, Reading};
use crate::segment::flash::tier::Flash;
use crate::segment::handle::state::{Handle, lend};
use crate::segment::index::slot::Slot;
use crate::segment::large_value::lease::ChainLease;
use crate::{Item, Seconds};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

/// The number of items from which no more are sought before some were read.
pub(crate) const SOUGHT_MAX: usize = 64;

/// The items on flash that a walk has yet to show. They are fewer than [`SOUGHT_MAX`] and what one group of
/// buckets adds.
#[derive(Debug, Default)]
pub(crate) struct Seeking {
    sought: Vec<Sought>,
    alarm: Arc<Alarm>,
}

/// An item that a walk has yet to show.
#[derive(Debug)]
struct Sought {
    /// A hash with the tag and the buckets of its key.
    hash: u64,
    /// The index word that was found.
    slot: Slot,
    /// `None`: the read has not begun.
    read: Option<Arc<dyn Reading>>,
}

/// Wakes whoever continues the walk once, however many reads end before that.
#[derive(Debug, Default)]
struct Alarm(Mutex<Option<Waker>>);

impl Alarm {
    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        // No code panics while it holds the lock, so a poisoned lock still protects consistent data.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        let waker = self.waker().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Seeking {
    pub(crate) fn len(&self) -> usize {
        self.sought.len()
    }

    /// Has `waker` called when the next read ends.
    pub(crate) fn wake_later(&self, waker: &Waker) {
        *self.alarm.waker() = Some(waker.clone());
    }

    /// Adds an item, unless it was flushed, has expired, or is sought already.
    pub(crate) fn add(&mut self, shared: &Shared, hash: u64, slot: Slot, now: Seconds) {
        let Some(flash) = &shared.flash else { return };
        let is_known = || self.sought.iter().any(|sought| sought.slot.is_same_item(slot));
        if flash.readable(shared.table(), slot, now).is_some() && !is_known() {
            self.sought.push(Sought { hash, slot, read: None });
        }
    }
}

impl Drop for Seeking {
    /// Reads that are under way go on, and wake nobody.
    fn drop(&mut self) {
        *self.alarm.waker() = None;
    }
}

impl Handle {
    /// Shows the items that were read, and returns how many it has shown.
    pub(crate) fn show_read(
        &mut self,
        seeking: &mut Seeking,
        visit: &mut impl FnMut(&[u8], &Item<'_, ChainLease>),
    ) -> usize {
        let (mut shown, mut at) = (0, 0);
        while let Some(Sought { hash, read, .. }) = seeking.sought.get(at) {
            let Some((hash, read)) = read.as_ref().map(|read| (*hash, Arc::clone(read))) else {
                at += 1;
                continue;
            };
            let asked = read.ask();
            if asked == ReadState::UnderWay {
                if let Some(flash) = &self.shared.flash {
                    read.begin_more(self.fetching.reader(flash));
                }
                at += 1;
                continue;
            }
            seeking.sought.swap_remove(at);
            let is_there = match asked {
                ReadState::Whole => self.show_if_there(hash, &*read, &mut shown, visit),
                ReadState::Failed => {
                    self.remove_lost(&*read);
                    false
                }
                ReadState::UnderWay | ReadState::Aborted => false,
            };
            if !is_there {
                shown += self.show_matching(seeking, hash, visit);
            }
        }
        shown
    }

    /// Shows an item that was read, if its index word is there still, it is live, and there was memory for its
    /// value; false if the word is not there.
    fn show_if_there(
        &mut self,
        hash: u64,
        read: &dyn Reading,
        shown: &mut usize,
        visit: &mut impl FnMut(&[u8], &Item<'_, ChainLease>),
    ) -> bool {
        let is_there = self.pinned(|shared, _, now| {
            let same = |_, slot: Slot| slot.is_same_item(read.slot()).then_some(());
            let is_there = shared.index.lookup_in_any_tier(hash, same).is_some();
            let record = shared.record_in_buffer(read);
            let is_live = || liveness_on_flash(shared, read, &record, now).is_live();
            if is_there && read.has_value() && is_live() {
                visit(record.key(), &lend(shared, &record));
                *shown += 1;
            }
            is_there
        });
        read.leave();
        is_there
    }

    /// Begins to read what is sought, as far as requests leave room. Returns whether the walk will be woken.
    pub(crate) fn begin_walk_reads(
        &mut self,
        seeking: &mut Seeking,
        visit: &mut impl FnMut(&[u8], &Item<'_, ChainLease>),
    ) -> bool {
        let shared = Arc::clone(&self.shared);
        let Some(flash) = &shared.flash else { return false };
        let waker = Waker::from(Arc::clone(&seeking.alarm));
        let mut will_be_woken = seeking.sought.iter().any(|sought| sought.read.is_some());
        let mut at = 0;
        for _ in 0..seeking.len() {
            let Some(&Sought { hash, slot, ref read }) = seeking.sought.get(at) else { break };
            if read.is_some() {
                at += 1;
                continue;
            }
            if will_be_woken && !self.leaves_room(flash) {
                break;
            }
            let purpose = Purpose { is_read_ahead: will_be_woken, is_walk: true };
            match self.begin_read((hash, slot), purpose, &waker) {
                Attempt::ReadStart(read) => {
                    seeking.sought[at].read = Some(read);
                    will_be_woken = true;
                    at += 1;
                }
                Attempt::Gone => {
                    seeking.sought.swap_remove(at);
                    self.show_matching(seeking, hash, visit);
                }
                Attempt::Later => {
                    will_be_woken = true;
                    break;
                }
            }
        }
        if will_be_woken {
            self.fetching.submit();
        }
        will_be_woken
    }

    /// Whether a walk may begin another read.
    fn leaves_room(&mut self, flash: &Flash) -> bool {
        !flash.has_waiters() && self.fetching.reader(flash).under_way() < flash.depth / 2
    }
}
