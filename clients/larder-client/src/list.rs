//! Lists of servers.

/// The servers of a client. Some hashing methods depend on their order.
///
/// A list is built from one or several addresses: `"cache-1:11211,cache-2:11211"`, `["cache-1",
/// "cache-2"]`, or with weights, `[("cache-1", 1), ("cache-2", 3)]`. An address is `HOST`,
/// `HOST:PORT`, `[V6]:PORT`, or the path of a unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerList(pub(crate) Vec<ListedServer>);

/// A server of a [`ServerList`]: an address and a weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedServer {
    pub(crate) address: String,
    pub(crate) weight: u32,
}

impl<A: Into<String>> From<(A, u32)> for ListedServer {
    fn from((address, weight): (A, u32)) -> Self {
        Self { address: address.into(), weight }
    }
}

impl From<&str> for ListedServer {
    fn from(address: &str) -> Self {
        (address, 1).into()
    }
}

impl From<String> for ListedServer {
    fn from(address: String) -> Self {
        (address, 1).into()
    }
}

impl From<&str> for ServerList {
    fn from(addresses: &str) -> Self {
        Self(addresses.split(',').map(|address| address.trim().into()).collect())
    }
}

impl From<String> for ServerList {
    fn from(addresses: String) -> Self {
        addresses.as_str().into()
    }
}

impl<S: Into<ListedServer>> From<Vec<S>> for ServerList {
    fn from(servers: Vec<S>) -> Self {
        servers.into_iter().collect()
    }
}

impl<S: Into<ListedServer>, const N: usize> From<[S; N]> for ServerList {
    fn from(servers: [S; N]) -> Self {
        servers.into_iter().collect()
    }
}

impl<S: Into<ListedServer> + Clone> From<&[S]> for ServerList {
    fn from(servers: &[S]) -> Self {
        servers.iter().cloned().collect()
    }
}

impl<S: Into<ListedServer>> FromIterator<S> for ServerList {
    fn from_iter<I: IntoIterator<Item = S>>(servers: I) -> Self {
        Self(servers.into_iter().map(Into::into).collect())
    }
}
