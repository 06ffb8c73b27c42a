//! RESP: a conversation in Redis's protocol. `state.rs` is what it keeps between requests, `turn.rs`
//! reads and answers requests in batches, `item.rs` and `items.rs` do what is asked of one item and of
//! several, `scan.rs` lists keys, `connection.rs` does the rest.

mod connection;
mod item;
mod items;
pub(crate) mod scan;
pub(crate) mod state;
mod turn;
