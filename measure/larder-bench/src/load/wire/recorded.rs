//! Encoding of recorded requests in each protocol, and interpretation of their replies.

use crate::load::stats::Kind;
use crate::load::wire::custom::Response;
use crate::load::wire::exptime;
use larder_protocol::StoreMode;
use larder_protocol::encode::{NewItem, WireKey, binary, classic, meta, resp};
use larder_protocol::response::{Binary, Read, Resp, Text, read_binary, read_resp, read_text};
use larder_target::Protocol;
use larder_trace::{Operation, Record};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::borrow::Cow;
use std::hash::{DefaultHasher, Hasher};
use std::num::NonZeroU32;

/// A recorded request to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    pub(crate) operation: Operation,
    pub(crate) key: Box<[u8]>,
    pub(crate) value_len: u32,
    /// TTL in seconds; 0 for no expiry.
    pub(crate) ttl_secs: u32,
    /// Open loop: the time at which the request is due, in nanoseconds since the start of the run.
    /// `None` in a closed loop, and for a set that follows a miss.
    pub(crate) due: Option<u64>,
    /// Whether a set follows if the get misses.
    pub(crate) set_on_miss: bool,
}

impl Recorded {
    pub(crate) fn new(record: &Record<'_>) -> Self {
        Self {
            operation: record.operation,
            key: record.key.into(),
            value_len: record.value_len,
            ttl_secs: record.ttl_secs.map_or(0, NonZeroU32::get),
            due: None,
            set_on_miss: false,
        }
    }

    /// Converts a get that missed to the set that follows it.
    pub(crate) fn into_set(self) -> Self {
        Self { operation: Operation::Set, due: None, set_on_miss: false, ..self }
    }

    /// Returns whether the request reads a value.
    pub(crate) fn is_get(&self) -> bool {
        matches!(self.operation, Operation::Get | Operation::Gets)
    }

    /// Returns the command whose result row counts the request.
    pub(crate) fn kind(&self) -> Kind {
        kind(self.operation)
    }

    /// Appends the request.
    pub(crate) fn write(&self, protocol: Protocol, values: &RecordedValues, out: &mut Vec<u8>) {
        let Ok(key) = WireKey::new(&self.key) else { return };
        match protocol {
            Protocol::Text => self.write_text(key, values, out),
            Protocol::Meta => self.write_meta(key, values, out),
            Protocol::Binary => self.write_binary(key, values, out),
            Protocol::Resp => self.write_resp(key, values, out),
        }
    }

    fn write_text(&self, key: WireKey<'_>, values: &RecordedValues, out: &mut Vec<u8>) {
        match self.operation {
            Operation::Get => classic::get([key], out),
            Operation::Gets => classic::gets([key], out),
            Operation::Delete => classic::delete(key, false, out),
            Operation::Incr => classic::incr(key, 1, false, out),
            Operation::Decr => classic::decr(key, 1, false, out),
            _ => {
                let value = values.of(&self.key, self.value_len);
                classic::store(self.mode(), key, &self.item(&value), false, out);
            }
        }
    }

    fn write_meta(&self, key: WireKey<'_>, values: &RecordedValues, out: &mut Vec<u8>) {
        const GET: meta::GetFlags = meta::GetFlags::NONE.value().client_flags();
        let count = |down| meta::ArithmeticOptions { down, ..Default::default() };
        let key = key.into();
        match self.operation {
            Operation::Get => meta::get(key, GET, &meta::GetOptions::default(), out),
            Operation::Gets => meta::get(key, GET.cas(), &meta::GetOptions::default(), out),
            Operation::Delete => {
                meta::delete(key, meta::DeleteFlags::NONE, &meta::DeleteOptions::default(), out);
            }
            Operation::Incr => {
                meta::arithmetic(key, meta::ArithmeticFlags::NONE, &count(false), out);
            }
            Operation::Decr => {
                meta::arithmetic(key, meta::ArithmeticFlags::NONE, &count(true), out);
            }
            _ => {
                let (mode, expiry) = (self.mode(), exptime(self.ttl_secs));
                let options = meta::SetOptions { mode, expiry, ..Default::default() };
                let value = values.of(&self.key, self.value_len);
                meta::set(key, &value, meta::SetFlags::NONE, &options, out);
            }
        }
    }

