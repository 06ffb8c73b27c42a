//! The client for threads.
//!
//! | file | contains |
//! |---|---|
//! | `client.rs` | the client; its calls are in `calls.rs` |
//! | `server.rs` | a call to one server: from the pool, over a connection, to its outcome |
//! | `pool.rs` | the connections to a server, and the threads that wait for one |
//! | `link.rs` | a connection of a pool with its socket |
//! | `shared/` | the connections that threads share |
//! | `stream.rs` | a socket, with or without TLS |
//! | `connect.rs` | opening a socket |
//! | `wait.rs` | how a thread waits |

mod client;
mod connect;
mod link;
mod pool;
mod server;
mod shared;
pub(crate) mod stream;
pub(crate) mod wait;

pub use client::Client;
