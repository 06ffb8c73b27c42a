//! Operations on items that another server of the cluster owns: encoding of requests, and decoding
//! of replies.
//!
//! Servers forward requests to each other in memcached's or Redis's protocol. The owner executes
//! them like requests of its own clients. HTTP and gRPC operations are therefore encoded in
//! memcached's protocol: an operation on one item as a meta request, and a flush as `flush_all`. A
//! key in a meta request has at most 250 bytes, or at most 186 bytes if it contains blanks or
//! control characters, because base64 lengthens it. Requests with longer keys cannot be forwarded:
//! clients have to send them to the owner.

use crate::items::{LookupOutcome, StoredItem};
use bytes::Bytes;
use larder_operations::{
    ArithmeticOutcome, Count, ExpireOutcome, Remove, RemoveOutcome, Store, StoreMode, StoreOutcome,
};
use larder_protocol::answer::{Answer, Flag, RefusalReason, read_text};
use larder_protocol::encode::{MetaKey, classic, meta};
use larder_protocol::response::Read;
use larder_protocol::{Exptime, StoreMode as WireMode};
use larder_store::{Expiry, Now};
use std::time::Duration;

/// An operation that can be forwarded to another server.
pub(crate) trait RemoteOperation: Sync {
    type Outcome: Send;

    /// Whether the operation changes nothing, so that it can be repeated after a lost connection.
    const IS_LOOKUP: bool;

    /// Appends the request to `out`. If `value_len` is given, appends only the command line. The
    /// caller must then send a value of that many bytes, and a line end.
    fn write(&self, key: MetaKey<'_>, value_len: Option<usize>, now: Now, out: &mut Vec<u8>);

    /// Decodes `answer`, which borrows from `reply`. Returns `None` if `answer` does not describe
    /// an outcome of this operation.
    fn read(&self, answer: &Answer<'_>, reply: &Bytes) -> Option<Self::Outcome>;
}

/// Encodes an expiry as the remaining time to live at `now`, in seconds, rounded up.
fn exptime(expiry: Expiry, now: Now) -> Exptime {
    match expiry.left(now) {
        None => Exptime::NEVER,
        Some(0) => Exptime::PAST,
        Some(secs) => Exptime::after(secs, now.unix_of(now.secs).into()),
    }
}

/// Returns the reason for a refusal, or `None` if `answer` is not an error.
fn refused(answer: &Answer<'_>) -> Option<RefusalReason> {
    if let Answer::Error { line, .. } = answer { Some(RefusalReason::of(line)) } else { None }
}

/// A lookup.
pub(crate) struct Get;

impl RemoteOperation for Get {
    type Outcome = LookupOutcome;
    const IS_LOOKUP: bool = true;

    fn write(&self, key: MetaKey<'_>, _: Option<usize>, _: Now, out: &mut Vec<u8>) {
        const SHOWN: meta::GetFlags = meta::GetFlags::NONE.value().client_flags().cas().ttl();
        meta::get(key, SHOWN, &meta::GetOptions::default(), out);
    }

    fn read(&self, answer: &Answer<'_>, reply: &Bytes) -> Option<LookupOutcome> {
        match answer {
            Answer::Hit { value, returned } => {
                let ttl = returned.flags().find_map(|flag| match flag {
                    Flag::Ttl(ttl) => Some(ttl),
                    _ => None,
                });
                Some(LookupOutcome::Found(StoredItem {
                    value: vec![reply.slice_ref(value)],
                    cas: returned.cas().unwrap_or_default(),
                    client_flags: returned.client_flags().unwrap_or_default(),
                    ttl: ttl?.map(|secs| Duration::from_secs(secs.into())),
                }))
            }
            Answer::NotFound { .. } => Some(LookupOutcome::Missing),
            _ => match refused(answer)? {
                RefusalReason::OutOfMemory => Some(LookupOutcome::OutOfMemory),
                RefusalReason::NoRoom => Some(LookupOutcome::Busy),
                _ => None,
            },
        }
    }
}

/// A check of whether an item exists.
pub(crate) struct Exists;

impl RemoteOperation for Exists {
    type Outcome = bool;
    const IS_LOOKUP: bool = true;

    fn write(&self, key: MetaKey<'_>, _: Option<usize>, _: Now, out: &mut Vec<u8>) {
        // Unlike a lookup, `me` is neither counted nor recorded as an access.
        meta::debug(key, out);
    }

    fn read(&self, answer: &Answer<'_>, _: &Bytes) -> Option<bool> {
        match answer {
            Answer::Line(_) => Some(true),
            Answer::NotFound { .. } => Some(false),
            _ => None,
        }
    }
}

impl RemoteOperation for Store<'_> {
    type Outcome = StoreOutcome;
    const IS_LOOKUP: bool = false;

    fn write(&self, key: MetaKey<'_>, value_len: Option<usize>, now: Now, out: &mut Vec<u8>) {
        let options = meta::SetOptions {
            mode: match self.mode {
                StoreMode::Set => WireMode::Set,
                StoreMode::Add => WireMode::Add,
                StoreMode::Replace => WireMode::Replace,
                StoreMode::Append => WireMode::Append,
                StoreMode::Prepend => WireMode::Prepend,
            },
            client_flags: self.client_flags,
            expiry: exptime(self.expiry, now),
            compare: self.compare,
            new_cas: self.new_cas,
            vivify: self.create.map(|expiry| exptime(expiry, now)),
            opaque: None,
        };
        let flags = meta::SetFlags::NONE.cas();
        let flags = if self.invalidate { flags.invalidate() } else { flags };
        match value_len {
            Some(len) => meta::set_head(key, len, flags, &options, out),
            None => meta::set(key, self.value, flags, &options, out),
        }
    }

    fn read(&self, answer: &Answer<'_>, _: &Bytes) -> Option<StoreOutcome> {
        match answer {
            Answer::Done { returned } => Some(StoreOutcome::Stored {
                cas: returned.cas().unwrap_or_default(),
                len: self.value_len,
            }),
            Answer::NotStored { .. } => Some(StoreOutcome::NotStored),
            Answer::Exists { .. } => Some(StoreOutcome::Exists),
            Answer::NotFound { .. } => Some(StoreOutcome::NotFound),
            _ => match refused(answer)? {
                RefusalReason::TooLarge => Some(StoreOutcome::TooLarge),
                RefusalReason::OutOfMemory => Some(StoreOutcome::OutOfMemory),
                _ => None,
            },
        }
    }
}

impl RemoteOperation for Remove {
    type Outcome = RemoveOutcome;
    const IS_LOOKUP: bool = false;

