//! Ensures that at most one maker per key runs at a time, in all threads and tasks, unless waiting
//! for it would be a deadlock.
//!
//! | file | contents |
//! |---|---|
//! | `join.rs` | starting to make a value, or waiting for it: in a thread or in a task |
//! | `table.rs` | values that are being made, and the threads and tasks that wait for them |

mod join;
mod table;

pub(crate) use join::{JoinOutcome, MakerGuard, join, join_in_task};
