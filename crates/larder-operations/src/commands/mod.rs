//! Operations on one key, flushes, and operations on tags.

mod add;
mod count;
mod edit;
mod expire;
mod flush;
mod lookup;
mod remove;
mod rewrite;
mod set;
mod store;
mod swap;
mod tag;

pub use add::*;
pub use count::*;
pub use edit::*;
pub use expire::*;
pub use lookup::*;
pub use remove::*;
pub use rewrite::*;
pub use set::*;
pub use store::*;
pub use swap::*;
pub use tag::*;