    fn write(&self, key: MetaKey<'_>, _: Option<usize>, now: Now, out: &mut Vec<u8>) {
        let options = meta::DeleteOptions {
            compare: self.compare,
            new_cas: self.new_cas,
            touch: self.touch.map(|expiry| exptime(expiry, now)),
            client_flags: self.client_flags,
            opaque: None,
        };
        let flags = meta::DeleteFlags::NONE;
        let flags = if self.invalidate { flags.invalidate() } else { flags };
        let flags = if self.value_only { flags.value_only() } else { flags };
        meta::delete(key, flags, &options, out);
    }

    fn read(&self, answer: &Answer<'_>, _: &Bytes) -> Option<RemoveOutcome> {
        match answer {
            Answer::Done { .. } => Some(RemoveOutcome::Removed),
            Answer::NotFound { .. } => Some(RemoveOutcome::NotFound),
            Answer::Exists { .. } => Some(RemoveOutcome::Exists),
            _ => (refused(answer)? == RefusalReason::OutOfMemory)
                .then_some(RemoveOutcome::OutOfMemory),
        }
    }
}

impl RemoteOperation for Count<'_> {
    type Outcome = ArithmeticOutcome;
    const IS_LOOKUP: bool = false;

    fn write(&self, key: MetaKey<'_>, _: Option<usize>, now: Now, out: &mut Vec<u8>) {
        let create = self.create.as_ref();
        let options = meta::ArithmeticOptions {
            down: self.down,
            delta: self.delta,
            vivify: create.map(|create| exptime(create.expiry, now)),
            initial: create.map_or(0, |create| create.value),
            touch: self.touch.map(|expiry| exptime(expiry, now)),
            compare: self.compare,
            new_cas: self.new_cas,
            opaque: None,
        };
        const SHOWN: meta::ArithmeticFlags = meta::ArithmeticFlags::NONE.value().cas();
        meta::arithmetic(key, SHOWN, &options, out);
    }

