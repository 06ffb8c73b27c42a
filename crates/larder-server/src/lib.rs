//! The larderd server: options, sockets, drivers, limits and statistics. The session crate
//! implements the commands.
//!
//! | folder or file | subject |
//! |---|---|
//! | `bin/larderd/` | the program: privileges, engine, sockets, start and stop |
//! | `options/` | command line, environment, configuration file, `-o` list, refusals |
//! | `process/` | phases, signals, PID file, systemd, versions |
//! | `net/` | listeners, the protocol of each, UDP, the gate that pauses accepting |
//! | `tls/` | TLS of clients: certificates, encryption, requirements of a listener |
//! | `driver/` | the accepting thread, workers, and the event loops of each `--runtime` |
//! | `connection/` | a client's connection, its buffers, load shedding |
//! | `memory/` | parts of `-m`, memory file, flash files, slab classes of statistics, log lines about storage |
//! | `server.rs`, `host.rs`, `controls.rs` | the state that all threads share; the `Host` of sessions; settings that commands change |
//! | `auth.rs`, `loaded_scripts.rs` | passwords and tokens; hashes of loaded scripts |
//! | `stats/`, `prefixes.rs`, `timing.rs` | rows of `stats` and metrics; counts by prefix; latencies |
//! | `log/` | `watch`, and the verbosity of standard error |
//! | `gateway/` | threads of HTTP, gRPC and metrics, and their view of the server |
//! | `node.rs` | the configuration of replication and cluster |
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
