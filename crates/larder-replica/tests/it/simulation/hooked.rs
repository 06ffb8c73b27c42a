//! An engine that calls a hook between its steps. In the hook, the test runs steps of other users
//! of the cache.

use larder_store::cache::{Cache, CacheControl};
use larder_store::layer::{
    DelegateAcknowledge, DelegateMaintenance, DelegateSlowStorage, DelegateUploads,
};
use larder_store::{
    Access, Batches, Change, Content, Engine, HashedKey, Item, Layer, Lookup, Lookups, Now,
    Refusal, Seconds, Updated, Updates, WalkPosition, WalkState, Walks,
};
use std::cell::RefCell;
use std::rc::Rc;
use std::task::Waker;

/// The user of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Writer,
    Sender,
    /// An applier. No steps of other users run between its steps.
    Applier,
}

/// The function that engines call between their steps.
pub(crate) type Hook = Rc<dyn Fn(Role)>;

thread_local! {
    static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
}

/// Sets the hook for all engines on this thread.
pub(crate) fn set_hook(new: Option<Hook>) {
    HOOK.with(|hook| *hook.borrow_mut() = new);
}

fn hook(role: Role) {
    let hook = HOOK.with(|hook| hook.borrow().clone());
    if let Some(hook) = hook {
        hook(role);
    }
}

/// A cache whose handles call the hook.
#[derive(Clone, Debug)]
pub(crate) struct HookedCache<C> {
    pub(crate) cache: C,
    pub(crate) role: Role,
}

#[derive(Debug)]
pub(crate) struct Hooked<E> {
    engine: E,
    role: Role,
}

impl<C: Cache> Cache for HookedCache<C> {
    type Engine = Hooked<C::Engine>;

    fn engine(&self) -> Self::Engine {
        Hooked { engine: self.cache.engine(), role: self.role }
    }

    fn control(&self) -> &dyn CacheControl {
        self.cache.control()
    }
}

impl<E: Engine> Layer for Hooked<E> {
    type Inner = E;

    fn inner(&self) -> &E {
        &self.engine
    }

    fn inner_mut(&mut self) -> &mut E {
        &mut self.engine
    }
}

impl<E: Engine> DelegateUploads for Hooked<E> {}
impl<E: Engine> DelegateSlowStorage for Hooked<E> {}
impl<E: Engine> DelegateAcknowledge for Hooked<E> {}
impl<E: Engine> DelegateMaintenance for Hooked<E> {}

impl<E: Engine> Batches for Hooked<E> {
    fn begin_batch(&mut self, now: impl Into<Now>) {
        self.engine.begin_batch(now);
    }

    fn end_batch(&mut self) {
        self.engine.end_batch();
    }
}

impl<E: Engine> Lookups for Hooked<E> {
    type Lease = E::Lease;

    fn hash(&self, key: &[u8]) -> u64 {
        self.engine.hash(key)
    }

    fn announce(&mut self, hash: u64) {
        self.engine.announce(hash);
    }

    fn prefetch_announced(&mut self) {
        self.engine.prefetch_announced();
    }

    fn get<R>(
        &mut self,
        key: HashedKey<'_>,
        access: Access,
        read: impl FnOnce(&Item<'_, Self::Lease>) -> R,
    ) -> Lookup<R> {
        hook(self.role);
        self.engine.get(key, access, read)
    }

    fn get_recorded<R>(
        &mut self,
        key: HashedKey<'_>,
        read: impl FnOnce(&Item<'_, Self::Lease>) -> (Access, R),
    ) -> Lookup<R> {
        self.engine.get_recorded(key, read)
    }

    fn content<R>(
        &mut self,
        key: HashedKey<'_>,
        read: impl FnOnce(&Content<'_, Self::Lease>) -> R,
    ) -> Lookup<R> {
        self.engine.content(key, read)
    }
}

impl<E: Engine> Updates for Hooked<E> {
    fn update<'v, R>(
        &mut self,
        key: HashedKey<'_>,
        upload: &mut Option<Self::Upload>,
        decide: impl FnMut(Lookup<&Item<'_, Self::Lease>>) -> (Change<'v>, R),
    ) -> Result<Updated<R>, Refusal> {
        hook(self.role);
        let updated = self.engine.update(key, upload, decide);
        hook(self.role);
        updated
    }

    fn update_unread<'v, R>(
        &mut self,
        key: HashedKey<'_>,
        upload: &mut Option<Self::Upload>,
        decide: impl FnMut(Lookup<&Item<'_, Self::Lease>>) -> (Change<'v>, R),
    ) -> Result<Updated<R>, Refusal> {
        hook(self.role);
        let updated = self.engine.update_unread(key, upload, decide);
        hook(self.role);
        updated
    }

    fn flush(&mut self, at: Option<Seconds>) {
        hook(self.role);
        self.engine.flush(at);
        hook(self.role);
    }

    fn flush_generation(&self) -> u64 {
        hook(self.role);
        let generation = self.engine.flush_generation();
        hook(self.role);
        generation
    }
}

impl<E: Engine> Walks for Hooked<E> {
    type Walk = E::Walk;

    fn walk(&self) -> Self::Walk {
        self.engine.walk()
    }

    fn walk_from(&self, position: u64) -> Self::Walk {
        self.engine.walk_from(position)
    }

    fn walk_position(&self, walk: &Self::Walk) -> WalkPosition {
        self.engine.walk_position(walk)
    }

    fn continue_walk(
        &mut self,
        walk: &mut Self::Walk,
        items: usize,
        waker: &Waker,
        visit: impl FnMut(&[u8], &Item<'_, Self::Lease>),
    ) -> WalkState {
        hook(self.role);
        self.engine.continue_walk(walk, items, waker, visit)
    }
}
