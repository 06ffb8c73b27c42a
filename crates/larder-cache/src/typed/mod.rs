//! Caches of values that are encoded as bytes.
//!
//! | file | contents |
//! |---|---|
//! | `codec.rs` | encodings of keys and values |
//! | `view.rs` | [`Typed`]: lookups, stores and removals |
//! | `makers.rs` | making missing values |
//! | `conditional.rs` | updates, compare-and-swap, expiries |
//! | `iteration.rs` | iterators over keys and values |
//! | `error.rs` | the error of stores |

mod codec;
mod conditional;
mod error;
mod iteration;
mod makers;
mod view;

pub use codec::{Codec, DecodeKey, Postcard};
pub use error::TypedError;
pub use view::Typed;
