//! The gateway's handle to the cache, and how operations use it.
//!
//! The handle belongs to the gateway's thread. It is made for a request and dropped about a second after
//! the last one, so that a gateway that nobody uses holds no memory of the cache and is never woken.

use crate::elsewhere::{self, Get, Has, Meaning, Remote, Touch};
use crate::ended::{self, Ended};
use crate::items::{Answer, Found, Items, Listed, Looked, Page, Upload};
use crate::server_view::{Asked, Group, ServerView};
use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::task::AtomicWaker;
use larder_operations::{
    AnsweredCounts, ArithmeticOutcome, CommandClass, Count, Counters, Expire, Expired, ItemView,
    Look, OpContext, Remove, Removed, Store, Stored, Tags,
};
use larder_protocol::encode::{MetaKey, VALUE_END};
use larder_store::cache::Cache;
use larder_store::{
    Access, Acknowledged, Begun, Delivery, Engine, Expiry, HashedKey, Lease, Lookup, Refusal,
    Value, WalkPlace, WalkState, Wanted,
};
use std::any::Any;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::future::{pending, poll_fn};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Wake, Waker};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

/// A handle that was not used for so long is dropped.
const IDLE: Duration = Duration::from_secs(1);
/// About how many items are looked at in one step of a walk.
const ITEMS_PER_STEP: usize = 256;
/// Large values that are being sent may hold this share of memory, and those that are being received, too:
/// what slow peers hold is missing for the clients of other protocols.
const HELD_SHARE: u64 = 16;
/// For how long a request is sent again that was not carried out where its item was thought to be.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// How long a request waits until fewer than [`ASKED_MAX`] are under way to its group.
const QUEUE_MAX: Duration = Duration::from_secs(5);
/// How many requests are under way to a group at the same time.
const ASKED_MAX: usize = 64;
/// How soon a request is sent again to a server that did not answer for its item.
const AGAIN: Duration = Duration::from_millis(20);
/// How many bytes of a value are sent to another server at once.
const PIECE_LEN: usize = 256 << 10;

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
    /// For each group how many requests more may be under way to it.
    asking: Mutex<BTreeMap<u16, Arc<Semaphore>>>,
}

