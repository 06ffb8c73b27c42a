//! The gateway's handle to the cache, and how operations use it.
//!
//! The handle belongs to the gateway's thread. It is made for a request and dropped about a second after
//! the last one, so that a gateway that nobody uses holds no memory of the cache and is never woken.

use crate::ended::{self, Ended};
use crate::items::{Answer, Found, Items, Listed, Looked, Page, Upload};
use crate::server_view::ServerView;
use bytes::Bytes;
use larder_operations::{
    AnsweredCounts, ArithmeticOutcome, CommandClass, Count, Counters, Expire, Expired, ItemView,
    Look, OpContext, Remove, Removed, Store, Stored, Tags,
};
use larder_store::cache::Cache;
use larder_store::{
    Access, Acknowledged, Begun, Delivery, Engine, Expiry, HashedKey, Lease, Lookup, Refusal,
    Value, WalkPlace, WalkState, Wanted,
};
use std::any::Any;
use std::cell::RefCell;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};
use tokio::task::yield_now;
use tokio::time::sleep;

/// A handle that was not used for so long is dropped.
const IDLE: Duration = Duration::from_secs(1);
/// About how many items are looked at in one step of a walk.
const ITEMS_PER_STEP: usize = 256;
/// Large values that are being sent may hold this share of memory, and those that are being received, too:
/// what slow peers hold is missing for the clients of other protocols.
const HELD_SHARE: u64 = 16;

thread_local! {
    /// The [`Worker`] of the gateway's thread, while there is one.
    static WORKER: RefCell<Option<Box<dyn Any>>> = const { RefCell::new(None) };
}

struct Worker<E> {
    engine: E,
    /// When it was last used.
    used: Instant,
}

/// The items of a cache.
pub(crate) struct CacheItems<C> {
    cache: C,
    view: Arc<dyn ServerView>,
    counters: Arc<Counters>,
    /// The requests that are under way.
    active: Arc<AtomicUsize>,
    /// Bytes of large values that are being sent.
    leased: Arc<AtomicUsize>,
    /// Bytes of large values that are being received.
    uploading: Arc<AtomicUsize>,
}

impl<C: Cache> CacheItems<C> {
    pub(crate) fn new(cache: C, view: Arc<dyn ServerView>, counters: Arc<Counters>) -> Self {
        let (active, leased, uploading) = Default::default();
        Self { cache, view, counters, active, leased, uploading }
    }

    /// Works with the handle of this thread, which is made if there is none.
    fn with_engine<R>(&self, work: impl FnOnce(&mut C::Engine) -> R) -> R {
        WORKER.with_borrow_mut(|place| {
            if place.is_none() {
                let active = Arc::clone(&self.active);
                tokio::spawn(attend::<C::Engine>(Arc::clone(&self.view), active));
            }
            let worker = place.get_or_insert_with(|| {
                Box::new(Worker { engine: self.cache.engine(), used: Instant::now() })
            });
            let worker: &mut Worker<C::Engine> =
                worker.downcast_mut().expect("a gateway has one cache");
            worker.used = Instant::now();
            work(&mut worker.engine)
        })
    }

