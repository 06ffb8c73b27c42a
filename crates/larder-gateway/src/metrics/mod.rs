//! Metrics for Prometheus.
//!
//! ```text
//!  server.rs, a thread of its own ─▶ answer.rs, one request a connection ─▶ scrape.rs ─▶ collector.rs
//! ```
//!
//! The interface of items answers `/metrics` with the same scrape.

mod answer;
mod collector;
mod format;
mod latency;
mod process;
mod scrape;
mod server;
mod text;
mod web;

pub use server::MetricsServer;

#[cfg(feature = "http")]
pub(crate) use {format::Format, scrape::Metrics};
