//! The interface between a session and a cache: [`Engine`].
//!
//! Two verbs carry every command: [`Lookups::get`] reads without a lock, and [`Updates::update`] reads, decides and writes
//! one key as one step. The caller's closure decides what memcached's commands mean; an engine keeps items, expires them,
//! and evicts them.
//!
//! | file | contents |
//! |---|---|
//! | `combined.rs` | [`Engine`]: all of the following traits |
//! | `lookup.rs` | [`Batches`], [`Lookups`] |
//! | `update.rs`, `change.rs` | [`Updates`], [`Uploads`], and the changes that a closure decides on |
//! | `slow_storage.rs` | [`SlowStorage`]: items that have to be read first |
//! | `acknowledgement.rs` | [`Acknowledge`]: changes that replicas have to confirm |
//! | `walk.rs` | [`Walks`] |
//! | `maintenance.rs`, `gauges.rs` | [`Maintenance`], [`Gauges`] |
//! | `layer.rs` | [`Layer`]: an engine around another one, which defines only what it changes |
//! | `item.rs`, `time.rs` | items, expiries |

mod acknowledgement;
mod change;
mod combined;
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
pub use combined::*;
pub use gauges::*;
pub use item::*;
pub use layer::Layer;
pub use lookup::*;
pub use maintenance::*;
pub use slow_storage::*;
pub use time::*;
pub use update::*;
pub use walk::*;
