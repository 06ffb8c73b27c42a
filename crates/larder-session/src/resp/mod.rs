//! RESP: a conversation in Redis's protocol. `batch.rs` reads requests, `turn.rs` answers them, `scatter.rs` those
//! that several groups have the items of, `item/` and `items.rs` do what is asked of one item and of several,
//! `connection.rs` does the rest. The state of a conversation is in `session/resp_state.rs`.

mod batch;
mod connection;
mod item;
mod items;
mod scatter;
mod turn;
