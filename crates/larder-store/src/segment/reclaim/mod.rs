//! Emptying segments.
//!
//! | file | subject |
//! |---|---|
//! | `evacuation` | cleaning a segment that is partly dead, or evicting one by the policy |
//! | `expiry` | maintenance: the search for items that expired, or whose tag was dropped |
//! | `decommission` | giving segments back after the limit was lowered |
//!
//! # Invariants
//! - A segment that is emptied is owned by one handle, and in no queue.
//! - The work of one write or of one step of maintenance is bounded.

pub(crate) mod decommission;
pub(crate) mod evacuation;
pub(crate) mod expiry;
