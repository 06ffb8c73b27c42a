//! Addresses of servers: a host and a port, or a unix socket.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The default port of memcached.
const PORT: u16 = 11211;

/// A parsed address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// A host name or IP address, and a port.
    Host(String, u16),
    /// The path of a unix socket.
    Unix(PathBuf),
}

/// The string that could not be parsed as an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InvalidAddress(String);

impl fmt::Display for InvalidAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not an address: HOST, HOST:PORT, [V6]:PORT or /PATH", self.0)
    }
}

impl std::error::Error for InvalidAddress {}

impl FromStr for Address {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        let invalid = || InvalidAddress(text.to_owned());
        if let Some(path) =
            text.strip_prefix("unix:").or_else(|| text.starts_with('/').then_some(text))
        {
            return if path.is_empty() { Err(invalid()) } else { Ok(Self::Unix(path.into())) };
        }
        // A string with several colons and no brackets is an IPv6 address without a port.
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or_else(invalid)?;
                (host, port.strip_prefix(':'))
            }
            None if text.matches(':').count() > 1 => (text, None),
            None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
        };
        let port = port.map_or(Ok(PORT), |port| port.parse().map_err(|_| invalid()))?;
        if host.is_empty() { Err(invalid()) } else { Ok(Self::Host(host.to_owned(), port)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed() {
        let host = |name: &str, port| Ok(Address::Host(name.to_owned(), port));
        for (text, expected) in [
            ("cache", host("cache", 11211)),
            ("cache:1", host("cache", 1)),
            ("127.0.0.1:22122", host("127.0.0.1", 22122)),
            ("[::1]:5", host("::1", 5)),
            ("[::1]", host("::1", 11211)),
            ("::1", host("::1", 11211)),
            ("/run/cache.sock", Ok(Address::Unix("/run/cache.sock".into()))),
            ("unix:cache.sock", Ok(Address::Unix("cache.sock".into()))),
            ("", Err(InvalidAddress(String::new()))),
            (":11211", Err(InvalidAddress(":11211".into()))),
            ("cache:port", Err(InvalidAddress("cache:port".into()))),
            ("cache:65536", Err(InvalidAddress("cache:65536".into()))),
            ("[::1", Err(InvalidAddress("[::1".into()))),
            ("unix:", Err(InvalidAddress("unix:".into()))),
        ] {
            assert_eq!(text.parse(), expected, "{text}");
        }
    }
}
