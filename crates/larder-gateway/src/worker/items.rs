//! The implementation of [`Items`] for a cache.

use super::CacheItems;
use super::forwarding::{OwnerError, abort_request};
use super::memory::{CountGuard, PIECE_LEN};
use crate::items::{ItemFuture, Items, LookupOutcome, Page, Upload};
use crate::remote::{Exists, Get, Touch};
use futures_util::future::join_all;
use larder_operations::{
    ArithmeticOutcome, CommandClass, Count, Expire, ExpireOutcome, LookupOptions, OpContext,
    Remove, RemoveOutcome, Store, StoreOutcome, Tags,
};
use larder_store::erased;
use larder_store::{Access, Expiry, HashedKey, Lookup, Lookups, Refusal, Updates, Uploads};
use std::time::Instant;

/// A value that is being received, with its counted memory.
struct PendingUpload {
    value: UploadTarget<erased::Upload>,
    _held: CountGuard,
}

/// The destination of an upload.
enum UploadTarget<U> {
    /// This server's cache.
    Local(U),
    /// A buffer from which the value is sent to another server.
    Remote(Vec<u8>),
}

/// Uploads a value into this server's cache. `store` calls this function if another server owned
/// the item when the upload started, and this server owns it now.
fn uploaded(engine: &mut erased::Handle, value: &[u8]) -> Result<erased::Upload, Refusal> {
    let mut upload = engine.upload(value.len())?;
    value.chunks(PIECE_LEN).try_for_each(|piece| engine.extend(&mut upload, piece))?;
    Ok(upload)
}

/// Returns the value of an upload. `store` calls this function if another server has become the
/// owner of the item while this server received the value.
fn contents(engine: &erased::Handle, upload: &erased::Upload) -> Vec<u8> {
    let mut value = Vec::new();
    loop {
        let piece = engine.uploaded(upload, value.len());
        if piece.is_empty() {
            return value;
        }
        value.extend_from_slice(piece);
    }
}

impl Items for CacheItems {
    fn get<'a>(&'a self, key: &'a [u8], allows_replica: bool) -> ItemFuture<'a, LookupOutcome> {
        let look = LookupOptions::default();
        Box::pin(async move {
            let run = |cx: &mut OpContext<'_, erased::Handle>, key: HashedKey<'_>| match cx.look_up(
                key,
                &look,
                false,
                |item| self.found(item),
            ) {
                Ok(Lookup::Pending) => None,
                Ok(Lookup::Hit(Some(found))) => Some(LookupOutcome::Found(found)),
                Ok(Lookup::Hit(None)) => Some(LookupOutcome::Busy),
                Ok(_) => Some(LookupOutcome::Missing),
                Err(_) => Some(LookupOutcome::OutOfMemory),
            };
            let class = Some(CommandClass::Get);
            match self.try_at_owner((class, allows_replica), key, (&Get, None), run).await {
                Ok(looked) => looked,
                Err(OwnerError::Busy) => LookupOutcome::Busy,
                Err(OwnerError::Unreachable) => LookupOutcome::OwnerUnreachable,
            }
        })
    }

    fn exists<'a>(&'a self, key: &'a [u8]) -> ItemFuture<'a, bool> {
        Box::pin(self.run_at_owner(None, key, (&Exists, None), |cx, key| {
            match cx.engine.get(key, Access::Untracked, |_| ()) {
                Lookup::Pending => None,
                Lookup::Hit(()) => Some(true),
                _ => Some(false),
            }
        }))
    }

