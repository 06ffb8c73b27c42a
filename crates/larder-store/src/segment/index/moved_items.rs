//! The walks in progress, and the items that inserts moved to buckets which these walks have
//! already read.
//!
//! A walk reads one stripe after the other, and the buckets of a stripe in ascending order. Items
//! never leave their stripe. A split moves them to a later bucket. So a walk can miss an item only
//! if an insert moves it to an earlier bucket of the walk's current stripe, or in the case that the
//! last paragraph describes. The insert *reports* such a move before it clears the old slot. So
//! when a walk finds the old slot empty, the report exists.
//!
//! A report contains only a hash, because the item's location may be outdated, and its key no
//! longer in memory, when the walk reads the report. For an item on flash, whose key is not in
//! memory, the report is another hash with the same prefix and the same buckets.
//!
//! Several index words that refer to flash may match the key of an update that does not read the
//! old item. The update removes all of them but one, which then refers to the new item. The update
//! also reports the key for each removed word, because the new item may be in a bucket that the
//! walk has already read.

use crate::segment::sync::{AtomicUsize, Mutex, MutexGuard, Ordering};
use std::sync::PoisonError;

/// The maximum number of reports buffered for a walk between two of its steps (32 KiB). If there
/// are more reports, the walk starts its stripe again. So many reports require thousands of moves
/// within one stripe during a step, or while a walk is paused because the client of a dump does not
/// read.
const REPORTS_MAX: usize = 4096;

/// The walks in progress.
#[derive(Debug)]
pub(crate) struct Walks {
    /// The number of walks. It changes only under the lock of `list`.
    count: AtomicUsize,
    /// Inserts acquire this lock while they hold the lock of a stripe. So each thread holds this
    /// lock only briefly, to add a report or to move the reports to a walk.
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    walks_started: u64,
    walks: Vec<Reports>,
}

/// The reports for one walk.
#[derive(Debug)]
struct Reports {
    walk: WalkId,
    /// The stripe that the walk reads now; `None` between two stripes.
    stripe: Option<usize>,
    /// The hashes of items in this stripe that have moved to an earlier bucket.
    hashes: Vec<u64>,
    /// Whether more than [`REPORTS_MAX`] items moved since the last reports were taken.
    has_lost: bool,
}

/// A walk in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WalkId(u64);

/// The error for lost reports: the walk must start its stripe again.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LostReports;

impl Walks {
    pub(crate) fn new() -> Self {
        Self { count: AtomicUsize::new(0), list: Mutex::new(List::default()) }
    }

    /// Starts a walk. It receives no reports before it enters a stripe.
    pub(crate) fn begin(&self) -> WalkId {
        let mut list = self.list();
        list.walks_started += 1;
        let walk = WalkId(list.walks_started);
        list.walks.push(Reports { walk, stripe: None, hashes: Vec::new(), has_lost: false });
        self.count.store(list.walks.len(), Ordering::Relaxed);
        walk
    }

    pub(crate) fn end(&self, walk: WalkId) {
        let mut list = self.list();
        list.walks.retain(|reports| reports.walk != walk);
        self.count.store(list.walks.len(), Ordering::Relaxed);
    }

    /// Reports moves in this stripe to the walk from now on, except for a move that has already
    /// started. The caller locks the stripe once before it reads, to wait for the end of that move.
    pub(crate) fn enter(&self, walk: WalkId, stripe: usize) {
        self.with(walk, |reports| reports.stripe = Some(stripe));
    }

    /// Moves the reports to `hashes`. If reports were lost, drops the remaining reports and returns
    /// an error.
    pub(crate) fn take(&self, walk: WalkId, hashes: &mut Vec<u64>) -> Result<(), LostReports> {
        self.with(walk, |reports| reports.take(hashes))
    }

    /// Moves the last reports on this stripe to `hashes`, and stops the reports until the walk
    /// enters another stripe. If reports were lost, drops the remaining reports and returns an
    /// error, and the walk stays in the stripe.
    pub(crate) fn leave(&self, walk: WalkId, hashes: &mut Vec<u64>) -> Result<(), LostReports> {
        self.with(walk, |reports| {
            reports.take(hashes)?;
            reports.stripe = None;
            Ok(())
        })
    }

    /// Reports an item that moves to an earlier bucket of its stripe. The caller holds the stripe's
    /// lock, and clears the old slot afterwards.
    #[inline]
    pub(crate) fn report(&self, stripe: usize, hash: impl FnOnce() -> u64) {
        // Relaxed suffices: a walk is counted before it locks the stripe, and this thread holds the
        // lock of the stripe.
        if self.count.load(Ordering::Relaxed) > 0 {
            self.report_to_walks(stripe, hash);
        }
    }

    #[cold]
    fn report_to_walks(&self, stripe: usize, hash: impl FnOnce() -> u64) {
        let mut list = self.list();
        let mut recipients = list.walks.iter_mut().filter(|reports| reports.stripe == Some(stripe));
        if let Some(first) = recipients.next() {
            let hash = hash();
            first.add(hash);
            recipients.for_each(|reports| reports.add(hash));
        }
    }

    fn with<R>(&self, walk: WalkId, f: impl FnOnce(&mut Reports) -> R) -> R {
        let mut list = self.list();
        let reports = list.walks.iter_mut().find(|reports| reports.walk == walk);
        f(reports.expect("a walk is listed until it ends"))
    }

    fn list(&self) -> MutexGuard<'_, List> {
        // Each change leaves the list consistent, so a poisoned lock is safe to use.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reports {
    fn add(&mut self, hash: u64) {
        if self.hashes.len() < REPORTS_MAX {
            self.hashes.push(hash);
        } else {
            self.has_lost = true;
        }
    }

    fn take(&mut self, hashes: &mut Vec<u64>) -> Result<(), LostReports> {
        if std::mem::take(&mut self.has_lost) {
            self.hashes.clear();
            return Err(LostReports);
        }
        hashes.append(&mut self.hashes);
        Ok(())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_walk_gets_reports_of_its_own_stripe_only() {
        let walks = Walks::new();
        walks.report(1, || panic!("no walk is in progress"));
        let [first, second] = [walks.begin(), walks.begin()];
        walks.enter(first, 1);
        walks.enter(second, 2);
        for (stripe, hash) in [(1, 11), (2, 22), (1, 12)] {
            walks.report(stripe, || hash);
        }
        walks.report(3, || panic!("no walk is in this stripe"));
        let mut reported = Vec::new();
        assert_eq!((walks.take(first, &mut reported), &reported[..]), (Ok(()), &[11, 12][..]));
        assert_eq!(
            (walks.leave(second, &mut reported), &reported[..]),
            (Ok(()), &[11, 12, 22][..])
        );
        walks.report(2, || panic!("the walk has left the stripe"));
        walks.end(first);
        walks.report(1, || panic!("the walk has ended"));
    }

    #[test]
    fn a_walk_that_loses_reports_stays_in_its_stripe() {
        let walks = Walks::new();
        let walk = walks.begin();
        walks.enter(walk, 0);
        (0..=REPORTS_MAX).for_each(|_| walks.report(0, || 1));
        let mut reported = Vec::new();
        assert_eq!((walks.leave(walk, &mut reported), reported.len()), (Err(LostReports), 0));
        walks.report(0, || 2);
        assert_eq!((walks.leave(walk, &mut reported), reported), (Ok(()), vec![2]));
    }
}
