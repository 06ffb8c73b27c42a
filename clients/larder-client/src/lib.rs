//! A client of memcached, Larder and other servers that speak memcached's text protocol.
//!
//! [`Client`] is for Tokio (the feature `tokio`, which is on by default): calls share a few connections, so that the
//! requests of many leave in one write. [`blocking::Client`] is for threads, with a pool of connections: each call has
//! one to itself, and calls that find all of them in use are served in the order in which they came.
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
//! Several servers share the keys, by a method that may be that of another client:
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
//! A value that is missing is computed by one caller, while the others wait or get the old one:
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
//! Values of a program's own types are in [`codec`], and what a client has done is in [`metrics`].
//!
//! The module `pipeline` (a feature of the same name) is for programs that move the bytes themselves, as an event loop of another
//! language does.
//!
//! Connections are encrypted by `Builder::tls` (the feature `tls`), and [`Builder::login`] logs in on them.
//!
//! What is promised:
//!
//! - **Nobody ever gets another's value.** A connection on which a call was given up, or whose server said something
//!   unexpected, is closed and never used again.
//!   Values are told by their keys. Answers that bear no key (numbers, `STORED`, misses) are told by their order alone:
//!   a connection on which the server has sent more than was asked is not used again, but a second answer that is still
//!   on its way can be given to the next call.
//! - **Every call ends by its deadline** ([`Builder::timeout`]), the wait for a connection included.
//! - **An error says whether the change may have happened** ([`Error::is_ambiguous`]). The client repeats a request on
//!   its own only if it was never written, or only reads.
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
pub use item::{Counted, Item, PerServer, StoreRequest, Stored, Ttl};
pub use larder_protocol::StoreMode;
pub use list::{ListedServer, ServerList};

#[cfg(feature = "tls")]
pub use tls::Tls;
pub use typed::Typed;
pub use waiter::{Interrupted, Readiness, Waiter, Waiting};

#[cfg(all(doctest, feature = "tokio"))]
#[doc = include_str!("../../../docs/rust.md")]
struct DocumentationPage;
