//! Discovery of servers. One thread per client refreshes the list periodically and after a fault.

use crate::blocking::stream::Stream;
use crate::blocking::wait::Wait;
use crate::core::endpoint::address::Address;
use crate::core::endpoint::handshake::HandshakeConfig;
use crate::core::endpoint::resolution::Endpoint;
use crate::core::servers::server_set::ServerSet;
use crate::core::servers::{ServerHandle, Servers};
use crate::list::ListedServer;
use crate::refresh::RefreshSignal;
use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// The source of a discovered server list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Discovery {
    /// Every address of a name is a server. Without discovery, a name is one server, and the client
    /// connects to one of its addresses. The client sorts the addresses before it distributes keys
    /// over them, so the order of the DNS reply does not matter.
    Dns,
    /// The command `config get cluster` of memcached services with auto discovery. The client sends
    /// the command to the configured servers and uses the reply with the highest version. The
    /// client ignores replies with a lower version than its current list.
    Cluster,
}

/// The minimum time between two refreshes, unless the discovery interval is shorter.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The number of bytes after which the client stops reading a reply.
const REPLY_LEN_MAX: usize = 1 << 20;

/// A list of servers with its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VersionedList {
    /// The version of the list, which increases with each change. Always 0 for `Dns`.
    pub(crate) version: u64,
    pub(crate) servers: Vec<ListedServer>,
}

/// Finds the list of servers.
#[derive(Debug)]
pub(crate) struct ListFinder {
    pub(crate) discovery: Discovery,
    /// The configured servers.
    pub(crate) seeds: Vec<(ListedServer, Address, HandshakeConfig)>,
    pub(crate) timeout: Duration,
}

impl ListFinder {
    /// Returns the current list.
    ///
    /// # Errors
    /// `Dns`: a name cannot be resolved. `Cluster`: no server returned a list. The call returns the
    /// last server's error.
    pub(crate) fn find(&self) -> io::Result<VersionedList> {
        match self.discovery {
            Discovery::Dns => self.resolve(),
            Discovery::Cluster => self.query_all(),
        }
    }

    fn resolve(&self) -> io::Result<VersionedList> {
        let (mut servers, mut unique) = (Vec::new(), BTreeSet::new());
        for (listed, address, _) in &self.seeds {
            let weight = listed.weight;
            match address {
                Address::Unix(_) => servers.push(listed.clone()),
                Address::Host(host, port) => {
                    let addresses: BTreeSet<SocketAddr> =
                        (host.as_str(), *port).to_socket_addrs()?.collect();
                    let new = addresses.into_iter().filter(|address| unique.insert(*address));
                    servers.extend(new.map(|address| (address.to_string(), weight).into()));
                }
            }
        }
        Ok(VersionedList { version: 0, servers })
    }

    /// Queries all configured servers in sequence, and returns the list with the highest version.
    fn query_all(&self) -> io::Result<VersionedList> {
        let (mut replies, mut last_error) = (Vec::new(), ErrorKind::NotFound.into());
        for (_, address, handshake) in &self.seeds {
            match self.query(address, handshake) {
                Ok(found) => replies.push(found),
                Err(error) => last_error = error,
            }
        }
        replies.into_iter().max_by_key(|found| found.version).ok_or(last_error)
    }

    fn query(&self, address: &Address, handshake: &HandshakeConfig) -> io::Result<VersionedList> {
        let deadline = Instant::now() + self.timeout;
        let resolved = match address {
            Address::Host(host, port) => (host.as_str(), *port).to_socket_addrs()?.collect(),
            Address::Unix(_) => Vec::new(),
        };
        let endpoint =
            Arc::new(Endpoint::new(address.clone(), resolved).with_handshake(handshake.clone()));
        let mut stream =
            Stream::connect(&endpoint, deadline, &Wait(None)).map_err(io::Error::other)?;
        let mut request = &b"config get cluster\r\n"[..];
        while !request.is_empty() {
            match stream.send(request) {
                Ok(len) => request = request.get(len..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    stream.wait(deadline).map_err(|_| io::Error::from(ErrorKind::TimedOut))?;
                }
                Err(error) => return Err(error),
            }
        }
        let (mut reply, mut piece) = (Vec::new(), [0; 4096]);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            match stream.read(&mut piece, left, true) {
                Ok(Some(0)) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(Some(len)) => reply.extend_from_slice(piece.get(..len).unwrap_or_default()),
                Ok(None) => (),
                Err(_) => return Err(ErrorKind::ConnectionAborted.into()),
            }
            let is_complete = reply.ends_with(b"END\r\n") || reply.starts_with(b"ERROR");
            if is_complete || reply.len() > REPLY_LEN_MAX {
                let found = parse(&reply);
                return found
                    .ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "no list of servers"));
            }
        }
    }
}

