//! The server process: privileges, limits, PID file, signals, the service manager and versions.

pub mod life_cycle;
pub mod pid_file;
pub mod platform;
pub mod systemd;
pub mod version;
