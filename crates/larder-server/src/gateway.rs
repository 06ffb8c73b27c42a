//! The gateway: the server as it sees it, and its threads.

use crate::auth::TokenRights;
use crate::life_cycle::Phase;
use crate::server::Server;
use crate::stats::{Page, samples};
use larder_gateway::{Login, MetricsServer, Rights, Sample, ServerView};
use larder_operations::{Event, Latencies, Limits, Observer};
use larder_protocol::{Credentials, Password, Streams};
use larder_session::{Host, pass_on};
use larder_store::Seconds;
use larder_store::cache::Cache;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;

impl ServerView for Server {
    fn samples(&self, visit: &mut dyn FnMut(Sample)) {
        samples(self, visit);
    }

    fn latencies(&self) -> Latencies {
        Host::latencies(self)
    }

    fn now(&self) -> Seconds {
        self.clock.now()
    }

    fn limits(&self) -> &Limits {
        &self.settings.limits
    }

    fn statistics(&self, page: &str, visit: &mut dyn FnMut(&str, &str)) -> bool {
        let page = Page::named(page);
        page.inspect(|page| page.show(self, visit)).is_some()
    }

    fn observer(&self) -> Option<&dyn Observer> {
        (self.observed() != Streams::default()).then_some(self)
    }

    fn login_required(&self) -> bool {
        self.passwords.is_some() || self.tokens.is_some()
    }

    fn log_in(&self, login: &Login<'_>) -> Option<Rights> {
        let rights = match *login {
            Login::User(user, password) => {
                let credentials = Credentials { user, password: Password(password) };
                self.authenticate(&credentials).then_some(Rights::All)
            }
            Login::Token(token) => {
                let rights = self.tokens.as_ref().and_then(|tokens| tokens.rights(token));
                rights.map(|rights| match rights {
                    TokenRights::All => Rights::All,
                    TokenRights::Read => Rights::Read,
                })
            }
        };
        // It is asked on the gateway's thread.
        if let Some(counters) = self.counters.get(self.options.threads) {
            counters.thread.auth_cmds.add(1);
            counters.thread.auth_errors.add(u64::from(rights.is_none()));
        }
        rights
    }

    fn flush_allowed(&self) -> bool {
        self.settings.flush_enabled
    }

    fn is_ready(&self) -> bool {
        self.life.phase() == Phase::Serving
    }

    fn reserve(&self, bytes: usize) -> bool {
        Host::reserve(self, bytes)
    }

    fn release(&self, bytes: usize) {
        Host::release(self, bytes);
    }
}

impl Observer for Server {
    fn notify(&self, event: &Event<'_>) {
        pass_on(self, event);
    }
}

/// The threads of the gateway, which run beside the driver.
#[derive(Default)]
pub struct Gateway {
    metrics: Option<MetricsServer>,
    #[cfg(feature = "http")]
    http: Option<larder_gateway::HttpServer>,
}

impl Gateway {
    /// Starts what the sockets are for: none, no thread.
    ///
    /// # Errors
    /// The system has no thread or event queue for it.
    pub fn start(
        server: &Arc<Server>,
        cache: &impl Cache,
        metrics: Vec<TcpListener>,
        http: Vec<TcpListener>,
    ) -> io::Result<Self> {
        let mut gateway = Self::default();
        if !metrics.is_empty() {
            gateway.metrics = Some(MetricsServer::start(metrics, Arc::clone(server) as _)?);
        }
        #[cfg(feature = "http")]
        if let Some(counters) = server.counters.get(server.options.threads)
            && !http.is_empty()
        {
            let (view, counters) = (Arc::clone(server) as _, Arc::clone(counters));
            let config = config(&server.options);
            let http = larder_gateway::HttpServer::start(http, config, cache, view, counters)?;
            gateway.http = Some(http);
        }
        #[cfg(not(feature = "http"))]
        let _ = (cache, http);
        Ok(gateway)
    }

    /// Answers what is under way, and ends the threads.
    pub fn stop(self) {
        #[cfg(feature = "http")]
        if let Some(http) = self.http {
            http.stop();
        }
        if let Some(metrics) = self.metrics {
            metrics.stop();
        }
    }
}

#[cfg(feature = "http")]
fn config(options: &crate::options::Options) -> larder_gateway::HttpConfig {
    larder_gateway::HttpConfig {
        hosts: options.http_host.clone(),
        origins: options.http_cors.clone(),
        connections_max: options.gateway_conns,
    }
}