    fn write_binary(&self, key: WireKey<'_>, values: &RecordedValues, out: &mut Vec<u8>) {
        let options = binary::Options::default();
        let count = |down| binary::Count { down, delta: 1, ..Default::default() };
        match self.operation {
            Operation::Get | Operation::Gets => binary::get(key, false, options, out),
            Operation::Delete => binary::delete(key, 0, options, out),
            Operation::Incr => binary::arithmetic(key, &count(false), 0, options, out),
            Operation::Decr => binary::arithmetic(key, &count(true), 0, options, out),
            _ => {
                let value = values.of(&self.key, self.value_len);
                binary::store(self.mode(), key, &self.item(&value), 0, options, out);
            }
        }
    }

    fn write_resp(&self, key: WireKey<'_>, values: &RecordedValues, out: &mut Vec<u8>) {
        match self.operation {
            Operation::Get | Operation::Gets => resp::get(key, out),
            Operation::Delete => resp::command(&[b"DEL", key.bytes()], out),
            Operation::Incr => resp::command(&[b"INCR", key.bytes()], out),
            Operation::Decr => resp::command(&[b"DECR", key.bytes()], out),
            _ => {
                let value = values.of_resp(&self.key, self.value_len);
                let condition: &[u8] = match self.operation {
                    Operation::Append => {
                        return resp::command(&[b"APPEND", key.bytes(), &value], out);
                    }
                    Operation::Add => b"NX",
                    Operation::Replace => b"XX",
                    _ => return resp::set(key, &value, self.ttl_secs, out),
                };
                if self.ttl_secs == 0 {
                    return resp::command(&[b"SET", key.bytes(), &value, condition], out);
                }
                let mut digits = itoa::Buffer::new();
                let ttl = digits.format(self.ttl_secs).as_bytes();
                resp::command(&[b"SET", key.bytes(), &value, b"EX", ttl, condition], out);
            }
        }
    }

    fn mode(&self) -> StoreMode {
        match self.operation {
            Operation::Add => StoreMode::Add,
            Operation::Replace => StoreMode::Replace,
            Operation::Append => StoreMode::Append,
            Operation::Prepend => StoreMode::Prepend,
            // Sends a recorded `cas` as a set, because traces contain no CAS values. Most recorded
            // `cas` requests succeeded, like a set.
            _ => StoreMode::Set,
        }
    }

    fn item<'v>(&self, value: &'v [u8]) -> NewItem<'v> {
        NewItem { expiry: exptime(self.ttl_secs), ..NewItem::of(value) }
    }
}

/// Returns an operation's command. Commands are numbered in the order of [`Operation::ALL`].
fn kind(operation: Operation) -> Kind {
    let index = Operation::ALL.iter().position(|other| *other == operation);
    Kind::of_number(index.unwrap_or(0))
}

/// Returns the reason why a protocol cannot express an operation, or `None` if it can.
pub(crate) fn objection(protocol: Protocol, operation: Operation) -> Option<&'static str> {
    match (protocol, operation) {
        (Protocol::Resp, Operation::Prepend) => Some("RESP has no command that prepends"),
        _ => None,
    }
}

/// Returns a hash of the key that is the same in all threads and runs.
pub(crate) fn hash(key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(key);
    hasher.finish()
}

/// Decodes the response at the start of `bytes`. A response that does not match a request of the
/// kind `pending` is malformed.
pub(crate) fn read(protocol: Protocol, pending: Option<Kind>, bytes: &[u8]) -> Read<Response<'_>> {
    let operation = Operation::ALL.into_iter().find(|operation| pending == Some(kind(*operation)));
    let response = match protocol {
        Protocol::Binary => decode(read_binary(bytes), operation, binary_response),
        Protocol::Resp => decode(read_resp(bytes), operation, resp_response),
        Protocol::Text | Protocol::Meta => decode(read_text(bytes), operation, text_response),
    };
    response.unwrap_or(Read::Malformed)
}

