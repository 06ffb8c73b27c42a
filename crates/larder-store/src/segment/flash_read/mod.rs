//! Reading items from flash.
//!
//! | file | subject |
//! |---|---|
//! | `walk_reads` | items on flash in walks |
//! | `lookup` | items on flash in lookups and updates |
//! | `request` | starting reads, and delivering their items |
//! | `device_read` | one read of an item |
//! | `large_read` | reading the value of a large item |
//!
//! # Invariants
//! - An index word that refers to flash may belong to another key with the same hash bits. Only the
//!   item itself, after it was read, shows its key.
//! - The buffer of a read is not reused before the device is done with it and no batch uses it.

pub(crate) mod device_read;
pub(crate) mod large_read;
pub(crate) mod lookup;
pub(crate) mod request;
pub(crate) mod walk_reads;
