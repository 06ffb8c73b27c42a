//! A cache of any engine behind one type, so that code which is generic over the engine is compiled
//! once for all engines.
//!
//! A call costs an indirect jump. A lease, an upload, a walk and a read from slower storage each
//! cost an allocation. The server's workers therefore use the default engine directly, and all code
//! off their path uses [`Cache`].

use crate::cache::CacheControl;
use crate::engine::*;
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;

/// A cache of any engine.
#[derive(Clone)]
pub struct Cache(Arc<dyn AnyCache>);

impl Cache {
    /// Hides the engine of `cache`.
    pub fn new(cache: impl crate::cache::Cache) -> Self {
        Self(Arc::new(cache))
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").finish_non_exhaustive()
    }
}

impl crate::cache::Cache for Cache {
    type Engine = Handle;

    fn engine(&self) -> Handle {
        self.0.any_engine()
    }

    fn control(&self) -> &dyn CacheControl {
        self.0.any_control()
    }
}

/// [`crate::cache::Cache`] without its associated type.
trait AnyCache: Send + Sync {
    fn any_engine(&self) -> Handle;
    fn any_control(&self) -> &dyn CacheControl;
}

impl<C: crate::cache::Cache> AnyCache for C {
    fn any_engine(&self) -> Handle {
        Handle(Box::new(self.engine()))
    }

    fn any_control(&self) -> &dyn CacheControl {
        self.control()
    }
}

/// One thread's access to a [`Cache`].
pub struct Handle(Box<dyn AnyEngine>);

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

/// A lease of any engine.
pub struct Lease(Box<dyn AnyLease>);

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("len", &self.0.len()).finish_non_exhaustive()
    }
}

impl Clone for Lease {
    fn clone(&self) -> Self {
        self.0.clone_lease()
    }
}

impl crate::Lease for Lease {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn piece(&self, offset: usize) -> &[u8] {
        self.0.piece(offset)
    }

    fn may_be_kept(&self) -> bool {
        self.0.may_be_kept()
    }
}

/// [`crate::Lease`] without [`Clone`], which needs a size.
trait AnyLease: Send {
    fn clone_lease(&self) -> Lease;
    fn len(&self) -> usize;
    fn piece(&self, offset: usize) -> &[u8];
    fn may_be_kept(&self) -> bool;
}

impl<L: crate::Lease + Send + 'static> AnyLease for L {
    fn clone_lease(&self) -> Lease {
        Lease(Box::new(self.clone()))
    }

    fn len(&self) -> usize {
        crate::Lease::len(self)
    }

    fn piece(&self, offset: usize) -> &[u8] {
        crate::Lease::piece(self, offset)
    }

    fn may_be_kept(&self) -> bool {
        crate::Lease::may_be_kept(self)
    }
}

// The box of an upload contains an `Option<E::Upload>`, which the engine empties when it takes the
// value.
macro_rules! boxed {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        pub struct $name(Box<dyn Any + Send>);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )*};
}

boxed! {
    /// An upload of any engine.
    Upload;
    /// A walk of any engine.
    Walk;
    /// A read of slower storage of any engine.
    PendingRead;
    /// A position for acknowledgements of any engine.
    Position;
}

/// A closure that gets an item, or the reason why there is none, and decides.
type Decide<'d, 'v> = dyn FnMut(Lookup<&Item<'_, Lease>>) -> Change<'v> + 'd;

/// [`Engine`] with its generic functions replaced by references to closures. A closure passes its
/// result to the caller in a captured variable.
trait AnyEngine: Send {
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
    fn tag(&mut self, name: &[u8]) -> Result<Tag, Refusal>;
    fn drop_tag(&mut self, name: &[u8]) -> bool;
    fn has_tags(&self) -> bool;
    fn start_read(
        &mut self,
        wanted: ReadRequest,
        waker: &Waker,
        into: &mut Vec<PendingRead>,
    ) -> ReadStart;
    fn deliver(&mut self, fetch: &PendingRead) -> Delivery;
    fn submit(&mut self);
    #[cfg(unix)]
    fn reads_fd(&mut self) -> Option<std::os::fd::RawFd>;
    fn drive_reads(&mut self);
    fn ack_position(&mut self) -> Option<Position>;
    fn ack_state(&mut self, position: &Position, waker: &Waker) -> AckState;
    fn upload_len_min(&self) -> usize;
    fn upload(&mut self, len: usize) -> Result<Upload, Refusal>;
    fn extend(&mut self, upload: &mut Upload, bytes: &[u8]) -> Result<(), Refusal>;
    fn excess_memory(&self) -> ExcessMemory;
    fn flush(&mut self, at: Option<Seconds>);
    fn flush_generation(&self) -> u64;
    fn maintain(&mut self, now: Seconds) -> bool;
    fn shrink(&mut self) -> bool;
    fn crawl_soon(&mut self);
    fn walk(&self) -> Walk;
    fn walk_from(&self, place: u64) -> Walk;
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

/// The same item, with its lease in a box if it has one.
fn erase<'a, L: crate::Lease + Send + 'static>(item: &Item<'a, L>) -> Item<'a, Lease> {
    let &Item { attributes, cas, fetched, accessed, ref value } = item;
    Item { attributes, cas, fetched, accessed, value: erase_value(value) }
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

/// Calls `update` with the engine's own upload instead of its box.
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

/// The content of a box that this engine has made.
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
        into.extend(begun.into_iter().map(|fetch| PendingRead(Box::new(fetch))));
        result
    }

    fn deliver(&mut self, fetch: &PendingRead) -> Delivery {
        SlowStorage::deliver(self, own(&*fetch.0))
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

    fn shrink(&mut self) -> bool {
        Maintenance::shrink(self)
    }

    fn crawl_soon(&mut self) {
        Maintenance::crawl_soon(self);
    }

    fn walk(&self) -> Walk {
        Walk(Box::new(Walks::walk(self)))
    }

    fn walk_from(&self, place: u64) -> Walk {
        Walk(Box::new(Walks::walk_from(self, place)))
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

/// The invariant by which the result of a closure exists.
const CALLED: &str = "an engine calls the closure of a hit or of an update that it carries out";

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

    fn deliver(&mut self, fetch: &PendingRead) -> Delivery {
        self.0.deliver(fetch)
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

    fn walk_from(&self, place: u64) -> Walk {
        self.0.walk_from(place)
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

    fn shrink(&mut self) -> bool {
        self.0.shrink()
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
