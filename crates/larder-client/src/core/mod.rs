//! The client without I/O, and without waiting: what is sent, what answers mean, and what is decided about connections
//! and servers. The time is an argument, except that `health.rs` notes when a call has ended, and `place.rs` when a name
//! was resolved.
//!
//! | file | contains |
//! |---|---|
//! | `operation.rs` | each request, and what its answers mean |
//! | `batch.rs` | several requests of one kind that are sent together |
//! | `lease.rs` | who computes a value that is missing, or will be soon |
//! | `flight.rs` | computations that are under way, which callers share |
//! | `key.rs` | keys, as they are sent |
//! | `connection.rs` | one connection: requests in, bytes out; bytes in, answers out |
//! | `shared.rs` | several calls on one connection |
//! | `idle.rs` | which idle connection is used next, and which are closed |
//! | `outcome.rs` | what it means for a call that its connection fails |
//! | `breaker.rs`, `health.rs` | when a server that fails is left alone |
//! | `address.rs`, `place.rs` | where a server is |
//! | `tls.rs`, `login.rs`, `entry.rs` | what is done on a new connection before it is used, and TLS afterwards |
//! | `group.rs` | the servers of a client, whose list may be replaced |
//! | `servers.rs` | several servers, and which of them a key belongs to |

pub(crate) mod address;
pub(crate) mod batch;
pub(crate) mod breaker;
pub(crate) mod connection;
pub(crate) mod entry;
pub(crate) mod flight;
pub(crate) mod group;
pub(crate) mod health;
pub(crate) mod idle;
pub(crate) mod key;
pub(crate) mod lease;
pub(crate) mod login;
pub(crate) mod operation;
pub(crate) mod outcome;
pub(crate) mod place;
pub(crate) mod servers;
pub(crate) mod shared;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
pub(crate) mod tls;
