//! RESP, Redis's protocol.
//!
//! `batch.rs` parses requests, and `execute.rs` answers them in batches, or `scatter.rs` if several
//! groups own their keys. `single_key/` has the commands on one key, `multi_key.rs` the commands on
//! several keys, `script.rs` the known scripts, `watch.rs` `WATCH` and `EXEC`, `tracking.rs`
//! `CLIENT TRACKING`, and `connection.rs` all other commands. The state of a connection is in
//! `session/resp_state.rs`.

mod batch;
mod connection;
mod copy_item;
mod execute;
mod multi_key;
mod scatter;
mod script;
mod single_key;
mod tracking;
mod watch;
