//! The items of a cache, as the interfaces use them.

use super::CacheItems;
use super::forwarding::{NotDone, end};
use super::memory::{Held, PIECE_LEN};
use crate::abort::Ended;
use crate::items::{Answer, Items, Looked, Page, Upload};
use crate::remote::{Get, Has, Touch};
use futures_util::future::join_all;
use larder_operations::{
    ArithmeticOutcome, CommandClass, Count, Expire, ExpireOutcome, LookupOptions, OpContext,
    Remove, RemoveOutcome, Store, StoreOutcome, Tags,
};
use larder_store::erased;
use larder_store::{Access, Expiry, HashedKey, Lookup, Lookups, Refusal, Updates, Uploads};
use std::time::Instant;

/// A value that is being received, with its memory.
struct Receiving {
    value: Received<erased::Upload>,
    _held: Held,
}

enum Received<U> {
    /// Into this server's cache.
    Here(U),
    /// For another server.
    Elsewhere(Vec<u8>),
}

/// Has a value of another server's taken into this one's cache.
fn uploaded(engine: &mut erased::Handle, value: &[u8]) -> Result<erased::Upload, Refusal> {
    let mut upload = engine.upload(value.len())?;
    value.chunks(PIECE_LEN).try_for_each(|piece| engine.extend(&mut upload, piece))?;
    Ok(upload)
}

impl Items for CacheItems {
    fn get<'a>(&'a self, key: &'a [u8], may_be_old: bool) -> Answer<'a, Looked> {
        let look = LookupOptions::default();
        Box::pin(async move {
            let run = |cx: &mut OpContext<'_, erased::Handle>, key: HashedKey<'_>| match cx.look_up(
                key,
                &look,
                false,
                |item| self.found(item),
            ) {
                Ok(Lookup::Pending) => None,
                Ok(Lookup::Hit(Some(found))) => Some(Looked::Found(found)),
                Ok(Lookup::Hit(None)) => Some(Looked::Busy),
                Ok(_) => Some(Looked::Missing),
                Err(_) => Some(Looked::OutOfMemory),
            };
            let class = Some(CommandClass::Get);
            match self.try_wherever((class, may_be_old), key, (&Get, None), run).await {
                Ok(looked) => looked,
                Err(NotDone::Busy) => Looked::Busy,
                Err(NotDone::Elsewhere) => Looked::Elsewhere,
            }
        })
    }

    fn has<'a>(&'a self, key: &'a [u8]) -> Answer<'a, bool> {
        Box::pin(self.wherever(None, key, (&Has, None), |cx, key| {
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
    ) -> Answer<'a, StoreOutcome> {
        let received = upload.map(|upload| upload.downcast::<Receiving>());
        let received = received.map(|upload| upload.expect("it was begun here"));
        let (value, held) = match received.map(|received| *received) {
            Some(Receiving { value, _held }) => (Some(value), Some(_held)),
            None => (None, None),
        };
        Box::pin(async move {
            let _held = held;
            let (mut upload, elsewhere) = match value {
                Some(Received::Here(upload)) => (Some(upload), None),
                Some(Received::Elsewhere(bytes)) => (None, Some(bytes)),
                None => (None, None),
            };
            let is_in_cache = upload.is_some();
            let run = |cx: &mut OpContext<'_, erased::Handle>, key: HashedKey<'_>| {
                if let Some(value) = elsewhere.as_ref().filter(|_| upload.is_none()) {
                    match uploaded(cx.engine, value) {
                        Ok(received) => upload = Some(received),
                        Err(Refusal::TooLarge) => return Some(StoreOutcome::TooLarge),
                        Err(_) => return Some(StoreOutcome::OutOfMemory),
                    }
                }
                let stored = cx.store(key, &op, &mut upload);
                (stored != StoreOutcome::Pending).then_some(stored)
            };
            let class = Some(CommandClass::Store);
            if !is_in_cache {
                return self.wherever(class, key, (&op, elsewhere.as_deref()), run).await;
            }
            let (begun, _active) = (Instant::now(), Held::new(&self.active, 1));
            let is_here = || self.is_here(Some(key), false);
            match self.until_done(Some(key), false, is_here, run).await {
                Some(stored) => {
                    self.record(class, begun);
                    stored
                }
                // The value is in this cache, and its item is to be in another.
                None => end(Ended::Moved).await,
            }
        })
    }

    fn remove<'a>(&'a self, key: &'a [u8], op: Remove) -> Answer<'a, RemoveOutcome> {
        Box::pin(async move {
            let run = |cx: &mut OpContext<'_, erased::Handle>, key: HashedKey<'_>| {
                let removed = cx.remove(key, &op);
                (removed != RemoveOutcome::Pending).then_some(removed)
            };
            self.wherever(Some(CommandClass::Delete), key, (&op, None), run).await
        })
    }

    fn count<'a>(&'a self, key: &'a [u8], op: Count<'static>) -> Answer<'a, ArithmeticOutcome> {
        Box::pin(async move {
            let run = |cx: &mut OpContext<'_, erased::Handle>, key: HashedKey<'_>| {
                let counted = cx.count(key, &op);
                (counted != ArithmeticOutcome::Pending).then_some(counted)
            };
            self.wherever(Some(CommandClass::Count), key, (&op, None), run).await
        })
    }

