//! Interfaces of a cache server over HTTP: metrics for Prometheus.
//!
//! ```text
//!  metrics/server.rs, a thread of its own ─▶ answer.rs, one request a connection ─▶ mod.rs, one scrape
//!                                                                                        │
//!                                                                 ServerView ◀───────────┘
//! ```
//!
//! Nothing here knows what a command means or takes part in answering one. A server shows what it
//! measures by a [`ServerView`]; a scrape reads it on the gateway's own thread.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

mod metrics;
mod server_view;

pub use metrics::MetricsServer;
pub use server_view::{Kind, Sample, ServerView};
