//! The entries of `-l`, and addresses in memcached's format.

use crate::net::dialect::{self, Dialect};
use crate::net::listen_error::ListenError;
use crate::options::Options;
use crate::tls::Security;
use larder_protocol::Parser;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};

/// The protocol of a listener's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// memcached's protocols.
    Memcached {
        /// The parser of the first request. It depends on the dialect, and on whether clients must
        /// log in.
        opening: Parser,
    },
    /// RESP, the protocol of Redis.
    Resp {
        /// Whether clients must log in.
        login_required: bool,
    },
}

/// The protocol prefix of an address in `-l`: `proto[ascii]:`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NamedProtocol {
    /// `negotiating`, `ascii` or `binary`.
    Memcached(Dialect),
    /// `resp`
    Resp,
}

/// An entry of `-l`: `[notls:|btls:|mtls:][proto[PROTOCOL]:][tag[NAME]:]ADDRESS`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    pub(super) security: Security,
    protocol: Option<NamedProtocol>,
    /// The address without its prefixes.
    pub(crate) text: &'a str,
}

impl<'a> Entry<'a> {
    fn parse(entry: &'a str) -> Result<Self, ListenError> {
        let (security, mut text) = Security::of(entry);
        let mut protocol = None;
        if let Some((name, rest)) = bracketed(text, "proto") {
            protocol = Some(match name {
                "negotiating" => NamedProtocol::Memcached(Dialect::Negotiating),
                "ascii" => NamedProtocol::Memcached(Dialect::Ascii),
                "binary" => NamedProtocol::Memcached(Dialect::Binary),
                "resp" => NamedProtocol::Resp,
                _ => return Err(ListenError::Protocol(entry.to_owned())),
            });
            text = rest;
        }
        // memcached's proxy distinguishes its listeners by tags. In larderd, tags have no effect.
        if let Some((tag, rest)) = bracketed(text, "tag")
            && (1..=8).contains(&tag.len())
        {
            text = rest;
        }
        Ok(Self { security, protocol, text })
    }

    /// Returns the service at the address.
    ///
    /// # Errors
    /// [`ListenError::NoLogin`]: the options require a login that the protocol does not support.
    pub(super) fn service(&self, options: &Options) -> Result<Service, ListenError> {
        let opening = match self.protocol {
            Some(NamedProtocol::Resp) => {
                let login_required = dialect::requires_login(options);
                return Ok(Service::Resp { login_required });
            }
            None => Some(dialect::opening(options)),
            Some(NamedProtocol::Memcached(dialect)) => dialect::opening_in(dialect, options),
        };
        let opening = opening.ok_or_else(|| ListenError::NoLogin(self.text.to_owned()))?;
        Ok(Service::Memcached { opening })
    }
}

/// Splits off a prefix `NAME[..]:`. Returns the string between its brackets and the string after
/// its colon, or `None` if `text` has no such prefix.
fn bracketed<'t>(text: &'t str, name: &str) -> Option<(&'t str, &'t str)> {
    text.strip_prefix(name)?.strip_prefix('[')?.split_once("]:")
}

/// Returns the entries of `-l`.
pub(crate) fn entries(lists: &[String]) -> impl Iterator<Item = Result<Entry<'_>, ListenError>> {
    let texts = lists.iter().flat_map(|list| list.split(';')).map(str::trim);
    texts.filter(|text| !text.is_empty()).map(Entry::parse)
}

/// Resolves an address. `port` is the default port. If the string is only a port, the address is
/// that port on the IPv4 loopback.
pub(super) fn addresses_of(text: &str, port: u16) -> Result<Vec<SocketAddr>, ListenError> {
    match text.parse() {
        Ok(port) => Ok(vec![SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)]),
        Err(_) => resolve(text, port),
    }
}

