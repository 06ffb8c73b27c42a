//! The integration tests of larder-client in one program. Only `reported.rs` is a separate program,
//! because it installs a process-wide metrics recorder and a process-wide tracing subscriber.

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
