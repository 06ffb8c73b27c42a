//! Cache servers under measurement: their addresses and processes, functions that start and stop
//! them, and a blocking client connection.
#![forbid(unsafe_code)]

mod address;
pub mod blocking;
mod cores;
mod cpu_times;
pub mod empty_loop;
mod flash;
mod group;
mod input;
pub mod launch;
mod machine;
pub mod process;
pub mod program;
pub mod target;
pub mod template;

pub use address::{Protocol, ServerAddress};
pub use cores::CoreSet;
pub use cpu_times::CpuTimes;
pub use flash::FlashStats;
pub use input::Input;
pub use machine::Machine;
