//! RESP: a conversation in Redis's protocol. `state.rs` is what it keeps between requests, `batch.rs` reads
//! requests, `turn.rs` answers them, `scatter.rs` those that several groups have the items of, `item.rs` and
//! `items.rs` do what is asked of one item and of several, `scan.rs` lists keys, `connection.rs` does the rest.

mod batch;
mod connection;
mod item;
mod items;
pub(crate) mod scan;
mod scatter;
pub(crate) mod state;
mod turn;
