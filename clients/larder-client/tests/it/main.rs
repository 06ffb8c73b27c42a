//! The integration tests of larder-client, one program. `reported.rs` installs what reports for
//! its whole process and is another.

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
