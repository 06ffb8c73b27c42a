//! The larderd server: options, sockets, drivers, limits and statistics. The session crate implements the
//! commands.
#![forbid(unsafe_code)]

pub mod auth;
pub mod connection;
pub mod controls;
pub mod driver;
#[cfg(feature = "metrics")]
pub mod gateway;
mod host;
mod loaded_scripts;
pub mod log;
pub mod memory;
pub mod net;
pub mod node;
pub mod options;
pub mod prefixes;
pub mod process;
pub mod server;
pub mod stats;
pub mod timing;
pub mod tls;
