//! Operations on items that another server of the cluster has: how it is asked for them, and what its answers mean.
//!
//! Servers forward what clients have sent in memcached's protocol or Redis's, and answer it as they answer their own
//! clients. So an operation of HTTP or gRPC becomes a meta request here. Only memcached's keys can be sent so: longer
//! ones have to be sent to their server.

use crate::items::{Found, Looked};
use bytes::Bytes;
use larder_operations::{
    ArithmeticOutcome, Count, ExpireOutcome, Remove, RemoveOutcome, Store, StoreMode, StoreOutcome,
};
use larder_protocol::answer::{Answer, Flag, Refused, read_text};
use larder_protocol::encode::{MetaKey, classic, meta};
use larder_protocol::response::Read;
use larder_protocol::{Exptime, StoreMode as WireMode};
use larder_store::{Expiry, Now};

/// An operation that another server can be asked for.
pub(crate) trait Remote: Sync {
    type Outcome: Send;

    /// Whether it changes nothing, so that it may be repeated.
    const LOOKS_UP: bool;

    /// Appends the request. A value that is to follow has `value_len` bytes.
    fn write(&self, key: MetaKey<'_>, value_len: Option<usize>, now: Now, out: &mut Vec<u8>);

    /// What an answer means, whose bytes are in `reply`; `None` if the request can't be answered so.
    fn read(&self, answer: &Answer<'_>, reply: &Bytes) -> Option<Self::Outcome>;
}

/// When an item expires, as it is sent.
fn exptime(expiry: Expiry, now: Now) -> Exptime {
    match expiry.left(now) {
        None => Exptime::NEVER,
        Some(0) => Exptime::PAST,
        Some(secs) => Exptime::after(secs, now.secs.0.into()),
    }
}

/// Why a request was refused, if it was.
fn refused(answer: &Answer<'_>) -> Option<Refused> {
    if let Answer::Error { line, .. } = answer { Some(Refused::of(line)) } else { None }
}

/// A lookup.
pub(crate) struct Get;

impl Remote for Get {
    type Outcome = Looked;
    const LOOKS_UP: bool = true;

    fn write(&self, key: MetaKey<'_>, _: Option<usize>, _: Now, out: &mut Vec<u8>) {
        const SHOWN: meta::GetFlags = meta::GetFlags::NONE.value().client_flags().cas().ttl();
        meta::get(key, SHOWN, &meta::GetOptions::default(), out);
    }

    fn read(&self, answer: &Answer<'_>, reply: &Bytes) -> Option<Looked> {
        match answer {
            Answer::Hit { value, returned } => {
                let ttl = returned.flags().find_map(|flag| match flag {
                    Flag::Ttl(ttl) => Some(ttl),
                    _ => None,
                });
                Some(Looked::Found(Found {
                    value: vec![reply.slice_ref(value)],
                    cas: returned.cas().unwrap_or_default(),
                    client_flags: returned.client_flags().unwrap_or_default(),
                    ttl: ttl?,
                }))
            }
            Answer::NotFound { .. } => Some(Looked::Missing),
            _ => match refused(answer)? {
                Refused::OutOfMemory => Some(Looked::OutOfMemory),
                Refused::NoRoom => Some(Looked::Busy),
                _ => None,
            },
        }
    }
}

/// Whether there is an item.
pub(crate) struct Has;

impl Remote for Has {
    type Outcome = bool;
    const LOOKS_UP: bool = true;

    fn write(&self, key: MetaKey<'_>, _: Option<usize>, _: Now, out: &mut Vec<u8>) {
        // Unlike a lookup, it is neither counted nor recorded.
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

impl Remote for Store<'_> {
    type Outcome = StoreOutcome;
    const LOOKS_UP: bool = false;

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
                Refused::TooLarge => Some(StoreOutcome::TooLarge),
                Refused::OutOfMemory => Some(StoreOutcome::OutOfMemory),
                _ => None,
            },
        }
    }
}

impl Remote for Remove {
    type Outcome = RemoveOutcome;
    const LOOKS_UP: bool = false;

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
            _ => (refused(answer)? == Refused::OutOfMemory).then_some(RemoveOutcome::OutOfMemory),
        }
    }
}