impl<C: Cache> CacheItems<C> {
    pub(crate) fn new(cache: C, view: Arc<dyn ServerView>, counters: Arc<Counters>) -> Self {
        let (active, leased, uploading, asking) = Default::default();
        Self { cache, view, counters, active, leased, uploading, asking }
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

    /// Whether this server answers a request about the item of a key, or without one about all items of its group. It is
    /// to be asked within a batch: a leader that is replaced follows only when the batch has ended.
    fn is_here(&self, key: Option<&[u8]>, looks_up: bool) -> bool {
        // In this order: who leads has read which group has which keys before it answers.
        self.view.answers(looks_up) && key.is_none_or(|key| self.view.group_of(key) == Group::OWN)
    }

    /// Does an operation where its item is: here by `run`, which returns `None` for an outcome that is pending.
    /// `may_be_old`: a copy of this server's is good enough for a look-up. `received`: the value of a store, if it is not
    /// in `op`. A request of a `class` is timed.
    async fn try_wherever<O: Remote>(
        &self,
        (class, may_be_old): (Option<CommandClass>, bool),
        key: &[u8],
        (op, received): (&O, Option<&[u8]>),
        mut run: impl FnMut(&mut OpContext<'_, C::Engine>, HashedKey<'_>) -> Option<O::Outcome> + Send,
    ) -> Result<O::Outcome, NotDone> {
        let begun = Instant::now();
        let _active = Held::new(&self.active, 1);
        let is_here = || self.is_here(Some(key), O::LOOKS_UP && may_be_old);
        // Since when nobody has answered.
        let mut waits_since = None;
        let outcome = loop {
            if is_here() {
                match self.until_done(Some(key), O::LOOKS_UP, is_here, &mut run).await {
                    Some(outcome) => break outcome,
                    None => continue,
                }
            }
            let wire_key = MetaKey::new(key).map_err(|_| NotDone::Elsewhere)?;
            let mut head = Vec::new();
            op.write(wire_key, received.map(<[u8]>::len), self.view.now(), &mut head);
            let asked = self.ask(self.view.group_of(key), &head, received).await;
            let may_repeat = waits_since.get_or_insert_with(Instant::now).elapsed() < WAIT_MAX;
            let asked = match asked {
                Told::Reply(reply) => match elsewhere::meaning(op, &reply) {
                    Meaning::Outcome(outcome) => break outcome,
                    Meaning::NoLeader => {
                        sleep(AGAIN).await;
                        Told::Again
                    }
                    Meaning::Unknown => Told::Lost,
                },
                asked => asked,
            };
            match asked {
                Told::Again if may_repeat => (),
                Told::Lost if O::LOOKS_UP && may_repeat => (),
                Told::Lost if !O::LOOKS_UP => return end(Ended::Lost).await,
                Told::Busy => return Err(NotDone::Busy),
                Told::Again | Told::Lost | Told::Nobody | Told::Reply(_) => {
                    return Err(NotDone::Elsewhere);
                }
            }
        };
        self.record(class, begun);
        Ok(outcome)
    }

    /// The same; the request ends if nobody answers.
    async fn wherever<O: Remote>(
        &self,
        class: Option<CommandClass>,
        key: &[u8],
        what: (&O, Option<&[u8]>),
        run: impl FnMut(&mut OpContext<'_, C::Engine>, HashedKey<'_>) -> Option<O::Outcome> + Send,
    ) -> O::Outcome {
        match self.try_wherever((class, true), key, what, run).await {
            Ok(outcome) => outcome,
            Err(_) => end(Ended::Moved).await,
        }
    }

    /// Records how long a request has taken.
    fn record(&self, class: Option<CommandClass>, begun: Instant) {
        if let Some(class) = class {
            let mut answered = AnsweredCounts::default();
            answered.add(class, 1);
            self.counters.latencies.record(&answered, begun.elapsed());
        }
    }

    /// Repeats an operation of this server's until it does not wait for slower storage, and then waits until its change
    /// is acknowledged where it has to be. `None` if it `is_here` no more. What a look-up has found is right also if it
    /// has removed an expired item and nobody acknowledges that.
    async fn until_done<R: Send>(
        &self,
        key: Option<&[u8]>,
        looks_up: bool,
        is_here: impl Fn() -> bool + Send,
        mut run: impl FnMut(&mut OpContext<'_, C::Engine>, HashedKey<'_>) -> Option<R> + Send,
    ) -> Option<R> {
        let mut fetches = Vec::new();
        let attempted = poll_fn(|task| {
            loop {
                let attempt = |cx: &mut OpContext<'_, C::Engine>| {
                    if !is_here() {
                        return Attempt::Elsewhere;
                    }
                    attempt(cx, key, task.waker(), &mut fetches, &mut run)
                };
                match self.with_context(attempt) {
                    Attempt::Done(result, position) => {
                        return Poll::Ready(Some((result, position)));
                    }
                    Attempt::Again => (),
                    Attempt::Waits => return Poll::Pending,
                    Attempt::Elsewhere => return Poll::Ready(None),
                }
            }
        });
        let (result, position) = attempted.await?;
        if let Some(position) = position {
            let acknowledged = poll_fn(move |task| {
                let is_acknowledged =
                    |engine: &mut C::Engine| engine.is_acknowledged(&position, task.waker());
                match self.with_engine(is_acknowledged) {
                    Acknowledged::NotYet => Poll::Pending,
                    state => Poll::Ready(state),
                }
            });
            if acknowledged.await == Acknowledged::Never && !looks_up {
                return end(Ended::Lost).await;
            }
        }
        Some(result)
    }

