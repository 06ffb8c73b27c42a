//! What the segment engine promises when threads meet, when memory is full, and when it is misused.
//! Everything here goes through the public interface.
//!
//! | file | what it checks |
//! |---|---|
//! | `asleep` | a batch that stays open stops nobody else |
//! | `full` | a cache that does not evict fills up, and refuses at little cost |

mod asleep;
mod common;
mod full;
