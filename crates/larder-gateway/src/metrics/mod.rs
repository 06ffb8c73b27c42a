//! Prometheus metrics.
//!
//! ```text
//!  server.rs: the thread ─▶ answer.rs: one request per connection ─▶ scrape.rs ─▶ collector.rs
//! ```
//!
//! The HTTP interface for items also serves `/metrics`, with the same content.

mod answer;
mod collector;
mod format;
mod latency;
mod model;
mod process;
mod scrape;
mod server;
mod text;
mod web;

pub use server::MetricsServer;

#[cfg(feature = "http")]
pub(crate) use {format::Format, scrape::scrape};
