//! Operations of a cache beyond lookups, inserts and removals.

mod get_or_insert;
