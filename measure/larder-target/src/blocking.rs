//! A blocking client connection, for measurements in which a request depends on earlier replies. It
//! sends batches of gets and sets over TCP or a unix socket, in memcached's text protocol or RESP.

use crate::input::Input;
use crate::{Protocol, ServerAddress};
use larder_protocol::Exptime;
use larder_protocol::answer::{Answer, read_resp, read_text};
use larder_protocol::encode::{InvalidKey, NewItem, WireKey, classic, resp};
use larder_protocol::response;
use serde::Serialize;
use socket2::{Domain, SockAddr, Socket, Type};
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, SystemTime};

/// Maximum number of gets, and of sets, in a batch. With this limit, the gets (even with the
/// longest keys) and the replies to the sets fit the sockets' buffers. With larger batches, client
/// and server could deadlock because both block in a write.
pub const BATCH_MAX: usize = 256;

/// Timeout for connecting and for each read.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Initial size of the input buffer in bytes.
const INPUT_LEN: usize = 256 << 10;

/// Size in bytes at which a connection writes its output buffer to the socket.
const OUTPUT_MAX: usize = 1 << 20;

/// A protocol that [`Connection`] speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// memcached's classic text protocol
    #[default]
    Text,
    /// RESP2, for Redis, Valkey, Dragonfly and Garnet
    Resp,
}

impl From<Dialect> for Protocol {
    fn from(dialect: Dialect) -> Self {
        match dialect {
            Dialect::Text => Self::Text,
            Dialect::Resp => Self::Resp,
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Resp => "resp",
        })
    }
}

/// An item to set.
#[derive(Clone, Copy, Debug)]
pub struct Item<'i> {
    /// A key that is valid in both protocols: 1 to 250 bytes, without spaces and control
    /// characters.
    pub key: &'i [u8],
    /// The value.
    pub value: &'i [u8],
    /// TTL in seconds; 0 means no expiry.
    pub ttl_secs: u32,
}

/// A blocking connection to a server.
#[derive(Debug)]
pub struct Connection {
    socket: Socket,
    dialect: Dialect,
    output: Vec<u8>,
    input: Input,
}

impl Connection {
    /// Connects to a server.
    ///
    /// # Errors
    /// Connecting fails or takes longer than a minute.
    pub fn open(address: &ServerAddress, dialect: Dialect) -> io::Result<Self> {
        Self::open_within(address, dialect, TIMEOUT)
    }

    /// Connects to a server. `timeout` applies to connecting and to each read of a reply, and
    /// must not be zero.
    ///
    /// # Errors
    /// Connecting fails or times out.
    pub fn open_within(
        address: &ServerAddress,
        dialect: Dialect,
        timeout: Duration,
    ) -> io::Result<Self> {
        let (output, input) = (Vec::new(), Input::new(INPUT_LEN));
        Ok(Self { socket: connect(address, timeout)?, dialect, output, input })
    }