    fn store<'a>(
        &'a self,
        key: &'a [u8],
        op: Store<'a>,
        upload: Option<Upload>,
    ) -> ItemFuture<'a, StoreOutcome> {
        let received = upload.map(|upload| upload.downcast::<PendingUpload>());
        let received = received.map(|upload| upload.expect("uploads are made by `start_upload`"));
        let (value, held) = match received.map(|received| *received) {
            Some(PendingUpload { value, _held }) => (Some(value), Some(_held)),
            None => (None, None),
        };
        Box::pin(async move {
            let _held = held;
            let class = Some(CommandClass::Store);
            let remote = match value {
                Some(UploadTarget::Local(received)) => {
                    let (started, _active) = (Instant::now(), CountGuard::new(&self.active, 1));
                    let is_local = || self.is_local(Some(key), false);
                    let mut upload = Some(received);
                    let run = |cx: &mut OpContext<'_, erased::Handle>, key: HashedKey<'_>| {
                        let stored = cx.store(key, &op, &mut upload);
                        (stored != StoreOutcome::Pending).then_some(stored)
                    };
                    if let Some(stored) = self.run_locally(Some(key), false, is_local, run).await {
                        self.record(class, started);
                        return stored;
                    }
                    // Another server owns the item now, so take the received bytes out of the
                    // upload and send them.
                    upload.map(|upload| self.with_engine(|engine| contents(engine, &upload)))
                }
                Some(UploadTarget::Remote(bytes)) => Some(bytes),
                None => None,
            };
            let mut upload = None;
            let run = |cx: &mut OpContext<'_, erased::Handle>, key: HashedKey<'_>| {
                if let Some(value) = remote.as_ref().filter(|_| upload.is_none()) {
                    match uploaded(cx.engine, value) {
                        Ok(received) => upload = Some(received),
                        Err(Refusal::TooLarge) => return Some(StoreOutcome::TooLarge),
                        Err(_) => return Some(StoreOutcome::OutOfMemory),
                    }
                }
                let stored = cx.store(key, &op, &mut upload);
                (stored != StoreOutcome::Pending).then_some(stored)
            };
            self.run_at_owner(class, key, (&op, remote.as_deref()), run).await
        })
    }

    fn remove<'a>(&'a self, key: &'a [u8], op: Remove) -> ItemFuture<'a, RemoveOutcome> {
        Box::pin(async move {
            let run = |cx: &mut OpContext<'_, erased::Handle>, key: HashedKey<'_>| {
                let removed = cx.remove(key, &op);
                (removed != RemoveOutcome::Pending).then_some(removed)
            };
            self.run_at_owner(Some(CommandClass::Delete), key, (&op, None), run).await
        })
    }

    fn count<'a>(&'a self, key: &'a [u8], op: Count<'static>) -> ItemFuture<'a, ArithmeticOutcome> {
        Box::pin(async move {
            let run = |cx: &mut OpContext<'_, erased::Handle>, key: HashedKey<'_>| {
                let counted = cx.count(key, &op);
                (counted != ArithmeticOutcome::Pending).then_some(counted)
            };
            self.run_at_owner(Some(CommandClass::Count), key, (&op, None), run).await
        })
    }

    fn expire<'a>(&'a self, key: &'a [u8], expiry: Expiry) -> ItemFuture<'a, ExpireOutcome> {
        let op = Expire { expiry, ..Expire::default() };
        Box::pin(async move {
            let run = |cx: &mut OpContext<'_, erased::Handle>, key: HashedKey<'_>| {
                let expired = cx.expire(key, &op);
                (expired != ExpireOutcome::Pending).then_some(expired)
            };
            self.run_at_owner(Some(CommandClass::Touch), key, (&Touch(expiry), None), run).await
        })
    }

    fn page<'a>(&'a self, position: u64, items: usize) -> ItemFuture<'a, Option<Page>> {
        Box::pin(self.walk(position, items))
    }

    fn tags(&self, names: &[Vec<u8>]) -> Result<Tags, Refusal> {
        self.with_context(|cx| cx.tags(names.iter().map(Vec::as_slice)))
    }

    fn drop_tag(&self, name: &[u8]) -> Option<bool> {
        self.with_context(|cx| cx.engine.has_tags().then(|| cx.drop_tag(name)))
    }

    fn flush(&self, at: Expiry) -> ItemFuture<'_, ()> {
        self.counters.thread.cmd_flush.add(1);
        Box::pin(async move {
            let _active = CountGuard::new(&self.active, 1);
            let mut flushed = Vec::new();
            loop {
                // The shard map may list further groups by now: a group with a newer map returns
                // the flush until this node has read that map.
                let mut groups = self.view.groups();
                groups.retain(|group| !flushed.contains(group));
                if groups.is_empty() {
                    return;
                }
                let results = join_all(groups.iter().map(|group| self.flush_group(*group, at)));
                if let Some(reason) = results.await.into_iter().find_map(Result::err) {
                    abort_request(reason).await
                }
                flushed.extend(groups);
            }
        })
    }

    fn upload_len_min(&self) -> usize {
        self.with_engine(|engine| engine.upload_len_min())
    }

    fn start_upload(&self, key: &[u8], len: usize) -> Result<Upload, Refusal> {
        let held = self.hold(&self.uploading, len).ok_or(Refusal::OutOfMemory)?;
        let value = if self.is_local(Some(key), false) {
            UploadTarget::Local(self.with_context(|cx| cx.engine.upload(len))?)
        } else {
            // The capacity uses no memory yet: the system allocates a page of the buffer when the
            // page is first written.
            UploadTarget::Remote(Vec::with_capacity(len))
        };
        Ok(Box::new(PendingUpload { value, _held: held }))
    }

    fn lacks_memory(&self) -> bool {
        self.with_engine(|engine| engine.excess_memory().uploaded > 0)
    }

    fn extend(&self, upload: &mut Upload, bytes: &[u8]) -> Result<(), Refusal> {
        let received: &mut PendingUpload =
            upload.downcast_mut().expect("uploads are made by `start_upload`");
        match &mut received.value {
            UploadTarget::Local(upload) => self.with_context(|cx| cx.engine.extend(upload, bytes)),
            UploadTarget::Remote(value) => {
                value.extend_from_slice(bytes);
                Ok(())
            }
        }
    }
}
