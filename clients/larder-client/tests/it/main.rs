//! The integration tests of larder-client, one program. `reported.rs` is another one, because it installs a
//! process-wide metrics recorder and tracing subscriber.

mod common;
mod discovery;
mod dropped;
mod faults;
mod hostile;
mod lease;
mod metrics;
mod ring;
mod several;
mod shared;
