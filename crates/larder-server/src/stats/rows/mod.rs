//! The rows of the statistics. Most files contain the rows of one page. `flash.rs`, `tls.rs` and
//! `tracking.rs` contain rows about one subject on several pages, and `hot_keys.rs` contains the
//! rows of two pages.

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
