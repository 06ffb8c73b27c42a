//! The client without I/O, and without waiting: what is sent, what answers mean, and what is decided about connections
//! and servers. The time is an argument, except that `servers/health.rs` notes when a call has ended, and
//! `endpoint/resolution.rs` when a name was resolved.
//!
//! | file | contains |
//! |---|---|
//! | `operation/` | each request, and what its answers mean; several of one kind that are sent together (`batch.rs`) |
//! | `lease.rs` | who computes a value that is missing, or will be soon |
//! | `flight.rs` | computations that are under way, which callers share |
//! | `key.rs` | keys, as they are sent |
//! | `connection.rs` | one connection: requests in, bytes out; bytes in, answers out |
//! | `link.rs` | a connection of a pool with its socket, of either client |
//! | `shared.rs` | several calls on one connection |
//! | `idle.rs` | which idle connection is used next, and which are closed |
//! | `outcome.rs` | what it means for a call that its connection fails |
//! | `endpoint/` | where a server is (`address.rs`, `resolution.rs`); what is done on a new connection before it is used, and TLS afterwards (`tls.rs`, `login.rs`, `handshake.rs`) |
//! | `servers/` | several servers, and which of them a key belongs to; their list, which may be replaced (`server_set.rs`); when a server that fails is left alone (`breaker.rs`, `health.rs`) |

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
