//! Connections of HTTP and gRPC, and their limits.
//!
//! | file | contains |
//! |---|---|
//! | `idle.rs` | a socket with an idle timeout |
//! | `connections.rs` | the open connections, and the choice of a connection to close |
//! | `progress.rs` | bodies of requests and replies that record progress |
//! | `app.rs` | the state that all handlers share |
//! | `body.rs` | reading and discarding bodies of requests |
//! | `login.rs` | the login of a request |
//! | `memory.rs`, `upload.rs` | memory of connections, requests and replies; values that arrive in pieces |

pub(crate) mod app;
pub(crate) mod body;
pub(crate) mod connections;
pub(crate) mod idle;
pub(crate) mod login;
pub(crate) mod memory;
pub(crate) mod progress;
pub(crate) mod upload;
