//! [`AnyEngine`]: an [`Engine`] without generic functions, so that it can be a trait object.

use super::values::{AnyLease, Lease, PendingRead, Position, Upload, Walk};
use crate::engine::*;
use std::any::Any;
use std::sync::Arc;
use std::task::Waker;

/// A closure that receives an item, or the reason why there is none, and returns the change.
pub(super) type Decide<'d, 'v> = dyn FnMut(Lookup<&Item<'_, Lease>>) -> Change<'v> + 'd;

/// [`Engine`] with its generic functions replaced by references to closures. A closure passes its
/// result to the caller in a captured variable.
pub(super) trait AnyEngine: Send {
    fn hash(&self, key: &[u8]) -> u64;
    fn announce(&mut self, hash: u64);
    fn prefetch_announced(&mut self);
    fn begin_batch(&mut self, now: Now);
    fn end_batch(&mut self);
    fn get(
        &mut self,
        key: HashedKey<'_>,
        access: Access,
        read: &mut dyn FnMut(&Item<'_, Lease>),
    ) -> Lookup<()>;
    fn get_recorded(
        &mut self,
        key: HashedKey<'_>,
        read: &mut dyn FnMut(&Item<'_, Lease>) -> Access,
    ) -> Lookup<()>;
    fn content(
        &mut self,
        key: HashedKey<'_>,
        read: &mut dyn FnMut(&Content<'_, Lease>),
    ) -> Lookup<()>;
    fn update<'v>(
        &mut self,
        key: HashedKey<'_>,
        upload: &mut Option<Upload>,
        decide: &mut Decide<'_, 'v>,
    ) -> Result<u64, Refusal>;
    fn update_unread<'v>(
        &mut self,
        key: HashedKey<'_>,
        upload: &mut Option<Upload>,
        decide: &mut Decide<'_, 'v>,
    ) -> Result<u64, Refusal>;
    fn set_fence(&mut self, fence: Option<Arc<Fence>>);
    fn tag(&mut self, name: &[u8]) -> Result<Tag, Refusal>;
    fn drop_tag(&mut self, name: &[u8]) -> bool;
    fn has_tags(&self) -> bool;
    fn start_read(
        &mut self,
        wanted: ReadRequest,
        waker: &Waker,
        into: &mut Vec<PendingRead>,
    ) -> ReadStart;
    fn deliver(&mut self, read: &PendingRead) -> Delivery;
    fn submit(&mut self);
    #[cfg(unix)]
    fn reads_fd(&mut self) -> Option<std::os::fd::RawFd>;
    fn drive_reads(&mut self);
    fn ack_position(&mut self) -> Option<Position>;
    fn ack_state(&mut self, position: &Position, waker: &Waker) -> AckState;
    fn upload_len_min(&self) -> usize;
    fn upload(&mut self, len: usize) -> Result<Upload, Refusal>;
    fn extend(&mut self, upload: &mut Upload, bytes: &[u8]) -> Result<(), Refusal>;
    fn memory_of(&self, upload: &Upload) -> usize;
    fn uploaded<'u>(&self, upload: &'u Upload, offset: usize) -> &'u [u8];
    fn excess_memory(&self) -> ExcessMemory;
    fn flush(&mut self, at: Option<Seconds>);
    fn flush_generation(&self) -> u64;
    fn maintain(&mut self, now: Seconds) -> bool;
    fn shrink(&mut self, now: Seconds) -> bool;
    fn crawl_soon(&mut self);
    fn walk(&self) -> Walk;
    fn walk_from(&self, position: u64) -> Walk;
    fn walk_position(&self, walk: &Walk) -> WalkPosition;
    fn continue_walk(
        &mut self,
        walk: &mut Walk,
        items: usize,
        waker: &Waker,
        visit: &mut dyn FnMut(&[u8], &Item<'_, Lease>),
    ) -> WalkState;
    fn gauges(&self) -> Gauges;
    fn reset_counters(&self);
}

/// Returns the same item, with the lease of a large value in a box.
fn erase<'a, L: crate::Lease + Send + 'static>(item: &Item<'a, L>) -> Item<'a, Lease> {
    let &Item { attributes, cas, fetched, accessed, flash_location, ref value } = item;
    Item { attributes, cas, fetched, accessed, flash_location, value: erase_value(value) }
}

fn erase_value<'a, L: crate::Lease + Send + 'static>(value: &Value<'a, L>) -> Value<'a, Lease> {
    match value {
        Value::Whole(bytes) => Value::Whole(bytes),
        Value::Large(lease) => Value::Large(lease.clone_lease()),
    }
}

fn decide_erased<'v, L: crate::Lease + Send + 'static>(
    found: Lookup<&Item<'_, L>>,
    decide: &mut Decide<'_, 'v>,
) -> Change<'v> {
    match found {
        Lookup::Hit(item) => decide(Lookup::Hit(&erase(item))),
        Lookup::Miss => decide(Lookup::Miss),
        Lookup::Expired => decide(Lookup::Expired),
        Lookup::Flushed => decide(Lookup::Flushed),
        Lookup::Pending => decide(Lookup::Pending),
    }
}

/// Calls `update` with the engine's own upload in place of the box. Empties `upload` if the engine
/// moves the value out. Returns [`Refusal::WrongUpload`] if the box belongs to another engine.
fn with_upload<E: Engine + 'static>(
    upload: &mut Option<Upload>,
    update: impl FnOnce(&mut Option<E::Upload>) -> Result<u64, Refusal>,
) -> Result<u64, Refusal> {
    let Some(Upload(boxed)) = upload else { return update(&mut None) };
    let own = boxed.downcast_mut::<Option<E::Upload>>().ok_or(Refusal::WrongUpload)?;
    let updated = update(own);
    if own.is_none() {
        *upload = None;
    }
    updated
}

/// Returns the content of a box that this engine has made. Panics if the box belongs to another
/// engine.
fn own<T: 'static>(boxed: &dyn Any) -> &T {
    boxed.downcast_ref().expect("walks, reads and positions are used with the cache that made them")
}

impl<E: Engine + Send + 'static> AnyEngine for E {
    fn hash(&self, key: &[u8]) -> u64 {
        Lookups::hash(self, key)
    }

    fn announce(&mut self, hash: u64) {
        Lookups::announce(self, hash);
    }

    fn prefetch_announced(&mut self) {
        Lookups::prefetch_announced(self);
    }

    fn begin_batch(&mut self, now: Now) {
        Batches::begin_batch(self, now);
    }

    fn end_batch(&mut self) {
        Batches::end_batch(self);
    }

    fn get(
        &mut self,
        key: HashedKey<'_>,
        access: Access,
        read: &mut dyn FnMut(&Item<'_, Lease>),
    ) -> Lookup<()> {
        Lookups::get(self, key, access, |item| read(&erase(item)))
    }

    fn get_recorded(
        &mut self,
        key: HashedKey<'_>,
        read: &mut dyn FnMut(&Item<'_, Lease>) -> Access,
    ) -> Lookup<()> {
        Lookups::get_recorded(self, key, |item| (read(&erase(item)), ()))
    }

    fn content(
        &mut self,
        key: HashedKey<'_>,
        read: &mut dyn FnMut(&Content<'_, Lease>),
    ) -> Lookup<()> {
        Lookups::content(self, key, |content| {
            let &Content { client_flags, cas, ref value } = content;
            read(&Content { client_flags, cas, value: erase_value(value) });
        })
    }

    fn update<'v>(
        &mut self,
        key: HashedKey<'_>,
        upload: &mut Option<Upload>,
        decide: &mut Decide<'_, 'v>,
    ) -> Result<u64, Refusal> {
        with_upload::<E>(upload, |upload| {
            let updated =
                Updates::update(self, key, upload, |found| (decide_erased(found, decide), ()));
            updated.map(|updated| updated.cas)
        })
    }

    fn update_unread<'v>(
        &mut self,
        key: HashedKey<'_>,
        upload: &mut Option<Upload>,
        decide: &mut Decide<'_, 'v>,
    ) -> Result<u64, Refusal> {
        with_upload::<E>(upload, |upload| {
            let updated = Updates::update_unread(self, key, upload, |found| {
                (decide_erased(found, decide), ())
            });
            updated.map(|updated| updated.cas)
        })
    }

    fn set_fence(&mut self, fence: Option<Arc<Fence>>) {
        Updates::set_fence(self, fence);
    }

    fn tag(&mut self, name: &[u8]) -> Result<Tag, Refusal> {
        Updates::tag(self, name)
    }

    fn drop_tag(&mut self, name: &[u8]) -> bool {
        Updates::drop_tag(self, name)
    }

    fn has_tags(&self) -> bool {
        Updates::has_tags(self)
    }

    fn start_read(
        &mut self,
        wanted: ReadRequest,
        waker: &Waker,
        into: &mut Vec<PendingRead>,
    ) -> ReadStart {
        let mut begun = Vec::new();
        let result = SlowStorage::start_read(self, wanted, waker, &mut begun);
        into.extend(begun.into_iter().map(|read| PendingRead(Box::new(read))));
        result
    }

    fn deliver(&mut self, read: &PendingRead) -> Delivery {
        SlowStorage::deliver(self, own(&*read.0))
    }

    fn submit(&mut self) {
        SlowStorage::submit(self);
    }

    #[cfg(unix)]
    fn reads_fd(&mut self) -> Option<std::os::fd::RawFd> {
        SlowStorage::reads_fd(self)
    }

    fn drive_reads(&mut self) {
        SlowStorage::drive_reads(self);
    }

    fn ack_position(&mut self) -> Option<Position> {
        Acknowledge::ack_position(self).map(|position| Position(Box::new(position)))
    }

    fn ack_state(&mut self, position: &Position, waker: &Waker) -> AckState {
        Acknowledge::ack_state(self, own(&*position.0), waker)
    }

    fn upload_len_min(&self) -> usize {
        Uploads::upload_len_min(self)
    }

    fn upload(&mut self, len: usize) -> Result<Upload, Refusal> {
        Uploads::upload(self, len).map(|upload| Upload(Box::new(Some(upload))))
    }

    fn extend(&mut self, upload: &mut Upload, bytes: &[u8]) -> Result<(), Refusal> {
        let own = upload.0.downcast_mut::<Option<E::Upload>>().and_then(Option::as_mut);
        Uploads::extend(self, own.ok_or(Refusal::WrongUpload)?, bytes)
    }

    fn memory_of(&self, upload: &Upload) -> usize {
        let own = upload.0.downcast_ref::<Option<E::Upload>>().and_then(Option::as_ref);
        own.map_or(0, |own| Uploads::memory_of(self, own))
    }

    fn uploaded<'u>(&self, upload: &'u Upload, offset: usize) -> &'u [u8] {
        let own = upload.0.downcast_ref::<Option<E::Upload>>().and_then(Option::as_ref);
        own.map_or(&[], |own| Uploads::uploaded(self, own, offset))
    }

    fn excess_memory(&self) -> ExcessMemory {
        Uploads::excess_memory(self)
    }

    fn flush(&mut self, at: Option<Seconds>) {
        Updates::flush(self, at);
    }

    fn flush_generation(&self) -> u64 {
        Updates::flush_generation(self)
    }

    fn maintain(&mut self, now: Seconds) -> bool {
        Maintenance::maintain(self, now)
    }

    fn shrink(&mut self, now: Seconds) -> bool {
        Maintenance::shrink(self, now)
    }

    fn crawl_soon(&mut self) {
        Maintenance::crawl_soon(self);
    }

    fn walk(&self) -> Walk {
        Walk(Box::new(Walks::walk(self)))
    }

    fn walk_from(&self, position: u64) -> Walk {
        Walk(Box::new(Walks::walk_from(self, position)))
    }

    fn walk_position(&self, walk: &Walk) -> WalkPosition {
        Walks::walk_position(self, own(&*walk.0))
    }

    fn continue_walk(
        &mut self,
        walk: &mut Walk,
        items: usize,
        waker: &Waker,
        visit: &mut dyn FnMut(&[u8], &Item<'_, Lease>),
    ) -> WalkState {
        let own = walk.0.downcast_mut().expect("walks are used with the cache that made them");
        Walks::continue_walk(self, own, items, waker, |key, item| visit(key, &erase(item)))
    }

    fn gauges(&self) -> Gauges {
        Maintenance::gauges(self)
    }

    fn reset_counters(&self) {
        Maintenance::reset_counters(self);
    }
}
