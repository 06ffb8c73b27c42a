//! RESP, Redis's protocol.
//!
//! `batch.rs` parses requests. `execute.rs` answers them in batches, and `scatter.rs` splits
//! batches whose keys belong to several groups. `single_key/` contains the commands on one key,
//! `multi_key.rs` the commands on several keys, and `copy_item.rs` renames and copies. `script.rs`
//! executes known scripts, `watch.rs` handles `WATCH` and `EXEC`, `tracking.rs` handles `CLIENT
//! TRACKING`, and `connection.rs` all other commands. The state of a connection is in
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
