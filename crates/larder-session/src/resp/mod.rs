//! RESP, Redis's protocol.
//!
//! `batch.rs` parses requests, and `execute.rs` answers them in batches, or `scatter.rs` if several groups own their
//! keys. `item/` has the commands on one item, `items.rs` those on several items, `connection.rs` all others. The state
//! of a connection is in `session/resp_state.rs`.

mod batch;
mod connection;
mod execute;
mod item;
mod items;
mod scatter;
