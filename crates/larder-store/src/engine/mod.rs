//! The interface between a session and a cache: [`Engine`].
//!
//! Commands on a key use two operations: [`Lookups::get`] reads the key, and [`Updates::update`]
//! reads the key, decides on a change and applies it, in one atomic step. The caller's closure
//! implements the meaning of the command. An engine stores, expires and evicts items.
//!
//! | file | contents |
//! |---|---|
//! | `combined.rs` | [`Engine`]: all of the following traits |
//! | `lookup.rs` | [`Batches`], [`Lookups`] |
//! | `update.rs`, `change.rs` | [`Updates`], [`Uploads`], and the changes that a closure returns |
//! | `slow_storage.rs` | [`SlowStorage`]: items that must be read before they can be used |
//! | `acknowledgement.rs` | [`Acknowledge`]: changes that replicas have to confirm |
//! | `walk.rs` | [`Walks`] |
//! | `fence.rs` | [`Fence`]: a time limit for changes |
//! | `change_observer.rs` | [`ChangeObserver`]: reports of changed items |
//! | `maintenance.rs`, `gauges.rs` | [`Maintenance`], [`Gauges`] |
//! | `layer.rs` | [`Layer`]: an engine that wraps another one and passes most calls to it |
//! | `item.rs`, `time.rs` | items, expiries |

mod acknowledgement;
mod change;
mod change_observer;
mod combined;
mod fence;
mod gauges;
mod item;
pub mod layer;
mod lookup;
mod maintenance;
mod slow_storage;
mod time;
mod update;
mod walk;

pub use acknowledgement::*;
pub use change::*;
pub use change_observer::*;
pub use combined::*;
pub use fence::*;
pub use gauges::*;
pub use item::*;
pub use layer::Layer;
pub use lookup::*;
pub use maintenance::*;
pub use slow_storage::*;
pub use time::*;
pub use update::*;
pub use walk::*;
