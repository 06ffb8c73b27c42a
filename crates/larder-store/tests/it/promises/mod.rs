//! What the segment engine promises when threads meet, when memory is full, and when it is misused.
//! Everything here goes through the public interface.
//!
//! | file | what it checks |
//! |---|---|
//! | `amendments` | attributes and CAS of an amended item change together |
//! | `asleep` | a batch that stays open does not stop other handles |
//! | `cas` | fresh CAS values are unique, rise, and are used sparingly |
//! | `flood` | keys that are written once do not push out what is read |
//! | `flush` | flushed items stay away, items stored later stay |
//! | `full` | a cache that does not evict fills up, and refuses at little cost |
//! | `handles` | dropped handles do not keep memory |
//! | `limits` | the limit changes while threads write at it |
//! | `long_steps` | no operation delays others for long |
//! | `many_threads` | many handles share little memory |
//! | `soundness` | misuse and panics do not damage other items |
//! | `stress_all` | all of it at once, with values that can be checked |
//! | `tags` | what is dropped by a tag stays away, and nothing else does |
//! | `walks` | a walk misses nothing that is there all the time |
#![allow(clippy::disallowed_methods, reason = "tests measure and wait")]

mod amendments;
mod asleep;
mod cas;
mod common;
mod flood;
mod flush;
mod full;
mod handles;
mod limits;
mod long_steps;
mod many_threads;
mod overwritten;
mod soundness;
mod stress_all;
mod tags;
mod walks;
