//! A load generator for cache servers.
//!
//! [`Arguments`] are parsed from a command line and validated as [`Settings`]. [`run()`] performs
//! one run and returns its results as [`Measured`]. [`bench()`] performs all runs of a command line
//! and writes their results.
#![forbid(unsafe_code)]

mod arguments;
pub mod clients;
mod command;
mod find_rate;
mod load;
mod median;
mod outcome;
mod report;
mod run;
mod run_error;
mod settings;
mod words;

pub use arguments::Arguments;
pub use arguments::custom_options::{CommandList, CommandOptions};
pub use arguments::error::ArgumentError;
pub use arguments::values::{Requests, Timeout};
pub use command::{BenchError, bench};
pub use find_rate::{Bound, Search, Step};
pub use load::stats::client_stats::ClientStats;
pub use median::median;
pub use outcome::{
    Command, FlashUse, Interruption, Latency, Offered, Outcome, ServerCost, ServerOutcome,
};
pub use run::measured::{Measured, Progress, Second};
pub use run::{run, run_interruptible};
pub use run_error::RunError;
pub use settings::{
    Arrivals, CustomCommand, DataSize, Distribution, KeySpace, Keys, Login, NamedServer, OnMiss,
    Pattern, Ratio, Settings, Steps, Stop, Tls, TraceReplay,
};
