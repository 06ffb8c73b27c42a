//! The client for Tokio.
//!
//! | file | contains |
//! |---|---|
//! | `client.rs` | the client; `calls.rs` has its calls |
//! | `server.rs` | a call to one server, over a pooled or a shared connection |
//! | `pool.rs` | the pool of a server, and the calls that wait for a connection |
//! | `link.rs` | a pooled connection with its socket |
//! | `shared.rs` | connections that calls share |
//! | `stream.rs` | a socket, with or without TLS |

mod client;
mod link;
mod pool;
mod server;
mod shared;
mod stream;

pub use client::Client;
