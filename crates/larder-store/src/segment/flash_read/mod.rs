//! Items read from flash.
//!
//! | file | subject |
//! |---|---|
//! | `walk_reads` | items on flash in walks |
//! | `lookup` | items on flash in look-ups and updates |
//! | `request` | reads: beginning them, delivering what was read |
//! | `device_read` | one read of an item |
//! | `large_read` | the value of a large item that is read |
//!
//! # Invariants
//! - Whether a word on flash is the key's is known only after its item was read.
//! - The buffer of a read is not used again before the device is done with it and no batch uses it.

pub(crate) mod device_read;
pub(crate) mod large_read;
pub(crate) mod lookup;
pub(crate) mod request;
pub(crate) mod walk_reads;
