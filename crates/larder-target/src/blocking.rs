//! A blocking client connection, for measurements whose next request depends on the last answer. It
//! sends batches of gets and sets over TCP or a unix socket, in memcached's text protocol or RESP.

use crate::{Protocol, ServerAddress};
use serde::Serialize;
use std::fmt;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, SystemTime};

/// Maximum number of requests in a batch. With the longest keys, such a batch fits the socket's
/// buffers, so that client and server cannot block each other by both writing.
pub const BATCH_MAX: usize = 256;

/// How long an answer may take.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Size in bytes at which the output buffer is written.
const OUTPUT_MAX: usize = 1 << 20;

/// A protocol of this connection.
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
    /// A key that both protocols allow: at most 250 bytes, without spaces and control characters.
    pub key: &'i [u8],
    /// The value.
    pub value: &'i [u8],
    /// TTL in seconds; 0 is none.
    pub ttl_secs: u32,
}

/// A blocking connection to a server.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<Stream>,
    dialect: Dialect,
    output: Vec<u8>,
    line: Vec<u8>,
    value: Vec<u8>,
}

impl Connection {
    /// Connects to a server.
    ///
    /// # Errors
    /// The connection cannot be made.
    pub fn open(address: &ServerAddress, dialect: Dialect) -> io::Result<Self> {
        let stream = BufReader::with_capacity(256 << 10, Stream::connect(address)?);
        let (output, line, value) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { stream, dialect, output, line, value })
    }

    /// Gets at most [`BATCH_MAX`] keys. Calls `each` with the index of each key, in order, and its
    /// value if the key was found.
    ///
    /// # Errors
    /// The connection is lost, or the server answered with an error.
    pub fn get<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        each: impl FnMut(usize, Option<&[u8]>),
    ) -> io::Result<()> {
        self.set_and_get([], keys, each).map(drop)
    }

    /// Sets at most [`BATCH_MAX`] items; returns how many the server stored. It may refuse some
    /// because of their size or for lack of memory.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn set<'i>(&mut self, items: impl IntoIterator<Item = Item<'i>>) -> io::Result<usize> {
        self.set_and_get::<&[u8]>(items, &[], |_, _| ())
    }

    /// Sends sets, then gets, in one batch: see [`Connection::set`] and [`Connection::get`].
    ///
    /// # Errors
    /// The connection is lost, or the server answered a get with an error.
    pub fn set_and_get<'i, K: AsRef<[u8]>>(
        &mut self,
        items: impl IntoIterator<Item = Item<'i>>,
        keys: &[K],
        mut each: impl FnMut(usize, Option<&[u8]>),
    ) -> io::Result<usize> {
        let offered = self.push_sets(items)?;
        self.push_gets(keys);
        self.write()?;
        let taken = self.read_sets(offered)?;
        for index in 0..keys.len() {
            let found = match self.dialect {
                Dialect::Text => self.text_value()?,
                Dialect::Resp => self.resp_value()?,
            };
            each(index, found.then_some(&self.value));
        }
        Ok(taken)
    }

    fn push_sets<'i>(&mut self, items: impl IntoIterator<Item = Item<'i>>) -> io::Result<usize> {
        let mut offered = 0;
        for item in items {
            match self.dialect {
                Dialect::Text => push_text_set(&mut self.output, &item),
                Dialect::Resp => push_resp_set(&mut self.output, &item),
            }
            offered += 1;
            if self.output.len() >= OUTPUT_MAX {
                self.write()?;
            }
        }
        Ok(offered)
    }

    fn push_gets<K: AsRef<[u8]>>(&mut self, keys: &[K]) {
        debug_assert!(keys.len() <= BATCH_MAX);
        for key in keys {
            match self.dialect {
                Dialect::Text => push(&mut self.output, &[b"get ", key.as_ref(), b"\r\n"]),
                Dialect::Resp => push_command(&mut self.output, &[b"GET", key.as_ref()]),
            }
        }
    }

    fn read_sets(&mut self, offered: usize) -> io::Result<usize> {
        let stored: &[u8] = if self.dialect == Dialect::Text { b"STORED" } else { b"+OK" };
        let mut taken = 0;
        for _ in 0..offered {
            taken += usize::from(self.read_line()? == stored);
        }
        Ok(taken)
    }

    /// The server's memory limit in bytes, as memcached's `stats` reports it; none in RESP.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn limit_bytes(&mut self) -> io::Result<Option<u64>> {
        if self.dialect == Dialect::Resp {
            return Ok(None);
        }
        push(&mut self.output, &[b"stats\r\n"]);
        self.write()?;
        let mut limit = None;
        loop {
            let line = String::from_utf8_lossy(self.read_line()?);
            match line.strip_prefix("STAT limit_maxbytes ") {
                Some(bytes) => limit = bytes.parse().ok(),
                None if line.starts_with("STAT ") => {}
                None => return Ok(limit),
            }
        }
    }

    fn write(&mut self) -> io::Result<()> {
        self.stream.get_mut().write_all(&self.output)?;
        self.output.clear();
        Ok(())
    }

    /// Reads the next line, without its CRLF.
    fn read_line(&mut self) -> io::Result<&[u8]> {
        self.line.clear();
        self.stream.read_until(b'\n', &mut self.line)?;
        match self.line.strip_suffix(b"\r\n") {
            Some(line) => Ok(line),
            None => {
                Err(io::Error::new(ErrorKind::UnexpectedEof, "the server closed the connection"))
            }
        }
    }

    fn text_value(&mut self) -> io::Result<bool> {
        let line = self.read_line()?;
        if line == b"END" {
            return Ok(false);
        }
        let len = line
            .strip_prefix(b"VALUE ")
            .and_then(|rest| rest.split(|byte| *byte == b' ').nth(2))
            .and_then(number);
        let len = len.ok_or_else(|| unexpected(line))?;
        self.read_value(len)?;
        let line = self.read_line()?;
        if line == b"END" { Ok(true) } else { Err(unexpected(line)) }
    }

    fn resp_value(&mut self) -> io::Result<bool> {
        let line = self.read_line()?;
        if line == b"$-1" || line == b"_" {
            return Ok(false);
        }
        let len = line.strip_prefix(b"$").and_then(number).ok_or_else(|| unexpected(line))?;
        self.read_value(len)?;
        Ok(true)
    }

    fn read_value(&mut self, len: usize) -> io::Result<()> {
        self.value.resize(len + 2, 0);
        self.stream.read_exact(&mut self.value)?;
        self.value.truncate(len);
        Ok(())
    }
}

