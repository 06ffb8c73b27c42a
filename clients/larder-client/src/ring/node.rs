//! Servers of a ring.

use std::net::IpAddr;

/// memcached's default port. libmemcached omits it from server names.
const DEFAULT_PORT: u16 = 11211;

/// A server of a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The host, or the path of a unix socket.
    host: Box<str>,
    /// The port. `None` for a unix socket.
    port: Option<u16>,
    ip: Option<IpAddr>,
    weight: u32,
    is_alive: bool,
}

/// A server with its index in the list.
pub(super) type Member<'n> = (u32, &'n Node);

impl Node {
    fn with_address(host: Box<str>, port: Option<u16>) -> Self {
        Self { host, port, ip: None, weight: 1, is_alive: true }
    }

    /// Creates a server at a host and port, with weight 1. The ring hashes the host exactly as
    /// written here. Write the host as in the configuration of the other clients, and write IPv6
    /// addresses without brackets.
    #[must_use]
    pub fn new(host: impl Into<Box<str>>, port: u16) -> Self {
        Self::with_address(host.into(), Some(port))
    }

    /// Creates a server behind a unix socket, with weight 1.
    #[must_use]
    pub fn unix(path: impl Into<Box<str>>) -> Self {
        Self::with_address(path.into(), None)
    }

    /// Sets the server's share of the keys relative to the other servers. With a weight of 0, the
    /// server gets no keys. With methods that use points, a weight below about 1 ÷ 40 (ketama) or 1
    /// ÷ 160 (dalli) of the average gives the server no point and no keys.
    #[must_use]
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    /// Sets the IPv4 address of a server with a host name.
    /// [`Hashing::Spymemcached`](super::Hashing::Spymemcached) hashes it together with the name.
    #[must_use]
    pub fn ip(mut self, ip: IpAddr) -> Self {
        self.ip = Some(ip);
        self
    }

    /// Sets whether the server is alive. A ring omits servers that are not alive. The indexes of
    /// the other servers do not change.
    #[must_use]
    pub fn alive(mut self, is_alive: bool) -> Self {
        self.is_alive = is_alive;
        self
    }

    pub(super) fn is_alive(&self) -> bool {
        self.is_alive
    }

    pub(super) fn share(&self) -> u32 {
        self.weight
    }

    /// Returns the name of the server: `host:port`, or the unix socket's path.
    pub(super) fn name(&self) -> String {
        match self.port {
            Some(port) => format!("{}:{port}", self.host),
            None => self.host.to_string(),
        }
    }

    /// Returns the name that libmemcached hashes: `host:port`, `host` for memcached's default port,
    /// or `path:0`.
    pub(super) fn libmemcached_name(&self) -> String {
        match self.port {
            Some(DEFAULT_PORT) => self.host.to_string(),
            port => format!("{}:{}", self.host, port.unwrap_or(0)),
        }
    }

    /// Returns the name that spymemcached hashes: `host/ip:port`. Without an IP address, it is the
    /// plain name.
    pub(super) fn spymemcached_name(&self) -> String {
        match (self.ip, self.port) {
            (Some(ip), Some(port)) => format!("{}/{ip}:{port}", self.host),
            _ => self.name(),
        }
    }
}