impl Remote for Count<'_> {
    type Outcome = ArithmeticOutcome;
    const LOOKS_UP: bool = false;

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
                Refused::NotANumber => Some(ArithmeticOutcome::NonNumeric),
                Refused::OutOfMemory => Some(ArithmeticOutcome::OutOfMemory { creating: false }),
                _ => None,
            },
        }
    }
}

/// Sets when an item expires.
pub(crate) struct Touch(pub(crate) Expiry);

impl Remote for Touch {
    type Outcome = ExpireOutcome;
    const LOOKS_UP: bool = false;

    fn write(&self, key: MetaKey<'_>, _: Option<usize>, now: Now, out: &mut Vec<u8>) {
        let touch = Some(exptime(self.0, now));
        let options = meta::GetOptions { touch, ..meta::GetOptions::default() };
        meta::get(key, meta::GetFlags::NONE, &options, out);
    }

    fn read(&self, answer: &Answer<'_>, _: &Bytes) -> Option<ExpireOutcome> {
        match answer {
            Answer::Done { .. } => Some(ExpireOutcome::Changed),
            Answer::NotFound { .. } => Some(ExpireOutcome::NotFound),
            _ => (refused(answer)? == Refused::OutOfMemory).then_some(ExpireOutcome::OutOfMemory),
        }
    }
}

/// The request to remove all items, now or later.
pub(crate) fn flush(at: Expiry, now: Now) -> Vec<u8> {
    let mut out = Vec::new();
    classic::flush_all(exptime(at, now), false, &mut out);
    out
}

/// Whether a whole reply says that all items are removed, or will be.
pub(crate) fn has_flushed(reply: &[u8]) -> bool {
    matches!(read_text(reply), Read::Whole(Answer::Ok, len) if len == reply.len())
}

/// What a reply to an operation means.
pub(crate) enum Meaning<O> {
    Outcome(O),
    /// The operation was not carried out, because the server does not answer for the item.
    NoLeader,
    /// It is not one whole answer to such a request.
    Unknown,
}

/// What a reply to an operation means.
pub(crate) fn meaning<O: Remote>(op: &O, reply: &Bytes) -> Meaning<O::Outcome> {
    match read_text(reply) {
        Read::Whole(answer, len) if len == reply.len() => match op.read(&answer, reply) {
            Some(outcome) => Meaning::Outcome(outcome),
            None if refused(&answer) == Some(Refused::NoLeader) => Meaning::NoLeader,
            None => Meaning::Unknown,
        },
        _ => Meaning::Unknown,
    }
}