/// Converts a decoded response. Treats it as malformed if no request is outstanding, or if it does
/// not match the operation.
fn decode<'b, T>(
    read: Read<T>,
    operation: Option<Operation>,
    response: impl FnOnce(T, Operation) -> Option<Response<'b>>,
) -> Option<Read<Response<'b>>> {
    match read {
        Read::Whole(answer, len) => Some(Read::Whole(response(answer, operation?)?, len)),
        Read::Incomplete { wanted } => Some(Read::Incomplete { wanted }),
        Read::Malformed => None,
    }
}

/// The kind of response that an operation expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExpectedAnswer {
    Value,
    /// The server must store the value: any other response is an error.
    Store,
    /// The command stores the value only if an item exists, or only if none exists.
    StoreIf,
    Delete,
    Count,
}

impl ExpectedAnswer {
    fn of(operation: Operation) -> Self {
        match operation {
            Operation::Get | Operation::Gets => Self::Value,
            // `mode` sends a recorded `cas` as a set.
            Operation::Set | Operation::Cas => Self::Store,
            Operation::Add | Operation::Replace | Operation::Append | Operation::Prepend => {
                Self::StoreIf
            }
            Operation::Delete => Self::Delete,
            Operation::Incr | Operation::Decr => Self::Count,
        }
    }

    /// Returns the meaning of the responses "not found", "exists" and "not stored" for this
    /// request.
    fn refused(self, words: &[u8]) -> Response<'_> {
        if self == Self::Store { Response::Error(words) } else { Response::Missing }
    }
}

