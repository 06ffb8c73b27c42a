//! The counters of a flash tier. Whatever is counted here takes microseconds, so all handles share them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A counter that any thread may add to.
#[derive(Debug, Default)]
pub(in super::super) struct Counter(AtomicU64);

impl Counter {
    pub(in super::super) fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    pub(in super::super) fn take_off(&self, n: u64) {
        self.0.fetch_sub(n, Relaxed);
    }

    pub(in super::super) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    pub(in super::super) fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }
}

/// The counters: see [`crate::FlashGauges`].
#[derive(Debug, Default)]
pub(in super::super) struct Counts {
    pub(in super::super) reads: Counter,
    /// Of these, those before the last reset, and those for walks.
    pub(in super::super) reads_before: Counter,
    pub(in super::super) aborted: Counter,
    pub(in super::super) without_buffer: Counter,
    pub(in super::super) recached: Counter,
    pub(in super::super) returned: Counter,
    pub(in super::super) missed: Counter,
    pub(in super::super) bad_checksums: Counter,
    pub(in super::super) dropped: Counter,
    pub(in super::super) compact_lost: Counter,
    pub(in super::super) compact_rescues: Counter,
    pub(in super::super) compact_skipped: Counter,
    pub(in super::super) page_allocs: Counter,
    pub(in super::super) page_evictions: Counter,
    pub(in super::super) page_reclaims: Counter,
    pub(in super::super) objects_evicted: Counter,
    pub(in super::super) bytes_evicted: Counter,
    pub(in super::super) objects_written: Counter,
    pub(in super::super) bytes_written: Counter,
    pub(in super::super) bytes_read: Counter,
    /// Reads under way.
    pub(in super::super) reading: Counter,
    /// Reads and writes that have failed since the last minute began.
    pub(in super::super) errors: Counter,
}

impl Counts {
    /// Zeroes what `stats reset` zeroes in memcached: what look-ups and rewrites have counted.
    pub(in super::super) fn reset(&self) {
        self.reads_before.set(self.reads.get());
        let Self { aborted, without_buffer, recached, returned, missed, bad_checksums, .. } = self;
        let Self { compact_lost, compact_rescues, compact_skipped, .. } = self;
        [aborted, without_buffer, recached, returned, missed, bad_checksums]
            .into_iter()
            .chain([compact_lost, compact_rescues, compact_skipped])
            .for_each(|counter| counter.set(0));
    }
}
