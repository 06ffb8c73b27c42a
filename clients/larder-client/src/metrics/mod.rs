//! What a client has done, in numbers: `metrics` of a client returns them as [`Metrics`].
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
//! All numbers but those of the present (`open`, `idle`, `waiting`, `breaker_is_open`) only grow, from the time at which
//! the client was built. Clones of a client count together.
//!
//! With the feature `metrics` the same events are reported by the crate `metrics`, so that the exporter of a program shows
//! them; it has to be installed before the client is built. With the feature `tracing` connections, breakers and lists of
//! servers have events. Neither contains keys, values or passwords.
//!
//! | file | contains |
//! |---|---|
//! | `recorder.rs` | what is counted of a server and of a client, and the events |
//! | `number.rs` | one number that is counted here, and reported |
//! | `facade.rs` | the crate `metrics`, or, without the feature, nothing (`no_facade.rs`) |
//! | `histogram.rs` | times in buckets |
//! | `command.rs`, `reason.rs` | commands that are timed together, and why connections are closed |
//! | `snapshot.rs` | what a program gets |

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
