//! Metrics of a client. A client's method `metrics` returns them as [`Metrics`].
//!
//! ```no_run
//! use larder_client::{blocking::Client, metrics::Command};
//!
//! let cache = Client::connect("cache-1:11211, cache-2:11211")?;
//! let metrics = cache.metrics();
//! let gets = metrics.latency(Command::Get);
//! println!("{} gets, 99 % of them within {:?}", gets.count(), gets.quantile(0.99));
//! for server in &metrics.servers {
//!     println!("{}: {} of {} connections are idle", server.server, server.idle, server.open);
//! }
//! # Ok::<(), larder_client::Error>(())
//! ```
//!
//! All numbers are totals since the client was built, except the current values `open`, `idle`,
//! `waiting` and `breaker_is_open`. Clones of a client share the numbers.
//!
//! With the feature `metrics`, the client also reports these numbers, except `idle` and `waiting`,
//! to the program's exporter through the crate `metrics`. The program must install the exporter
//! before it builds the client. With the feature `tracing`, the client emits events about
//! connections, breakers and server lists. Neither metrics nor events contain keys, values or
//! passwords.
//!
//! | file | contains |
//! |---|---|
//! | `recorder.rs` | recording for servers and for the client, and events |
//! | `number.rs` | a counter or timer that is recorded and reported |
//! | `facade.rs` | the crate `metrics`, or without the feature an empty replacement (`no_facade.rs`) |
//! | `histogram.rs` | histograms of times |
//! | `command.rs`, `reason.rs` | groups of commands, and reasons for closing connections |
//! | `snapshot.rs` | the public snapshot |

mod command;
#[cfg_attr(not(feature = "metrics"), path = "no_facade.rs")]
mod facade;
mod histogram;
mod number;
mod reason;
mod recorder;
mod snapshot;

pub use command::Command;
pub use histogram::Histogram;
pub use reason::CloseReason;
pub use snapshot::{ComputingMetrics, Metrics, ServerMetrics};

pub(crate) use recorder::{ClientRecorder, OpenConnection, ServerRecorder};
