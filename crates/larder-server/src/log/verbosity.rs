//! The process's log, and its verbosity in memcached's levels. `-v` sets the initial level, and the
//! `verbosity` command changes it. The log is written to standard error, or to the system's log
//! (syslog) after [`log_to_system`].

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use syslog_tracing::{Facility, Options, Syslog};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets, dynamic_filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};

/// Whether lines are written to the system's log.
static LOGS_TO_SYSTEM: AtomicBool = AtomicBool::new(false);

/// Redirects all later lines to the system's log, because standard error is closed.
pub fn log_to_system() {
    LOGS_TO_SYSTEM.store(true, Relaxed);
}

/// Returns whether lines are written to the system's log.
pub fn logs_to_system() -> bool {
    LOGS_TO_SYSTEM.load(Relaxed)
}

/// The verbosity level and the filter that implements it.
pub struct Verbosity {
    level: AtomicU32,
    filter: reload::Handle<Targets, Registry>,
}

impl Verbosity {
    /// Starts the log of the process. Level 0 logs warnings and errors, 1 also server events, 2
    /// also connections, 3 also the details that libraries log. A process has only one log, and a
    /// second call does not replace it.
    #[must_use]
    pub fn start_log(level: u32) -> Self {
        let (layer, filter) = reload::Layer::<_, Registry>::new(filter(level));
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal())
            .with_target(false)
            .with_filter(dynamic_filter_fn(|_, _| !LOGS_TO_SYSTEM.load(Relaxed)));
        let syslog = Syslog::new(c"larderd", Options::LOG_PID, Facility::Daemon);
        let system = syslog.map(|syslog| {
            // The system adds the time and the level.
            tracing_subscriber::fmt::layer()
                .with_writer(syslog)
                .with_ansi(false)
                .with_level(false)
                .without_time()
                .with_target(false)
                .with_filter(dynamic_filter_fn(|_, _| LOGS_TO_SYSTEM.load(Relaxed)))
        });
        // The call fails if the process already has a log.
        let log = tracing_subscriber::registry().with(layer).with(lines).with(system);
        let _ = log.try_init();
        Self { level: AtomicU32::new(level), filter }
    }

    pub(crate) fn level(&self) -> u32 {
        self.level.load(Relaxed)
    }

    pub(crate) fn set(&self, level: u32) {
        self.level.store(level, Relaxed);
        // The call fails only after the log was dropped.
        let _ = self.filter.reload(filter(level));
    }
}

/// Returns the filter for a level. Below level 3, it passes only errors from libraries, because any
/// peer can cause warnings from the libraries for TLS and HTTP/2. From the HTTP client for etcd, it
/// passes only warnings and errors at every level, because that client logs each request.
fn filter(level: u32) -> Targets {
    let (own, libraries) = match level {
        0 => (LevelFilter::WARN, LevelFilter::ERROR),
        1 => (LevelFilter::INFO, LevelFilter::ERROR),
        2 => (LevelFilter::DEBUG, LevelFilter::ERROR),
        _ => (LevelFilter::TRACE, LevelFilter::TRACE),
    };
    Targets::new()
        .with_default(libraries)
        .with_target("larder", own)
        .with_target("ureq", LevelFilter::WARN)
}

#[cfg(test)]
mod tests {
    use super::filter;
    use tracing::Level;

    #[test]
    fn peers_cannot_fill_the_log_with_warnings_of_libraries() {
        for level in 0..3 {
            for library in ["rustls::msgs::handshake", "h2::proto::ping_pong", "hyper::proto::h2"] {
                assert!(!filter(level).would_enable(library, &Level::WARN));
                assert!(filter(level).would_enable(library, &Level::ERROR));
            }
            assert!(filter(level).would_enable("larder_server::tls", &Level::WARN));
            assert!(filter(level).would_enable("larderd::serve", &Level::WARN));
        }
        assert!(filter(3).would_enable("h2::proto::ping_pong", &Level::TRACE));
        assert!(!filter(3).would_enable("ureq_proto::client", &Level::INFO));
    }
}
