//! The eviction policy: S3-FIFO (Yang et al., SOSP 2023) over segments, with size classes.
//!
//! ```text
//!                ┌─ hit since it was written ─▶ main ─▶ reinserted while its frequency is above 0
//! new ─▶ small ──┤                               ▲
//!                └─ else evicted ─▶ ghosts ──────┘ set again while its ghost lasts
//! ```
//! This module only computes with numbers that its callers pass. It does not read the cache's
//! memory, shares nothing between threads, and has no clock. The segment engine and the simulator
//! of `larder bench hitratio` run the same code. Only constructors and `extend` allocate, and other
//! calls take at most a few steps for each size class or open segment.
//!
//! | file | decision |
//! |---|---|
//! | `size_class` | which items share segments because of their size |
//! | `queue_kind` | none: the names of the two queues |
//! | `lists` | FIFO order: linked lists of segment numbers |
//! | `victim_queues` | which segment is evicted next |
//! | `verdict` | whether an item of that segment is kept |
//! | `ghosts` | which evicted keys are remembered, and for how long |
//! | `open` | which open segment receives a new item |

mod ghosts;
pub(crate) mod lists;
mod open;
mod queue_kind;
mod size_class;
mod verdict;
mod victim_queues;

pub use ghosts::{GHOSTS, GhostClock, GhostEpoch, Ghosts, Sweep};
pub use open::{Kind, Placement, chained_max, choose_segment, open_budget};
pub use queue_kind::Queue;
pub use size_class::SizeClass;
pub use verdict::{KeepLimit, Verdict};
pub use victim_queues::{Queues, SIZE_EXPONENT, Sealed, Victim};