/// Splits an address for HTTP or gRPC into its TLS requirements and the rest. Without `-Z`, the
/// requirements are [`Security::Plain`].
///
/// # Errors
/// [`ListenError::NeedsTls`]: the prefix requires TLS, and `-Z` is not given.
pub(super) fn security_of<'t>(
    options: &Options,
    entry: &'t str,
) -> Result<(Security, &'t str), ListenError> {
    match Security::of(entry) {
        (security, text) if options.enable_ssl => Ok((security, text)),
        (Security::Usual | Security::Plain, text) => Ok((Security::Plain, text)),
        _ => Err(ListenError::NeedsTls(entry.to_owned())),
    }
}

/// Resolves `host`, `host:port`, `[v6]`, `[v6]:port` or a bare IPv6 address. `port` is the default
/// port.
pub(crate) fn resolve(text: &str, port: u16) -> Result<Vec<SocketAddr>, ListenError> {
    let bad = || ListenError::Address(text.to_owned());
    let at = host_and_port(text, port)?;
    let found = without_duplicates(at.to_socket_addrs().map_err(|_| bad())?);
    if found.is_empty() { Err(bad()) } else { Ok(found) }
}

/// Returns the addresses without duplicates, in order. A name may have the same address twice, for
/// example in `/etc/hosts`, but only one socket can listen on it.
fn without_duplicates(addresses: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut found = Vec::new();
    for address in addresses {
        if !found.contains(&address) {
            found.push(address);
        }
    }
    found
}

/// Returns the port of `*` or `*:PORT` (all addresses), or `None` for other strings. `port` is the
/// default port.
pub(super) fn wildcard_port(text: &str, port: u16) -> Option<u16> {
    match text.strip_prefix('*')? {
        "" => Some(port),
        rest => rest.strip_prefix(':')?.parse().ok(),
    }
}

/// Checks an address of `-l` without resolving its name, and returns its port. `port` is the
/// default port.
pub(super) fn checked_port(text: &str, port: u16) -> Result<u16, ListenError> {
    match wildcard_port(text, port) {
        Some(port) => Ok(port),
        None => host_and_port(text, port).map(|(_, port)| port),
    }
}

/// Splits an address into host and port. `port` is the default port.
pub(super) fn host_and_port(text: &str, port: u16) -> Result<(&str, u16), ListenError> {
    let bare = without_brackets(text);
    // The zone of a link-local address: `fe80::1%eth0`.
    let (address, zone) = bare.split_once('%').unwrap_or((bare, ""));
    if address.parse::<IpAddr>().is_ok() && !zone.contains(':') {
        return Ok((bare, port));
    }
    match text.rsplit_once(':') {
        Some((host, digits)) => match digits.parse() {
            Ok(port) => Ok((without_brackets(host), port)),
            Err(_) => Err(ListenError::Address(text.to_owned())),
        },
        // Refuse a bare number, because the resolver would parse it as an IPv4 address.
        None if text.bytes().all(|byte| byte.is_ascii_digit()) => {
            Err(ListenError::Address(text.to_owned()))
        }
        None => Ok((text, port)),
    }
}

