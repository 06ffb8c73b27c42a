//! Log lines for `watch`.

use crate::dump;
use std::fmt::Display;
use std::io::Write;
use std::time::Duration;

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupStatus {
    /// A live item.
    Live,
    /// No item.
    Nothing,
    /// An expired item.
    Expired,
    /// A flushed item.
    Flushed,
}

/// The outcome of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are memcached's own")]
pub enum StoreStatus {
    Stored,
    NotStored,
    Exists,
    NotFound,
    TooLarge,
    NoMemory,
}

/// The command of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are memcached's own")]
pub enum StoreCommand {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Cas,
}

/// A log line about an event of an item. `class` is memcached's slab class, or 0 if there is no
/// item. `size` is the length of the value in bytes.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the fields are those of the lines")]
pub enum ItemLine<'k> {
    /// A lookup of one key, by a request that reads or changes the item. `is_read` is true if the
    /// request reads the item; the line does not contain this field.
    Get {
        key: &'k [u8],
        found: LookupStatus,
        class: usize,
        client: u64,
        size: usize,
        is_read: bool,
    },
    /// A store, successful or not. `ttl` is in seconds; 0 also means that the item never expires.
    Store {
        key: &'k [u8],
        status: StoreStatus,
        command: StoreCommand,
        ttl: u32,
        class: usize,
        client: u64,
        size: usize,
    },
    /// A removal, by `md` or another command.
    Deleted { key: &'k [u8], by_meta: bool, class: usize, size: usize },
    /// An eviction. `ttl` is in seconds, or `None` if the item never expires.
    Eviction {
        key: &'k [u8],
        fetched: bool,
        ttl: Option<u32>,
        idle_secs: u32,
        class: usize,
        size: usize,
    },
    /// The server moved an item from memory to a flash page of this bucket. `ttl` is in seconds, or
    /// `None` if the item never expires.
    FlashWrite {
        key: &'k [u8],
        fetched: bool,
        ttl: Option<u32>,
        idle_secs: u32,
        class: usize,
        bucket: u8,
    },
}

/// A log line about an event of a connection.
#[derive(Clone, Copy)]
pub enum ConnectionLine<'a> {
    /// The server accepted the connection.
    New {
        /// The client's transport, address and port.
        peer: Peer<'a>,
        /// The number of the connection.
        client: u64,
    },
    /// The connection was closed.
    Closed {
        /// The client's transport, address and port.
        peer: Peer<'a>,
        /// The reason for closing the connection, in one word.
        reason: &'a str,
        /// The number of the connection.
        client: u64,
    },
    /// The stream or TLS failed. The server closes the connection next.
    Failed {
        /// Whether TLS failed, rather than the stream below it.
        tls: bool,
        /// The error message.
        why: &'a dyn Display,
        /// The number of the connection.
        client: u64,
    },
}

/// The peer of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer<'a> {
    /// `tcp`, `udp` or `local`.
    pub transport: &'a str,
    /// The address, or `unix`.
    pub address: &'a str,
    /// The port; 0 if the transport has no ports.
    pub port: &'a str,
}

/// Starts a line with its Unix time and its number.
pub fn start_line(time: Duration, number: u64, line: &mut Vec<u8>) {
    write(line, format_args!("ts={}.{:06}", time.as_secs(), time.subsec_micros()));
    write(line, format_args!(" gid={number}"));
}

/// Ends a line.
pub fn end_line(line: &mut Vec<u8>) {
    line.push(b'\n');
}

/// Counts the lines in `bytes`.
#[must_use]
pub fn count_lines(bytes: &[u8]) -> usize {
    memchr::memchr_iter(b'\n', bytes).count()
}

/// Writes the line that reports the number of skipped lines.
pub fn skipped_lines(skipped: u64, out: &mut Vec<u8>) {
    write(out, format_args!("skipped={skipped}\n"));
}

/// The maximum length, in bytes, of the line that [`skipped_lines`] writes.
pub const SKIPPED_LINES_LEN_MAX: usize = "skipped=18446744073709551615\n".len();

fn write(line: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    // Writing to a vector does not fail.
    let _ = line.write_fmt(text);
}

impl ConnectionLine<'_> {
    /// Appends the part of the line that follows the time and the number. Does not append the line
    /// end.
    pub fn write(&self, line: &mut Vec<u8>) {
        match *self {
            Self::New { peer, client } => {
                peer.write("conn_new", line);
                number(line, " cfd=", client);
            }
            Self::Closed { peer, reason, client } => {
                peer.write("conn_close", line);
                text(line, " reason=", reason);
                number(line, " cfd=", client);
            }
            Self::Failed { tls, why, client } => {
                let kind = if tls { "conntlserr" } else { "connerr" };
                write(line, format_args!(" type={kind} fd={client} msg={why}"));
            }
        }
    }
}

impl Peer<'_> {
    fn write(self, kind: &str, line: &mut Vec<u8>) {
        let Self { transport, address, port } = self;
        write(line, format_args!(" type={kind} rip={address} rport={port} transport={transport}"));
    }
}

