//! Lists of servers that change by themselves. A thread for each client asks for the list now and then, and after a fault.

use crate::blocking::stream::Stream;
use crate::blocking::wait::Wait;
use crate::core::endpoint::address::Address;
use crate::core::endpoint::handshake::Entry;
use crate::core::endpoint::resolution::Place;
use crate::core::servers::server_set::Group;
use crate::core::servers::{Member, Servers};
use crate::list::ListedServer;
use crate::refresh::RefreshSignal;
use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// Where the servers of a client come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Discovery {
    /// Each address of a name is a server. (Otherwise a name is one server, whose addresses are tried in turn.) The keys
    /// are distributed over addresses, so the order in which the name server gives them does not matter.
    Dns,
    /// `config get cluster`, as memcached services have it: the servers that were given are asked for the list. Of
    /// several answers the one with the highest version counts, and one with a lower version than before is ignored.
    Cluster,
}

/// The list is asked for at most so often.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// An answer has at most so many bytes.
const ANSWER_LEN_MAX: usize = 1 << 20;

/// A list that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) version: u64,
    pub(crate) servers: Vec<ListedServer>,
}

/// Looks for the list.
#[derive(Debug)]
pub(crate) struct Finder {
    pub(crate) discovery: Discovery,
    /// The servers that were given.
    pub(crate) seeds: Vec<(ListedServer, Address, Entry)>,
    pub(crate) timeout: Duration,
}

impl Finder {
    /// The list as it is now.
    ///
    /// # Errors
    /// The last one, if no server can be found or asked.
    pub(crate) fn look(&self) -> io::Result<Found> {
        match self.discovery {
            Discovery::Dns => self.resolve(),
            Discovery::Cluster => self.ask_all(),
        }
    }

    fn resolve(&self) -> io::Result<Found> {
        let (mut servers, mut known) = (Vec::new(), BTreeSet::new());
        for (listed, address, _) in &self.seeds {
            let weight = listed.weight;
            match address {
                Address::Unix(_) => servers.push(listed.clone()),
                Address::Host(host, port) => {
                    let addresses: BTreeSet<SocketAddr> =
                        (host.as_str(), *port).to_socket_addrs()?.collect();
                    let new = addresses.into_iter().filter(|address| known.insert(*address));
                    servers.extend(new.map(|address| (address.to_string(), weight).into()));
                }
            }
        }
        Ok(Found { version: 0, servers })
    }

    /// The answer with the highest version.
    fn ask_all(&self) -> io::Result<Found> {
        let (mut answers, mut last_error) = (Vec::new(), ErrorKind::NotFound.into());
        for (_, address, entry) in &self.seeds {
            match self.ask(address, entry) {
                Ok(found) => answers.push(found),
                Err(error) => last_error = error,
            }
        }
        answers.into_iter().max_by_key(|found| found.version).ok_or(last_error)
    }

    fn ask(&self, address: &Address, entry: &Entry) -> io::Result<Found> {
        let deadline = Instant::now() + self.timeout;
        let resolved = match address {
            Address::Host(host, port) => (host.as_str(), *port).to_socket_addrs()?.collect(),
            Address::Unix(_) => Vec::new(),
        };
        let place = Arc::new(Place::new(address.clone(), resolved).with(entry.clone()));
        let mut stream =
            Stream::connect(&place, deadline, &Wait(None)).map_err(io::Error::other)?;
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
        let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            match stream.read(&mut piece, left, true) {
                Ok(Some(0)) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(Some(len)) => answer.extend_from_slice(piece.get(..len).unwrap_or_default()),
                Ok(None) => (),
                Err(_) => return Err(ErrorKind::ConnectionAborted.into()),
            }
            let is_whole = answer.ends_with(b"END\r\n") || answer.starts_with(b"ERROR");
            if is_whole || answer.len() > ANSWER_LEN_MAX {
                let found = parse(&answer);
                return found
                    .ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "no list of servers"));
            }
        }
    }
}

/// Reads an answer to `config get cluster`:
///
/// ```text
/// CONFIG cluster 0 LEN
/// VERSION
/// HOST|IP|PORT HOST|IP|PORT …
///
/// END
/// ```
fn parse(answer: &[u8]) -> Option<Found> {
    let mut lines = std::str::from_utf8(answer).ok()?.lines();
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
    servers.filter(|servers| !servers.is_empty()).map(|servers| Found { version, servers })
}

/// Has a thread keep the list of a client until the client is gone or closed. `make` makes servers of a list; those that
/// are in the present one already are kept.
///
/// # Errors
/// There is no thread.
pub(crate) fn keep<S: Member + Send + Sync + 'static>(
    finder: Finder,
    (group, refresh): (Weak<Group<S>>, Arc<RefreshSignal>),
    first: Found,
    every: Duration,
    make: impl Fn(&[ListedServer], &Servers<S>) -> Option<Servers<S>> + Send + 'static,
) -> io::Result<()> {
    let mut known = first;
    let keep = move || {
        loop {
            // Clients that were started together do not ask together.
            let pause = every.mul_f64(0.9 + 0.2 * rand::random::<f64>());
            if !refresh.wait(PAUSE_MIN.min(pause), pause) {
                return;
            }
            let found = match finder.look() {
                Ok(found) if found.version >= known.version && found.servers != known.servers => {
                    found
                }
                // Without a list, the servers stay what they are.
                Ok(_) | Err(_) => continue,
            };
            let Some(group) = group.upgrade() else { return };
            if let Some(servers) = make(&found.servers, &group.servers()) {
                group.replace(servers);
                known = found;
            }
        }
    };
    thread::Builder::new().name("larder-servers".to_owned()).spawn(keep).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn listed(addresses: &[&str]) -> Vec<ListedServer> {
        addresses.iter().map(|address| (*address).into()).collect()
    }

    #[test]
    fn lists_of_a_cluster() {
        let answer = "CONFIG cluster 0 61\r\n12\nhost-1|10.0.0.1|11211 |10.0.0.2|11212 |fd00::1|1\n\r\nEND\r\n";
        let servers = listed(&["host-1:11211", "10.0.0.2:11212", "[fd00::1]:1"]);
        assert_eq!(parse(answer.as_bytes()), Some(Found { version: 12, servers }));
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
        let seed =
            |text: &str| (ListedServer::from((text, 3)), text.parse().unwrap(), Entry::default());
        let seeds =
            vec![seed("127.0.0.1:7"), seed("127.0.0.1:7"), seed("[::1]:8"), seed("/socket")];
        let finder = Finder { discovery: Discovery::Dns, seeds, timeout: Duration::from_secs(1) };
        let servers: Vec<ListedServer> =
            ["127.0.0.1:7", "[::1]:8", "/socket"].map(|text| (text, 3).into()).into();
        assert_eq!(finder.look().unwrap(), Found { version: 0, servers });
    }

    proptest! {
        #[test]
        fn any_answer_is_read(answer in "(CONFIG cluster 0 9\r\n)?[0-9|a-z: \r\n]{0,40}(END\r\n)?") {
            drop(parse(answer.as_bytes()));
        }
    }
}
