//! Reads traces: one request per line, `time_secs,key,size[,ttl]`. docs/hitratio.md describes the
//! format.

use super::stream::{Counted, Stream};
use crate::simulate::Request;
use rapidhash::RapidHashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::num::NonZeroU32;
use std::path::Path;

/// Maximum length of a memcached key.
const KEY_BYTES_MAX: usize = 250;

/// Maximum size of a value, in bytes.
const SIZE_MAX: u32 = 1 << 30;

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file could not be read.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// The trace has no requests.
    #[error("the trace has no requests")]
    Empty,
    /// A line does not follow the format.
    #[error("line {line}: {why}")]
    Line {
        /// Number of the line, from 1.
        line: u64,
        /// What is wrong or expected.
        why: &'static str,
    },
}

/// Reads a trace from a file, whose name becomes the stream's.
///
/// # Errors
/// The file cannot be read, or a line does not follow the format.
pub fn open(path: &Path) -> Result<Stream, TraceError> {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    read(&name, BufReader::with_capacity(1 << 20, File::open(path)?))
}

/// Reads a trace.
///
/// # Errors
/// The input cannot be read, or a line does not follow the format.
pub fn read(name: &str, mut input: impl BufRead) -> Result<Stream, TraceError> {
    let mut reader = Reader::default();
    let mut text = Vec::new();
    let mut line = 0;
    while input.read_until(b'\n', &mut text)? > 0 {
        line += 1;
        let fields = text.trim_ascii_end();
        let skipped = fields.is_empty() || line == 1 && fields.starts_with(b"time_secs,");
        if !skipped {
            reader.take(fields).map_err(|why| TraceError::Line { line, why })?;
        }
        text.clear();
    }
    if reader.requests.is_empty() {
        return Err(TraceError::Empty);
    }
    Ok(Stream {
        name: name.to_owned(),
        requests: reader.requests,
        names: Some(reader.names),
        counted: Counted::All,
        memory_mb: None,
    })
}

#[derive(Default)]
struct Reader {
    requests: Vec<Request>,
    names: Vec<Box<[u8]>>,
    numbers: RapidHashMap<Box<[u8]>, u32>,
    start_ms: Option<u64>,
}

impl Reader {
    fn take(&mut self, line: &[u8]) -> Result<(), &'static str> {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b',').collect();
        let (time, key, size, ttl) = match *fields.as_slice() {
            [time, key, size] => (time, key, size, &b""[..]),
            [time, key, size, ttl] => (time, key, size, ttl),
            _ => return Err("expected time_secs,key,size or time_secs,key,size,ttl"),
        };
        let now_ms = self.since_start(millis(time)?)?;
        let (key, size, ttl_secs) = (self.number(key)?, value_size(size)?, ttl_secs(ttl)?);
        self.requests.push(Request { now_ms, key, size, ttl_secs });
        Ok(())
    }

    fn since_start(&mut self, at_ms: u64) -> Result<u64, &'static str> {
        let start_ms = *self.start_ms.get_or_insert(at_ms);
        let before_ms = self.requests.last().map_or(0, |request| request.now_ms);
        let since_ms = at_ms.checked_sub(start_ms).filter(|since_ms| *since_ms >= before_ms);
        since_ms.ok_or("its time is earlier than that of the line before; sort the trace by time")
    }

    fn number(&mut self, key: &[u8]) -> Result<u32, &'static str> {
        if let Some(number) = self.numbers.get(key) {
            return Ok(*number);
        }
        if !is_key(key) {
            return Err("a key has 1 to 250 bytes without spaces and control characters");
        }
        let number =
            u32::try_from(self.names.len()).map_err(|_| "the trace has more than 2^32 keys")?;
        self.names.push(key.into());
        self.numbers.insert(key.into(), number);
        Ok(number)
    }
}

fn is_key(key: &[u8]) -> bool {
    let is_plain = |byte: &u8| *byte > b' ' && *byte != 0x7f;
    (1..=KEY_BYTES_MAX).contains(&key.len()) && key.iter().all(is_plain)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked before")]
fn millis(field: &[u8]) -> Result<u64, &'static str> {
    let secs: Option<f64> = parse(field);
    let secs = secs.filter(|secs| (0.0..1e12).contains(secs));
    secs.map(|secs| (secs * 1000.0).round() as u64).ok_or("the time must be a number of seconds")
}

fn value_size(field: &[u8]) -> Result<u32, &'static str> {
    parse(field)
        .filter(|size| *size <= SIZE_MAX)
        .ok_or("the size must be a number of bytes up to 2^30")
}

fn ttl_secs(field: &[u8]) -> Result<Option<NonZeroU32>, &'static str> {
    if field.is_empty() {
        return Ok(None);
    }
    parse(field).map(NonZeroU32::new).ok_or("the TTL must be a whole number of seconds")
}

fn parse<T: std::str::FromStr>(field: &[u8]) -> Option<T> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(now_ms: u64, key: u32, size: u32, ttl: u32) -> Request {
        Request { now_ms, key, size, ttl_secs: NonZeroU32::new(ttl) }
    }

    #[test]
    fn a_trace_is_read() {
        let text = "time_secs,key,size,ttl\n\
                    1700000000.25,user:1,100,60\r\n\
                    1700000000.5,user:2,7\n\n\
                    1700000001,user:1,100,0\n\
                    1700000001,user:3,0,";
        let stream = read("t", text.as_bytes()).unwrap();
        let expected =
            [ask(0, 0, 100, 60), ask(250, 1, 7, 0), ask(750, 0, 100, 0), ask(750, 2, 0, 0)];
        assert_eq!(stream.requests, expected);
        assert_eq!(stream.key(1).as_ref(), b"user:2");
    }

    #[test]
    fn lines_that_are_wrong_are_named() {
        let check = |text: &str, expected: &str| {
            let error = read("t", text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
        };
        check("time_secs,key,size\n", "no requests");
        check("0,a,1\n0,a\n", "line 2: expected time_secs,key,size");
        check("0,a,1,2,3", "line 1: expected time_secs");
        check("0,a b,1", "line 1: a key");
        check("0,,1", "line 1: a key");
        check(&format!("0,{},1", "k".repeat(251)), "line 1: a key");
        check("-1,a,1", "line 1: the time");
        check("x,a,1", "line 1: the time");
        check("0,a,-1", "line 1: the size");
        check("0,a,1,soon", "line 1: the TTL");
        check("5,a,1\n4,a,1", "line 2: its time is earlier");
    }
}
