//! One update of one key.
//!
//! | file | subject |
//! |---|---|
//! | `attempt` | attempts, and what is done about what one of them lacks |
//! | `assembly` | a large value put together before the update that stores it |
//! | `value` | the value of an item that is stored |
//! | `publication` | writing a record, publishing it, and counting it |
//! | `change` | the item that was found, and the changes that need no new value |
//!
//! # Invariants
//! - An update changes everything or nothing: a panic in the middle of it aborts the process.
//! - What an update lacks is provided without a lock, then it starts over.

mod assembly;
mod attempt;
mod change;
mod publication;
mod value;
