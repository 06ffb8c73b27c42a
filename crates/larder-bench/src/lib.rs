//! A load generator for cache servers, and comparisons of several servers side by side.
//!
//! [`Arguments`] are parsed from a command line and validated as [`Settings`]; [`run()`] returns the
//! results as an [`Outcome`].
#![forbid(unsafe_code)]

mod arguments;
pub mod blocking;
mod command;
pub mod compare;
pub mod empty_loop;
pub mod fill;
pub mod hitratio;
pub mod launch;
mod load;
mod machine;
mod median;
mod outcome;
mod report;
mod run;
mod server_process;
mod settings;
pub mod simulate;
pub mod target;
mod values;

pub use arguments::{ArgumentError, Arguments, Requests};
pub use command::{BenchError, bench};
pub use machine::Machine;
pub use median::median;
pub use outcome::{Command, Latency, Outcome, ServerCost};
pub use run::{Measured, Progress, RunError, run};
pub use settings::{DataSize, Keys, Pattern, Protocol, Ratio, ServerAddress, Settings, Stop, Tls};