    /// Works within a batch of its own.
    fn with_context<R>(&self, work: impl FnOnce(&mut OpContext<'_, C::Engine>) -> R) -> R {
        self.with_engine(|engine| {
            let (view, now) = (&*self.view, self.view.now());
            engine.begin_batch(now);
            let mut cx = OpContext::new(engine, &self.counters, view.limits(), now);
            cx.observer = view.observer();
            let result = work(&mut cx);
            engine.end_batch();
            result
        })
    }

    /// Whether the request that is answered ends, because another server answers such requests, or those for this key
    /// (for all keys, if none is given). It is to be asked within a batch: a leader that is replaced follows only when
    /// the batch has ended.
    fn ends(&self, key: Option<&[u8]>, is_look_up: bool) -> bool {
        let is_here = self.view.answers(is_look_up) && self.view.has(key);
        !is_here && ended::note(Ended::Moved)
    }

    /// Repeats an operation on one key until it does not wait for slower storage, and then waits until its
    /// change is acknowledged where it has to be. `run` returns `None` for an outcome that is pending. A request
    /// of a `class` is timed.
    async fn until_done<R: Send>(
        &self,
        class: impl Into<Option<CommandClass>>,
        key: &[u8],
        mut run: impl FnMut(&mut OpContext<'_, C::Engine>, HashedKey<'_>) -> Option<R> + Send,
    ) -> R {
        let (class, begun) = (class.into(), Instant::now());
        let is_look_up = matches!(class, None | Some(CommandClass::Get));
        let _active = Held::new(&self.active, 1);
        let mut fetches = Vec::new();
        let (result, position) = poll_fn(|task| {
            loop {
                let attempt = |cx: &mut OpContext<'_, C::Engine>| {
                    if self.ends(Some(key), is_look_up) {
                        return Attempt::Waits;
                    }
                    attempt(cx, key, task.waker(), &mut fetches, &mut run)
                };
                match self.with_context(attempt) {
                    Attempt::Done(result, position) => return Poll::Ready((result, position)),
                    Attempt::Again => (),
                    Attempt::Waits => return Poll::Pending,
                }
            }
        })
        .await;
        if let Some(position) = position {
            let acknowledged = poll_fn(move |task| {
                let is_acknowledged =
                    |engine: &mut C::Engine| engine.is_acknowledged(&position, task.waker());
                match self.with_engine(is_acknowledged) {
                    Acknowledged::NotYet => Poll::Pending,
                    state => Poll::Ready(state),
                }
            });
            if acknowledged.await == Acknowledged::Never {
                ended::note(Ended::Lost);
            }
        }
        if let Some(class) = class {
            let mut answered = AnsweredCounts::default();
            answered.add(class, 1);
            self.counters.latencies.record(&answered, begun.elapsed());
        }
        result
    }

    /// Looks at items step by step, with a batch for each, so that memory can be used again in between.
    async fn walk(&self, place: u64, items: usize) -> Option<Page> {
        let _active = Held::new(&self.active, 1);
        let mut walk = self.with_engine(|engine| engine.walk_from(place));
        let (mut found, mut left) = (Vec::new(), items);
        loop {
            let state = poll_fn(|task| {
                let state = self.with_context(|cx| {
                    let (now, mut seen) = (cx.now, 0);
                    let step = left.min(ITEMS_PER_STEP);
                    let state = cx.engine.walk_on(&mut walk, step, task.waker(), |key, item| {
                        seen += 1;
                        let ttl = item.attributes.expiry.left(now);
                        found.push(Listed { key: key.to_vec(), value_len: item.value.len(), ttl });
                    });
                    // Steps through an empty index count, too.
                    left = left.saturating_sub(seen.max(1));
                    state
                });
                if state == WalkState::Waiting { Poll::Pending } else { Poll::Ready(state) }
            })
            .await;
            if state == WalkState::End {
                return Some(Page { items: found, next: None });
            }
            if left == 0 {
                match self.with_engine(|engine| engine.walk_place(&walk)) {
                    WalkPlace::At(next) => return Some(Page { items: found, next: Some(next) }),
                    WalkPlace::Unsettled => (),
                    WalkPlace::Nowhere => return None,
                }
            }
            yield_now().await;
        }
    }

    /// Counts memory that values hold on their way; `None` if others hold too much. One value may always be on
    /// its way, however small the memory.
    fn hold(&self, count: &Arc<AtomicUsize>, len: usize) -> Option<Held> {
        let max = self.view.memory_limit() / HELD_SHARE;
        let before = count.load(Ordering::Relaxed);
        let fits = before == 0 || (before + len) as u64 <= max;
        fits.then(|| Held::new(count, len))
    }

