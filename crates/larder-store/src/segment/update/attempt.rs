//! Attempts of an update. Each attempt finds the item under the lock of its stripe, calls the
//! function that decides on the change, and applies the change. If an attempt lacks a resource, the
//! update provides it without the lock and tries again.

use super::change::{FoundItem, Shortage, Update};
use crate::engine::Liveness;
use crate::segment::cache::shared::{AbortOnUnwind, Shared};
use crate::segment::flash_read::lookup::{UpdateSearch, liveness_on_flash};
use crate::segment::handle::state::{Handle, lend, liveness};
use crate::segment::item::witness::Witness;
use crate::segment::large_value::lease::ChainLease;
use crate::segment::large_value::upload::Upload;
use crate::segment::write::writer::Writer;
use crate::{Change, HashedKey, Item, ItemChange, Lookup, Refusal, Updated};
use std::sync::Arc;

impl Handle {
    /// Applies the decision of `decide` about the item under `key`. If `is_shown` is false,
    /// `decide` receives a `Miss` for a live item.
    pub(crate) fn update_item<'v, R>(
        &mut self,
        key: HashedKey<'_>,
        upload: &mut Option<Upload>,
        is_shown: bool,
        mut decide: impl FnMut(Lookup<&Item<'_, ChainLease>>) -> (Change<'v>, R),
    ) -> Result<Updated<R>, Refusal> {
        self.evacuate_before_write();
        let mut rounds = 0;
        loop {
            let (shared, mut writer) = self.writer();
            match writer.attempt(shared, key, upload, is_shown, &mut decide) {
                Ok(updated) => {
                    self.value_builder = None;
                    self.evacuate_after_write();
                    self.flush_slot_delta();
                    return Ok(updated);
                }
                Err(shortage) => {
                    rounds += 1;
                    let resolved = self.resolve(shortage, key, upload.as_ref(), rounds);
                    resolved.inspect_err(|refusal| {
                        self.value_builder = None;
                        if !matches!(refusal, Refusal::Pending | Refusal::NoCas) {
                            self.handle_shared.stats.refuse(0);
                        }
                    })?;
                }
            }
        }
    }

    fn resolve(
        &mut self,
        shortage: Shortage<'_>,
        key: HashedKey<'_>,
        upload: Option<&Upload>,
        rounds: u32,
    ) -> Result<(), Refusal> {
        match shortage {
            Shortage::Room(kind, len) => self.open_segment(kind, len),
            Shortage::Slot => self.make_slot(key.hash, rounds),
            Shortage::LargeValue(plan, value) => self.build_value(key, plan, value, upload),
            Shortage::Refused(refusal) => Err(refusal),
        }
    }
}

impl Writer<'_> {
    fn attempt<'v, R>(
        &mut self,
        shared: &Arc<Shared>,
        key: HashedKey<'_>,
        upload: &mut Option<Upload>,
        is_shown: bool,
        decide: &mut impl FnMut(Lookup<&Item<'_, ChainLease>>) -> (Change<'v>, R),
    ) -> Result<Updated<R>, Shortage<'v>> {
        let stripe = &shared.index.lock(key.hash);
        let witness = Witness::locked(stripe);
        let is_key = |word| shared.record(word, witness).has_key(key.bytes);
        let mut found = stripe.find(is_key).map(|locked_slot| {
            let record = shared.record(locked_slot.word, witness);
            let liveness = liveness(shared, &record, self.now);
            FoundItem { locked_slot, record, liveness }
        });
        let (mut is_unread, mut read) = (false, None);
        let source;
        if found.is_none() && shared.flash.is_some() {
            match self.find_on_flash(shared, stripe, key, is_shown) {
                UpdateSearch::Nothing => self.remove_unreadable(shared, stripe),
                UpdateSearch::Pending => return Err(Shortage::Refused(Refusal::Pending)),
                UpdateSearch::NoRoom => return Err(Shortage::Refused(Refusal::OutOfMemory)),
                UpdateSearch::Unread => is_unread = true,
                UpdateSearch::Item(locked_slot, item) => {
                    source = item;
                    read = Some(&*source);
                    let record = shared.record_in_buffer(&*source);
                    let liveness = liveness_on_flash(shared, &*source, &record, self.now);
                    found = Some(FoundItem { locked_slot, record, liveness });
                }
            }
        }
        let state = found.as_ref().map(|found| found.liveness);
        let is_live = state == Some(Liveness::Live);
        let (change, result) = match (&found, state) {
            (_, Some(Liveness::Expired)) => decide(Lookup::Expired),
            (_, Some(Liveness::Flushed)) => decide(Lookup::Flushed),
            (Some(found), _) if is_shown => decide(Lookup::Hit(&lend(shared, &found.record))),
            _ => decide(Lookup::Miss),
        };
        if is_unread && !shared.config.evict && matches!(change, Change::Put { .. }) {
            // The index words may belong to other keys, whose items must not be lost.
            return Err(Shortage::Refused(Refusal::Pending));
        }
        if let (Change::Put { .. }, None) = (&change, &found) {
            // With the hash of another key, the item would be stored in a wrong stripe: no lookup
            // would find it, and an evacuation would not move it.
            assert_eq!(key.hash, shared.hash(key.bytes), "the hash is not the key's own");
        }
        let is_change = match &change {
            Change::Put { .. } => true,
            Change::Remove | Change::SetAttributes { .. } => is_live || is_unread,
            Change::Keep | Change::MarkAccessed | Change::CountHit => false,
        };
        // A panic here aborts the process, so that no thread sees half of a change.
        let abort_guard = AbortOnUnwind;
        let cas_before = self.writing.cas;
        let mut update =
            Update { shared, stripe, key, witness, found, read, is_live, is_unread, writer: self };
        let applied = update.apply(change, upload);
        if applied.is_err() {
            // The CAS was not published, so it can be used again.
            self.writing.cas.put_back_to(cas_before);
        } else if is_change {
            shared.report_change(ItemChange::Updated(key.bytes));
        }
        std::mem::forget(abort_guard);
        applied.map(|cas| Updated { result, cas })
    }
}