    /// Sends a request to the server that answers for a group, with the value behind it if there is one, and waits for
    /// the reply.
    async fn ask(&self, group: Group, head: &[u8], value: Option<&[u8]>) -> Told {
        let asking = {
            let mut asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
            let new = || Arc::new(Semaphore::new(ASKED_MAX));
            Arc::clone(asking.entry(group.0).or_insert_with(new))
        };
        // That server keeps answers until they are taken, and this one the replies until they are whole.
        let Ok(Ok(_permit)) = timeout(QUEUE_MAX, asking.acquire()).await else {
            return Told::Nobody;
        };
        let relay = Arc::new(Relay::default());
        let waker = Waker::from(Arc::clone(&relay));
        let (mut way, mut reply, mut held) = (self.view.open(group), Vec::new(), None);
        let mut unsent = value_pieces(value);
        // Whoever has sent something is told if this server leads from here on; whoever waits for room is not.
        way.send(head, value.is_some(), &waker);
        loop {
            let next = poll_fn(|task| {
                relay.0.register(task.waker());
                match way.take(&mut reply) {
                    Asked::Waiting if unsent.is_empty() => Poll::Pending,
                    Asked::Waiting if way.has_room(&waker) => Poll::Ready(Asked::Waiting),
                    Asked::Waiting => Poll::Pending,
                    asked => Poll::Ready(asked),
                }
            });
            match next.await {
                Asked::Waiting => {
                    if let Some(piece) = unsent.pop_front() {
                        way.send(piece, !unsent.is_empty(), &waker);
                    }
                }
                Asked::More => {
                    let len = elsewhere::reply_len(&reply);
                    if held.is_none() {
                        held = self.hold(&self.leased, len);
                        if held.is_none() {
                            return Told::Busy;
                        }
                        reply.reserve_exact(len.saturating_sub(reply.len()));
                    }
                    way.go_on();
                }
                Asked::Answered => {
                    if held.is_none() && reply.len() >= self.upload_len_min() {
                        held = self.hold(&self.leased, reply.len());
                        if held.is_none() {
                            return Told::Busy;
                        }
                    }
                    return Told::Reply(Bytes::from_owner(Reply { bytes: reply, _held: held }));
                }
                Asked::Again => return Told::Again,
                // Nothing is done with a part of a value.
                Asked::Lost if !unsent.is_empty() => return Told::Again,
                Asked::Lost => return Told::Lost,
                Asked::Nobody => return Told::Nobody,
            }
        }
    }

    /// Has the servers of a group remove all items.
    async fn flush_group(&self, group: Group, at: Expiry) -> Result<(), Ended> {
        let (begun, mut is_unknown) = (Instant::now(), false);
        loop {
            let is_here = || group == Group::OWN && self.is_here(None, false);
            if is_here() {
                let flush = |cx: &mut OpContext<'_, C::Engine>, _: HashedKey<'_>| {
                    cx.flush(at);
                    Some(())
                };
                match self.until_done(None, false, is_here, flush).await {
                    Some(()) => return Ok(()),
                    None => continue,
                }
            }
            let request = elsewhere::flush(at, self.view.now());
            let asked = self.ask(group, &request, None).await;
            match &asked {
                Told::Reply(reply) if elsewhere::has_flushed(reply) => return Ok(()),
                // It may be carried out twice.
                Told::Again | Told::Lost if begun.elapsed() < WAIT_MAX => {
                    is_unknown |= matches!(asked, Told::Lost);
                }
                Told::Lost => return Err(Ended::Lost),
                _ if is_unknown => return Err(Ended::Lost),
                Told::Reply(_) | Told::Again | Told::Nobody | Told::Busy => {
                    return Err(Ended::Moved);
                }
            }
        }
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
    /// Another server answers it.
    Elsewhere,
}

/// Why an operation was not done.
enum NotDone {
    /// Another server has the item, and does not answer, or can't be asked for such a key.
    Elsewhere,
    /// Too many large values are being sent already.
    Busy,
}

/// What has become of a request to another server.
enum Told {
    /// Its whole reply.
    Reply(Bytes),
    /// The reply is so long that it is not taken while others are being sent.
    Busy,
    Again,
    Lost,
    Nobody,
}

/// A value as it is sent to another server, behind its line.
fn value_pieces(value: Option<&[u8]>) -> VecDeque<&[u8]> {
    let Some(value) = value else { return VecDeque::new() };
    value.chunks(PIECE_LEN).chain([VALUE_END]).collect()
}

/// Ends the request that is answered.
async fn end<R>(ended: Ended) -> R {
    let is_watched = ended::note(ended);
    debug_assert!(is_watched, "who watches the request drops this");
    pending().await
}

/// Wakes the task that waits now, whichever that is.
#[derive(Default)]
struct Relay(AtomicWaker);

impl Wake for Relay {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }
}

/// The reply of another server, with its memory if that is counted.
struct Reply {
    bytes: Vec<u8>,
    _held: Option<Held>,
}

