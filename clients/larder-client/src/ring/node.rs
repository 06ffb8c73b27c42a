//! The servers that keys are distributed over.

use std::net::IpAddr;

/// memcached's port, which libmemcached leaves out of the names of servers.
const DEFAULT_PORT: u16 = 11211;

/// A server, as methods of hashing see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The host, or the path of a Unix socket.
    host: Box<str>,
    /// `None` for a Unix socket.
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

    /// A server at a host and port, of weight 1. The host is hashed as it is written here: write it as it is in the
    /// other clients' configuration, IPv6 addresses without brackets.
    #[must_use]
    pub fn new(host: impl Into<Box<str>>, port: u16) -> Self {
        Self::with_address(host.into(), Some(port))
    }

    /// A server behind a Unix socket, of weight 1.
    #[must_use]
    pub fn unix(path: impl Into<Box<str>>) -> Self {
        Self::with_address(path.into(), None)
    }

    /// How many keys the server gets in relation to the others; 0 for none. By methods with points a server whose weight
    /// is below about 1 ÷ 40 (ketama) or 1 ÷ 160 (dalli) of the average gets none either, as it has no point.
    #[must_use]
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    /// The IPv4 address of a server that is named by its host, which
    /// [`Hashing::Spymemcached`](super::Hashing::Spymemcached) hashes too.
    #[must_use]
    pub fn ip(mut self, ip: IpAddr) -> Self {
        self.ip = Some(ip);
        self
    }

    /// Whether the server is there. One that is not is left out, as if it were not in the list, except that the
    /// others keep their indexes.
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

    /// `host:port`, or the path.
    pub(super) fn name(&self) -> String {
        match self.port {
            Some(port) => format!("{}:{port}", self.host),
            None => self.host.to_string(),
        }
    }

    /// `host:port`, `host` at memcached's port, `path:0`.
    pub(super) fn libmemcached_name(&self) -> String {
        match self.port {
            Some(DEFAULT_PORT) => self.host.to_string(),
            port => format!("{}:{}", self.host, port.unwrap_or(0)),
        }
    }

    /// `host/ip:port`, `host:port` if no IP address was given.
    pub(super) fn spymemcached_name(&self) -> String {
        match (self.ip, self.port) {
            (Some(ip), Some(port)) => format!("{}/{ip}:{port}", self.host),
            _ => self.name(),
        }
    }
}
