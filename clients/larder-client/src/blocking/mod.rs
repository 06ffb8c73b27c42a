//! The blocking client.
//!
//! | file | contains |
//! |---|---|
//! | `client.rs` | the client; `calls.rs` has its calls |
//! | `server.rs` | a call to one server, over a pooled or a shared connection |
//! | `pool.rs` | the pool of a server, and the threads that wait for a connection |
//! | `link.rs` | a pooled connection with its socket |
//! | `shared/` | connections that threads share |
//! | `stream.rs` | a socket, with or without TLS |
//! | `connect.rs` | connecting sockets |
//! | `wait.rs` | waiting for sockets and threads |

mod client;
mod connect;
mod link;
mod pool;
mod server;
mod shared;
pub(crate) mod stream;
pub(crate) mod wait;

pub use client::Client;