    /// An item as it is shown; `None` if too much is being sent already.
    fn found(&self, item: &ItemView<'_, <C::Engine as Engine>::Lease>) -> Option<Found> {
        let value = match item.value {
            Value::Whole(bytes) => vec![Bytes::copy_from_slice(bytes)],
            Value::Large(lease) => {
                let held = self.hold(&self.leased, lease.len()).filter(|_| lease.may_be_kept())?;
                pieces(lease, &Arc::new(held))
            }
        };
        let ttl = item.expiry.left(self.view.now());
        Some(Found { value, cas: item.cas, client_flags: item.attributes.client_flags, ttl })
    }
}

/// What an attempt came to.
enum Attempt<R, P> {
    /// The result, and the position of the change, which has to be acknowledged.
    Done(R, Option<P>),
    /// It can be repeated at once.
    Again,
    /// It can be repeated when the waker is called.
    Waits,
}

fn attempt<E: Engine, R>(
    cx: &mut OpContext<'_, E>,
    key: &[u8],
    waker: &Waker,
    fetches: &mut Vec<E::Fetch>,
    run: &mut impl FnMut(&mut OpContext<'_, E>, HashedKey<'_>) -> Option<R>,
) -> Attempt<R, E::Position> {
    let key = HashedKey { bytes: key, hash: cx.engine.hash(key) };
    let mut waits = false;
    fetches.retain(|fetch| {
        let delivery = cx.engine.deliver(fetch);
        waits |= delivery == Delivery::UnderWay;
        delivery != Delivery::Gone
    });
    if waits {
        return Attempt::Waits;
    }
    if let Some(result) = run(cx, key) {
        cx.sample(key);
        return Attempt::Done(result, cx.engine.ack_position());
    }
    let wanted = Wanted { hash: key.hash, is_ahead: false };
    let begun = cx.engine.fetch(wanted, waker, fetches);
    cx.engine.submit();
    if begun == Begun::Nothing { Attempt::Again } else { Attempt::Waits }
}

/// Maintains the handle of this thread once a second, and drops it when it is idle.
async fn attend<E: Engine + 'static>(view: Arc<dyn ServerView>, active: Arc<AtomicUsize>) {
    loop {
        sleep(IDLE).await;
        let is_dropped = WORKER.with_borrow_mut(|place| {
            let worker = place.as_mut().and_then(|worker| worker.downcast_mut::<Worker<E>>());
            let Some(worker) = worker else { return true };
            if active.load(Ordering::Relaxed) == 0 && worker.used.elapsed() >= IDLE {
                *place = None;
                return true;
            }
            worker.engine.maintain(view.now().secs);
            false
        });
        if is_dropped {
            return;
        }
    }
}

/// Drops the handle of this thread, which must not outlive what its engine keeps for the thread.
pub(crate) fn uninstall() {
    WORKER.take();
}

/// A count that is lowered again when this is dropped.
struct Held {
    count: Arc<AtomicUsize>,
    by: usize,
}

impl Held {
    fn new(count: &Arc<AtomicUsize>, by: usize) -> Self {
        count.fetch_add(by, Ordering::Relaxed);
        Self { count: Arc::clone(count), by }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.count.fetch_sub(self.by, Ordering::Relaxed);
    }
}

/// A value that is being received.
struct HeldUpload<C: Cache> {
    upload: <C::Engine as Engine>::Upload,
    _held: Held,
}

/// A part of a large value that is contiguous in memory.
struct Piece<L> {
    lease: L,
    offset: usize,
    _held: Arc<Held>,
}

impl<L: Lease> AsRef<[u8]> for Piece<L> {
    fn as_ref(&self) -> &[u8] {
        self.lease.piece(self.offset)
    }
}

fn pieces<L: Lease + Send + 'static>(lease: &L, held: &Arc<Held>) -> Vec<Bytes> {
    let mut pieces = Vec::new();
    let mut offset = 0;
    while offset < lease.len() {
        let piece = Piece { lease: lease.clone(), offset, _held: Arc::clone(held) };
        let bytes = Bytes::from_owner(piece);
        offset += bytes.len();
        pieces.push(bytes);
    }
    pieces
}