/// Removes the enclosing brackets if the string has both.
fn without_brackets(text: &str) -> &str {
    text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_the_same_address_twice_has_it_once() {
        let [first, second] = ["127.0.0.1:1", "[::1]:1"].map(|text| text.parse().unwrap());
        let found = without_duplicates([first, second, first].into_iter());
        assert_eq!(found, [first, second]);
    }

    #[test]
    fn prefixes_are_separated_from_the_address() {
        use Dialect::{Ascii, Binary, Negotiating};
        let lists = [
            "notls:[::1]:7;mtls:tag[a]:host; proto[ascii]:tag[tools]:*".to_owned(),
            "proto[negotiating]:*".to_owned(),
            // Empty entries are skipped, as in memcached.
            ";btls:proto[binary]:host:1; ;".to_owned(),
        ];
        let expected = [
            (Security::Plain, None, "[::1]:7"),
            (Security::Certified, None, "host"),
            (Security::Usual, Some(Ascii), "*"),
            (Security::Usual, Some(Negotiating), "*"),
            (Security::Anonymous, Some(Binary), "host:1"),
        ];
        let expected = expected.map(|(security, dialect, text)| Entry {
            security,
            protocol: dialect.map(NamedProtocol::Memcached),
            text,
        });
        let found: Vec<Entry<'_>> = entries(&lists).map(Result::unwrap).collect();
        assert_eq!(found, expected);
        for entry in ["tag[too-long-a-tag]:host", "tag[]:host", "proto[]", "tls:host", "[::1"] {
            let entry = Entry::parse(entry).unwrap();
            assert!(resolve(entry.text, 1).is_err(), "{entry:?}");
        }
        for entry in ["proto[]:host", "proto[text]:host", "notls:proto[proxy]:host"] {
            let refused = Entry::parse(entry).unwrap_err().to_string();
            assert!(refused.contains("ascii, binary"), "{refused}");
        }
    }

    #[test]
    fn addresses_may_have_a_port_and_a_zone() {
        for (text, expected) in [
            ("host", ("host", 1)),
            ("host:7", ("host", 7)),
            ("::1", ("::1", 1)),
            ("[::1]:7", ("::1", 7)),
            ("fe80::7%lo", ("fe80::7%lo", 1)),
            ("[fe80::7%lo]", ("fe80::7%lo", 1)),
            ("[fe80::7%lo]:7", ("fe80::7%lo", 7)),
        ] {
            assert_eq!(host_and_port(text, 1).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn a_star_stands_for_all_addresses() {
        for (text, port) in [("*", Some(1)), ("*:7", Some(7)), ("*:0", Some(0))] {
            assert_eq!(wildcard_port(text, 1), port, "{text}");
        }
        for text in ["", "**", "*:", "*:65536", "*7", "host", "127.0.0.1:7"] {
            assert_eq!(wildcard_port(text, 1), None, "{text}");
        }
    }

    #[test]
    fn resp_requires_a_login_when_the_other_protocols_do() {
        for (line, login_required) in
            [("", false), ("-B binary", false), ("-Y file", true), ("-S", true)]
        {
            let words = std::iter::once("larderd").chain(line.split_whitespace());
            let options = <Options as clap::Parser>::try_parse_from(words).unwrap();
            let service = Entry::parse("proto[resp]:*").unwrap().service(&options).ok();
            assert_eq!(service, Some(Service::Resp { login_required }), "{line}");
        }
    }

    #[test]
    fn a_dialect_in_l_overrides_b_unless_it_has_no_logins() {
        let (text, binary) = (Some(Parser::TEXT), Some(Parser::BINARY));
        let (any, text_login) = (Some(Parser::default()), Some(Parser::TEXT_LOGIN));
        let binary_login = Some(Parser::BINARY_LOGIN);
        let cases = [
            ("", [any, any, text, binary]),
            ("-B ascii", [text, any, text, binary]),
            ("-B binary", [binary, any, text, binary]),
            ("-Y file", [text_login, text_login, text_login, None]),
            ("-S", [binary_login, binary_login, None, binary_login]),
            ("-S -Y file", [text_login, text_login, text_login, None]),
        ];
        for (line, openings) in cases {
            let words = std::iter::once("larderd").chain(line.split_whitespace());
            let options = <Options as clap::Parser>::try_parse_from(words).unwrap();
            let entries = ["*", "proto[negotiating]:*", "proto[ascii]:*", "proto[binary]:*"];
            for (entry, opening) in entries.into_iter().zip(openings) {
                let service = Entry::parse(entry).unwrap().service(&options).ok();
                let expected = opening.map(|opening| Service::Memcached { opening });
                assert_eq!(service, expected, "{line} -l {entry}");
            }
        }
    }
}
