//! Operations of a cache beyond lookups, inserts and removals.

mod counter;
mod expiry;
mod get_or_insert;
mod iteration;
mod update;
mod version;

pub use counter::CounterError;
pub use expiry::Ttl;
pub use iteration::{Iter, Keys};
pub use update::Update;
pub use version::{SwapError, SwapOutcome, Version};
