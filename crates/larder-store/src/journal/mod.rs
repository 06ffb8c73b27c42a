//! Journals: the keys of the items that were changed, for those who keep a copy of a cache.
//!
//! [`JournaledCache`] wraps any cache. Its handles, [`Journaled`], behave like those of the cache, and each appends
//! the key of an item to a journal of its own after it has changed the item, and before its caller can answer.
//! Whoever reads a key from a journal and looks the item up afterwards therefore finds the change, or a later one.
//! The items themselves are not in journals: a key that is written a thousand times is copied once.
//!
//! Evictions and expiries are not changes. Flushes are counted by the engine: [`crate::Engine::flush_generation`].

mod acks;
mod cache;
mod handle;
mod journals;
#[cfg(all(test, any(loom, shuttle)))]
mod models;
mod notifier;
mod ring;

pub use acks::{AckMode, AckPosition, Acknowledgements};
pub use cache::JournaledCache;
pub use handle::{Journaled, Position};
pub use journals::Journals;
pub use notifier::Notifier;
pub use ring::{ChangeKind, Entry, Overrun, Reader, Ring, Writer};
