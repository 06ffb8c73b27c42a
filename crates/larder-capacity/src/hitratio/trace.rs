//! Makes a stream of a trace: each record is a look-aside request. docs/hitratio.md describes the
//! format.

use super::stream::{Counted, Stream};
use crate::simulate::Request;
use larder_trace::{Form, Reader, TraceError};
use rapidhash::RapidHashMap;
use std::io::BufRead;
use std::path::Path;

/// Reads a trace from a file, whose name becomes the stream's.
///
/// # Errors
/// The file cannot be read, or a line does not follow the format.
pub fn open(path: &Path) -> Result<Stream, TraceError> {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    read(&name, Reader::open(path)?)
}

/// Reads a trace.
///
/// # Errors
/// The input cannot be read, or a line does not follow the format.
pub fn read(name: &str, mut reader: Reader<impl BufRead>) -> Result<Stream, TraceError> {
    let mut requests = Vec::new();
    let mut keys = KeyNumbers::default();
    while let Some(record) = reader.read_record()? {
        let now_ms = (record.at_nanos + 500_000) / 1_000_000;
        let (size, ttl_secs) = (record.value_len, record.ttl_secs);
        let key = keys.number(record.key);
        let key = key.ok_or_else(|| reader.objection("the trace has more than 2^32 keys"))?;
        if reader.form() != Some(Form::LookAside) {
            return Err(reader.objection("expected time_secs,key,size or time_secs,key,size,ttl"));
        }
        requests.push(Request { now_ms, key, size, ttl_secs });
    }
    Ok(Stream {
        name: name.to_owned(),
        requests,
        names: Some(keys.names),
        counted: Counted::All,
        memory_mb: None,
    })
}

#[derive(Default)]
struct KeyNumbers {
    names: Vec<Box<[u8]>>,
    numbers: RapidHashMap<Box<[u8]>, u32>,
}

impl KeyNumbers {
    /// The number of a key; none if there are too many keys.
    fn number(&mut self, key: &[u8]) -> Option<u32> {
        if let Some(number) = self.numbers.get(key) {
            return Some(*number);
        }
        let number = u32::try_from(self.names.len()).ok()?;
        self.names.push(key.into());
        self.numbers.insert(key.into(), number);
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    fn ask(now_ms: u64, key: u32, size: u32, ttl: u32) -> Request {
        Request { now_ms, key, size, ttl_secs: NonZeroU32::new(ttl) }
    }

    #[test]
    fn a_stream_has_the_requests_of_its_trace() {
        let text = "1700000000.25,user:1,100,60\n\
                    1700000000.5,user:2,7\n\
                    1700000001,user:1,100,0\n\
                    1700000001,user:3,0,";
        let stream = read("t", Reader::new(text.as_bytes())).unwrap();
        let expected =
            [ask(0, 0, 100, 60), ask(250, 1, 7, 0), ask(750, 0, 100, 0), ask(750, 2, 0, 0)];
        assert_eq!(stream.requests, expected);
        assert_eq!(stream.key(1).as_ref(), b"user:2");
    }
}
