//! Samples of the keys that a handle uses, for the miss-ratio curve.

use super::state::{Handle, liveness};
use crate::HashedKey;
use crate::segment::item::witness::Witness;
use crate::segment::miss_ratio::curve::{Sample, WAITING_MAX};
use crate::segment::miss_ratio::lru_stack::Extent;
use crate::segment::sync::Ordering::Relaxed;

impl Handle {
    /// Counts a lookup, and records it in the sample if its key is sampled.
    #[inline]
    pub(crate) fn sample_read(&mut self, key: HashedKey<'_>) {
        self.sampler.reads += 1;
        if self.sampler.wants(key.hash) {
            self.sample(key, true);
        }
    }

    /// Records a write in the sample if its key is sampled, even if the write was refused.
    #[inline]
    pub(crate) fn sample_write(&mut self, key: HashedKey<'_>) {
        if self.sampler.wants(key.hash) {
            self.sample(key, false);
        }
    }

    #[cold]
    #[inline(never)]
    fn sample(&mut self, key: HashedKey<'_>, read: bool) {
        if read && self.sampler.repeats(key.hash) {
            return;
        }
        let (found, reads) = (self.extent(key), read.into());
        let sample = Sample { hash: key.hash, reads, found, now: self.now.secs };
        self.sampler.waiting.push(sample);
        if self.sampler.waiting.len() == WAITING_MAX {
            let mut curve = self.shared.mrc.curve();
            curve.take(&mut self.sampler);
            self.shared.mrc.threshold.store(curve.threshold, Relaxed);
        }
    }

    /// Returns the size and expiry of the live item in memory under a key, or `None` if there is no
    /// such item. Does not count as an access.
    fn extent(&mut self, key: HashedKey<'_>) -> Option<Extent> {
        self.pinned(|shared, pinned, now| {
            let witness = Witness::pinned(pinned);
            let record = shared.index.lookup(key.hash, |_, word| {
                let record = shared.record(word, witness);
                (record.key() == key.bytes).then_some(record)
            })?;
            let len = record.key().len() + record.value_len() + shared.config.overhead();
            let is_live = liveness(shared, &record, now).is_live();
            is_live.then(|| Extent { len: len as u64, expiry: record.expiry() })
        })
    }
}
