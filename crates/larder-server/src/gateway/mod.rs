//! The gateway for metrics, HTTP and gRPC: its interface to the server, and its threads.

mod route;

use crate::auth::TokenRights;
use crate::gateway::route::GatewayRoute;
use crate::net::gateway_sockets::GatewaySockets;
use crate::process::life_cycle::Phase;
use crate::server::Server;
use crate::stats::{Page, samples};
use larder_gateway::{
    Group, Login, MetricSample, MetricsServer, RemoteRequest, Rights, ServerView, WebCounts,
};
use larder_operations::{Event, EventQueue, Latencies, Limits, Observer};
use larder_protocol::{Credentials, Password, Streams};
use larder_session::{Conversation, GroupIndex, GroupMap, Host, Owner, notify_host};
use larder_store::Now;
use larder_store::erased;
use std::io;
use std::sync::Arc;
use std::time::Duration;

impl ServerView for Server {
    fn samples(&self, visit: &mut dyn FnMut(MetricSample)) {
        samples(self, visit);
    }

    fn web_counts(&self) -> &WebCounts {
        &self.web
    }

    fn latencies(&self) -> Latencies {
        Host::latencies(self)
    }

    fn now(&self) -> Now {
        self.clock.moment().into()
    }

    fn random(&self) -> u64 {
        rand::random()
    }

    fn limits(&self) -> &Limits {
        &self.settings.limits
    }

    fn memory_limit(&self) -> u64 {
        self.memory().items as u64
    }

    fn statistics(&self, page: &str, visit: &mut dyn FnMut(&str, &str)) -> bool {
        let page = Page::named(page).filter(|page| page.is_allowed(self));
        page.inspect(|page| page.show(self, visit)).is_some()
    }

    fn observer(&self) -> Option<&dyn Observer> {
        (self.observed() != Streams::default()).then_some(self)
    }

    fn watch_allowed(&self) -> bool {
        !self.options.disable_watch
    }

    fn watch(&self, queue: &Arc<EventQueue>) -> bool {
        self.log.queue(queue)
    }

    fn unwatch(&self, queue: &Arc<EventQueue>) {
        self.log.unqueue(queue);
    }

    fn login_required(&self) -> bool {
        self.access.passwords.is_some() || self.access.tokens.is_some()
    }

    fn log_in(&self, login: &Login<'_>) -> Option<Rights> {
        let rights = match *login {
            Login::User(user, password) => {
                let credentials = Credentials { user, password: Password(password) };
                self.authenticate(&credentials).then_some(Rights::All)
            }
            Login::Token(token) => {
                let rights = self.access.tokens.as_ref().and_then(|tokens| tokens.rights(token));
                rights.map(|rights| match rights {
                    TokenRights::All => Rights::All,
                    TokenRights::Read => Rights::Read,
                })
            }
        };
        // In the list, the counters of the gateway's thread follow those of the workers.
        if let Some(counters) = self.counters.get(self.options.threads) {
            counters.thread.auth_cmds.add(1);
            counters.thread.auth_errors.add(u64::from(rights.is_none()));
        }
        rights
    }

    fn flush_allowed(&self) -> bool {
        self.settings.flush_enabled
    }

    fn read_only(&self) -> bool {
        self.settings.read_only
    }

    fn serves(&self, is_lookup: bool) -> bool {
        match self.owner() {
            Owner::Local => true,
            Owner::RemoteWithLocalReads => is_lookup,
            Owner::Remote => false,
        }
    }

    fn group_of(&self, key: &[u8]) -> Group {
        let group = self.node.group.as_ref().map(|group| group.topology.group_of(key));
        group.map_or(Group::OWN, |GroupIndex(group)| Group(group))
    }

    fn groups(&self) -> Vec<Group> {
        let groups = self.node.group.as_ref().map(|group| group.topology.groups());
        groups.map_or(vec![Group::OWN], |groups| groups.into_iter().map(|n| Group(n.0)).collect())
    }

    fn retry_time(&self, Group(group): Group) -> Duration {
        self.node.forwarders.retry_time(GroupIndex(group))
    }

    fn open_route(&self, Group(group): Group) -> Box<dyn RemoteRequest> {
        let route = self.node.forwarders.open(GroupIndex(group), Conversation::Gateway);
        Box::new(GatewayRoute::new(route))
    }

    fn dumps_allowed(&self) -> bool {
        Host::dumps_allowed(self)
    }

