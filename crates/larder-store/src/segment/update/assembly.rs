//! Assembling a large value before the update that stores it.

use crate::segment::handle::state::{Handle, liveness};
use crate::segment::item::witness::Witness;
use crate::segment::large_value::builder::{Plan, ValueBuilder};
use crate::segment::large_value::upload::Upload;
use crate::{HashedKey, NewValue, Refusal};

impl Handle {
    /// Assembles a large value without a lock. If the item changes at the same time, the update
    /// that stores the value detects the change and requests another copy.
    pub(crate) fn build_value(
        &mut self,
        key: HashedKey<'_>,
        plan: Plan,
        value: NewValue<'_>,
        upload: Option<&Upload>,
    ) -> Result<(), Refusal> {
        let mut builder = match self.value_builder.take().filter(|builder| builder.plan == plan) {
            Some(builder) => builder,
            None => {
                let upload = Upload::new(&self.shared, plan.len);
                ValueBuilder::filled(plan, self.with_all_segments(upload)?, None)
            }
        };
        self.pinned(|shared, pinned, now| {
            let witness = Witness::pinned(pinned);
            let old = shared.index.lookup(key.hash, |_, word| {
                let record = shared.record(word, witness);
                (record.key() == key.bytes).then_some(record)
            });
            let old = old.filter(|old| liveness(shared, old, now).is_live());
            builder.fill(shared, old.as_ref(), witness, value, upload);
        });
        self.value_builder = Some(builder);
        Ok(())
    }

    /// Allocates all segments that an upload needs.
    pub(crate) fn with_all_segments(&mut self, mut upload: Upload) -> Result<Upload, Refusal> {
        while upload.segments.len() < upload.segments_wanted() {
            self.extend_segments(&mut upload)?;
        }
        Ok(upload)
    }

    /// Allocates the segments for a value that is read from flash. Drops no item that can be
    /// written to flash later, unless the device no longer completes writes. Waits briefly for
    /// memory if `waits` is true.
    pub(crate) fn segments_for_read(&mut self, len: usize, waits: bool) -> Result<Upload, Refusal> {
        let mut upload = Upload::for_flash_read(&self.shared, len);
        self.keeps_unwritten = true;
        let taken = loop {
            if upload.segments.len() >= upload.segments_wanted() {
                break Ok(());
            }
            if upload.is_at_limit() {
                break Err(Refusal::OutOfMemory);
            }
            match if waits { self.take_segment() } else { self.try_segment() } {
                Ok(segment) => upload.add_segment(segment),
                Err(refusal) => break Err(refusal),
            }
        };
        self.keeps_unwritten = false;
        taken.map(|()| upload)
    }
}
