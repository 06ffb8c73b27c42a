//! Replication of a cache: the stream from a leader to a follower, elections, and the shard map.
//! This crate uses no sockets, threads or clocks.
//!
//! ```text
//!  leader                                                    follower
//!  journals of changed keys ─▶ Sender ─▶ frames ─▶ Applier ─▶ its own cache, through its own journals
//!  a walk over all items ──────▶┘          ◀── Ack ◀──┘
//! ```
//!
//! | file | contents |
//! |---|---|
//! | `handshake.rs`, `secret.rs` | authentication at the start of a connection |
//! | `frame/` | the format of the stream |
//! | `sender.rs`, `item_writer.rs`, `keys.rs` | the leader's side of the stream |
//! | `applier.rs` | the follower's side of the stream |
//! | `lineage.rs` | delta sync after a change of leader |
//! | `group.rs`, `member/`, `time.rs` | the record of a group, elections, the CAS values of leaders, and times |
//! | `link_leases.rs` | how long a leader may execute the changes that another node forwards |
//! | `slot_set.rs`, `shard_map.rs` | sets of slots, and the owner of each slot |
//! | `ownership.rs` | slots that migrate between groups |
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

mod applier;
mod frame;
mod group;
mod handshake;
mod item_writer;
mod keys;
mod lineage;
mod link_leases;
mod member;
mod ownership;
mod secret;
mod sender;
mod shard_map;
mod slot_set;
mod time;

pub use applier::*;
pub use frame::*;
pub use group::*;
pub use handshake::*;
pub use larder_store::journal::AckMode;
pub use lineage::Succession;
pub use link_leases::*;
pub use member::*;
pub use ownership::*;
pub use secret::*;
pub use sender::*;
pub use shard_map::*;
pub use slot_set::*;
pub use time::*;
