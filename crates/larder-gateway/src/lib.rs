//! HTTP and gRPC interfaces of a cache server: items, statistics, and Prometheus metrics.
//!
//! ```text
//!  server.rs and web/: one thread
//!     ├─ http/ ─┬─▶ Items (items.rs) ─▶ worker/ ───┬─▶ larder-operations
//!     ├─ grpc/ ─┘                                  └─▶ remote.rs: other servers of the cluster
//!     ├─────────▶ ServerView (server_view.rs): state of the server process
//!     │
//!  metrics/: another thread
//! ```
//!
//! Handlers depend neither on the cache engine nor on command semantics. [`larder_operations`]
//! implements the semantics, and `worker/` repeats operations that wait for slower storage. The
//! server implements [`ServerView`].
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

#[cfg(feature = "http")]
mod abort;
#[cfg(feature = "http")]
mod expiry;
#[cfg(feature = "grpc")]
mod grpc;
mod host;
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
pub use server_view::{
    Group, Login, MetricKind, MetricSample, RemoteRequest, RemoteState, Rights, ServerView,
};

#[cfg(feature = "http")]
pub use server::{Interfaces, WebConfig, WebListener, WebServer, WebTls};
pub use web_counts::WebCounts;