fn number(digits: &[u8]) -> Option<usize> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn unexpected(line: &[u8]) -> io::Error {
    let line = line.escape_ascii();
    io::Error::new(ErrorKind::InvalidData, format!("the server answered a get with: {line}"))
}

fn push(output: &mut Vec<u8>, parts: &[&[u8]]) {
    for part in parts {
        output.extend_from_slice(part);
    }
}

fn push_command(output: &mut Vec<u8>, words: &[&[u8]]) {
    push(output, &[format!("*{}\r\n", words.len()).as_bytes()]);
    for word in words {
        push(output, &[format!("${}\r\n", word.len()).as_bytes(), word, b"\r\n"]);
    }
}

fn push_text_set(output: &mut Vec<u8>, item: &Item<'_>) {
    let numbers = format!(" 0 {} {}\r\n", expiry(item.ttl_secs), item.value.len());
    push(output, &[b"set ", item.key, numbers.as_bytes(), item.value, b"\r\n"]);
}

/// The expiry that memcached expects for this TTL: above 30 days, a point in time.
fn expiry(ttl_secs: u32) -> u32 {
    if ttl_secs <= RELATIVE_SECS_MAX {
        return ttl_secs;
    }
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now_secs = u32::try_from(since_epoch.unwrap_or_default().as_secs()).unwrap_or(u32::MAX);
    now_secs.saturating_add(ttl_secs)
}

const RELATIVE_SECS_MAX: u32 = 30 * 24 * 3600;

fn push_resp_set(output: &mut Vec<u8>, item: &Item<'_>) {
    match item.ttl_secs {
        0 => push_command(output, &[b"SET", item.key, item.value]),
        secs => {
            let secs = secs.to_string();
            push_command(output, &[b"SET", item.key, item.value, b"EX", secs.as_bytes()]);
        }
    }
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn connect(address: &ServerAddress) -> io::Result<Self> {
        match address {
            ServerAddress::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(READ_TIMEOUT))?;
                Ok(Self::Tcp(stream))
            }
            ServerAddress::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(READ_TIMEOUT))?;
                Ok(Self::Unix(stream))
            }
        }
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(bytes),
            Self::Unix(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A peer that answers anything with `answers`, in the order of the conversation.
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
    fn resp_answers_are_understood() {
        let answers = b"+OK\r\n-OOM command not allowed\r\n$4\r\n\r\nEN\r\n$-1\r\n-ERR no\r\n";
        let mut connection = talk_to(Dialect::Resp, answers);
        assert_eq!(connection.set(items()).unwrap(), 1);
        let found = gets(&mut connection, &["a", "b"]).unwrap();
        assert_eq!(found, [Some(b"\r\nEN".to_vec()), None]);
        assert!(gets(&mut connection, &["c"]).unwrap_err().to_string().contains("-ERR no"));
    }

    #[test]
    fn requests_are_spelled_as_the_protocols_want() {
        let mut output = Vec::new();
        items().iter().for_each(|item| push_text_set(&mut output, item));
        assert_eq!(output, b"set a 0 0 1\r\n1\r\nset b 0 9 1\r\n2\r\n");
        output.clear();
        push_resp_set(&mut output, &items()[1]);
        assert_eq!(output, b"*5\r\n$3\r\nSET\r\n$1\r\nb\r\n$1\r\n2\r\n$2\r\nEX\r\n$1\r\n9\r\n");
    }
}
