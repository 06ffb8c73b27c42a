//! Shared code of the commands: a pipelined text connection, a random number generator, and
//! recognizable values. This module uses only the standard library and no code of the server, so
//! the checks are independent of the server.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

/// A server that sends no reply for this number of seconds counts as hung.
const SILENCE_SECS_MAX: u64 = 30;

/// A connection that queues requests, sends them together, and reads their replies in order.
pub(crate) struct Peer {
    stream: BufReader<File>,
    queued: Vec<u8>,
    line: Vec<u8>,
}

impl Peer {
    /// Connects to `host:port`, or to a socket's path if `address` starts with `/`.
    pub(crate) fn connect(address: &str) -> io::Result<Self> {
        let stream = BufReader::with_capacity(64 << 10, open(address)?);
        Ok(Self { stream, queued: Vec::new(), line: Vec::new() })
    }

    /// Queues a request line, and appends its line end.
    pub(crate) fn queue(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a Vec does not fail.
        let _ = self.queued.write_fmt(line);
        self.queued.extend_from_slice(b"\r\n");
    }

    /// Queues a data block and its line end.
    pub(crate) fn queue_block(&mut self, block: &[u8]) {
        self.queued.extend_from_slice(block);
        self.queued.extend_from_slice(b"\r\n");
    }

    /// Sends the queued requests.
    pub(crate) fn send(&mut self) -> io::Result<()> {
        self.stream.get_mut().write_all(&self.queued)?;
        self.queued.clear();
        Ok(())
    }

    /// Reads one reply line, and returns it without the line end. Fails at the end of the stream.
    pub(crate) fn line(&mut self) -> io::Result<&str> {
        self.line.clear();
        self.stream.read_until(b'\n', &mut self.line)?;
        match self.line.strip_suffix(b"\r\n").map(std::str::from_utf8) {
            Some(Ok(whole)) => Ok(whole),
            _ => Err(broken(&self.line)),
        }
    }

    /// Reads the reply to a `get` or `gets` of one key, and its value into `value`. Returns the CAS
    /// unique, which is 0 for `get`. Returns `None` if the key is missing.
    pub(crate) fn read_get_reply(&mut self, value: &mut Vec<u8>) -> io::Result<Option<u64>> {
        let Some(hit) = self.hit(value)? else { return Ok(None) };
        self.expect("END")?;
        Ok(Some(hit.cas))
    }

    /// Reads the next key of a `get` reply, and its value into `value`. Returns `None` at the end
    /// of the reply.
    pub(crate) fn hit(&mut self, value: &mut Vec<u8>) -> io::Result<Option<Hit>> {
        let head = self.line()?;
        if head == "END" {
            return Ok(None);
        }
        let Some((hit, len)) = Hit::parse(head) else { return Err(broken(head.as_bytes())) };
        value.resize(len, 0);
        self.stream.read_exact(value)?;
        self.expect("")?;
        Ok(Some(hit))
    }

    /// Reads a line. Any line other than `line` is an error.
    pub(crate) fn expect(&mut self, line: &str) -> io::Result<()> {
        if self.line()? == line { Ok(()) } else { Err(broken(&self.line)) }
    }
}

/// The fields of a `VALUE` line except the length.
pub(crate) struct Hit {
    pub(crate) key: String,
    /// The CAS unique; 0 unless the request was `gets`.
    pub(crate) cas: u64,
}

impl Hit {
    fn parse(line: &str) -> Option<(Self, usize)> {
        let mut words = line.strip_prefix("VALUE ")?.split(' ');
        let key = words.next()?.to_owned();
        let len = words.nth(1)?.parse().ok()?;
        let cas = words.next().map_or(Some(0), |word| word.parse().ok())?;
        Some((Self { key, cas }, len))
    }
}

/// Returns the error for an unexpected reply or the end of the stream.
pub(crate) fn broken(line: &[u8]) -> io::Error {
    io::Error::other(format!("unexpected reply: {:?}", String::from_utf8_lossy(line)))
}

/// Connects to `host:port` or to the path of a unix socket. Returns a `File`, because this type can
/// read and write both kinds of sockets.
fn open(address: &str) -> io::Result<File> {
    let silence = Some(std::time::Duration::from_secs(SILENCE_SECS_MAX));
    if address.starts_with('/') {
        let stream = UnixStream::connect(address)?;
        stream.set_read_timeout(silence)?;
        stream.set_write_timeout(silence)?;
        return Ok(OwnedFd::from(stream).into());
    }
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(silence)?;
    stream.set_write_timeout(silence)?;
    Ok(OwnedFd::from(stream).into())
}

/// A SplitMix64 generator. The same seed gives the same sequence.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a random number below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// Spreads every bit of `x` over the result.
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Appends `len` bytes derived from `seed`.
pub(crate) fn extend_pattern(out: &mut Vec<u8>, seed: u64, len: usize) {
    let end = out.len() + len;
    let mut word = seed;
    while out.len() < end {
        word = word.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
        out.extend_from_slice(&word.to_be_bytes());
    }
    out.truncate(end);
}
