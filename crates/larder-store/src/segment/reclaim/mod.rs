//! Emptying segments.
//!
//! | file | subject |
//! |---|---|
//! | `evacuation` | cleaning a partly dead segment, or evicting one that the policy chose |
//! | `expiry` | maintenance: the search for items that expired or whose tag was dropped |
//! | `decommission` | returning segments after the limit was lowered |
//!
//! # Invariants
//! - One handle owns a segment that is being emptied, and no queue contains it.
//! - The work of one write or one maintenance step is bounded.

pub(crate) mod decommission;
pub(crate) mod evacuation;
pub(crate) mod expiry;
