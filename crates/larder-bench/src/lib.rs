//! A load generator for caches that compares them honestly, side by side.
//!
//! [`Arguments`] are what is typed, [`Settings`] what is done, an [`Outcome`] what came of it.
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