impl ItemLine<'_> {
    /// Appends the part of the line that follows the time and the number. Does not append the line
    /// end.
    pub fn write(&self, line: &mut Vec<u8>) {
        match *self {
            Self::Get { key, found, class, client, size, is_read: _ } => {
                head(line, "item_get", key);
                text(line, " status=", found.word());
                number(line, " clsid=", class as u64);
                number(line, " cfd=", client);
                number(line, " size=", size as u64);
            }
            Self::Store { key, status, command, ttl, class, client, size } => {
                head(line, "item_store", key);
                text(line, " status=", status.word());
                text(line, " cmd=", command.word());
                number(line, " ttl=", ttl.into());
                number(line, " clsid=", class as u64);
                number(line, " cfd=", client);
                number(line, " size=", size as u64);
            }
            Self::Deleted { key, by_meta, class, size } => {
                head(line, "deleted", key);
                text(line, " cmd=", if by_meta { "md" } else { "delete" });
                number(line, " clsid=", class as u64);
                number(line, " size=", size as u64);
            }
            Self::Eviction { key, fetched, ttl, idle_secs, class, size } => {
                head(line, "eviction", key);
                usage(line, fetched, ttl, idle_secs);
                number(line, " clsid=", class as u64);
                number(line, " size=", size as u64);
            }
            Self::FlashWrite { key, fetched, ttl, idle_secs, class, bucket } => {
                head(line, "extwrite", key);
                usage(line, fetched, ttl, idle_secs);
                number(line, " clsid=", class as u64);
                number(line, " bucket=", bucket.into());
            }
        }
    }
}

impl LookupStatus {
    fn word(self) -> &'static str {
        match self {
            Self::Live => "found",
            Self::Nothing => "not_found",
            Self::Expired => "expired",
            Self::Flushed => "flushed",
        }
    }
}

impl StoreStatus {
    fn word(self) -> &'static str {
        match self {
            Self::Stored => "stored",
            Self::NotStored => "not_stored",
            Self::Exists => "exists",
            Self::NotFound => "not_found",
            Self::TooLarge => "too_large",
            Self::NoMemory => "no_memory",
        }
    }
}

impl StoreCommand {
    fn word(self) -> &'static str {
        match self {
            Self::Set => "set",
            Self::Add => "add",
            Self::Replace => "replace",
            Self::Append => "append",
            Self::Prepend => "prepend",
            Self::Cas => "cas",
        }
    }
}

fn head(line: &mut Vec<u8>, kind: &str, key: &[u8]) {
    text(line, " type=", kind);
    line.extend_from_slice(b" key=");
    dump::uri(key, line);
}

/// Writes three fields: whether the item was read, the seconds until it expires, and the seconds
/// since its last access.
fn usage(line: &mut Vec<u8>, fetched: bool, ttl: Option<u32>, idle_secs: u32) {
    text(line, " fetch=", if fetched { "yes" } else { "no" });
    match ttl {
        Some(ttl) => number(line, " ttl=", ttl.into()),
        None => text(line, " ttl=", "-1"),
    }
    number(line, " la=", idle_secs.into());
}

fn text(line: &mut Vec<u8>, name: &str, value: &str) {
    line.extend_from_slice(name.as_bytes());
    line.extend_from_slice(value.as_bytes());
}

fn number(line: &mut Vec<u8>, name: &str, value: u64) {
    text(line, name, itoa::Buffer::new().format(value));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_connections_match_memcached() {
        let peer = Peer { transport: "tcp", address: "::1", port: "80" };
        let lines = [
            (
                ConnectionLine::New { peer, client: 7 },
                " type=conn_new rip=::1 rport=80 transport=tcp cfd=7",
            ),
            (
                ConnectionLine::Closed { peer, reason: "normal", client: 7 },
                " type=conn_close rip=::1 rport=80 transport=tcp reason=normal cfd=7",
            ),
            (
                ConnectionLine::Failed { tls: true, why: &"no luck", client: 7 },
                " type=conntlserr fd=7 msg=no luck",
            ),
        ];
        for (line, expected) in lines {
            let mut written = Vec::new();
            start_line(Duration::from_micros(1_000_005), 9, &mut written);
            line.write(&mut written);
            end_line(&mut written);
            let expected = format!("ts=1.000005 gid=9{expected}\n");
            assert_eq!(String::from_utf8(written).unwrap(), expected);
        }
    }

    #[test]
    fn lines_of_items_match_memcached() {
        let key = b"a b";
        let lines = [
            (
                ItemLine::Get {
                    key,
                    found: LookupStatus::Live,
                    class: 1,
                    client: 7,
                    size: 2,
                    is_read: true,
                },
                " type=item_get key=a%20b status=found clsid=1 cfd=7 size=2",
            ),
            (
                ItemLine::Store {
                    key,
                    status: StoreStatus::NotStored,
                    command: StoreCommand::Cas,
                    ttl: 0,
                    class: 1,
                    client: 7,
                    size: 2,
                },
                " type=item_store key=a%20b status=not_stored cmd=cas ttl=0 clsid=1 cfd=7 size=2",
            ),
            (
                ItemLine::Deleted { key, by_meta: true, class: 1, size: 2 },
                " type=deleted key=a%20b cmd=md clsid=1 size=2",
            ),
            (
                ItemLine::Eviction {
                    key,
                    fetched: false,
                    ttl: None,
                    idle_secs: 5,
                    class: 1,
                    size: 2,
                },
                " type=eviction key=a%20b fetch=no ttl=-1 la=5 clsid=1 size=2",
            ),
            (
                ItemLine::FlashWrite {
                    key,
                    fetched: true,
                    ttl: Some(60),
                    idle_secs: 5,
                    class: 1,
                    bucket: 3,
                },
                " type=extwrite key=a%20b fetch=yes ttl=60 la=5 clsid=1 bucket=3",
            ),
        ];
        for (line, expected) in lines {
            let mut written = Vec::new();
            line.write(&mut written);
            assert_eq!(String::from_utf8(written).unwrap(), expected);
        }
    }
}
