//! Walks over all items.

use super::{Item, Lookups};
use std::task::Waker;

/// The result of [`Walks::continue_walk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkState {
    /// There may be more to show: continue the walk.
    More,
    /// The next items are being read from slower storage. The waker will be called when there is something
    /// to show; continuing earlier does no harm.
    Waiting,
    /// All items were shown.
    End,
}

/// Where another walk can go on after one: see [`Walks::walk_position`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkPosition {
    /// There, for [`Walks::walk_from`]; never 0.
    At(u64),
    /// Nowhere yet: items that the walk has come by are still to be shown. [`Walks::continue_walk`] with 0 items does
    /// that without going on.
    Unsettled,
    /// Nowhere: the engine's walks have to be continued themselves.
    Unsupported,
}

/// Walks over all items, some at a time.
pub trait Walks: Lookups {
    /// A walk over all items.
    type Walk: Send;

    /// Begins a walk over all items, which ends when it is dropped.
    fn walk(&self) -> Self::Walk;

    /// Begins a walk where another one was, or at the beginning if `place` is 0. Any number will do. Between two
    /// such walks items move unnoticed: an item that is there all the time may be missed if a write moves it.
    ///
    /// Engines whose walks have no places begin at the beginning.
    fn walk_from(&self, _place: u64) -> Self::Walk {
        self.walk()
    }

    /// Where a walk that has not ended can be continued by another one.
    fn walk_position(&self, _walk: &Self::Walk) -> WalkPosition {
        WalkPosition::Unsupported
    }

    /// Shows the next live items to `visit`, about `items` of them. This counts as no access. An item that
    /// is there during the whole walk is shown at least once, and only once unless writes move items
    /// meanwhile. Items on slower storage are read for it, some at a time, and shown in a later call, unless
    /// there is no memory for a large value. After [`WalkState::Waiting`], `waker` is called or that of an
    /// earlier call.
    ///
    /// # Panics
    /// An engine may panic if the walk belongs to another cache.
    fn continue_walk(
        &mut self,
        walk: &mut Self::Walk,
        items: usize,
        waker: &Waker,
        visit: impl FnMut(&[u8], &Item<'_, Self::Lease>),
    ) -> WalkState;
}
