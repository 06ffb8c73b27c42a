//! Copies of a cache: what a leader sends and a follower does with it, without sockets, threads or clocks.
//!
//! ```text
//!  leader                                                    follower
//!  journals of changed keys ─▶ Sender ─▶ frames ─▶ Applier ─▶ its own cache, through its own journals
//!  a walk over all items ──────▶┘          ◀── Ack ◀──┘
//! ```
//! `greeting.rs` is how a connection begins, `sender.rs` and `applier.rs` are the two sides of the stream, and
//! `frame/` is its format; `lineage.rs` is how members go on with a new leader. `group.rs` and `member.rs` are who leads
//! a group of nodes that have the same items; `slots.rs` is which group has which keys, and `ownership.rs` who answers
//! for them while they move.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

mod applier;
mod frame;
mod greeting;
mod group;
mod keys;
mod lineage;
mod member;
mod ownership;
mod secret;
mod sender;
mod slots;

pub use applier::*;
pub use frame::*;
pub use greeting::*;
pub use group::*;
pub use larder_store::journal::AckMode;
pub use lineage::Succession;
pub use member::*;
pub use ownership::*;
pub use secret::*;
pub use sender::*;
pub use slots::*;
