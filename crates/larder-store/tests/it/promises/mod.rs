//! Tests of the segment engine with several threads, with full memory, and with misuse, all through
//! the public interface.
//!
//! | file | subject |
//! |---|---|
//! | `amendments` | attributes and CAS of an amended item change together |
//! | `stress/asleep` | a batch that stays open does not stop other handles |
//! | `cas` | fresh CAS values are unique and rise, and few are wasted |
//! | `stress/flood` | keys that are written once do not evict keys that are read |
//! | `flush` | flushed items do not return, and items that are stored later stay |
//! | `full` | a cache that does not evict fills up, and refuses at little cost |
//! | `handles` | dropped handles do not keep memory |
//! | `large_values` | the memory of values in transfer equals the engine's count |
//! | `limits` | the limit changes while threads fill the memory |
//! | `stress/long_steps` | no operation delays others for long |
//! | `stress/many_threads` | many handles share little memory |
//! | `soundness` | misuse and panics do not damage other items |
//! | `stress/overwritten` | memory of overwritten items is reused while threads read |
//! | `stress/stress_all` | all operations at once, with values that can be checked |
//! | `tags` | items of a dropped tag are not found, and no other items are dropped |
//! | `walks` | a walk misses no item that exists during the whole walk |
#![allow(clippy::disallowed_methods, reason = "tests measure and wait")]

mod amendments;
mod cas;
mod common;
mod flush;
mod full;
mod handles;
mod large_values;
mod limits;
mod soundness;
mod tags;
mod walks;

mod stress {
    use super::common;

    mod asleep;
    mod flood;
    mod long_steps;
    mod many_threads;
    mod overwritten;
    mod stress_all;
}
