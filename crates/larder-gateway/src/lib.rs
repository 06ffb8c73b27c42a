//! Interfaces of a cache server over HTTP and gRPC: items, statistics, and metrics for Prometheus.
//!
//! ```text
//!  web/, a thread of its own
//!     ├─ http/ ─┬─▶ Items (items.rs) ─▶ worker/ ───┬─▶ larder-operations
//!     ├─ grpc/ ─┘                                  └─▶ remote.rs: other servers of the cluster
//!     ├─────────▶ ServerView (server_view.rs): the server that the process is
//!     │
//!  metrics/, another one
//! ```
//!
//! Handlers know neither the engine of the cache nor what an operation means: [`larder_operations`] says that,
//! and `worker/` repeats operations that wait for slower storage. A server shows itself by a [`ServerView`].
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

#[cfg(feature = "http")]
mod abort;
#[cfg(feature = "grpc")]
mod grpc;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "http")]
mod items;
mod metrics;
#[cfg(feature = "http")]
mod remote;
#[cfg(feature = "http")]
mod server;
mod server_view;
#[cfg(feature = "http")]
mod web;
mod web_counts;
#[cfg(feature = "http")]
mod worker;

pub use metrics::MetricsServer;
pub use server_view::{Asked, Asking, Group, Kind, Login, Rights, Sample, ServerView};

#[cfg(feature = "http")]
pub use server::{Interfaces, WebConfig, WebListener, WebServer, WebTls};
pub use web_counts::WebCounts;
