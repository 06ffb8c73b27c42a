//! Reports of changed items, for clients that cache items themselves.

/// A change, as passed to a [`ChangeObserver`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemChange<'k> {
    /// An update has stored, changed or removed the item under this key.
    Updated(&'k [u8]),
    /// The engine has removed the expired item under this key.
    Expired(&'k [u8]),
    /// A flush or a dropped tag has invalidated items. Their keys are not known, and their removal
    /// is not reported.
    Invalidated,
}

/// A function that the engine calls after each change, on the thread of the change. The engine
/// calls it under locks, so it must be fast and must not use a cache. It may be called more than
/// once for a change.
pub type ChangeObserver = Box<dyn Fn(ItemChange<'_>) + Send + Sync>;
