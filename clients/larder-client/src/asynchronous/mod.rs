//! The client for Tokio.
//!
//! | file | contains |
//! |---|---|
//! | `client.rs` | the client; its calls are in `calls.rs` |
//! | `server.rs` | a call to one server: over a connection of its own or a shared one, to its outcome |
//! | `pool.rs` | the connections to a server, and the calls that wait for one |
//! | `link.rs` | a connection with its socket |
//! | `shared.rs` | connections that calls share |
//! | `stream.rs` | a socket, with or without TLS, and how it is opened |

mod client;
mod link;
mod pool;
mod server;
mod shared;
mod stream;

pub use client::Client;