    fn expire<'a>(&'a self, key: &'a [u8], expiry: Expiry) -> Answer<'a, ExpireOutcome> {
        let op = Expire { expiry, ..Expire::default() };
        Box::pin(async move {
            let run = |cx: &mut OpContext<'_, erased::Handle>, key: HashedKey<'_>| {
                let expired = cx.expire(key, &op);
                (expired != ExpireOutcome::Pending).then_some(expired)
            };
            self.wherever(Some(CommandClass::Touch), key, (&Touch(expiry), None), run).await
        })
    }

    fn page<'a>(&'a self, place: u64, items: usize) -> Answer<'a, Option<Page>> {
        Box::pin(self.walk(place, items))
    }

    fn tags(&self, names: &[Vec<u8>]) -> Result<Tags, Refusal> {
        self.with_context(|cx| cx.tags(names.iter().map(Vec::as_slice)))
    }

    fn drop_tag(&self, name: &[u8]) -> Option<bool> {
        self.with_context(|cx| cx.engine.has_tags().then(|| cx.drop_tag(name)))
    }

    fn flush(&self, at: Expiry) -> Answer<'_, ()> {
        self.counters.thread.cmd_flush.add(1);
        Box::pin(async move {
            let _active = Held::new(&self.active, 1);
            let groups = self.view.groups();
            let flushed = join_all(groups.into_iter().map(|group| self.flush_group(group, at)));
            if let Some(ended) = flushed.await.into_iter().find_map(Result::err) {
                end(ended).await
            }
        })
    }

    fn upload_len_min(&self) -> usize {
        self.with_engine(|engine| engine.upload_len_min())
    }

    fn begin_upload(&self, key: &[u8], len: usize) -> Result<Upload, Refusal> {
        let held = self.hold(&self.uploading, len).ok_or(Refusal::OutOfMemory)?;
        let value = if self.is_here(Some(key), false) {
            Received::Here(self.with_context(|cx| cx.engine.upload(len))?)
        } else {
            // Memory that nothing was written to is not there yet.
            Received::Elsewhere(Vec::with_capacity(len))
        };
        Ok(Box::new(Receiving { value, _held: held }))
    }

    fn lacks_memory(&self) -> bool {
        self.with_engine(|engine| engine.overheld().uploaded > 0)
    }

    fn extend(&self, upload: &mut Upload, bytes: &[u8]) -> Result<(), Refusal> {
        let received: &mut Receiving = upload.downcast_mut().expect("it was begun here");
        match &mut received.value {
            Received::Here(upload) => self.with_context(|cx| cx.engine.extend(upload, bytes)),
            Received::Elsewhere(value) => {
                value.extend_from_slice(bytes);
                Ok(())
            }
        }
    }
}
