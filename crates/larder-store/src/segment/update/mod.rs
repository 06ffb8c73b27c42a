//! One update of one key.
//!
//! | file | subject |
//! |---|---|
//! | `attempt` | attempts, and providing the resources that an attempt lacks |
//! | `assembly` | assembling a large value before the update that stores it |
//! | `value` | the value of a stored item |
//! | `publication` | writing, publishing and counting a record |
//! | `change` | the item that was found, and the changes that need no new value |
//!
//! # Invariants
//! - An update makes its change completely or not at all: a panic while it makes a change aborts
//!   the process.
//! - A missing resource is provided without a lock, then the update starts over.

mod assembly;
mod attempt;
mod change;
mod publication;
mod value;
