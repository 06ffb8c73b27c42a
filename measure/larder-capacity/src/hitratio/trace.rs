//! Converts a trace to a stream: each get is a look-aside request. docs/hitratio.md describes the
//! forms of traces.
//!
//! In Larder's form, each line has the size and TTL for the set after a miss. In Twitter's form,
//! gets and sets are separate lines, gets have no TTL, and a get that missed has no size. For
//! traces in Twitter's form, the set after a miss uses the key's last recorded size and the TTL of
//! its last set. If the trace records the key's first size or first set only after the get, the set
//! after a miss uses that size or the TTL of that set. If the trace records no size of the key, the
//! size is 0. If the trace records no set of the key, there is no TTL.

use super::stream::{Counted, Stream};
use crate::simulate::Request;
use larder_trace::{Form, Operation, Reader, Record, TraceError};
use rapidhash::RapidHashMap;
use std::io::BufRead;
use std::num::NonZeroU32;
use std::path::Path;

/// Reads a trace from a file. The name of the stream is the file name.
///
/// # Errors
/// The file cannot be read, a line does not follow the format, or the trace has no get or more than
/// 2^32 keys.
pub fn open(path: &Path) -> Result<Stream, TraceError> {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    read(&name, Reader::open(path)?)
}

/// Reads a trace.
///
/// # Errors
/// The input cannot be read, a line does not follow the format, or the trace has no get or more
/// than 2^32 keys.
pub fn read(name: &str, mut reader: Reader<impl BufRead>) -> Result<Stream, TraceError> {
    let mut requests = Requests::default();
    while let Some(record) = reader.read_record()? {
        let Some(key) = requests.keys.number(record.key) else {
            return Err(reader.objection("the trace has more than 2^32 keys"));
        };
        let Record { operation, value_len, ttl_secs, at_nanos, .. } = record;
        let now_ms = (at_nanos + 500_000) / 1_000_000;
        let request = Request { now_ms, key, size: value_len, ttl_secs };
        match (reader.form(), operation) {
            (Some(Form::LookAside), _) => requests.all.push(request),
            (_, Operation::Get | Operation::Gets) => requests.add_get(request),
            (_, Operation::Set | Operation::Add | Operation::Replace | Operation::Cas) => {
                requests.store(request);
            }
            // A stream has only gets. Ignores delete, incr, decr, append and prepend, although some
            // of them changed the size of the value in the traced cache.
            _ => (),
        }
    }
    if requests.all.is_empty() {
        return Err(reader.objection("the trace ends here and contains no get"));
    }
    let Requests { all: requests, keys, .. } = requests.complete();
    Ok(Stream {
        name: name.to_owned(),
        requests,
        names: Some(keys.names),
        counted: Counted::All,
        memory_mb: None,
    })
}

/// The requests of a trace and, in Twitter's form, the size and TTL of each key's value.
#[derive(Default)]
struct Requests {
    all: Vec<Request>,
    keys: KeyNumbers,
    /// The values, indexed by key number.
    values: Vec<Value>,
    /// Indices of the gets that precede the first recorded size of their key.
    without_size: Vec<usize>,
    /// Indices of the gets that precede the first set of their key.
    without_set: Vec<usize>,
}

/// The known properties of a key's value.
#[derive(Clone, Copy, Default)]
struct Value {
    /// The last recorded size above 0; 0 if none was recorded yet.
    size: u32,
    /// The first recorded size above 0; 0 if none was recorded yet.
    first_size: u32,
    /// Whether the trace has contained a set of the key so far.
    is_set: bool,
    /// The TTL of the last set; `None` for no expiry, and before the first set.
    ttl_secs: Option<NonZeroU32>,
    /// The TTL of the first set; `None` for no expiry, and before the first set.
    first_ttl_secs: Option<NonZeroU32>,
}

impl Requests {
    /// Adds a get. Twitter's traces record a size of 0 if the get missed.
    fn add_get(&mut self, get: Request) {
        let value = self.value(get.key);
        value.see_size(get.size);
        let (size, ttl_secs, is_set) = (value.size, value.ttl_secs, value.is_set);
        if size == 0 {
            self.without_size.push(self.all.len());
        }
        if !is_set {
            self.without_set.push(self.all.len());
        }
        self.all.push(Request { size, ttl_secs, ..get });
    }

    fn store(&mut self, set: Request) {
        let value = self.value(set.key);
        value.see_size(set.size);
        if !value.is_set {
            (value.is_set, value.first_ttl_secs) = (true, set.ttl_secs);
        }
        value.ttl_secs = set.ttl_secs;
    }

    fn value(&mut self, key: u32) -> &mut Value {
        let place = key as usize;
        if place >= self.values.len() {
            self.values.resize(place + 1, Value::default());
        }
        &mut self.values[place]
    }

    /// Completes the gets whose size or TTL the trace records only later.
    fn complete(mut self) -> Self {
        for get in std::mem::take(&mut self.without_size) {
            self.all[get].size = self.values[self.all[get].key as usize].first_size;
        }
        for get in std::mem::take(&mut self.without_set) {
            self.all[get].ttl_secs = self.values[self.all[get].key as usize].first_ttl_secs;
        }
        self
    }
}

impl Value {
    fn see_size(&mut self, size: u32) {
        if size > 0 {
            self.size = size;
        }
        if self.first_size == 0 {
            self.first_size = size;
        }
    }
}

#[derive(Default)]
struct KeyNumbers {
    names: Vec<Box<[u8]>>,
    numbers: RapidHashMap<Box<[u8]>, u32>,
}

impl KeyNumbers {
    /// Returns the number of a key; `None` if there are more than 2^32 keys.
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

    /// The fields of a line: time, key, its length, size, client, operation, TTL.
    #[test]
    fn a_stream_has_the_gets_of_twitters_form() {
        let text = "10,a,1,0,1,get,0\n\
                    10,a,1,100,1,set,60\n\
                    11,a,1,100,2,gets,0\n\
                    11,a,1,120,2,cas,0\n\
                    12,a,1,0,1,get,0\n\
                    12,b,1,7,1,get,0\n\
                    12,a,1,0,1,delete,0\n\
                    13,b,1,0,1,get,0\n\
                    13,c,1,0,1,get,0\n\
                    13,c,1,1,1,incr,0\n\
                    13,b,1,9,1,add,30\n\
                    14,b,1,9,1,get,0\n";
        let stream = read("t", Reader::new(text.as_bytes())).unwrap();
        let expected = [
            // The get precedes the first set of its key, so it has the size and TTL of that set.
            ask(0, 0, 100, 60),
            ask(1000, 0, 100, 60),
            ask(2000, 0, 120, 0),
            // The get hit, so its line has the size. The TTL is that of the later add.
            ask(2000, 1, 7, 30),
            ask(3000, 1, 7, 30),
            // The trace has neither a get that hit nor a set of this key, and an `incr` does not
            // count.
            ask(3000, 2, 0, 0),
            ask(4000, 1, 9, 30),
        ];
        assert_eq!(stream.requests, expected);
        assert_eq!(stream.key(2).as_ref(), b"c");
    }

    #[test]
    fn a_trace_without_gets_is_refused() {
        let text = "10,a,1,5,1,set,60\n10,a,1,5,1,delete,0\n";
        let error = read("t", Reader::new(text.as_bytes())).unwrap_err().to_string();
        assert_eq!(error, "line 2: the trace ends here and contains no get");
    }
}
