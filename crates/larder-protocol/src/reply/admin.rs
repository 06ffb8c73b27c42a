//! Replies to administrative commands, and refusals with memcached's messages.

use super::encode::{binary_error, binary_hit, success, text};
use crate::request::{ReplyFormat, Status};
use std::borrow::Cow;
use std::ops::RangeInclusive;

/// The reason for refusing an administrative command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminRefusal {
    /// The server does not support the command.
    Unsupported,
    /// The command needs the crawler, which an operator has disabled (`lru_crawler disable`).
    CrawlerDisabled,
    /// `lru_crawler enable` while the crawler is enabled.
    CrawlerEnabled,
    /// `lru_crawler crawl hash`.
    CrawlByHash,
    /// The argument is not a list of slab classes.
    InvalidClasses,
    /// The list of slab classes is empty.
    NoClasses,
    /// `lru_crawler metadump` on a server that forbids dumps (`-X`).
    MetadumpNotAllowed,
    /// `lru_crawler mgdump` on a server that forbids dumps (`-X`).
    MgdumpNotAllowed,
    /// `slabs reassign`: the server has no slabs.
    ReassignDisabled,
    /// `cache_memlimit` with a limit that the server refuses. The field is the range of accepted
    /// limits, in MiB.
    MemoryLimit(RangeInclusive<usize>),
    /// `watch` on a server that forbids it (`-W`).
    WatchNotAllowed,
    /// `watch`: there are too many watchers.
    TooManyWatchers,
    /// `watch`: the server has no log.
    WatchFailed,
    /// `shutdown` on a server that does not allow it (no `-A`).
    ShutdownNotAllowed,
    /// `shutdown` with an unknown mode.
    InvalidShutdown,
    /// `refresh_certs` on a server without TLS (no `-Z`).
    TlsNotEnabled,
    /// `refresh_certs`: loading the certificate files failed. The field is the error line.
    Certificates(String),
}

impl AdminRefusal {
    fn words(&self) -> Cow<'_, str> {
        Cow::Borrowed(match self {
            Self::Unsupported => "ERROR",
            Self::CrawlerDisabled => "CLIENT_ERROR lru crawler disabled",
            Self::CrawlerEnabled => "ERROR failed to start lru crawler thread",
            Self::CrawlByHash => "ERROR an unknown error happened",
            Self::InvalidClasses => "BADCLASS invalid class id",
            Self::NoClasses => "NOTSTARTED no items to crawl",
            Self::MetadumpNotAllowed => "ERROR metadump not allowed",
            Self::MgdumpNotAllowed => "ERROR key dump not allowed",
            Self::ReassignDisabled => "CLIENT_ERROR slab reassignment disabled",
            // This is memcached's message, followed by the range of accepted limits.
            Self::MemoryLimit(limits) => {
                let (min, max) = (limits.start(), limits.end());
                return Cow::Owned(format!(
                    "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust ({min}m to {max}m)"
                ));
            }
            Self::WatchNotAllowed => "CLIENT_ERROR watch commands not allowed",
            Self::TooManyWatchers => "WATCHER_TOO_MANY log watcher limit reached",
            Self::WatchFailed => "WATCHER_FAILED failed to add log watcher",
            Self::ShutdownNotAllowed => "SERVER_ERROR: shutdown not enabled",
            Self::InvalidShutdown => "CLIENT_ERROR invalid shutdown mode",
            Self::TlsNotEnabled => "Error TLS not enabled",
            Self::Certificates(error) => error,
        })
    }
}

/// The list of a cluster's servers for clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Servers {
    /// The version of the list, which increases with each change.
    pub version: u32,
    /// The address of each server, `HOST:PORT`.
    pub addresses: Vec<String>,
}

/// The key under which clients look up the server list if the server's version is below 1.4.14, the
/// first version with `config get cluster`.
pub const SERVERS_KEY: &[u8] = b"AmazonElastiCache:cluster";