impl AsRef<[u8]> for Reply {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Attempts an operation, which is about the item of a key if there is one.
fn attempt<E: Engine, R>(
    cx: &mut OpContext<'_, E>,
    bytes: Option<&[u8]>,
    waker: &Waker,
    fetches: &mut Vec<E::Fetch>,
    run: &mut impl FnMut(&mut OpContext<'_, E>, HashedKey<'_>) -> Option<R>,
) -> Attempt<R, E::Position> {
    let key = bytes.unwrap_or_default();
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
        if bytes.is_some() {
            cx.sample(key);
        }
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

/// A value that is being received, with its memory.
struct Receiving<C: Cache> {
    value: Received<<C::Engine as Engine>::Upload>,
    _held: Held,
}

enum Received<U> {
    /// Into this server's cache.
    Here(U),
    /// For another server.
    Elsewhere(Vec<u8>),
}

/// Has a value of another server's taken into this one's cache.
fn uploaded<E: Engine>(engine: &mut E, value: &[u8]) -> Result<E::Upload, Refusal> {
    let mut upload = engine.upload(value.len())?;
    value.chunks(PIECE_LEN).try_for_each(|piece| engine.extend(&mut upload, piece))?;
    Ok(upload)
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
    fn get<'a>(&'a self, key: &'a [u8], may_be_old: bool) -> Answer<'a, Looked> {
        let look = Look::default();
        Box::pin(async move {
            let run = |cx: &mut OpContext<'_, C::Engine>, key: HashedKey<'_>| match cx.look(
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
    ) -> Answer<'a, Stored> {
        let received = upload.map(|upload| upload.downcast::<Receiving<C>>());
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
            let run = |cx: &mut OpContext<'_, C::Engine>, key: HashedKey<'_>| {
                if let Some(value) = elsewhere.as_ref().filter(|_| upload.is_none()) {
                    match uploaded(cx.engine, value) {
                        Ok(received) => upload = Some(received),
                        Err(Refusal::TooLarge) => return Some(Stored::TooLarge),
                        Err(_) => return Some(Stored::OutOfMemory),
                    }
                }
                let stored = cx.store(key, &op, &mut upload);
                (stored != Stored::Pending).then_some(stored)
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

    fn remove<'a>(&'a self, key: &'a [u8], op: Remove) -> Answer<'a, Removed> {
        Box::pin(async move {
            let run = |cx: &mut OpContext<'_, C::Engine>, key: HashedKey<'_>| {
                let removed = cx.remove(key, &op);
                (removed != Removed::Pending).then_some(removed)
            };
            self.wherever(Some(CommandClass::Delete), key, (&op, None), run).await
        })
    }

    fn count<'a>(&'a self, key: &'a [u8], op: Count<'static>) -> Answer<'a, ArithmeticOutcome> {
        Box::pin(async move {
            let run = |cx: &mut OpContext<'_, C::Engine>, key: HashedKey<'_>| {
                let counted = cx.count(key, &op);
                (counted != ArithmeticOutcome::Pending).then_some(counted)
            };
            self.wherever(Some(CommandClass::Count), key, (&op, None), run).await
        })
    }

    fn expire<'a>(&'a self, key: &'a [u8], expiry: Expiry) -> Answer<'a, Expired> {
        let op = Expire { expiry, ..Expire::default() };
        Box::pin(async move {
            let run = |cx: &mut OpContext<'_, C::Engine>, key: HashedKey<'_>| {
                let expired = cx.expire(key, &op);
                (expired != Expired::Pending).then_some(expired)
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
        Ok(Box::new(Receiving::<C> { value, _held: held }))
    }

    fn lacks_memory(&self) -> bool {
        self.with_engine(|engine| engine.overheld().uploaded > 0)
    }

    fn extend(&self, upload: &mut Upload, bytes: &[u8]) -> Result<(), Refusal> {
        let received: &mut Receiving<C> = upload.downcast_mut().expect("it was begun here");
        match &mut received.value {
            Received::Here(upload) => self.with_context(|cx| cx.engine.extend(upload, bytes)),
            Received::Elsewhere(value) => {
                value.extend_from_slice(bytes);
                Ok(())
            }
        }
    }
}