    fn read(&self, answer: &Answer<'_>, _: &Bytes) -> Option<ArithmeticOutcome> {
        match answer {
            Answer::Hit { value, returned } => {
                let value = std::str::from_utf8(value).ok()?.trim_end().parse().ok()?;
                let cas = returned.cas().unwrap_or_default();
                Some(ArithmeticOutcome::Number { value, cas, before: None })
            }
            Answer::NotFound { .. } => Some(ArithmeticOutcome::NotFound),
            Answer::Exists { .. } => Some(ArithmeticOutcome::Exists),
            _ => match refused(answer)? {
                RefusalReason::NotANumber => Some(ArithmeticOutcome::NonNumeric),
                RefusalReason::OutOfMemory => {
                    Some(ArithmeticOutcome::OutOfMemory { creating: false })
                }
                _ => None,
            },
        }
    }
}

/// A change of an item's expiry.
pub(crate) struct Touch(pub(crate) Expiry);

impl RemoteOperation for Touch {
    type Outcome = ExpireOutcome;
    const IS_LOOKUP: bool = false;

    fn write(&self, key: MetaKey<'_>, _: Option<usize>, now: Now, out: &mut Vec<u8>) {
        let touch = Some(exptime(self.0, now));
        let options = meta::GetOptions { touch, ..meta::GetOptions::default() };
        meta::get(key, meta::GetFlags::NONE, &options, out);
    }

    fn read(&self, answer: &Answer<'_>, _: &Bytes) -> Option<ExpireOutcome> {
        match answer {
            Answer::Done { .. } => Some(ExpireOutcome::Changed),
            Answer::NotFound { .. } => Some(ExpireOutcome::NotFound),
            _ => (refused(answer)? == RefusalReason::OutOfMemory)
                .then_some(ExpireOutcome::OutOfMemory),
        }
    }
}

/// Encodes a flush at `at`, or an immediate flush if `at` is [`Expiry::Never`].
pub(crate) fn flush(at: Expiry, now: Now) -> Vec<u8> {
    let mut out = Vec::new();
    classic::flush_all(exptime(at, now), false, &mut out);
    out
}

/// Returns whether the reply confirms a flush.
pub(crate) fn has_flushed(reply: &[u8]) -> bool {
    matches!(read_text(reply), Read::Whole(Answer::Ok, len) if len == reply.len())
}

/// The result of interpreting a reply.
pub(crate) enum ReplyOutcome<O> {
    Outcome(O),
    /// The server does not lead the item's group, so it did not execute the operation.
    NoLeader,
    /// The bytes are not exactly one reply, or the reply does not describe an outcome of the
    /// operation.
    Unknown,
}

/// Interprets a reply to an operation.
pub(crate) fn interpret<O: RemoteOperation>(op: &O, reply: &Bytes) -> ReplyOutcome<O::Outcome> {
    match read_text(reply) {
        Read::Whole(answer, len) if len == reply.len() => match op.read(&answer, reply) {
            Some(outcome) => ReplyOutcome::Outcome(outcome),
            None if refused(&answer) == Some(RefusalReason::NoLeader) => ReplyOutcome::NoLeader,
            None => ReplyOutcome::Unknown,
        },
        _ => ReplyOutcome::Unknown,
    }
}

