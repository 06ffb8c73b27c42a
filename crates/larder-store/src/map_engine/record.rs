//! A stored item. It is immutable, except for its access data and the mark that it was counted as
//! reclaimed.

use crate::engine::Liveness;
use crate::{Attributes, Item, Lease, Now, Seconds, Value};
use bytes::Bytes;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// The length in bytes from which values are leased rather than borrowed, and uploaded rather than
/// passed in one piece.
pub(crate) const LARGE_LEN_MIN: usize = 64 << 10;

/// An item without its key.
#[derive(Debug)]
pub struct Record {
    pub(crate) value: Bytes,
    pub(crate) attributes: Attributes,
    /// The CAS of the item; 0 if the cache stores none.
    pub(crate) cas: u64,
    /// The number of flushes before the item was stored.
    flush_generation: u64,
    fetched: AtomicBool,
    accessed: AtomicU32,
    /// Whether the item was counted as reclaimed.
    counted: AtomicBool,
}

impl Record {
    pub(crate) fn new(
        value: Bytes,
        attributes: Attributes,
        cas: u64,
        flush_generation: u64,
        now: Seconds,
        fetched: bool,
    ) -> Self {
        let (fetched, accessed, counted) = (fetched.into(), now.0.into(), false.into());
        Self { value, attributes, cas, flush_generation, fetched, accessed, counted }
    }

    /// Returns the same item with other attributes. Both items share the value.
    pub(crate) fn with_attributes(&self, attributes: Attributes, cas: u64) -> Self {
        let value = self.value.clone();
        Self::new(value, attributes, cas, self.flush_generation, self.accessed(), self.fetched())
    }

    /// Returns the liveness of the item after `flush_generation` flushes.
    pub(crate) fn liveness(&self, now: Now, flush_generation: u64) -> Liveness {
        if self.flush_generation < flush_generation {
            Liveness::Flushed
        } else if self.attributes.expiry.is_past(now) {
            Liveness::Expired
        } else {
            Liveness::Live
        }
    }

    /// Returns whether the value is leased rather than borrowed.
    pub(crate) fn is_large(&self) -> bool {
        self.value.len() >= LARGE_LEN_MIN
    }

    /// Returns the item in the form that the closures of callers receive.
    pub(crate) fn lend(&self) -> Item<'_, SharedLease> {
        let value = if self.is_large() {
            Value::Large(SharedLease(self.value.clone()))
        } else {
            Value::Whole(&self.value)
        };
        Item {
            attributes: self.attributes,
            cas: self.cas,
            fetched: self.fetched(),
            accessed: self.accessed(),
            flash_location: None,
            value,
        }
    }

    /// Records that the item was read at `now`.
    pub(crate) fn note_access(&self, now: Seconds) {
        // Readers share the cache line, so do not write it if nothing changes.
        if !self.fetched() {
            self.fetched.store(true, Relaxed);
        }
        if self.accessed() != now {
            self.accessed.store(now.0, Relaxed);
        }
    }

    /// Marks the item as counted. Returns true only at the first call, because an expired item may
    /// be found more than once.
    pub(crate) fn count_once(&self) -> bool {
        !self.counted.swap(true, Relaxed)
    }

    pub(crate) fn fetched(&self) -> bool {
        self.fetched.load(Relaxed)
    }

    pub(crate) fn accessed(&self) -> Seconds {
        Seconds(self.accessed.load(Relaxed))
    }
}

/// A reader's access to a large value. It shares the memory of the value. After the item is
/// replaced or removed, the memory is no longer counted, although the leases hold it until the last
/// lease is dropped.
#[derive(Clone, Debug)]
pub struct SharedLease(Bytes);

impl Lease for SharedLease {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn piece(&self, offset: usize) -> &[u8] {
        self.0.get(offset..).unwrap_or_default()
    }
}
