//! Walks over all items.

use super::{Item, Lookups};
use std::task::Waker;

/// The result of [`Walks::continue_walk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkState {
    /// More items may follow: continue the walk.
    More,
    /// The next items are being read from slower storage. The engine calls the waker when the walk
    /// can visit more items. Continuing earlier is harmless.
    Waiting,
    /// The walk has visited all items.
    End,
}

/// The position from which a new walk can continue an earlier walk: see [`Walks::walk_position`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkPosition {
    /// A position for [`Walks::walk_from`]; never 0.
    At(u64),
    /// There is no position now, because the walk has skipped items that it must still visit.
    /// [`Walks::continue_walk`] with 0 items visits these items and does not advance.
    Unsettled,
    /// The engine has no positions: only the walk itself can be continued.
    Unsupported,
}

/// Walks over all items in steps.
pub trait Walks: Lookups {
    /// The state of a walk.
    type Walk: Send;

    /// Starts a walk over all items. Dropping it ends the walk.
    fn walk(&self) -> Self::Walk;

    /// Starts a walk at the position of an earlier walk, or at the start if `position` is 0. Any
    /// number is valid. If a write moves an item between the two walks, both walks may miss the
    /// item.
    ///
    /// Engines without positions start at the beginning.
    fn walk_from(&self, _position: u64) -> Self::Walk {
        self.walk()
    }

    /// Returns the position from which another walk can continue this walk.
    fn walk_position(&self, _walk: &Self::Walk) -> WalkPosition {
        WalkPosition::Unsupported
    }

    /// Calls `visit` with the next live items, about `items` of them. The walk does not count as an
    /// access to them. An item that exists during the whole walk is visited at least once. It is
    /// visited exactly once unless writes move items at the same time. The walk reads items on
    /// slower storage a few at a time, and visits them in a later call. It leaves out an item whose
    /// read fails, and a large value on slower storage for which no memory is free. After
    /// [`WalkState::Waiting`], the engine calls `waker` or the waker of an earlier call.
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
