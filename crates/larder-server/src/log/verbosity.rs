//! The verbosity of the log on standard error: memcached's levels. `-v` sets it at the start, the `verbosity`
//! command later.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};

/// The level and the filter that implements it.
pub struct Verbosity {
    level: AtomicU32,
    filter: reload::Handle<Targets, Registry>,
}

impl Verbosity {
    /// Starts the log of the process. Level 0 logs warnings and errors, 1 also server events, 2 also connections, 3
    /// also the details that libraries log. A process has one log: a second call does not change it.
    #[must_use]
    pub fn start_log(level: u32) -> Self {
        let (layer, filter) = reload::Layer::<_, Registry>::new(filter(level));
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal())
            .with_target(false);
        // The call fails if the process already has a log.
        let _ = tracing_subscriber::registry().with(layer).with(lines).try_init();
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

/// Returns the filter of a level. Of the messages of the HTTP client for etcd, it passes only
/// warnings and errors, because that client logs each of its requests. Below level 3, it passes only
/// errors of rustls, because each connection of a peer can cause a warning.
fn filter(level: u32) -> Targets {
    let tls = if level < 3 { LevelFilter::ERROR } else { LevelFilter::TRACE };
    let level = match level {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    Targets::new()
        .with_default(level)
        .with_target("rustls", tls)
        .with_target("ureq", LevelFilter::WARN)
        .with_target("ureq_proto", LevelFilter::WARN)
}

#[cfg(test)]
mod tests {
    use super::filter;
    use tracing::Level;

    #[test]
    fn peers_cannot_fill_the_log_with_warnings_of_the_tls_library() {
        for level in 0..3 {
            assert!(!filter(level).would_enable("rustls::msgs::handshake", &Level::WARN));
            assert!(filter(level).would_enable("rustls::msgs::handshake", &Level::ERROR));
            assert!(filter(level).would_enable("larder_server::tls", &Level::WARN));
        }
        assert!(filter(3).would_enable("rustls::msgs::handshake", &Level::WARN));
    }
}
