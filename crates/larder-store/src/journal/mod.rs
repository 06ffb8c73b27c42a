//! Journals: the keys of changed items, for replicas of a cache.
//!
//! [`JournaledCache`] wraps any cache. Its handles, [`JournaledHandle`], behave like the cache's
//! own handles, except that they refuse tags. In addition, each handle appends the key of an item
//! to its own journal after it has changed the item and before its caller can reply. So a reader
//! that takes a key from a journal and then looks the item up finds the change or a later change.
//! Journals do not contain the items, so a reader can coalesce several entries of a key into one
//! copy of the item.
//!
//! Evictions and expiries are not changes. The engine counts flushes:
//! [`crate::Updates::flush_generation`].

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
pub use handle::{JournaledHandle, Position};
pub use journals::Journals;
pub use notifier::Notifier;
pub use ring::{ChangeKind, Entry, Overrun, Reader, Ring, Writer};