    fn is_ready(&self) -> bool {
        self.life.phase() == Phase::Serving
    }

    fn connection_memory(&self) -> usize {
        self.memory().connections
    }

    fn reserve(&self, bytes: usize) -> bool {
        let total = self.connections.count_held(bytes.cast_signed());
        let fits = total <= self.memory().connections;
        if !fits {
            Host::release(self, bytes);
        }
        fits
    }

    fn release(&self, bytes: usize) {
        Host::release(self, bytes);
    }
}

impl Observer for Server {
    fn notify(&self, event: &Event<'_>) {
        notify_host(self, event);
    }
}

/// The threads of the gateway.
#[derive(Default)]
pub struct Gateway {
    metrics: Option<MetricsServer>,
    #[cfg(feature = "http")]
    web: Option<larder_gateway::WebServer>,
}

impl Gateway {
    /// Starts the threads that serve the sockets. Starts no threads if there are no sockets.
    ///
    /// # Errors
    /// The system cannot create a thread or an event queue.
    pub fn start(
        server: &Arc<Server>,
        cache: &erased::Cache,
        sockets: GatewaySockets,
    ) -> io::Result<Self> {
        let mut gateway = Self::default();
        if !sockets.metrics.is_empty() {
            let view = Arc::clone(server) as _;
            let metrics = sockets.metrics.into_iter().map(|metrics| metrics.socket).collect();
            gateway.metrics = Some(MetricsServer::start(metrics, view)?);
        }
        #[cfg(feature = "http")]
        {
            let of_http = if sockets.grpc_shares_http { web::BOTH } else { web::HTTP };
            let http = sockets.http.into_iter().map(|http| web::listener(server, http, of_http));
            let grpc = sockets.grpc.into_iter().map(|grpc| web::listener(server, grpc, web::GRPC));
            gateway.web = web::start(server, cache, http.chain(grpc).collect())?;
        }
        #[cfg(not(feature = "http"))]
        let _ = cache;
        Ok(gateway)
    }

    /// Stops the threads. Active HTTP and gRPC requests get up to two seconds to finish. Scrapes
    /// are aborted.
    pub fn stop(self) {
        #[cfg(feature = "http")]
        if let Some(web) = self.web {
            web.stop();
        }
        if let Some(metrics) = self.metrics {
            metrics.stop();
        }
    }
}

/// HTTP and gRPC.
#[cfg(feature = "http")]
mod web {
    use super::{Arc, Server, erased, io};
    use crate::net::gateway_sockets::GatewaySocket;
    use larder_gateway::{Interfaces, WebConfig, WebListener, WebServer, WebTls};

    pub(super) const HTTP: Interfaces = Interfaces::Http;
    #[cfg(feature = "grpc")]
    pub(super) const BOTH: Interfaces = Interfaces::HttpAndGrpc;
    #[cfg(feature = "grpc")]
    pub(super) const GRPC: Interfaces = Interfaces::Grpc;
    // Options::check() refuses --grpc-listen in this build.
    #[cfg(not(feature = "grpc"))]
    pub(super) const BOTH: Interfaces = Interfaces::Http;
    #[cfg(not(feature = "grpc"))]
    pub(super) const GRPC: Interfaces = Interfaces::Http;

    pub(super) fn listener(
        server: &Arc<Server>,
        GatewaySocket { socket, security }: GatewaySocket,
        interfaces: Interfaces,
    ) -> WebListener {
        let tls = server.access.tls.as_ref().filter(|tls| tls.configuration(security).is_some());
        let tls = tls.map(|tls| {
            let (handshake_time, tls) = (tls.handshake_timeout(), Arc::clone(tls));
            let configuration = Arc::new(move || tls.configuration_of_http(security));
            WebTls { configuration, handshake_time }
        });
        WebListener { socket, interfaces, tls }
    }

    pub(super) fn start(
        server: &Arc<Server>,
        cache: &erased::Cache,
        listeners: Vec<WebListener>,
    ) -> io::Result<Option<WebServer>> {
        let options = &server.options;
        let counters = server.counters.get(options.threads);
        let Some(counters) = counters.filter(|_| !listeners.is_empty()) else { return Ok(None) };
        let config = WebConfig {
            hosts: options.http_host.clone(),
            origins: options.http_cors.clone(),
            connections_max: options.gateway_conns,
        };
        let (view, counters) = (Arc::clone(server) as _, Arc::clone(counters));
        WebServer::start(listeners, config, cache, view, counters).map(Some)
    }
}
