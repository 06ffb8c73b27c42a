//! Items on flash in walks.
//!
//! If a walk reaches an index word that refers to flash, it *seeks* the item: it starts a read and
//! continues with other items. After the read, it visits the item if the word still exists. If the
//! word has changed, the item was removed, copied back to memory, or moved on flash. In this case,
//! the walk searches the item's two buckets again. The old word and its bucket determine both
//! buckets, so the search needs no key, and does not depend on the walk's current position.
//!
//! Requests have priority. One read of a walk waits for room like the read of a request. The walk
//! starts further reads only while no request waits for room and fewer than half of the handle's
//! reads are under way. A request may take the buffer of a walk's read immediately. Large items are
//! read one at a time, because each may evict other items to free memory. A large item is not
//! visited if no memory is free for its value.

use super::lookup::liveness_on_flash;
use super::request::{Purpose, ReadAttempt};
use crate::segment::cache::shared::Shared;
use crate::segment::flash::pending_read::{ItemRead, ReadState};
use crate::segment::flash::tier::Flash;
use crate::segment::handle::state::{Handle, lend};
use crate::segment::index::word::IndexWord;
use crate::segment::large_value::lease::ChainLease;
use crate::{Item, Seconds};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

/// If a walk has this many pending items, it seeks no more items until some were read.
pub(crate) const OUTSTANDING_MAX: usize = 64;

/// The items on flash that a walk has yet to visit: fewer than [`OUTSTANDING_MAX`] plus the items
/// of one group of buckets.
#[derive(Debug, Default)]
pub(crate) struct WalkReads {
    sought: Vec<WalkItem>,
    waker: Arc<WalkWaker>,
}

/// An item that a walk has yet to visit.
#[derive(Debug)]
struct WalkItem {
    /// A hash with the prefix and the buckets of the item's key.
    hash: u64,
    /// The index word that the walk found.
    word: IndexWord,
    /// The read of the item, or `None` before it was started.
    read: Option<Arc<dyn ItemRead>>,
}

/// A waker that wakes the walk's caller once, however many reads end before the walk continues.
#[derive(Debug, Default)]
struct WalkWaker(Mutex<Option<Waker>>);

impl WalkWaker {
    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        // No code panics while it holds this lock, so the lock is never poisoned.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for WalkWaker {
    fn wake(self: Arc<Self>) {
        let waker = self.waker().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl WalkReads {
    pub(crate) fn len(&self) -> usize {
        self.sought.len()
    }

    /// Sets the waker that is called when the next read ends.
    pub(crate) fn wake_later(&self, waker: &Waker) {
        *self.waker.waker() = Some(waker.clone());
    }

    /// Adds an item, unless it was flushed, has expired, or is pending already.
    pub(crate) fn add(&mut self, shared: &Shared, hash: u64, word: IndexWord, now: Seconds) {
        let Some(flash) = &shared.flash else { return };
        let is_known = || self.sought.iter().any(|sought| sought.word.is_same_item(word));
        if flash.readable(shared.table(), word, now).is_some() && !is_known() {
            self.sought.push(WalkItem { hash, word, read: None });
        }
    }
}

impl Drop for WalkReads {
    /// Removes the waker of the walk. The reads continue.
    fn drop(&mut self) {
        *self.waker.waker() = None;
    }
}

impl Handle {
    /// Visits the items that were read. Returns the number of visited items.
    pub(crate) fn visit_read(
        &mut self,
        seeking: &mut WalkReads,
        visit: &mut impl FnMut(&[u8], &Item<'_, ChainLease>),
    ) -> usize {
        let (mut visited, mut at) = (0, 0);
        while let Some(WalkItem { hash, read, .. }) = seeking.sought.get(at) {
            let Some((hash, read)) = read.as_ref().map(|read| (*hash, Arc::clone(read))) else {
                at += 1;
                continue;
            };
            let asked = read.ask();
            if asked == ReadState::InProgress {
                if let Some(flash) = &self.shared.flash {
                    read.begin_more(self.batch_reads.reader(flash));
                }
                at += 1;
                continue;
            }
            seeking.sought.swap_remove(at);
            let is_there = match asked {
                ReadState::Whole => self.visit_if_live(hash, &*read, &mut visited, visit),
                ReadState::Failed => {
                    self.remove_lost(&*read);
                    false
                }
                ReadState::InProgress | ReadState::Aborted => false,
            };
            if !is_there {
                visited += self.visit_matching(seeking, hash, visit);
            }
        }
        visited
    }

    /// Visits an item that was read, if its index word still exists, the item is live, and memory
    /// was free for its value. Returns false if the word does not exist any more, or if the value
    /// was given away.
    fn visit_if_live(
        &mut self,
        hash: u64,
        read: &dyn ItemRead,
        visited: &mut usize,
        visit: &mut impl FnMut(&[u8], &Item<'_, ChainLease>),
    ) -> bool {
        let is_there = self.pinned(|shared, _, now| {
            let same = |_, word: IndexWord| word.is_same_item(read.word()).then_some(());
            let is_there = shared.index.lookup_in_any_tier(hash, same).is_some()
                && !read.has_given_value_away();
            let record = shared.record_in_buffer(read);
            let is_live = || liveness_on_flash(shared, read, &record, now).is_live();
            if is_there && read.has_value() && is_live() {
                let flash = shared.flash.as_ref();
                let flash_location = flash.map(|flash| flash.format.location(read.word()));
                visit(record.key(), &Item { flash_location, ..lend(shared, &record) });
                *visited += 1;
            }
            is_there
        });
        read.leave();
        is_there
    }

    /// Starts reads of the pending items: always one read, and further reads only while
    /// `leaves_room` returns true. Returns whether the walk's waker will be called.
    pub(crate) fn begin_walk_reads(
        &mut self,
        seeking: &mut WalkReads,
        visit: &mut impl FnMut(&[u8], &Item<'_, ChainLease>),
    ) -> bool {
        let shared = Arc::clone(&self.shared);
        let Some(flash) = &shared.flash else { return false };
        let waker = Waker::from(Arc::clone(&seeking.waker));
        let mut will_be_woken = seeking.sought.iter().any(|sought| sought.read.is_some());
        let mut at = 0;
        for _ in 0..seeking.len() {
            let Some(&WalkItem { hash, word, ref read }) = seeking.sought.get(at) else { break };
            if read.is_some() {
                at += 1;
                continue;
            }
            if will_be_woken && !self.leaves_room(flash) {
                break;
            }
            let purpose = Purpose { is_read_ahead: will_be_woken, is_walk: true };
            match self.begin_read((hash, word), purpose, &waker) {
                ReadAttempt::Started(read) => {
                    seeking.sought[at].read = Some(read);
                    will_be_woken = true;
                    at += 1;
                }
                ReadAttempt::Gone => {
                    seeking.sought.swap_remove(at);
                    self.visit_matching(seeking, hash, visit);
                }
                ReadAttempt::Busy => {
                    will_be_woken = true;
                    break;
                }
            }
        }
        if will_be_woken {
            self.batch_reads.submit();
        }
        will_be_woken
    }

    /// Returns whether a walk may start another read: no request waits for room, and fewer than
    /// half of the handle's reads are under way.
    fn leaves_room(&mut self, flash: &Flash) -> bool {
        !flash.has_waiters() && self.batch_reads.reader(flash).under_way() < flash.depth / 2
    }
}