/// Returns a lower bound for the length, in bytes, of a reply that starts with `start`.
pub(crate) fn reply_len(start: &[u8]) -> usize {
    if let Read::Incomplete { wanted } = read_text(start) { wanted } else { start.len() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_store::Seconds;

    const NO_ROOM: &str = "SERVER_ERROR out of memory writing get response\r\n";
    const NOW: Now = Now { secs: Seconds(1_700_000_000), millis: 500, ahead: 0 };

    fn encode<O: RemoteOperation>(op: &O, key: &[u8], value_len: Option<usize>) -> String {
        let mut out = Vec::new();
        op.write(MetaKey::new(key).unwrap(), value_len, NOW, &mut out);
        String::from_utf8(out).unwrap()
    }

    fn decode<O: RemoteOperation>(op: &O, reply: &'static str) -> Option<O::Outcome> {
        match interpret(op, &Bytes::from_static(reply.as_bytes())) {
            ReplyOutcome::Outcome(outcome) => Some(outcome),
            ReplyOutcome::NoLeader | ReplyOutcome::Unknown => None,
        }
    }

    #[test]
    fn operations_are_encoded_as_meta_requests() {
        let in_a_minute = Expiry::At(Seconds(NOW.secs.0 + 60));
        let soon = Expiry::at_millis(NOW.in_millis() + 250);
        let past = Expiry::At(NOW.secs);
        assert_eq!(encode(&Get, b"a", None), "mg a v f c t\r\n");
        assert_eq!(encode(&Get, b"a b", None), "mg YSBi b v f c t\r\n");
        assert_eq!(encode(&Exists, b"a", None), "me a\r\n");
        let store = Store {
            mode: StoreMode::Replace,
            value: b"v",
            value_len: 1,
            client_flags: 7,
            expiry: in_a_minute,
            compare: Some(9),
            ..Store::default()
        };
        assert_eq!(encode(&store, b"a", None), "ms a 1 c MR F7 T60 C9\r\nv\r\n");
        assert_eq!(encode(&store, b"a", Some(4 << 20)), "ms a 4194304 c MR F7 T60 C9\r\n");
        let store = Store { mode: StoreMode::Append, expiry: soon, ..Store::default() };
        assert_eq!(encode(&store, b"a", None), "ms a 0 c MA T1\r\n\r\n");
        let remove = Remove { compare: Some(3), ..Remove::default() };
        assert_eq!(encode(&remove, b"a", None), "md a C3\r\n");
        assert_eq!(encode(&Touch(Expiry::Never), b"a", None), "mg a T0\r\n");
        assert_eq!(encode(&Touch(past), b"a", None), "mg a T-1\r\n");
        let create = larder_operations::CreateNumber {
            value: 5,
            expiry: in_a_minute,
            binary_key: false,
            tags: &[],
        };
        let count = Count { down: true, delta: 2, create: Some(create), ..Count::default() };
        assert_eq!(encode(&count, b"a", None), "ma a v c MD D2 N60 J5\r\n");
        assert_eq!(flush(Expiry::Never, NOW), b"flush_all 0\r\n");
        assert_eq!(flush(in_a_minute, NOW), b"flush_all 60\r\n");
    }

    #[test]
    fn answers_are_decoded_as_outcomes() {
        let found = decode(&Get, "VA 2 f7 c9 t60\r\nhi\r\n");
        let Some(LookupOutcome::Found(found)) = found else { panic!("{found:?}") };
        let of = (&found.value[0][..], found.client_flags, found.cas, found.ttl);
        assert_eq!(of, (&b"hi"[..], 7, 9, Some(Duration::from_secs(60))));
        assert!(matches!(decode(&Get, "EN\r\n"), Some(LookupOutcome::Missing)));
        assert_eq!(
            decode(&Exists, "ME a exp=-1 la=0 cas=2 fetch=no cls=1 size=63\r\n"),
            Some(true)
        );
        assert!(matches!(decode(&Get, NO_ROOM), Some(LookupOutcome::Busy)));
        let no_leader = Bytes::from_static(b"SERVER_ERROR no leader\r\n");
        assert!(matches!(interpret(&Exists, &no_leader), ReplyOutcome::NoLeader));
        assert_eq!(decode(&Exists, "EN\r\n"), Some(false));
        let store = Store { value_len: 3, ..Store::default() };
        for (reply, expected) in [
            ("HD c12\r\n", Some(StoreOutcome::Stored { cas: 12, len: 3 })),
            ("NS c0\r\n", Some(StoreOutcome::NotStored)),
            ("EX\r\n", Some(StoreOutcome::Exists)),
            ("NF\r\n", Some(StoreOutcome::NotFound)),
            ("SERVER_ERROR object too large for cache\r\n", Some(StoreOutcome::TooLarge)),
            ("SERVER_ERROR out of memory storing object\r\n", Some(StoreOutcome::OutOfMemory)),
            ("SERVER_ERROR unknown reason\r\n", None),
            ("HD c12\r\nHD c13\r\n", None),
            ("HD c1", None),
            ("", None),
        ] {
            assert_eq!(decode(&store, reply), expected, "{reply}");
        }
        let remove = Remove::default();
        assert_eq!(decode(&remove, "HD\r\n"), Some(RemoveOutcome::Removed));
        assert_eq!(decode(&remove, "NF\r\n"), Some(RemoveOutcome::NotFound));
        assert_eq!(decode(&remove, "EX\r\n"), Some(RemoveOutcome::Exists));
        let count = Count::default();
        let number = ArithmeticOutcome::Number { value: 41, cas: 8, before: None };
        assert_eq!(decode(&count, "VA 2 c8\r\n41\r\n"), Some(number));
        let error = "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
        assert_eq!(decode(&count, error), Some(ArithmeticOutcome::NonNumeric));
        assert_eq!(decode(&Touch(Expiry::Never), "HD\r\n"), Some(ExpireOutcome::Changed));
        assert!(has_flushed(b"OK\r\n") && !has_flushed(b"OK\r\nOK\r\n") && !has_flushed(b""));
    }
}