impl<C: Cache> Items for CacheItems<C> {
    fn get<'a>(&'a self, key: &'a [u8], access: Access) -> Answer<'a, Looked> {
        let op = Look { untracked: access == Access::Untracked, ..Look::default() };
        Box::pin(self.until_done(CommandClass::Get, key, move |cx, key| {
            match cx.look(key, &op, false, |item| self.found(item)) {
                Ok(Lookup::Pending) => None,
                Ok(Lookup::Hit(Some(found))) => Some(Looked::Found(found)),
                Ok(Lookup::Hit(None)) => Some(Looked::Busy),
                Ok(_) => Some(Looked::Missing),
                Err(_) => Some(Looked::OutOfMemory),
            }
        }))
    }

    fn has<'a>(&'a self, key: &'a [u8]) -> Answer<'a, bool> {
        Box::pin(self.until_done(None, key, |cx, key| {
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
    ) -> Answer<'a, Stored> {
        let upload = upload.map(|upload| upload.downcast::<HeldUpload<C>>());
        let upload = upload.map(|upload| upload.expect("it was begun here"));
        let (mut upload, held) = match upload.map(|upload| *upload) {
            Some(HeldUpload { upload, _held }) => (Some(upload), Some(_held)),
            None => (None, None),
        };
        Box::pin(self.until_done(CommandClass::Store, key, move |cx, key| {
            let _held = &held;
            let stored = cx.store(key, &op, &mut upload);
            (stored != Stored::Pending).then_some(stored)
        }))
    }

    fn remove<'a>(&'a self, key: &'a [u8], op: Remove) -> Answer<'a, Removed> {
        Box::pin(self.until_done(CommandClass::Delete, key, move |cx, key| {
            let removed = cx.remove(key, &op);
            (removed != Removed::Pending).then_some(removed)
        }))
    }

    fn count<'a>(&'a self, key: &'a [u8], op: Count<'static>) -> Answer<'a, ArithmeticOutcome> {
        Box::pin(self.until_done(CommandClass::Count, key, move |cx, key| {
            let counted = cx.count(key, &op);
            (counted != ArithmeticOutcome::Pending).then_some(counted)
        }))
    }

    fn expire<'a>(&'a self, key: &'a [u8], op: Expire) -> Answer<'a, Expired> {
        Box::pin(self.until_done(CommandClass::Touch, key, move |cx, key| {
            let expired = cx.expire(key, &op);
            (expired != Expired::Pending).then_some(expired)
        }))
    }

    fn page<'a>(&'a self, place: u64, items: usize) -> Answer<'a, Option<Page>> {
        Box::pin(self.walk(place, items))
    }

    fn tags(&self, names: &[Vec<u8>]) -> Result<Tags, Refusal> {
        self.with_context(|cx| cx.tags(names.iter().map(Vec::as_slice)))
    }

    fn drop_tag(&self, name: &[u8]) -> Option<bool> {
        self.with_context(|cx| {
            let is_done = !self.ends(None, false) && cx.engine.has_tags();
            is_done.then(|| cx.drop_tag(name))
        })
    }

    fn flush(&self, at: Expiry) {
        self.counters.thread.cmd_flush.add(1);
        self.with_context(|cx| {
            if !self.ends(None, false) {
                cx.flush(at);
            }
        });
    }

    fn upload_len_min(&self) -> usize {
        self.with_engine(|engine| engine.upload_len_min())
    }

    fn begin_upload(&self, len: usize) -> Result<Upload, Refusal> {
        let held = self.hold(&self.uploading, len).ok_or(Refusal::OutOfMemory)?;
        let upload = self.with_context(|cx| cx.engine.upload(len))?;
        Ok(Box::new(HeldUpload::<C> { upload, _held: held }))
    }

    fn lacks_memory(&self) -> bool {
        self.with_engine(|engine| engine.overheld().uploaded > 0)
    }

    fn extend(&self, upload: &mut Upload, bytes: &[u8]) -> Result<(), Refusal> {
        let upload: &mut HeldUpload<C> = upload.downcast_mut().expect("it was begun here");
        self.with_context(|cx| cx.engine.extend(&mut upload.upload, bytes))
    }
}
