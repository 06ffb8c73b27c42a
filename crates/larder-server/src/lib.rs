//! The larderd server: it binds, accepts, moves bytes, counts, and answers `stats`. What commands
//! mean is the session's matter.
#![forbid(unsafe_code)]

pub mod activation;
mod admission;
pub mod auth;
pub mod connection;
pub mod connections;
pub mod controls;
pub mod conversation;
pub mod dialect;
pub mod driver;
pub mod flash;
pub mod gate;
#[cfg(feature = "metrics")]
pub mod gateway;
#[cfg(feature = "metrics")]
mod gateway_route;
mod holdings;
mod host;
pub mod life_cycle;
pub mod listener;
pub mod log;
pub mod memory;
pub mod memory_file;
pub mod node;
pub mod options;
pub mod pid_file;
pub mod platform;
pub mod prefixes;
pub mod server;
mod shedding;
pub mod slab_classes;
pub mod stats;
pub mod systemd;
pub mod timing;
pub mod tls;
pub mod udp;
pub mod verbosity;
pub mod version;
