//! The eviction policy: S3-FIFO (Yang et al., SOSP 2023) over segments, with size classes.
//!
//! ```text
//!                ┌─ hit since it was written ─▶ main ─▶ reinserted while its frequency is above 0
//! new ─▶ small ──┤                               ▲
//!                └─ else evicted ─▶ ghosts ──────┘ set again while its ghost lasts
//! ```
//! Everything here is a decision about integers: no memory of the cache is read, nothing is shared
//! between threads, and there is no clock. The segment engine and the simulator of
//! `larder bench hitratio` run this same code. After construction nothing allocates, and no call
//! does more work than a few steps for each size class.
//!
//! | file | what it decides |
//! |---|---|
//! | `size_class` | which items share segments because of their size |
//! | `queue` | nothing: the names of the two queues |
//! | `lists` | FIFO order: linked lists of segment numbers |
//! | `queues` | which segment is evicted next |
//! | `verdict` | whether an item of that segment is kept |
//! | `ghosts` | which evicted keys are remembered, and for how long |
//! | `open` | which open segment a new item is appended to |

mod ghosts;
pub(crate) mod lists;
mod open;
mod queue;
mod queues;
mod size_class;
mod verdict;

pub use ghosts::{GHOSTS, GhostClock, GhostEpoch, Ghosts, Sweep};
pub use open::{Kind, Placement, chained_max, open_budget, place};
pub use queue::Queue;
pub use queues::{Queues, SIZE_EXPONENT, Sealed, Victim};
pub use size_class::SizeClass;
pub use verdict::{KeepLimit, Verdict};