fn binary_response(answer: Binary<'_>, operation: Operation) -> Option<Response<'_>> {
    let opcode = match operation {
        Operation::Get | Operation::Gets => 0x00,
        Operation::Set | Operation::Cas => 0x01,
        Operation::Add => 0x02,
        Operation::Replace => 0x03,
        Operation::Delete => 0x04,
        Operation::Incr => 0x05,
        Operation::Decr => 0x06,
        Operation::Append => 0x0e,
        Operation::Prepend => 0x0f,
    };
    if answer.opcode != opcode {
        return None;
    }
    let expected = ExpectedAnswer::of(operation);
    Some(match answer.status {
        0 if expected == ExpectedAnswer::Value => Response::Found(answer.value.len()),
        0 => Response::Other,
        // The statuses "not found", "exists" and "not stored".
        1 | 2 | 5 => expected.refused(answer.value),
        _ => Response::Error(answer.value),
    })
}

fn resp_response(answer: Resp<'_>, operation: Operation) -> Option<Response<'_>> {
    let expected = ExpectedAnswer::of(operation);
    Some(match (answer, expected) {
        (Resp::Error(text), _) => Response::Error(text),
        (Resp::Bulk(value), ExpectedAnswer::Value) => Response::Found(value.len()),
        (Resp::Null, ExpectedAnswer::Value | ExpectedAnswer::StoreIf)
        | (Resp::Integer(0), ExpectedAnswer::Delete) => Response::Missing,
        (Resp::Null, ExpectedAnswer::Store) => Response::Error(b"the value was not stored"),
        (Resp::Simple(_), ExpectedAnswer::Store | ExpectedAnswer::StoreIf) => Response::Other,
        // The new length of the value (append), the number of deleted keys, or the counter.
        (
            Resp::Integer(_),
            ExpectedAnswer::StoreIf | ExpectedAnswer::Delete | ExpectedAnswer::Count,
        ) => Response::Other,
        _ => return None,
    })
}

fn text_response(answer: Text<'_>, operation: Operation) -> Option<Response<'_>> {
    let expected = ExpectedAnswer::of(operation);
    // memcached pads counters with spaces.
    let is_number = |line: &[u8]| {
        !line.is_empty() && line.iter().all(|byte| byte.is_ascii_digit() || *byte == b' ')
    };
    Some(match (answer, expected) {
        (Text::Value { value, .. }, ExpectedAnswer::Value) => Response::More(Some(value.len())),
        (Text::MetaValue { value, .. }, ExpectedAnswer::Value) => Response::Found(value.len()),
        (Text::End, ExpectedAnswer::Value) => Response::End,
        (Text::Line(b"EN"), ExpectedAnswer::Value) => Response::Missing,
        (Text::Line(b"STORED"), ExpectedAnswer::Store | ExpectedAnswer::StoreIf) => Response::Other,
        (Text::Line(b"DELETED"), ExpectedAnswer::Delete) => Response::Other,
        (Text::Line(line), ExpectedAnswer::Count) if is_number(line) => Response::Other,
        (
            Text::Line(b"HD"),
            ExpectedAnswer::Store
            | ExpectedAnswer::StoreIf
            | ExpectedAnswer::Delete
            | ExpectedAnswer::Count,
        ) => Response::Other,
        (
            Text::Line(line @ (b"NOT_STORED" | b"NS" | b"EXISTS" | b"EX")),
            ExpectedAnswer::Store | ExpectedAnswer::StoreIf,
        )
        | (
            Text::Line(line @ (b"NOT_FOUND" | b"NF")),
            ExpectedAnswer::Store
            | ExpectedAnswer::StoreIf
            | ExpectedAnswer::Delete
            | ExpectedAnswer::Count,
        ) => expected.refused(line),
        (
            Text::Line(
                b"EN" | b"STORED" | b"DELETED" | b"HD" | b"NOT_STORED" | b"NS" | b"EXISTS" | b"EX"
                | b"NOT_FOUND" | b"NF",
            )
            | Text::Value { .. }
            | Text::MetaValue { .. }
            | Text::End,
            _,
        ) => return None,
        (Text::Line(line), _) if is_number(line) => return None,
        (Text::Line(line), _) => Response::Error(line),
    })
}

/// Generates values with the recorded lengths for recorded requests. The bytes of values longer
/// than 20 bytes derive from the key.
#[derive(Debug)]
pub(crate) struct RecordedValues {
    pool: Vec<u8>,
}

/// Number of offsets in the pool at which a value can start.
const OFFSETS: usize = 1 << 16;

/// Maximum length in bytes of a value that is a contiguous slice of the pool. A longer value can
/// repeat bytes of the pool.
const PIECE_LEN: usize = 1 << 20;

/// The value of a 20-digit counter. Shorter counters are prefixes of it. All of them fit in a
/// `u64`.
const NUMBER: &[u8; 20] = b"10101010101010101010";

/// The value of a 20-byte counter over RESP. RESP counters have the type `i64`.
const SIGNED_NUMBER: &[u8; 20] = b"-1010101010101010101";

impl RecordedValues {
    pub(crate) fn new(random: bool) -> Self {
        let mut pool = vec![b'x'; OFFSETS + PIECE_LEN];
        if random {
            SmallRng::seed_from_u64(0).fill_bytes(&mut pool);
        }
        Self { pool }
    }

    /// Returns the value of a key. Values of up to 20 bytes are numbers, because a later request of
    /// the trace may increment or decrement them.
    fn of(&self, key: &[u8], len: u32) -> Cow<'_, [u8]> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if let Some(number) = NUMBER.get(..len) {
            return Cow::Borrowed(number);
        }
        let start = usize::try_from(hash(key) % OFFSETS as u64).unwrap_or(0);
        match self.pool.get(start..start + len) {
            Some(value) => Cow::Borrowed(value),
            None => Cow::Owned(self.pool[start..].iter().copied().cycle().take(len).collect()),
        }
    }

    /// Returns the value of a key over RESP. For 20 bytes, the value differs from the result of
    /// [`of`](Self::of), because a positive 20-digit number does not fit an `i64`.
    fn of_resp(&self, key: &[u8], len: u32) -> Cow<'_, [u8]> {
        if len == 20 { Cow::Borrowed(SIGNED_NUMBER) } else { self.of(key, len) }
    }
}
