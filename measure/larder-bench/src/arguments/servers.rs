//! Converts options to servers, the login and the TLS settings.

use super::Arguments;
use super::error::{ArgumentError, wrong};
use crate::load::wire::custom::key_count;
use crate::settings::{Login, NamedServer, Tls};
use larder_target::{Protocol, ServerAddress};
use std::net::{SocketAddr, ToSocketAddrs};

impl Arguments {
    pub(super) fn servers(&self) -> Result<Vec<NamedServer>, ArgumentError> {
        if let Some(path) = &self.unix_socket {
            if self.server.contains(',') {
                return Err(wrong("unix-socket", path.display(), "no list of servers"));
            }
            return Ok(vec![NamedServer::at(ServerAddress::Unix(path.clone()))]);
        }
        let mut servers: Vec<NamedServer> = Vec::new();
        for name in self.server.split(',') {
            let expected = "HOST or HOST:PORT, with an IPv6 address before a port in brackets, and \
                            commas between several";
            let (host, port) =
                host_and_port(name).ok_or_else(|| wrong("server", &self.server, expected))?;
            let address = ServerAddress::Tcp(self.resolve(host, port)?);
            if servers.iter().any(|other| other.address == address) {
                return Err(wrong("server", &self.server, "each server once"));
            }
            servers.push(NamedServer { host: host.to_owned(), address });
        }
        Ok(servers)
    }

    fn resolve(&self, host: &str, port: Option<u16>) -> Result<SocketAddr, ArgumentError> {
        let usual = if self.protocol == Protocol::Resp { 6379 } else { 11211 };
        let port = port.or(self.port).unwrap_or(usual);
        let mut found = (host, port)
            .to_socket_addrs()
            .map_err(|_| ArgumentError::NoAddress(host.to_owned()))?
            .filter(|address| !self.ipv4 || address.is_ipv4())
            .filter(|address| !self.ipv6 || address.is_ipv6());
        // Prefers IPv4 addresses. `localhost` can resolve to ::1 first, and a server that listens
        // only on IPv4 does not accept connections to ::1.
        let first = found.next().ok_or_else(|| ArgumentError::NoAddress(host.to_owned()))?;
        Ok(found.find(|other| first.is_ipv6() && other.is_ipv4()).unwrap_or(first))
    }

    /// Rejects options that cannot be used with this number of servers.
    pub(super) fn check_number_of_servers(
        &self,
        servers: &[NamedServer],
    ) -> Result<(), ArgumentError> {
        if let ([_], Some(distribution)) = (servers, self.distribution) {
            return Err(wrong("distribution", distribution, "several servers (--server)"));
        }
        if servers.len() == 1 {
            return Ok(());
        }
        if let Some(pid) = self.pid {
            return Err(wrong("pid", pid, "one server; with several, larder bench finds them"));
        }
        if let Some(prefix) = &self.client_stats {
            return Err(wrong("client-stats", prefix, "one server"));
        }
        if self.reconnect_on_error {
            return Err(wrong("reconnect-on-error", "", "one server"));
        }
        if let Some(interval) = self.reconnect_interval {
            return Err(wrong("reconnect-interval", interval, "one server"));
        }
        if let Some(trace) = &self.trace {
            return Err(wrong("trace", trace.display(), "one server"));
        }
        let without_server = self.commands.0.iter().find(|command| key_count(&command.line) != 1);
        match without_server {
            Some(command) => {
                Err(wrong("command", &command.line, "one __key__, which decides the server"))
            }
            None => Ok(()),
        }
    }

    pub(super) fn login(&self) -> Result<Option<Login>, ArgumentError> {
        let Some(credentials) = &self.authenticate else { return Ok(None) };
        let (user, password) = match credentials.split_once(':') {
            Some(("", password)) => (None, password),
            Some((user, password)) => (Some(user.to_owned()), password),
            None => (None, credentials.as_str()),
        };
        if user.is_none() && self.protocol != Protocol::Resp {
            // The message must not contain the credentials.
            return Err(wrong("authenticate", "...", "USER:PASSWORD with memcached's protocols"));
        }
        Ok(Some(Login { user, password: password.to_owned() }))
    }

    pub(super) fn tls_settings(&self) -> Tls {
        Tls {
            authority: self.cacert.clone(),
            client: self.cert.clone().zip(self.key.clone()),
            server_name: self.sni.clone(),
        }
    }
}

/// Splits `HOST`, `HOST:PORT`, `[IPV6]`, `[IPV6]:PORT` or `IPV6`. Returns `None` for any other
/// form.
fn host_and_port(text: &str) -> Option<(&str, Option<u16>)> {
    let port = |text: &str| text.parse().ok().map(Some);
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            (host, if after.is_empty() { None } else { port(after.strip_prefix(':')?)? })
        }
        None => match text.rsplit_once(':') {
            Some((host, number)) if !host.contains(':') => (host, port(number)?),
            _ => (text, None),
        },
    };
    (!host.is_empty()).then_some((host, port))
}
