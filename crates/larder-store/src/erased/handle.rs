//! [`Handle`] as an [`Engine`]: passes closures to the hidden engine and takes their results back.

use super::any_engine::AnyEngine;
use super::values::{Lease, PendingRead, Position, Upload, Walk};
use crate::engine::*;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;

/// The panic message if a closure has stored no result. The panic can't happen, because an engine
/// calls the closure of each hit, and of each update that it carries out.
const CALLED: &str = "an engine calls the closure of a hit or of an update that it carries out";

/// One thread's access to a [`Cache`](super::Cache).
pub struct Handle(Box<dyn AnyEngine>);

impl Handle {
    pub(super) fn new(engine: impl Engine + Send + 'static) -> Self {
        Self(Box::new(engine))
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

impl Batches for Handle {
    fn begin_batch(&mut self, now: impl Into<Now>) {
        self.0.begin_batch(now.into());
    }

    fn end_batch(&mut self) {
        self.0.end_batch();
    }
}

impl Lookups for Handle {
    type Lease = Lease;

    fn hash(&self, key: &[u8]) -> u64 {
        self.0.hash(key)
    }

    fn announce(&mut self, hash: u64) {
        self.0.announce(hash);
    }

    fn prefetch_announced(&mut self) {
        self.0.prefetch_announced();
    }

    fn get<R>(
        &mut self,
        key: HashedKey<'_>,
        access: Access,
        read: impl FnOnce(&Item<'_, Lease>) -> R,
    ) -> Lookup<R> {
        let (mut read, mut result) = (Some(read), None);
        let found = self.0.get(key, access, &mut |item| {
            result = read.take().map(|read| read(item));
        });
        found.map(|()| result.expect(CALLED))
    }

    fn get_recorded<R>(
        &mut self,
        key: HashedKey<'_>,
        read: impl FnOnce(&Item<'_, Lease>) -> (Access, R),
    ) -> Lookup<R> {
        let (mut read, mut result) = (Some(read), None);
        let found = self.0.get_recorded(key, &mut |item| {
            let read = read.take().expect("an engine shows an item once");
            let (access, shown) = read(item);
            result = Some(shown);
            access
        });
        found.map(|()| result.expect(CALLED))
    }

    fn content<R>(
        &mut self,
        key: HashedKey<'_>,
        read: impl FnOnce(&Content<'_, Lease>) -> R,
    ) -> Lookup<R> {
        let (mut read, mut result) = (Some(read), None);
        let found = self.0.content(key, &mut |content| {
            result = read.take().map(|read| read(content));
        });
        found.map(|()| result.expect(CALLED))
    }
}

impl Uploads for Handle {
    type Upload = Upload;

    fn upload_len_min(&self) -> usize {
        self.0.upload_len_min()
    }

    fn upload(&mut self, len: usize) -> Result<Upload, Refusal> {
        self.0.upload(len)
    }

    fn extend(&mut self, upload: &mut Upload, bytes: &[u8]) -> Result<(), Refusal> {
        self.0.extend(upload, bytes)
    }

    fn memory_of(&self, upload: &Upload) -> usize {
        self.0.memory_of(upload)
    }

    fn uploaded<'u>(&self, upload: &'u Upload, offset: usize) -> &'u [u8] {
        self.0.uploaded(upload, offset)
    }

    fn excess_memory(&self) -> ExcessMemory {
        self.0.excess_memory()
    }
}

impl Updates for Handle {
    fn update<'v, R>(
        &mut self,
        key: HashedKey<'_>,
        upload: &mut Option<Upload>,
        mut decide: impl FnMut(Lookup<&Item<'_, Lease>>) -> (Change<'v>, R),
    ) -> Result<Updated<R>, Refusal> {
        let mut result = None;
        let cas = self.0.update(key, upload, &mut |found| {
            let (change, decided) = decide(found);
            result = Some(decided);
            change
        })?;
        Ok(Updated { result: result.expect(CALLED), cas })
    }

    fn update_unread<'v, R>(
        &mut self,
        key: HashedKey<'_>,
        upload: &mut Option<Upload>,
        mut decide: impl FnMut(Lookup<&Item<'_, Lease>>) -> (Change<'v>, R),
    ) -> Result<Updated<R>, Refusal> {
        let mut result = None;
        let cas = self.0.update_unread(key, upload, &mut |found| {
            let (change, decided) = decide(found);
            result = Some(decided);
            change
        })?;
        Ok(Updated { result: result.expect(CALLED), cas })
    }

    fn set_fence(&mut self, fence: Option<Arc<Fence>>) {
        self.0.set_fence(fence);
    }

    fn tag(&mut self, name: &[u8]) -> Result<Tag, Refusal> {
        self.0.tag(name)
    }

    fn drop_tag(&mut self, name: &[u8]) -> bool {
        self.0.drop_tag(name)
    }

    fn has_tags(&self) -> bool {
        self.0.has_tags()
    }

    fn flush(&mut self, at: Option<Seconds>) {
        self.0.flush(at);
    }

    fn flush_generation(&self) -> u64 {
        self.0.flush_generation()
    }
}

impl SlowStorage for Handle {
    type PendingRead = PendingRead;

    fn start_read(
        &mut self,
        wanted: ReadRequest,
        waker: &Waker,
        into: &mut Vec<PendingRead>,
    ) -> ReadStart {
        self.0.start_read(wanted, waker, into)
    }

    fn deliver(&mut self, read: &PendingRead) -> Delivery {
        self.0.deliver(read)
    }

    fn submit(&mut self) {
        self.0.submit();
    }

    #[cfg(unix)]
    fn reads_fd(&mut self) -> Option<std::os::fd::RawFd> {
        self.0.reads_fd()
    }

    fn drive_reads(&mut self) {
        self.0.drive_reads();
    }
}

impl Acknowledge for Handle {
    type Position = Position;

    fn ack_position(&mut self) -> Option<Position> {
        self.0.ack_position()
    }

    fn ack_state(&mut self, position: &Position, waker: &Waker) -> AckState {
        self.0.ack_state(position, waker)
    }
}

impl Walks for Handle {
    type Walk = Walk;

    fn walk(&self) -> Walk {
        self.0.walk()
    }

    fn walk_from(&self, position: u64) -> Walk {
        self.0.walk_from(position)
    }

    fn walk_position(&self, walk: &Walk) -> WalkPosition {
        self.0.walk_position(walk)
    }

    fn continue_walk(
        &mut self,
        walk: &mut Walk,
        items: usize,
        waker: &Waker,
        mut visit: impl FnMut(&[u8], &Item<'_, Lease>),
    ) -> WalkState {
        self.0.continue_walk(walk, items, waker, &mut visit)
    }
}

impl Maintenance for Handle {
    fn maintain(&mut self, now: Seconds) -> bool {
        self.0.maintain(now)
    }

    fn shrink(&mut self, now: Seconds) -> bool {
        self.0.shrink(now)
    }

    fn crawl_soon(&mut self) {
        self.0.crawl_soon();
    }

    fn gauges(&self) -> Gauges {
        self.0.gauges()
    }

    fn reset_counters(&self) {
        self.0.reset_counters();
    }
}