/// The length in bytes that a reply has at least, of which this is the beginning.
pub(crate) fn reply_len(begin: &[u8]) -> usize {
    if let Read::Incomplete { wanted } = read_text(begin) { wanted } else { begin.len() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_store::Seconds;

    const NO_ROOM: &str = "SERVER_ERROR out of memory writing get response\r\n";
    const NOW: Now = Now { secs: Seconds(1_700_000_000), millis: 500 };

    fn asked<O: Remote>(op: &O, key: &[u8], value_len: Option<usize>) -> String {
        let mut out = Vec::new();
        op.write(MetaKey::new(key).unwrap(), value_len, NOW, &mut out);
        String::from_utf8(out).unwrap()
    }

    fn answered<O: Remote>(op: &O, reply: &'static str) -> Option<O::Outcome> {
        match meaning(op, &Bytes::from_static(reply.as_bytes())) {
            Meaning::Outcome(outcome) => Some(outcome),
            Meaning::NoLeader | Meaning::Unknown => None,
        }
    }

    #[test]
    fn operations_are_meta_requests() {
        let in_a_minute = Expiry::At(Seconds(NOW.secs.0 + 60));
        let soon = Expiry::at_millis(NOW.in_millis() + 250);
        let past = Expiry::At(NOW.secs);
        assert_eq!(asked(&Get, b"a", None), "mg a v f c t\r\n");
        assert_eq!(asked(&Get, b"a b", None), "mg YSBi b v f c t\r\n");
        assert_eq!(asked(&Has, b"a", None), "me a\r\n");
        let store = Store {
            mode: StoreMode::Replace,
            value: b"v",
            value_len: 1,
            client_flags: 7,
            expiry: in_a_minute,
            compare: Some(9),
            ..Store::default()
        };
        assert_eq!(asked(&store, b"a", None), "ms a 1 c MR F7 T60 C9\r\nv\r\n");
        assert_eq!(asked(&store, b"a", Some(4 << 20)), "ms a 4194304 c MR F7 T60 C9\r\n");
        let store = Store { mode: StoreMode::Append, expiry: soon, ..Store::default() };
        assert_eq!(asked(&store, b"a", None), "ms a 0 c MA T1\r\n\r\n");
        let remove = Remove { compare: Some(3), ..Remove::default() };
        assert_eq!(asked(&remove, b"a", None), "md a C3\r\n");
        assert_eq!(asked(&Touch(Expiry::Never), b"a", None), "mg a T0\r\n");
        assert_eq!(asked(&Touch(past), b"a", None), "mg a T-1\r\n");
        let create = larder_operations::CreateNumber {
            value: 5,
            expiry: in_a_minute,
            binary_key: false,
            tags: &[],
        };
        let count = Count { down: true, delta: 2, create: Some(create), ..Count::default() };
        assert_eq!(asked(&count, b"a", None), "ma a v c MD D2 N60 J5\r\n");
        assert_eq!(flush(Expiry::Never, NOW), b"flush_all 0\r\n");
        assert_eq!(flush(in_a_minute, NOW), b"flush_all 60\r\n");
    }

    #[test]
    fn answers_are_what_operations_come_to() {
        let found = answered(&Get, "VA 2 f7 c9 t60\r\nhi\r\n");
        let Some(Looked::Found(found)) = found else { panic!("{found:?}") };
        let of = (&found.value[0][..], found.client_flags, found.cas, found.ttl);
        assert_eq!(of, (&b"hi"[..], 7, 9, Some(60)));
        assert!(matches!(answered(&Get, "EN\r\n"), Some(Looked::Missing)));
        assert_eq!(answered(&Has, "ME a exp=-1 la=0 cas=2 fetch=no cls=1 size=63\r\n"), Some(true));
        assert!(matches!(answered(&Get, NO_ROOM), Some(Looked::Busy)));
        let no_leader = Bytes::from_static(b"SERVER_ERROR no leader\r\n");
        assert!(matches!(meaning(&Has, &no_leader), Meaning::NoLeader));
        assert_eq!(answered(&Has, "EN\r\n"), Some(false));
        let store = Store { value_len: 3, ..Store::default() };
        for (reply, expected) in [
            ("HD c12\r\n", Some(StoreOutcome::Stored { cas: 12, len: 3 })),
            ("NS c0\r\n", Some(StoreOutcome::NotStored)),
            ("EX\r\n", Some(StoreOutcome::Exists)),
            ("NF\r\n", Some(StoreOutcome::NotFound)),
            ("SERVER_ERROR object too large for cache\r\n", Some(StoreOutcome::TooLarge)),
            ("SERVER_ERROR out of memory storing object\r\n", Some(StoreOutcome::OutOfMemory)),
            ("SERVER_ERROR nobody knows\r\n", None),
            ("HD c12\r\nHD c13\r\n", None),
            ("HD c1", None),
            ("", None),
        ] {
            assert_eq!(answered(&store, reply), expected, "{reply}");
        }
        let remove = Remove::default();
        assert_eq!(answered(&remove, "HD\r\n"), Some(RemoveOutcome::Removed));
        assert_eq!(answered(&remove, "NF\r\n"), Some(RemoveOutcome::NotFound));
        assert_eq!(answered(&remove, "EX\r\n"), Some(RemoveOutcome::Exists));
        let count = Count::default();
        let number = ArithmeticOutcome::Number { value: 41, cas: 8, before: None };
        assert_eq!(answered(&count, "VA 2 c8\r\n41\r\n"), Some(number));
        let error = "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
        assert_eq!(answered(&count, error), Some(ArithmeticOutcome::NonNumeric));
        assert_eq!(answered(&Touch(Expiry::Never), "HD\r\n"), Some(ExpireOutcome::Changed));
        assert!(has_flushed(b"OK\r\n") && !has_flushed(b"OK\r\nOK\r\n") && !has_flushed(b""));
    }
}
