//! Reads a trace line by line: `time_secs,key,size[,ttl]`.

use crate::fields;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::num::NonZeroU32;
use std::path::Path;

/// Maximum length of a line, so that a file that is no trace is not read into memory.
const LINE_LEN_MAX: usize = 4096;

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

/// A recorded request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'l> {
    /// Nanoseconds since the first request of the trace, never less than those of the request before.
    pub at_nanos: u64,
    /// The key: 1 to 250 bytes without spaces and control characters.
    pub key: &'l [u8],
    /// Size of the value in bytes, at most 2^30.
    pub value_len: u32,
    /// TTL of the value in seconds; none is no expiry.
    pub ttl_secs: Option<NonZeroU32>,
}

/// Reads the records of a trace, one after the other.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    /// The text of the last line.
    text: Vec<u8>,
    /// Number of the last line, from 1.
    line: u64,
    start_nanos: Option<u64>,
    last_nanos: u64,
}

impl Reader<BufReader<File>> {
    /// Opens a file.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self::new(BufReader::with_capacity(1 << 20, File::open(path)?)))
    }
}

impl<R: BufRead> Reader<R> {
    /// Reads from any input.
    pub fn new(input: R) -> Self {
        Self { input, text: Vec::new(), line: 0, start_nanos: None, last_nanos: 0 }
    }

    /// The next record; none at the end of the trace.
    ///
    /// # Errors
    /// The input cannot be read, a line does not follow the format, or the trace has no requests.
    pub fn read_record(&mut self) -> Result<Option<Record<'_>>, TraceError> {
        while self.read_line()? {
            let is_header = self.line == 1 && self.text.starts_with(b"time_secs,");
            if !self.text.is_empty() && !is_header {
                let line = self.line;
                return self.record().map(Some).map_err(|why| TraceError::Line { line, why });
            }
        }
        if self.start_nanos.is_none() { Err(TraceError::Empty) } else { Ok(None) }
    }

    /// The error of the last line that cannot be used, for a reason that its reader knows.
    #[must_use]
    pub fn objection(&self, why: &'static str) -> TraceError {
        TraceError::Line { line: self.line, why }
    }

    /// Reads a line without its end; returns whether there was one.
    fn read_line(&mut self) -> Result<bool, TraceError> {
        self.text.clear();
        let mut limited = self.input.by_ref().take(LINE_LEN_MAX as u64 + 1);
        if limited.read_until(b'\n', &mut self.text)? == 0 {
            return Ok(false);
        }
        self.line += 1;
        if self.text.len() > LINE_LEN_MAX {
            let why = "it is longer than any line of a trace (4096 bytes)";
            return Err(TraceError::Line { line: self.line, why });
        }
        self.text.truncate(self.text.trim_ascii_end().len());
        Ok(true)
    }

    fn record(&mut self) -> Result<Record<'_>, &'static str> {
        let mut fields = self.text.split(|byte| *byte == b',');
        let (Some(time), Some(key), Some(size), ttl, None) =
            (fields.next(), fields.next(), fields.next(), fields.next(), fields.next())
        else {
            return Err("expected time_secs,key,size or time_secs,key,size,ttl");
        };
        let nanos = fields::nanos(time)?;
        let start_nanos = *self.start_nanos.get_or_insert(nanos);
        let at_nanos = nanos
            .checked_sub(start_nanos)
            .filter(|since| *since >= self.last_nanos)
            .ok_or("its time is earlier than that of the line before; sort the trace by time")?;
        self.last_nanos = at_nanos;
        Ok(Record {
            at_nanos,
            key: fields::key(key)?,
            value_len: fields::value_len(size)?,
            ttl_secs: fields::ttl_secs(ttl.unwrap_or_default())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The records of a text, as `time key size ttl`.
    fn records(text: &str) -> Result<Vec<String>, TraceError> {
        let mut reader = Reader::new(text.as_bytes());
        let mut all = Vec::new();
        while let Some(record) = reader.read_record()? {
            let Record { at_nanos, key, value_len, ttl_secs } = record;
            let (millis, ttl) = (at_nanos / 1_000_000, ttl_secs.map_or(0, NonZeroU32::get));
            all.push(format!("{millis} {} {value_len} {ttl}", key.escape_ascii()));
        }
        Ok(all)
    }

    #[test]
    fn a_trace_is_read() {
        let text = "time_secs,key,size,ttl\n\
                    1700000000.25,user:1,100,60\r\n\
                    1700000000.5,user:2,7\n\n\
                    1700000001,user:1,100,0\n\
                    1700000001,user:3,0,";
        let expected = ["0 user:1 100 60", "250 user:2 7 0", "750 user:1 100 0", "750 user:3 0 0"];
        assert_eq!(records(text).unwrap(), expected);
    }

    #[test]
    fn lines_that_are_wrong_are_named() {
        let check = |text: &str, expected: &str| {
            let error = records(text).unwrap_err().to_string();
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
        check(&"k".repeat(5000), "line 1: it is longer");
    }
}
