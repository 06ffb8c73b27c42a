//! The walks under way, and the items that inserts have moved to buckets which these walks have read.
//!
//! A walk goes through one stripe after the other, and through the buckets of a stripe in ascending
//! order. Items never leave their stripe. A split moves them to a bucket that comes later. So a walk
//! can miss an item only if an insert moves it to an earlier bucket of the stripe that the walk is in.
//! Such a move is *reported* before the item's old place is cleared. Hence, when a walk has found the
//! old place cleared, the report is there.
//!
//! Reports are hashes, because locations and keys may be gone when the walk looks at them. Those of items on
//! flash, whose keys are not in memory, are other hashes with the same tag and the same buckets.
//!
//! An update that removes one of several index words on flash that look the same, without reading, reports
//! its key, too: the new item may be in the bucket of another of them.

use crate::segment::sync::{AtomicUsize, Mutex, MutexGuard, Ordering};
use std::sync::PoisonError;

/// Reports that are kept for one walk between two of its steps (32 KiB). If there are more, the walk
/// begins its stripe again. That takes thousands of moves within one stripe while the walk stands still,
/// for the length of a step or because the client of a dump does not read.
const REPORTS_MAX: usize = 4096;

/// The walks under way.
#[derive(Debug)]
pub(crate) struct Walks {
    /// Their number. Whoever changes it locks `list`.
    count: AtomicUsize,
    /// Locked under a stripe's lock, and for no longer than it takes to copy the reports.
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    begun: u64,
    walks: Vec<Reports>,
}

/// What a walk has to be told.
#[derive(Debug)]
struct Reports {
    walk: WalkId,
    /// The stripe that the walk is in.
    stripe: Option<usize>,
    /// The hashes of items of this stripe that have moved to an earlier bucket.
    hashes: Vec<u64>,
    /// There were more than [`REPORTS_MAX`].
    has_lost: bool,
}

/// A walk under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WalkId(u64);

/// Some reports were lost: the walk has to begin its stripe again.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LostReports;

impl Walks {
    pub(crate) fn new() -> Self {
        Self { count: AtomicUsize::new(0), list: Mutex::new(List::default()) }
    }

    /// Begins a walk. It is told nothing before it enters a stripe.
    pub(crate) fn begin(&self) -> WalkId {
        let mut list = self.list();
        list.begun += 1;
        let walk = WalkId(list.begun);
        list.walks.push(Reports { walk, stripe: None, hashes: Vec::new(), has_lost: false });
        self.count.store(list.walks.len(), Ordering::Relaxed);
        walk
    }

    pub(crate) fn end(&self, walk: WalkId) {
        let mut list = self.list();
        list.walks.retain(|reports| reports.walk != walk);
        self.count.store(list.walks.len(), Ordering::Relaxed);
    }

    /// From now on the walk is told of moves in this stripe, except of one that is under way. The
    /// caller locks the stripe once, which waits for the end of that move, before it reads.
    pub(crate) fn enter(&self, walk: WalkId, stripe: usize) {
        self.with(walk, |reports| reports.stripe = Some(stripe));
    }

    /// Moves the reports to `hashes`.
    pub(crate) fn take(&self, walk: WalkId, hashes: &mut Vec<u64>) -> Result<(), LostReports> {
        self.with(walk, |reports| reports.take(hashes))
    }

    /// Moves the last reports on this stripe to `hashes`. Unless some were lost, the walk is told nothing
    /// more before it enters another stripe.
    pub(crate) fn leave(&self, walk: WalkId, hashes: &mut Vec<u64>) -> Result<(), LostReports> {
        self.with(walk, |reports| {
            reports.take(hashes)?;
            reports.stripe = None;
            Ok(())
        })
    }

    /// Reports an item that moves to an earlier bucket of its stripe. The caller holds the stripe's
    /// lock, and clears the old place afterwards.
    #[inline]
    pub(crate) fn report(&self, stripe: usize, hash: impl FnOnce() -> u64) {
        // Relaxed, because walks lock the stripe after they were counted.
        if self.count.load(Ordering::Relaxed) > 0 {
            self.report_to_walks(stripe, hash);
        }
    }

    #[cold]
    fn report_to_walks(&self, stripe: usize, hash: impl FnOnce() -> u64) {
        let mut list = self.list();
        let mut told = list.walks.iter_mut().filter(|reports| reports.stripe == Some(stripe));
        if let Some(first) = told.next() {
            let hash = hash();
            first.add(hash);
            told.for_each(|reports| reports.add(hash));
        }
    }

    fn with<R>(&self, walk: WalkId, f: impl FnOnce(&mut Reports) -> R) -> R {
        let mut list = self.list();
        let reports = list.walks.iter_mut().find(|reports| reports.walk == walk);
        f(reports.expect("a walk is listed until it ends"))
    }

    fn list(&self) -> MutexGuard<'_, List> {
        // Each change is complete even if the next step panics.
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
    fn a_walk_is_told_of_moves_in_its_stripe_alone() {
        let walks = Walks::new();
        walks.report(1, || panic!("nobody walks"));
        let [first, second] = [walks.begin(), walks.begin()];
        walks.enter(first, 1);
        walks.enter(second, 2);
        for (stripe, hash) in [(1, 11), (2, 22), (1, 12)] {
            walks.report(stripe, || hash);
        }
        walks.report(3, || panic!("nobody walks there"));
        let mut told = Vec::new();
        assert_eq!((walks.take(first, &mut told), &told[..]), (Ok(()), &[11, 12][..]));
        assert_eq!((walks.leave(second, &mut told), &told[..]), (Ok(()), &[11, 12, 22][..]));
        walks.report(2, || panic!("it has left"));
        walks.end(first);
        walks.report(1, || panic!("it has ended"));
    }

    #[test]
    fn a_walk_that_is_told_too_much_stays_in_its_stripe() {
        let walks = Walks::new();
        let walk = walks.begin();
        walks.enter(walk, 0);
        (0..=REPORTS_MAX).for_each(|_| walks.report(0, || 1));
        let mut told = Vec::new();
        assert_eq!((walks.leave(walk, &mut told), told.len()), (Err(LostReports), 0));
        walks.report(0, || 2);
        assert_eq!((walks.leave(walk, &mut told), told), (Ok(()), vec![2]));
    }
}
