//! What HTTP and gRPC share: connections and their limits.
//!
//! | file | contains |
//! |---|---|
//! | `idle.rs` | a socket that ends when nothing is read or written for long |
//! | `connections.rs` | which connection is closed when another one needs its place |
//! | `progress.rs` | the bodies of a request and its answer, whose bytes are progress |
//! | `app.rs` | what handlers share |
//! | `body.rs` | bodies of requests that are refused |
//! | `login.rs` | the login of a request |
//! | `memory.rs`, `upload.rs` | the memory that requests and answers take, and values that arrive in pieces |

pub(crate) mod app;
pub(crate) mod body;
pub(crate) mod connections;
pub(crate) mod idle;
pub(crate) mod login;
pub(crate) mod memory;
pub(crate) mod progress;
pub(crate) mod upload;
