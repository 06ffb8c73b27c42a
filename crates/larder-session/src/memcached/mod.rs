//! memcached's protocol: `batch.rs` reads requests, `execute.rs` answers one, `lower.rs` turns it into operations,
//! `get.rs`, `store.rs` and `tags.rs` encode the outcomes, `control.rs`, `admin.rs`, `login.rs` and `servers.rs` answer
//! what is not about an item.

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
