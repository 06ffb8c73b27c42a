//! The larderd server: it binds, accepts, moves bytes, counts, and answers `stats`. What commands
//! mean is the session's matter.
#![forbid(unsafe_code)]

pub mod auth;
pub mod connection;
pub mod controls;
pub mod driver;
#[cfg(feature = "metrics")]
pub mod gateway;
mod host;
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
