//! Writing records to open segments and over dead records, and freeing memory for them.
//!
//! | file | subject |
//! |---|---|
//! | `writer` | writing a record to the open segment of its kind, publishing it, removing it |
//! | `room` | free segments for a write |
//! | `index_growth` | free index words for a write |
//!
//! # Invariants
//! - Only one handle appends to an open segment.
//! - A thread that has locked a stripe neither opens a segment nor grows the index.

pub(crate) mod index_growth;
pub(crate) mod room;
pub(crate) mod writer;
