//! Known Lua scripts. The server has no interpreter. It recognises a script by its text, and
//! executes a native operation instead ([decision 14](../../../../docs/decisions/0014-no-lua.md)).
//!
//! `kind.rs` has the scripts. `normal_form.rs` converts texts that differ only in style to the same
//! form, `known.rs` recognises the form by its hash, and `call.rs` parses requests.

mod call;
mod hash;
mod kind;
mod known;
mod normal_form;

pub use call::*;
pub use hash::*;
pub use kind::*;
pub use normal_form::*;
