//! A client for memcached, Larder and other servers that speak memcached's text protocol.
//!
//! [`Client`] is for Tokio (the feature `tokio`, on by default). [`blocking::Client`] blocks the
//! calling thread. By default, calls share a few connections per server, so one write can carry the
//! requests of many callers. With [`Builder::connections`], each call uses a connection of its own
//! from a pool, and waits in line if none is free.
//!
//! ```no_run
//! # #[cfg(feature = "tokio")]
//! # async fn example() -> Result<(), larder_client::Error> {
//! use larder_client::{Client, Ttl};
//!
//! let cache = Client::connect("cache:11211")?;
//! cache.set("user:1", "ann", Ttl::secs(60)).await?;
//! assert_eq!(cache.get("user:1").await?.as_deref(), Some(&b"ann"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! ```no_run
//! use larder_client::{Ttl, blocking::Client};
//!
//! let cache = Client::connect("cache:11211")?;
//! cache.set("user:1", "ann", Ttl::secs(60))?;
//! assert_eq!(cache.get("user:1")?.as_deref(), Some(&b"ann"[..]));
//! # Ok::<(), larder_client::Error>(())
//! ```
//!
//! A client of several servers distributes the keys over them. [`Hashing`](ring::Hashing) includes
//! the methods of other clients:
//!
//! ```
//! use larder_client::{Failover, blocking::Client, ring::Hashing};
//!
//! let cache = Client::builder(["127.0.0.1:11211", "127.0.0.1:11212"])
//!     .hashing(Hashing::Dalli)
//!     .failover(Failover::Next)
//!     .build()?;
//! # Ok::<(), larder_client::Error>(())
//! ```
//!
//! One caller computes a missing value. The others wait or get the old value:
//!
//! ```no_run
//! use larder_client::{Lease, blocking::Client};
//!
//! # fn render() -> Result<String, std::io::Error> { Ok(String::new()) }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cache = Client::connect("cache:11211")?;
//! let page = cache.get_or_compute("page:1", Lease::ttl(60).early(5).stale(30), || render())?;
//! # Ok(())
//! # }
//! ```
//!
//! [`codec`] converts values of a program's own types to bytes. [`metrics`] contains the client's
//! counters and latencies.
//!
//! The module `pipeline` (the feature of the same name) is for programs that do the I/O themselves,
//! such as an event loop in another language.
//!
//! `Builder::tls` (the feature `tls`) encrypts connections. [`Builder::login`] logs in on each
//! connection.
//!
//! # Guarantees
//!
//! - **No caller gets another caller's value.** The client closes a connection after an unexpected
//!   reply. It also closes a pooled connection after an abandoned call. On a shared connection, the
//!   client drops the reply to an abandoned call when the reply arrives. It checks the key of each
//!   hit, or a hash of the key if it sent the key in base64. It matches replies without a key
//!   (numbers, `STORED`, misses) to requests only by their order. The client does not reuse a
//!   connection with unsolicited input. One gap remains: if a server sends a second reply to one
//!   request, and this reply arrives late, the next call can get this reply.
//! - **Calls end by their deadline** ([`Builder::timeout`]). The deadline includes the wait for a
//!   connection. There are two exceptions: `update` and `get_or_compute` make several requests,
//!   each with a deadline of its own, and `get_or_compute` also waits for the computation.
//! - **An error states whether the change may have happened** ([`Error::is_ambiguous`]). The client
//!   repeats a request only if it has sent no byte of the request, or if the request changes no
//!   value.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

#[cfg(feature = "tokio")]
mod asynchronous;
pub mod blocking;
mod builder;
mod calls;
pub mod codec;
mod computing;
mod core;
mod discovery;
mod error;
mod item;
mod list;
pub mod metrics;
#[cfg(feature = "pipeline")]
pub mod pipeline;
mod refresh;
pub mod ring;
#[cfg(feature = "tls")]
mod tls;
mod typed;
mod waiter;

#[cfg(feature = "tokio")]
pub use asynchronous::Client;
pub use builder::Builder;
pub use bytes::Bytes;
pub use core::lease::Lease;
pub use core::servers::Failover;
pub use discovery::Discovery;
pub use error::{ComputeError, Error, ErrorKind};
pub use item::{CountOutcome, Item, PerServer, StoreOutcome, StoreRequest, Ttl};
pub use larder_protocol::StoreMode;
pub use list::{ListedServer, ServerList};

#[cfg(feature = "tls")]
pub use tls::Tls;
pub use typed::Typed;
pub use waiter::{Interrupted, Readiness, WaitCondition, Waiter};

#[cfg(all(doctest, feature = "tokio"))]
#[doc = include_str!("../../../docs/rust.md")]
struct DocumentationPage;
