//! Lua scripts that the server knows. It has no interpreter: it recognises a script by its text, and runs an operation
//! of its own in its place ([decision 14](../../../../docs/decisions/0014-no-lua.md)).
//!
//! `kind.rs` has the scripts. `normal_form.rs` makes texts with one meaning equal, `known.rs` recognises them by their
//! hashes, and `call.rs` parses requests.

mod call;
mod hash;
mod kind;
mod known;
mod normal_form;

pub use call::*;
pub use hash::*;
pub use kind::*;
pub use normal_form::*;