    /// Gets at most [`BATCH_MAX`] keys. Calls `each` for each key in order, with the key's index
    /// and, if the key was found, its value.
    ///
    /// # Errors
    /// The connection fails, a key is invalid, or the server's reply is an error or malformed.
    pub fn get<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        each: impl FnMut(usize, Option<&[u8]>),
    ) -> io::Result<()> {
        self.set_and_get([], keys, each).map(drop)
    }

    /// Sets at most [`BATCH_MAX`] items. Returns the number of items that the server stored. The
    /// server may reject large items. When it has reached its memory limit, it may reject any item.
    ///
    /// # Errors
    /// The connection fails, a key is invalid, or the server's reply is malformed.
    pub fn set<'i>(&mut self, items: impl IntoIterator<Item = Item<'i>>) -> io::Result<usize> {
        self.set_and_get::<&[u8]>(items, &[], |_, _| ())
    }

    /// Sends sets, then gets, in one batch: see [`Connection::set`] and [`Connection::get`].
    ///
    /// # Errors
    /// The connection fails, a key is invalid, a reply of the server is malformed, or the reply to
    /// a get is an error.
    pub fn set_and_get<'i, K: AsRef<[u8]>>(
        &mut self,
        items: impl IntoIterator<Item = Item<'i>>,
        keys: &[K],
        mut each: impl FnMut(usize, Option<&[u8]>),
    ) -> io::Result<usize> {
        let offered = self.push_sets(items)?;
        self.push_gets(keys)?;
        self.write()?;
        let taken = self.read_sets(offered)?;
        for index in 0..keys.len() {
            self.read_get(|value| each(index, value))?;
        }
        Ok(taken)
    }

    /// Deletes at most [`BATCH_MAX`] items. Returns the number of items that existed. Supports only
    /// memcached's text protocol.
    ///
    /// # Errors
    /// The connection fails, a key is invalid, or the server's reply is malformed.
    pub fn delete<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> io::Result<usize> {
        for key in keys {
            let key = WireKey::new(key.as_ref()).map_err(invalid)?;
            classic::delete(key, false, &mut self.output);
        }
        self.write()?;
        let mut deleted = 0;
        for _ in keys {
            deleted += usize::from(self.read(|answer| matches!(answer, Answer::Deleted))?);
        }
        Ok(deleted)
    }

    fn push_sets<'i>(&mut self, items: impl IntoIterator<Item = Item<'i>>) -> io::Result<usize> {
        let now_unix_secs = now_unix_secs();
        let mut offered = 0;
        for item in items {
            push_set(&item, self.dialect, now_unix_secs, &mut self.output)?;
            offered += 1;
            if self.output.len() >= OUTPUT_MAX {
                self.write()?;
            }
        }
        Ok(offered)
    }

    fn push_gets<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> io::Result<()> {
        debug_assert!(keys.len() <= BATCH_MAX);
        for key in keys {
            let key = WireKey::new(key.as_ref()).map_err(invalid)?;
            match self.dialect {
                Dialect::Text => classic::get([key], &mut self.output),
                Dialect::Resp => resp::get(key, &mut self.output),
            }
        }
        Ok(())
    }

    fn read_sets(&mut self, offered: usize) -> io::Result<usize> {
        let mut taken = 0;
        for _ in 0..offered {
            let stored = |answer: Answer<'_>| matches!(answer, Answer::Stored { .. } | Answer::Ok);
            taken += usize::from(self.read(stored)?);
        }
        Ok(taken)
    }

    /// Reads the replies to the get of one key.
    fn read_get(&mut self, take: impl FnOnce(Option<&[u8]>)) -> io::Result<()> {
        let found = self.read(|answer| match answer {
            Answer::Hit { value, .. } => {
                take(Some(value));
                Ok(true)
            }
            Answer::End | Answer::NotFound { .. } => {
                take(None);
                Ok(false)
            }
            other => Err(unexpected(other)),
        })??;
        if found && self.dialect == Dialect::Text {
            return self.read(|answer| match answer {
                Answer::End => Ok(()),
                other => Err(unexpected(other)),
            })?;
        }
        Ok(())
    }

    /// Returns the memory limit in bytes that the server reports in memcached's `stats`. Returns
    /// `None` in RESP, or if the server does not report a limit.
    ///
    /// # Errors
    /// The connection fails, or the server's reply is malformed.
    pub fn limit_bytes(&mut self) -> io::Result<Option<u64>> {
        if self.dialect == Dialect::Resp {
            return Ok(None);
        }
        let stats = self.stats()?;
        Ok(stats.get("limit_maxbytes").and_then(|bytes| bytes.parse().ok()))
    }

    /// Returns all values of `stats` by name. The map is empty if the server rejects the command.
    /// Supports only memcached's text protocol.
    ///
    /// # Errors
    /// The connection fails, or the server's reply is malformed.
    pub fn stats(&mut self) -> io::Result<BTreeMap<String, String>> {
        classic::stats([], &mut self.output);
        self.write()?;
        let (mut stats, mut goes_on) = (BTreeMap::new(), true);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        while goes_on {
            self.read(|answer| match answer {
                Answer::Stat { name, value } => drop(stats.insert(text(name), text(value))),
                _ => goes_on = false,
            })?;
        }
        Ok(stats)
    }

    fn write(&mut self) -> io::Result<()> {
        self.socket.write_all(&self.output)?;
        self.output.clear();
        Ok(())
    }

    /// Reads the next reply.
    fn read<T>(&mut self, take: impl FnOnce(Answer<'_>) -> T) -> io::Result<T> {
        loop {
            let read = match self.dialect {
                Dialect::Text => read_text(self.input.bytes()),
                Dialect::Resp => read_resp(self.input.bytes()),
            };
            match read {
                response::Read::Whole(answer, len) => {
                    let taken = take(answer);
                    self.input.consume(len);
                    return Ok(taken);
                }
                response::Read::Incomplete { wanted } => self.input.want(wanted),
                response::Read::Malformed => return Err(malformed(self.input.bytes())),
            }
            while !self.input.is_ready() {
                self.receive()?;
            }
        }
    }

    fn receive(&mut self) -> io::Result<()> {
        match self.socket.read(self.input.space()) {
            Ok(0) => {
                Err(io::Error::new(ErrorKind::UnexpectedEof, "the server closed the connection"))
            }
            Ok(len) => {
                self.input.arrived(len);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn push_set(
    item: &Item<'_>,
    dialect: Dialect,
    now_unix_secs: u64,
    output: &mut Vec<u8>,
) -> io::Result<()> {
    let key = WireKey::new(item.key).map_err(invalid)?;
    match dialect {
        Dialect::Text => {
            let expiry = Exptime::after(item.ttl_secs, now_unix_secs);
            classic::set(key, &NewItem { expiry, ..NewItem::of(item.value) }, false, output);
        }
        Dialect::Resp => resp::set(key, item.value, item.ttl_secs, output),
    }
    Ok(())
}

fn now_unix_secs() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn invalid(key: InvalidKey) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, key)
}

fn unexpected(answer: Answer<'_>) -> io::Error {
    let answer = match answer {
        Answer::Error { line, .. } | Answer::Line(line) => line.escape_ascii().to_string(),
        other => format!("{other:?}"),
    };
    io::Error::new(ErrorKind::InvalidData, format!("the server answered a get with: {answer}"))
}

fn malformed(bytes: &[u8]) -> io::Error {
    let shown = bytes[..bytes.len().min(60)].escape_ascii();
    io::Error::new(ErrorKind::InvalidData, format!("the server's answer is malformed: {shown}"))
}

fn connect(address: &ServerAddress, timeout: Duration) -> io::Result<Socket> {
    let socket = match address {
        ServerAddress::Tcp(address) => {
            let socket = Socket::new(Domain::for_address(*address), Type::STREAM, None)?;
            socket.connect_timeout(&(*address).into(), timeout)?;
            socket.set_tcp_nodelay(true)?;
            socket
        }
        ServerAddress::Unix(path) => {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
            // For a unix socket, the write timeout also limits how long `connect` waits for room in
            // the server's backlog.
            socket.set_write_timeout(Some(timeout))?;
            socket.connect(&SockAddr::unix(path)?)?;
            socket.set_write_timeout(None)?;
            socket
        }
    };
    socket.set_read_timeout(Some(timeout))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Connects to a peer that sends `answers` regardless of the requests.
    fn talk_to(dialect: Dialect, answers: &'static [u8]) -> Connection {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = ServerAddress::Tcp(listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let (mut peer, _) = listener.accept().unwrap();
            peer.write_all(answers).unwrap();
            let _ = io::copy(&mut peer, &mut io::sink());
        });
        Connection::open(&address, dialect).unwrap()
    }

    fn gets(connection: &mut Connection, keys: &[&str]) -> io::Result<Vec<Option<Vec<u8>>>> {
        let mut found = Vec::new();
        connection.get(keys, |_, value| found.push(value.map(<[u8]>::to_vec)))?;
        Ok(found)
    }

    fn items() -> [Item<'static>; 2] {
        [Item { key: b"a", value: b"1", ttl_secs: 0 }, Item { key: b"b", value: b"2", ttl_secs: 9 }]
    }

    #[test]
    fn text_answers_are_understood() {
        let answers = b"STORED\r\nSERVER_ERROR object too large for cache\r\n\
                        VALUE a 5 4\r\n\r\nEN\r\nEND\r\nEND\r\nSERVER_ERROR no\r\n";
        let mut connection = talk_to(Dialect::Text, answers);
        assert_eq!(connection.set(items()).unwrap(), 1);
        let found = gets(&mut connection, &["a", "b"]).unwrap();
        assert_eq!(found, [Some(b"\r\nEN".to_vec()), None]);
        assert!(gets(&mut connection, &["c"]).unwrap_err().to_string().contains("SERVER_ERROR no"));
    }

    #[test]
    fn deletions_and_statistics_are_understood() {
        let answers =
            b"DELETED\r\nNOT_FOUND\r\nSTAT curr_items 7\r\nSTAT limit_maxbytes 64\r\nEND\r\n";
        let mut connection = talk_to(Dialect::Text, answers);
        assert_eq!(connection.delete(&["a", "b"]).unwrap(), 1);
        assert_eq!(connection.stats().unwrap()["curr_items"], "7");
    }

    #[test]
    fn resp_answers_are_understood() {
        let answers = b"+OK\r\n-OOM command not allowed\r\n$4\r\n\r\nEN\r\n$-1\r\n-ERR no\r\n";
        let mut connection = talk_to(Dialect::Resp, answers);
        assert_eq!(connection.set(items()).unwrap(), 1);
        let found = gets(&mut connection, &["a", "b"]).unwrap();
        assert_eq!(found, [Some(b"\r\nEN".to_vec()), None]);
        assert!(gets(&mut connection, &["c"]).unwrap_err().to_string().contains("ERR no"));
    }

    #[test]
    fn requests_are_spelled_as_the_protocols_want() {
        let spelled = |item: &Item<'_>, dialect| {
            let mut output = Vec::new();
            push_set(item, dialect, 1_700_000_000, &mut output).map(|()| output)
        };
        let [a, b] = items();
        assert_eq!(spelled(&a, Dialect::Text).unwrap(), b"set a 0 0 1\r\n1\r\n");
        assert_eq!(spelled(&b, Dialect::Text).unwrap(), b"set b 0 9 1\r\n2\r\n");
        let long = Item { ttl_secs: 30 * 24 * 3600 + 1, ..b };
        assert_eq!(spelled(&long, Dialect::Text).unwrap(), b"set b 0 1702592001 1\r\n2\r\n");
        let with_ttl = b"*5\r\n$3\r\nSET\r\n$1\r\nb\r\n$1\r\n2\r\n$2\r\nEX\r\n$1\r\n9\r\n";
        assert_eq!(spelled(&b, Dialect::Resp).unwrap(), with_ttl);
        let invalid = Item { key: b"a b", ..a };
        let error = spelled(&invalid, Dialect::Resp).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
}
