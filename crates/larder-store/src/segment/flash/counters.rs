//! The counters of a flash tier. All handles share them. Contention does not matter, because every
//! counted event takes microseconds.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A counter that any thread may add to.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    pub(crate) fn take_off(&self, n: u64) {
        self.0.fetch_sub(n, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }
}

/// The counters: see [`crate::FlashGauges`].
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) reads: Counter,
    /// The part of `reads` that is not reported as lookups: reads before the last reset, and reads
    /// for walks.
    pub(crate) reads_before: Counter,
    pub(crate) aborted: Counter,
    pub(crate) without_buffer: Counter,
    pub(crate) recached: Counter,
    pub(crate) returned: Counter,
    pub(crate) missed: Counter,
    pub(crate) bad_checksums: Counter,
    pub(crate) dropped: Counter,
    pub(crate) compact_lost: Counter,
    pub(crate) compact_rescues: Counter,
    pub(crate) compact_skipped: Counter,
    pub(crate) page_allocs: Counter,
    pub(crate) page_evictions: Counter,
    pub(crate) page_reclaims: Counter,
    pub(crate) objects_evicted: Counter,
    pub(crate) bytes_evicted: Counter,
    pub(crate) objects_written: Counter,
    pub(crate) bytes_written: Counter,
    pub(crate) bytes_read: Counter,
    /// The number of reads that the device has not finished yet.
    pub(crate) reading: Counter,
    /// The number of reads that own segments for a large value. Such a read is under way, or it has
    /// ended and its item was not delivered yet, or a batch uses its item.
    pub(crate) values_read: Counter,
    /// The number of writing threads that wait for a free page.
    pub(crate) waiting_for_page: Counter,
    /// The number of reads and writes that failed in the current minute.
    pub(crate) errors: Counter,
    /// The number of reads and writes that failed since the start. A read with a wrong checksum
    /// counts as failed.
    pub(crate) failures: Counter,
}

impl Counts {
    /// Zeroes the counters that `stats reset` zeroes in memcached: lookups and rewrites.
    pub(crate) fn reset(&self) {
        self.reads_before.set(self.reads.get());
        let Self { aborted, without_buffer, recached, returned, missed, bad_checksums, .. } = self;
        let Self { compact_lost, compact_rescues, compact_skipped, .. } = self;
        [aborted, without_buffer, recached, returned, missed, bad_checksums]
            .into_iter()
            .chain([compact_lost, compact_rescues, compact_skipped])
            .for_each(|counter| counter.set(0));
    }
}
