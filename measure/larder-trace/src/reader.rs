//! Reads a trace line by line.

use crate::form::Form;
use crate::record::Record;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// Maximum length of a line in bytes, which limits memory if a file is not a trace.
const LINE_LEN_MAX: usize = 4096;

/// Errors when reading a trace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file could not be opened, or the input could not be read.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// The trace has no requests.
    #[error("the trace has no requests")]
    Empty,
    /// A line is invalid, or the caller cannot use its record: see [`Reader::objection`].
    #[error("line {line}: {why}")]
    Line {
        /// Number of the line, from 1.
        line: u64,
        /// The cause, or the expected form.
        why: &'static str,
    },
}

/// Reads the records of a trace, one at a time.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    /// The text of the current line.
    text: Vec<u8>,
    /// Number of the current line, from 1.
    line: u64,
    /// The form of all lines. The first record determines it; `None` before that.
    form: Option<Form>,
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
    /// Creates a reader of any input.
    pub fn new(input: R) -> Self {
        Self { input, text: Vec::new(), line: 0, form: None, start_nanos: None, last_nanos: 0 }
    }

    /// Returns the next record, or `None` at the end of the trace.
    ///
    /// # Errors
    /// The input is unreadable, a line is invalid, or the trace has no requests.
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

    /// Returns the form of the trace, or `None` before the first record.
    #[must_use]
    pub fn form(&self) -> Option<Form> {
        self.form
    }

    /// Returns the number of the current line, from 1. This is the line of the record that was read
    /// last or, at the end, the last line of the trace. Returns 0 before the first line.
    #[must_use]
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Returns an error that names the current line. Callers return it if they cannot use the
    /// line's record.
    #[must_use]
    pub fn objection(&self, why: &'static str) -> TraceError {
        TraceError::Line { line: self.line, why }
    }

    /// Reads the next line, without white space at its end. Returns `false` at the end of the
    /// input.
    fn read_line(&mut self) -> Result<bool, TraceError> {
        self.text.clear();
        let mut limited = self.input.by_ref().take(LINE_LEN_MAX as u64 + 1);
        if limited.read_until(b'\n', &mut self.text)? == 0 {
            return Ok(false);
        }
        self.line += 1;
        if self.text.len() > LINE_LEN_MAX {
            let why = "the line is longer than 4096 bytes, so this file is not a trace";
            return Err(TraceError::Line { line: self.line, why });
        }
        self.text.truncate(self.text.trim_ascii_end().len());
        Ok(true)
    }

    fn record(&mut self) -> Result<Record<'_>, &'static str> {
        let form = match self.form {
            Some(form) => form,
            None => *self.form.insert(Form::of_line(&self.text)?),
        };
        let record = form.record(&self.text)?;
        let start_nanos = *self.start_nanos.get_or_insert(record.at_nanos);
        let at_nanos = record
            .at_nanos
            .checked_sub(start_nanos)
            .filter(|since| *since >= self.last_nanos)
            .ok_or("the time is earlier than that of the previous line; sort the trace by time")?;
        self.last_nanos = at_nanos;
        Ok(Record { at_nanos, ..record })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Operation;
    use std::num::NonZeroU32;

    /// Parses a trace. Returns each record as the string "MILLIS OPERATION KEY VALUE_LEN TTL". TTL
    /// is 0 for no expiry.
    fn records(text: &str) -> Result<Vec<String>, TraceError> {
        let mut reader = Reader::new(text.as_bytes());
        let mut all = Vec::new();
        while let Some(record) = reader.read_record()? {
            let Record { at_nanos, operation, key, value_len, ttl_secs, .. } = record;
            let (millis, ttl) = (at_nanos / 1_000_000, ttl_secs.map_or(0, NonZeroU32::get));
            let (operation, key) = (operation.name(), key.escape_ascii());
            all.push(format!("{millis} {operation} {key} {value_len} {ttl}"));
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
        let expected = [
            "0 get user:1 100 60",
            "250 get user:2 7 0",
            "750 get user:1 100 0",
            "750 get user:3 0 0",
        ];
        assert_eq!(records(text).unwrap(), expected);
    }

    #[test]
    fn twitters_form_is_read() {
        let text = "5,q:q:1:8WTfjZU14ee,17,213,4,get,0\n\
                    5,a,b,3,10,17,set,3600\n\
                    6,q:q:1:8WTfjZU14ee,17,213,4,delete,0\n";
        let expected = ["0 get q:q:1:8WTfjZU14ee 213 0", "0 set a,b 10 3600"];
        assert_eq!(records(text).unwrap()[..2], expected);
        assert_eq!(records(text).unwrap()[2], "1000 delete q:q:1:8WTfjZU14ee 213 0");
        for operation in Operation::ALL {
            let line = format!("0,k,1,2,3,{},4", operation.name());
            assert_eq!(records(&line).unwrap(), [format!("0 {} k 2 4", operation.name())]);
        }
    }

    #[test]
    fn the_unit_of_a_time_is_that_of_its_last_digit() {
        for (time, nanos, unit) in [
            ("7", 7_000_000_000, 1_000_000_000),
            ("7.", 7_000_000_000, 1_000_000_000),
            ("7.25", 7_250_000_000, 10_000_000),
            (".250", 250_000_000, 1_000_000),
            ("1700000000.123456789123", 1_700_000_000_123_456_789, 1),
        ] {
            assert_eq!(crate::fields::time(time.as_bytes()), Ok((nanos, unit)), "{time}");
        }
        for wrong in ["", ".", "-1", "1e3", "+1", "1.2.3", "12345678901", "NaN"] {
            assert!(crate::fields::time(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_compressed_file_is_recognised() {
        let mut reader = Reader::new(&b"\x28\xb5\x2f\xfd\x04"[..]);
        let error = reader.read_record().unwrap_err().to_string();
        assert!(error.contains("zstd"), "{error}");
    }

    #[test]
    fn lines_that_are_wrong_are_named() {
        let check = |text: &str, expected: &str| {
            let error = records(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
        };
        check("time_secs,key,size\n", "no requests");
        check("0,a,1\n0,a\n", "line 2: expected time_secs,key,size");
        check("0,a,1\n0,a,1,2,3", "line 2: expected time_secs");
        check("0,a,1,2,3", "line 1: expected time_secs");
        check("0,a,1,2,3,get,0\n0,a,1", "line 2: expected timestamp,");
        check("0,a,1,2,3,get,0\n0,a,1,2,3,touch,0", "line 2: the operation");
        check("0,a,x,2,3,get,0", "line 1: the key size");
        check("0,a b,1", "line 1: a key");
        check("0,,1", "line 1: a key");
        check(&format!("0,{},1", "k".repeat(251)), "line 1: a key");
        check("-1,a,1", "line 1: the time");
        check("x,a,1", "line 1: the time");
        check("0,a,-1", "line 1: the size");
        check("0,a,1,soon", "line 1: the TTL");
        check("5,a,1\n4,a,1", "line 2: the time is earlier");
        check(&"k".repeat(5000), "line 1: the line is longer");
    }
}
