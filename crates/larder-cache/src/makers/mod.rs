//! Ensures that at most one maker per key runs at a time, in all threads and tasks. If waiting for
//! the maker would cause a deadlock, the caller becomes an additional maker.
//!
//! | file | contents |
//! |---|---|
//! | `join.rs` | starting to make a value, or waiting for it: in a thread or in a task |
//! | `table.rs` | values that are being made, and the threads and tasks that wait for them |

mod join;
mod table;

pub(crate) use join::{JoinOutcome, MakerGuard, join, join_in_task};
