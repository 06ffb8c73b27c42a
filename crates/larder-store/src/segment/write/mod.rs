//! Records written to open segments, and the room for them.
//!
//! | file | subject |
//! |---|---|
//! | `writer` | writing a record to the open segment of its kind, publishing it, removing it |
//! | `room` | free segments for a write |
//! | `index_growth` | free index words for a write |
//!
//! # Invariants
//! - An open segment is appended to by one handle.
//! - No segment is opened, and no index grown, while the thread holds a stripe.

pub(crate) mod index_growth;
pub(crate) mod room;
pub(crate) mod writer;
