//! One update of one key.
//!
//! | file | subject |
//! |---|---|
//! | `change` | an update under the lock of its stripe: the decision, the new record, its publication |
//! | `assembly` | a large value put together before the update that stores it |
//!
//! # Invariants
//! - An update changes everything or nothing: a panic in the middle of it aborts the process.
//! - What an update lacks is provided without a lock, then it starts over.

pub(crate) mod assembly;
pub(crate) mod change;
