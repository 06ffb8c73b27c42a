//! Items and statistics over HTTP/1.1 and HTTP/2.
//!
//! | file | contains |
//! |---|---|
//! | `server.rs`, `connections.rs` | the thread, its connections and their limits |
//! | `router.rs`, `app.rs` | all requests with their handlers, and what handlers share |
//! | `guard.rs` | who may do what |
//! | `keys.rs`, `batch.rs`, `service.rs` | the handlers |
//! | `parameters.rs`, `conditions.rs`, `content_types.rs`, `body.rs` | parts of requests |
//! | `memory.rs` | the memory that requests and answers take |
//! | `problem.rs` | errors |

mod app;
mod batch;
mod body;
mod conditions;
mod connections;
mod content_types;
mod guard;
mod keys;
mod memory;
mod parameters;
mod problem;
mod router;
mod server;
mod service;

pub use server::{HttpConfig, HttpServer};
