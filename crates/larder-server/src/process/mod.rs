//! The process: its privileges, its limits, its PID file, signals, and the service manager.

pub mod life_cycle;
pub mod pid_file;
pub mod platform;
pub mod systemd;
pub mod version;
