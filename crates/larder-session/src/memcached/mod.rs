//! memcached's protocols: text, meta and binary.
//!
//! `batch.rs` parses and answers requests in batches. `execute.rs` answers one request: `lower.rs`
//! converts the request to an operation, and `get.rs`, `store.rs` and `tags.rs` run the operation
//! and encode its outcome. `control.rs`, `admin.rs`, `login.rs` and `servers.rs` answer requests
//! that are not about items.

mod admin;
pub(crate) mod batch;
mod control;
mod execute;
pub(crate) mod get;
mod login;
mod lower;
pub(crate) mod read_only;
pub(crate) mod servers;
pub(crate) mod store;
pub(crate) mod tags;
