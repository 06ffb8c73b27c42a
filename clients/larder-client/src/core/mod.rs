//! The sans-I/O part of the client: requests, the interpretation of replies, and decisions about
//! connections and servers. This part neither opens sockets nor waits. Functions receive the time
//! as an argument, except in five files that read the clock: `link.rs` for a connection's age,
//! `servers/health.rs` at the end of a call, `servers/mod.rs` for a failover during a call,
//! `endpoint/resolution.rs` for a new endpoint, and `lease.rs` for times of more than 30 days.
//!
//! | file | contains |
//! |---|---|
//! | `operation/` | requests, except leases and logins, and the interpretation of their replies; batches (`batch.rs`) |
//! | `lease.rs` | leases for values that are missing or expire soon |
//! | `flight.rs` | computations that concurrent callers share |
//! | `key.rs` | keys as sent |
//! | `connection.rs` | one connection: requests to bytes, bytes to replies |
//! | `link.rs` | a pooled connection with its socket, for both clients |
//! | `shared.rs` | a connection that calls share |
//! | `idle.rs` | idle connections of a pool |
//! | `outcome.rs` | failures of calls, and whether a retry is safe |
//! | `endpoint/` | addresses (`address.rs`, `resolution.rs`); handshakes (`handshake.rs`, `login.rs`); TLS (`tls.rs`) |
//! | `servers/` | the servers of a client (`server_set.rs`), and their breakers (`breaker.rs`, `health.rs`) |

pub(crate) mod connection;
pub(crate) mod endpoint;
pub(crate) mod flight;
pub(crate) mod idle;
pub(crate) mod key;
pub(crate) mod lease;
pub(crate) mod link;
pub(crate) mod operation;
pub(crate) mod outcome;
pub(crate) mod servers;
pub(crate) mod shared;