/// Parses a reply to `config get cluster`:
///
/// ```text
/// CONFIG cluster 0 LEN
/// VERSION
/// HOST|IP|PORT HOST|IP|PORT …
///
/// END
/// ```
fn parse(reply: &[u8]) -> Option<VersionedList> {
    let mut lines = std::str::from_utf8(reply).ok()?.lines();
    let head = lines.next()?;
    head.starts_with("CONFIG cluster ").then_some(())?;
    let version = lines.next()?.trim().parse().ok()?;
    let server = |text: &str| -> Option<ListedServer> {
        let mut parts = text.split('|');
        let (host, ip, port) = (parts.next()?, parts.next()?, parts.next()?);
        let port: u16 = port.parse().ok()?;
        let host = if host.is_empty() { ip } else { host };
        let is_v6 = host.contains(':');
        let address = if is_v6 { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        (!host.is_empty()).then(|| (address, 1).into())
    };
    let servers: Option<Vec<_>> = lines.next()?.split_whitespace().map(server).collect();
    servers.filter(|servers| !servers.is_empty()).map(|servers| VersionedList { version, servers })
}

/// Spawns the thread that refreshes the list until the client is closed or dropped. `make` builds
/// the servers of a list, and keeps servers that are also in the current list. If `make` returns
/// `None`, the current list stays.
///
/// # Errors
/// The thread cannot be spawned.
pub(crate) fn spawn_refresh<S: ServerHandle + Send + Sync + 'static>(
    finder: ListFinder,
    (group, refresh): (Weak<ServerSet<S>>, Arc<RefreshSignal>),
    first: VersionedList,
    every: Duration,
    make: impl Fn(&[ListedServer], &Servers<S>) -> Option<Servers<S>> + Send + 'static,
) -> io::Result<()> {
    let mut current = first;
    let refresh_list = move || {
        loop {
            // The intervals vary randomly, so that clients that started at the same time do not
            // query at the same time.
            let pause = every.mul_f64(0.9 + 0.2 * rand::random::<f64>());
            if !refresh.wait(PAUSE_MIN.min(pause), pause) {
                return;
            }
            let found = match finder.find() {
                Ok(found)
                    if found.version >= current.version && found.servers != current.servers =>
                {
                    found
                }
                // The servers stay unchanged if the refresh failed, the version is older, or the
                // list is equal.
                Ok(_) | Err(_) => continue,
            };
            let Some(group) = group.upgrade() else { return };
            if let Some(servers) = make(&found.servers, &group.servers()) {
                group.replace(servers);
                current = found;
            }
        }
    };
    thread::Builder::new().name("larder-servers".to_owned()).spawn(refresh_list).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn listed(addresses: &[&str]) -> Vec<ListedServer> {
        addresses.iter().map(|address| (*address).into()).collect()
    }

    #[test]
    fn replies_with_lists_are_parsed() {
        let reply = "CONFIG cluster 0 61\r\n12\nhost-1|10.0.0.1|11211 |10.0.0.2|11212 |fd00::1|1\n\r\nEND\r\n";
        let servers = listed(&["host-1:11211", "10.0.0.2:11212", "[fd00::1]:1"]);
        assert_eq!(parse(reply.as_bytes()), Some(VersionedList { version: 12, servers }));
        for wrong in [
            "",
            "ERROR\r\n",
            "END\r\n",
            "CONFIG cluster 0 1\r\n",
            "CONFIG cluster 0 1\r\nx\na|b|1\n\r\nEND\r\n",
            "CONFIG cluster 0 1\r\n1\n\n\r\nEND\r\n",
            "CONFIG cluster 0 1\r\n1\na|b|65536\n\r\nEND\r\n",
            "CONFIG cluster 0 1\r\n1\na|b\n\r\nEND\r\n",
            "CONFIG cluster 0 1\r\n1\n||1\n\r\nEND\r\n",
        ] {
            assert_eq!(parse(wrong.as_bytes()), None, "{wrong:?}");
        }
    }

    #[test]
    fn each_address_of_a_name_is_a_server() {
        let seed = |text: &str| {
            (ListedServer::from((text, 3)), text.parse().unwrap(), HandshakeConfig::default())
        };
        let seeds =
            vec![seed("127.0.0.1:7"), seed("127.0.0.1:7"), seed("[::1]:8"), seed("/socket")];
        let finder =
            ListFinder { discovery: Discovery::Dns, seeds, timeout: Duration::from_secs(1) };
        let servers: Vec<ListedServer> =
            ["127.0.0.1:7", "[::1]:8", "/socket"].map(|text| (text, 3).into()).into();
        assert_eq!(finder.find().unwrap(), VersionedList { version: 0, servers });
    }

    proptest! {
        #[test]
        fn any_reply_is_parsed_without_a_panic(reply in "(CONFIG cluster 0 9\r\n)?[0-9|a-z: \r\n]{0,40}(END\r\n)?") {
            drop(parse(reply.as_bytes()));
        }
    }
}