/// Formats the list of servers as Amazon ElastiCache does: a line with the version, then one line
/// with an entry `HOST|IP|PORT` per server. Spaces separate the entries. The IP is empty if the
/// host is a name.
pub(super) fn server_list(servers: &Servers) -> String {
    let named = servers.addresses.iter().map(|address| {
        let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let ip = host.parse::<std::net::IpAddr>().map_or("", |_| host);
        format!("{host}|{ip}|{port}")
    });
    format!("{}\n{}\n", servers.version, named.collect::<Vec<_>>().join(" "))
}

/// Writes the reply to `config get cluster`. The binary reply has four bytes of flags and no key.
pub fn servers(format: &ReplyFormat<'_>, servers: &Servers, out: &mut Vec<u8>) {
    let list = server_list(servers);
    match format {
        ReplyFormat::Binary(head) => {
            binary_hit(head, &[], 0, 0, list.len(), out);
            out.extend_from_slice(list.as_bytes());
        }
        ReplyFormat::Classic(_) | ReplyFormat::Meta(_) => {
            text(&format!("CONFIG cluster 0 {}", list.len()), out);
            out.extend_from_slice(list.as_bytes());
            out.extend_from_slice(b"\r\nEND\r\n");
        }
    }
}

/// Writes the reply to a refused administrative command: one line, unless `noreply` suppresses it.
/// The binary protocol has only one administrative command, `config get`. A server without a
/// cluster reports this command as unknown.
pub fn admin_refused(format: &ReplyFormat<'_>, refusal: &AdminRefusal, out: &mut Vec<u8>) {
    match format {
        ReplyFormat::Binary(head) => binary_error(head, Status::UnknownCommand, out),
        ReplyFormat::Classic(_) | ReplyFormat::Meta(_) => success(format, &refusal.words(), out),
    }
}

/// Writes the end of `lru_crawler mgdump`. Other dumps end like pages of statistics.
pub fn mgdump_end(out: &mut Vec<u8>) {
    text("EN", out);
}

/// The error for a connection above the limit (`-c`). The server then closes the connection.
pub const TOO_MANY_CONNECTIONS: &[u8] = b"ERROR Too many open connections\r\n";

#[cfg(test)]
mod tests {
    use super::super::servers_item;
    use super::*;
    use crate::{Classic, Parsed, Parser, Request};

    fn three() -> Servers {
        let addresses = ["10.0.0.1:11211", "cache.example:11212", "[::1]:11213"];
        Servers { version: 7, addresses: addresses.map(str::to_owned).to_vec() }
    }

    const LIST: &str = "7\n10.0.0.1|10.0.0.1|11211 cache.example||11212 ::1|::1|11213\n";

    #[test]
    fn the_list_of_servers_has_elasticaches_format() {
        let mut out = Vec::new();
        servers(&ReplyFormat::Classic(Classic::default()), &three(), &mut out);
        let expected = format!("CONFIG cluster 0 {}\r\n{LIST}\r\nEND\r\n", LIST.len());
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }

    #[test]
    fn a_lookup_of_the_servers_key_answers_the_list() {
        let key = str::from_utf8(SERVERS_KEY).unwrap();
        let len = LIST.len();
        for (request, expected) in [
            (format!("get {key}\r\n"), format!("VALUE {key} 0 {len}\r\n{LIST}\r\nEND\r\n")),
            (format!("gets {key}\r\n"), format!("VALUE {key} 0 {len} 7\r\n{LIST}\r\nEND\r\n")),
            (format!("gets {key}\n"), format!("VALUE {key} 0 {len} 7\r\n{LIST}\r\nEND\r\n")),
            (format!("mg {key} v c t f\r\n"), format!("VA {len} c7 t-1 f0\r\n{LIST}\r\n")),
            (format!("mg {key} c\r\n"), "HD c7\r\n".to_owned()),
        ] {
            let parsed = Parser::default().parse(request.as_bytes());
            let Parsed::Request { request: Request::Get(get), .. } = parsed else {
                panic!("{request}")
            };
            let mut out = Vec::new();
            servers_item(&get, &three(), &mut out);
            assert_eq!(String::from_utf8_lossy(&out), expected, "{request}");
        }
    }
}
