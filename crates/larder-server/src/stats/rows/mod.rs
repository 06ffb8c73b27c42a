//! The rows of the statistics. A file has the rows of one page; `flash.rs`, `tls.rs` and `tracking.rs` have those
//! of one subject, `hot_keys.rs` those of two pages.

pub(super) mod cluster;
pub(super) mod conns;
pub(super) mod flash;
pub(super) mod general;
pub(super) mod hot_keys;
pub(super) mod items;
pub(super) mod latency;
pub(super) mod memory;
pub(super) mod mrc;
pub(super) mod replication;
pub(super) mod settings;
pub(super) mod slabs;
pub(super) mod tls;
pub(super) mod tracking;
