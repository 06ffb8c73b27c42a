//! The lines that `watch` shows.

use crate::dump;
use std::fmt::Display;
use std::io::Write;
use std::time::Duration;

/// What was found under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A live item.
    Live,
    /// Nothing.
    Nothing,
    /// An item whose time had come.
    Expired,
    /// An item from before a flush.
    Flushed,
}

/// What became of a store.
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

/// The command that stored, or was to.
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

/// What happened to an item. Classes are memcached's slab classes, 0 where there is no item; sizes
/// are the bytes of values.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the fields are those of the lines")]
pub enum ItemLine<'k> {
    /// It was looked for.
    Get { key: &'k [u8], found: Found, class: usize, client: u64, size: usize },
    /// It was stored, or was to be. `ttl` is in seconds; 0 is for ever, too.
    Store {
        key: &'k [u8],
        status: StoreStatus,
        command: StoreCommand,
        ttl: u32,
        class: usize,
        client: u64,
        size: usize,
    },
    /// It was removed, by `md` or by another command.
    Deleted { key: &'k [u8], by_meta: bool, class: usize, size: usize },
    /// It was dropped for room. `ttl` is in seconds, `None` is for ever.
    Eviction {
        key: &'k [u8],
        fetched: bool,
        ttl: Option<u32>,
        idle_secs: u32,
        class: usize,
        size: usize,
    },
}

/// What happened to a connection. `client` is its number.
#[derive(Clone, Copy)]
pub enum ConnectionLine<'a> {
    /// It was accepted.
    New {
        /// Who it comes from.
        peer: Peer<'a>,
        /// Its number.
        client: u64,
    },
    /// It was closed.
    Closed {
        /// Who it came from.
        peer: Peer<'a>,
        /// Why, in one word.
        reason: &'a str,
        /// Its number.
        client: u64,
    },
    /// Its stream failed, or TLS did; it is closed next.
    Failed {
        /// TLS failed.
        tls: bool,
        /// What went wrong.
        why: &'a dyn Display,
        /// Its number.
        client: u64,
    },
}

/// Who a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer<'a> {
    /// `tcp`, `udp` or `local`.
    pub transport: &'a str,
    /// An address, or `unix`.
    pub address: &'a str,
    /// 0 where there are no ports.
    pub port: &'a str,
}

/// Begins a line with its time since 1970 and its number.
pub fn begin_line(time: Duration, number: u64, line: &mut Vec<u8>) {
    write(line, format_args!("ts={}.{:06}", time.as_secs(), time.subsec_micros()));
    write(line, format_args!(" gid={number}"));
}

/// Ends a line.
pub fn end_line(line: &mut Vec<u8>) {
    line.push(b'\n');
}

/// The lines in `bytes`.
#[must_use]
pub fn count_lines(bytes: &[u8]) -> usize {
    memchr::memchr_iter(b'\n', bytes).count()
}

/// A line that stands for as many as were left out.
pub fn skipped_lines(skipped: u64, out: &mut Vec<u8>) {
    write(out, format_args!("skipped={skipped}\n"));
}

/// The length that [`skipped_lines`] may have, in bytes.
pub const SKIPPED_LINES_LEN_MAX: usize = "skipped=18446744073709551615\n".len();

fn write(line: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    // Writing to a vector does not fail.
    let _ = line.write_fmt(text);
}

impl ConnectionLine<'_> {
    /// Appends the line, from its type on, without its end.
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
    /// Appends the line, from its type on, without its end.
    pub fn write(&self, line: &mut Vec<u8>) {
        match *self {
            Self::Get { key, found, class, client, size } => {
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
                text(line, " fetch=", if fetched { "yes" } else { "no" });
                match ttl {
                    Some(ttl) => number(line, " ttl=", ttl.into()),
                    None => text(line, " ttl=", "-1"),
                }
                number(line, " la=", idle_secs.into());
                number(line, " clsid=", class as u64);
                number(line, " size=", size as u64);
            }
        }
    }
}

impl Found {
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
    fn lines_of_connections_as_memcached_writes_them() {
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
            begin_line(Duration::from_micros(1_000_005), 9, &mut written);
            line.write(&mut written);
            end_line(&mut written);
            let expected = format!("ts=1.000005 gid=9{expected}\n");
            assert_eq!(String::from_utf8(written).unwrap(), expected);
        }
    }

    #[test]
    fn lines_as_memcached_writes_them() {
        let key = b"a b";
        let lines = [
            (
                ItemLine::Get { key, found: Found::Live, class: 1, client: 7, size: 2 },
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
        ];
        for (line, expected) in lines {
            let mut written = Vec::new();
            line.write(&mut written);
            assert_eq!(String::from_utf8(written).unwrap(), expected);
        }
    }
}
