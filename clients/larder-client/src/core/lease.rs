//! Leases: if a value is missing or expires soon, one caller computes it.
//!
//! ```text
//!   mg K … N R ──▶ a value ──────────────────▶ returned
//!             ├──▶ W: this caller computes ──▶ cas K … <cas>, or md K C<cas> after an error without an old value
//!             ├──▶ Z with a value ───────────▶ the old value is returned
//!             └──▶ Z without one: another caller computes ──▶ wait, then request again
//! ```

use crate::core::connection::{Answers, Connection, Frame};
use crate::core::key::Key;
use crate::core::operation::{Operation, ReplyFailure, check, opaque};
use crate::error::{Error, ErrorKind};
use crate::item::{Item, Ttl};
use crate::metrics::Command;
use bytes::Bytes;
use larder_protocol::Exptime;
use larder_protocol::answer::{Answer, AnswerFields, Flag};
use larder_protocol::encode::meta;
use std::time::Duration;

/// The lifetime of a computed value, and the period in which one caller recomputes it.
///
/// ```
/// use larder_client::Lease;
///
/// // The value is fresh for a minute. In the last 5 s of that minute, one caller recomputes the
/// // value, and the others get the current value. Without a request in these 5 s, the item stays
/// // for 30 s more: the first caller in this time recomputes the value, and the others get the old
/// // value.
/// let lease = Lease::ttl(60).early(5).stale(30);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Lease {
    ttl: Ttl,
    early: u32,
    stale: u32,
    lock: u32,
}

impl Lease {
    /// Creates a lease for values that are fresh for `ttl`. With [`FOREVER`](Ttl::FOREVER), a value
    /// is recomputed only after it was invalidated, removed or evicted.
    pub fn ttl(ttl: impl Into<Ttl>) -> Self {
        Self { ttl: ttl.into(), early: 0, stale: 0, lock: 10 }
    }

    /// Sets how many seconds before the end of the `ttl` one caller starts to recompute the value.
    /// Until that caller has stored the new value, the other callers get the current value.
    /// [Default: 0]
    pub fn early(mut self, secs: u32) -> Self {
        self.early = secs;
        self
    }

    /// Sets how many seconds after the end of the `ttl` the old value stays available. In this
    /// time, one caller recomputes the value, and the other callers get the old value. [Default: 0]
    pub fn stale(mut self, secs: u32) -> Self {
        self.stale = secs;
        self
    }

    /// Sets the lifetime of a lease for a missing value, in seconds. The minimum is 1. If the first
    /// caller has neither stored the value nor reported an error in that time, for example because
    /// its process was killed, another caller may compute the value. If a computation takes longer,
    /// the client returns the value without storing it. [Default: 10]
    pub fn lock(mut self, secs: u32) -> Self {
        self.lock = secs.max(1);
        self
    }

    /// Returns the expiry of stored items: the TTL plus the time for which the stale value stays
    /// available.
    pub(crate) fn expiry(self) -> Exptime {
        match self.ttl {
            Ttl::FOREVER => Exptime::NEVER,
            ttl => ttl.plus(self.stale).exptime(),
        }
    }

    /// Returns the recache limit: if an item's remaining lifetime is below this limit, the server
    /// grants one caller the lease to recompute the item. Returns `None` if `early` and `stale` are
    /// 0. A time of more than 30 days is a Unix time, as in expiries.
    fn recache(self) -> Option<Exptime> {
        let secs = self.early.saturating_add(self.stale);
        (secs > 0).then(|| Ttl::secs(secs).exptime())
    }
}

/// The server's reply to a lookup that requests a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LeaseAnswer {
    Value(Item),
    /// An old value. Another caller is computing the new value.
    Stale(Item),
    /// This caller has the lease and computes the value.
    Won {
        /// The CAS of the item to replace. `None` if the server has no CAS values.
        cas: Option<u64>,
        /// The old value, which other callers get until the new value is stored. `None` if there is
        /// no old value.
        old: Option<Item>,
    },
    /// There is no value, and another caller has the lease.
    Taken,
    /// There is no value, and the server has granted no lease.
    Missing,
}

/// A lookup that requests a lease.
pub(crate) struct LeaseGet<'k> {
    pub(crate) key: Key<'k>,
    pub(crate) lease: Lease,
}

impl Operation for LeaseGet<'_> {
    type Output = LeaseAnswer;

    /// Returns true: the client may repeat the lookup, although the lookup may create an item. If a
    /// lost reply had granted the lease to this caller, the repeated lookup gets no lease, and the
    /// caller waits until the lost lease expires.
    fn reads(&self) -> bool {
        true
    }

    fn command(&self) -> Command {
        Command::Lease
    }

    fn fits(answer: &Answer<'_>) -> bool {
        matches!(answer, Answer::Hit { .. } | Answer::NotFound { .. })
    }

    fn encode(&mut self, connection: &mut Connection) {
        const FLAGS: meta::GetFlags = meta::GetFlags::NONE.client_flags().cas().value();
        let flags = match self.key {
            Key::Plain(_) => FLAGS.key(),
            Key::Base64(_) => FLAGS,
        };
        let options = meta::GetOptions {
            vivify: Some(Ttl::secs(self.lease.lock).exptime()),
            recache: self.lease.recache(),
            opaque: Some(opaque(self.key)),
            ..Default::default()
        };
        let write = |out: &mut Vec<u8>| meta::get(self.key.meta(), flags, &options, out);
        connection.push_request(Frame::One, || check::<Self>(&[self.key]), write);
    }

    fn take(&mut self, reply: &Bytes) -> Result<Option<LeaseAnswer>, ReplyFailure> {
        let answer = Answers(reply).next();
        match &answer {
            Some(Answer::Hit { value, returned }) if is_of(self.key, returned) => {
                let item = Item {
                    value: reply.slice_ref(value),
                    flags: returned.client_flags().unwrap_or(0),
                    cas: returned.cas().filter(|cas| *cas != 0),
                };
                Ok(Some(found(item, returned)))
            }
            Some(Answer::NotFound { .. }) => Ok(Some(LeaseAnswer::Missing)),
            other => Err(ReplyFailure::of(other.as_ref(), reply)),
        }
    }
}

/// Returns whether a hit is for this key. For a base64 key, checks only the opaque, because some
/// versions of memcached return such keys as raw bytes.
fn is_of(key: Key<'_>, returned: &AnswerFields<'_>) -> bool {
    let expected = opaque(key);
    let has_opaque = returned.flags().any(|flag| {
        matches!(flag, Flag::Opaque(digits) if digits == itoa::Buffer::new().format(expected).as_bytes())
    });
    let has_key = match key {
        Key::Plain(key) => returned.flags().any(|flag| flag == Flag::Key(key.bytes())),
        Key::Base64(_) => true,
    };
    has_opaque && has_key
}

/// Interprets a hit. The server creates an empty item for a lease. A stored empty value with flags
/// 0 looks the same, so a caller with the lease computes that value again.
fn found(item: Item, returned: &AnswerFields<'_>) -> LeaseAnswer {
    let has = |wanted| returned.flags().any(|flag| flag == wanted);
    let (is_won, is_taken) = (has(Flag::Won), has(Flag::WinTaken));
    let is_created = (item.flags == 0 && item.value.is_empty()) && (is_won || is_taken);
    match (is_won, is_created) {
        (true, _) => LeaseAnswer::Won { cas: item.cas, old: (!is_created).then_some(item) },
        (false, true) => LeaseAnswer::Taken,
        (false, false) if is_taken => LeaseAnswer::Stale(item),
        (false, false) => LeaseAnswer::Value(item),
    }
}

/// The condition for storing a computed value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreCondition {
    /// The server granted a lease.
    Lease {
        /// The CAS of the item to replace. `None` if the server has no CAS values; the store is
        /// then unconditional.
        cas: Option<u64>,
        /// Whether other callers get an old value until the new value is stored.
        has_old: bool,
    },
    /// The server has no leases: store the value only if the key has no value.
    Add,
    /// The value on the server is unreadable and has no CAS: replace it unconditionally.
    Replace,
    /// Another caller has the lease, or the previous holder of the permit released the lease:
    /// request the lease again. The client does not store a value that was computed without a
    /// lease.
    Retry,
    /// The server failed, or the [flight](super::flight) has ended: do not store the value.
    Never,
}

/// The outcome of a lookup that requests a lease, after decoding the value to `T`.
#[derive(Debug)]
pub(crate) enum LeaseStep<T> {
    /// The decoded value, and its item.
    Value(T, Item),
    /// This caller computes the value. The second field is the old value, or `None` if there is no
    /// old value or the old value cannot be decoded.
    Won(StoreCondition, Option<T>),
    /// The reply has no value for this caller.
    Missing(StoreCondition),
    /// The value with this CAS is unreadable, and the client has to remove it.
    Unreadable(u64),
}

impl<T> LeaseStep<T> {
    /// Interprets a reply. `read` decodes an item, or returns `None` if the item is unreadable.
    ///
    /// # Errors
    /// The call was interrupted, the client is closed, or the key is invalid. Any other error
    /// becomes [`StoreCondition::Never`], because the caller can still compute the value.
    pub(crate) fn of(
        found: Result<LeaseAnswer, Error>,
        read: impl Fn(&Item) -> Option<T>,
    ) -> Result<Self, Error> {
        let item = match found {
            Ok(LeaseAnswer::Value(item) | LeaseAnswer::Stale(item)) => item,
            Ok(LeaseAnswer::Won { cas, old }) => {
                let old = old.and_then(|item| read(&item));
                return Ok(Self::Won(StoreCondition::Lease { cas, has_old: old.is_some() }, old));
            }
            Ok(LeaseAnswer::Taken) => return Ok(Self::Missing(StoreCondition::Retry)),
            Ok(LeaseAnswer::Missing) => return Ok(Self::Missing(StoreCondition::Add)),
            Err(error) if ends_call(&error) => return Err(error),
            Err(_) => return Ok(Self::Missing(StoreCondition::Never)),
        };
        Ok(match (read(&item), item.cas) {
            (Some(value), _) => Self::Value(value, item),
            (None, Some(cas)) => Self::Unreadable(cas),
            (None, None) => Self::Missing(StoreCondition::Replace),
        })
    }
}

/// Returns whether a call fails with this error instead of computing the value. After any other
/// error, the caller computes the value, and the client does not store it.
pub(crate) fn ends_call(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Key(_) | ErrorKind::Interrupted | ErrorKind::ClientClosed)
}

/// Returns the pause before the next lease request, after `pauses` earlier pauses. The pauses are
/// 5, 10, 20, 40, 80, 100, 100 … ms, limited to `left`. Returns `None` if no time is left.
pub(crate) fn pause(pauses: u32, left: Duration) -> Option<Duration> {
    const FIRST: Duration = Duration::from_millis(5);
    const LAST: Duration = Duration::from_millis(100);
    let pause = FIRST.saturating_mul(1 << pauses.min(5)).min(LAST);
    (!left.is_zero()).then(|| pause.min(left))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(bytes: &str) -> Key<'_> {
        Key::new(bytes.as_bytes()).unwrap()
    }

    fn look(
        name: &str,
        lease: Lease,
        request: &str,
        answer: &str,
    ) -> Result<LeaseAnswer, ReplyFailure> {
        let (mut look, mut connection) =
            (LeaseGet { key: key(name), lease }, Connection::default());
        look.encode(&mut connection);
        assert_eq!(std::str::from_utf8(connection.output()).unwrap(), request);
        look.take(&Bytes::from(answer.to_owned())).map(Option::unwrap)
    }

    fn item(value: &str, cas: u64) -> Item {
        Item { value: Bytes::from(value.to_owned()), flags: 0, cas: Some(cas) }
    }

    #[test]
    fn answers_of_memcached_are_interpreted() {
        let mine = opaque(key("k"));
        let request = format!("mg k f c v k N10 R5 O{mine}\r\n");
        let get = |answer: &str| {
            let answer = answer.replace("kk", &format!("kk O{mine}"));
            look("k", Lease::ttl(60).early(5), &request, &answer).unwrap()
        };
        let won = |cas, old| LeaseAnswer::Won { cas: Some(cas), old };
        for (answer, expected) in [
            ("VA 0 f0 c1 kk W\r\n\r\n", won(1, None)),
            ("VA 0 f0 c1 kk Z\r\n\r\n", LeaseAnswer::Taken),
            ("VA 2 f0 c2 kk\r\nhi\r\n", LeaseAnswer::Value(item("hi", 2))),
            ("VA 2 f0 c2 kk W\r\nhi\r\n", won(2, Some(item("hi", 2)))),
            ("VA 2 f0 c2 kk Z\r\nhi\r\n", LeaseAnswer::Stale(item("hi", 2))),
            ("VA 2 f0 c3 kk X W\r\nhi\r\n", won(3, Some(item("hi", 3)))),
            ("VA 2 f0 c3 kk Z X\r\nhi\r\n", LeaseAnswer::Stale(item("hi", 3))),
            // The server created the item for a lease, and a client then invalidated it.
            ("VA 0 f0 c6 kk X W\r\n\r\n", won(6, None)),
            ("VA 0 f0 c6 kk Z X\r\n\r\n", LeaseAnswer::Taken),
            // The value is empty.
            ("VA 0 f0 c7 kk\r\n\r\n", LeaseAnswer::Value(item("", 7))),
            // The server has no CAS values.
            ("VA 0 f0 c0 kk W\r\n\r\n", LeaseAnswer::Won { cas: None, old: None }),
            ("EN\r\n", LeaseAnswer::Missing),
        ] {
            assert_eq!(get(answer), expected, "{answer}");
        }
    }

    #[test]
    fn a_hit_of_another_key_is_an_error() {
        let of_k = opaque(key("k"));
        let request = format!("mg k f c v k N10 O{of_k}\r\n");
        let plain = |answer: &str| look("k", Lease::ttl(60), &request, answer);
        assert_eq!(plain(&format!("VA 0 f0 c1 kk O{of_k} Z\r\n\r\n")).unwrap(), LeaseAnswer::Taken);
        let mine = opaque(key("a b"));
        let request = format!("mg YSBi b f c v N10 O{mine}\r\n");
        let base64 = |answer: &str| look("a b", Lease::ttl(60), &request, answer);
        assert_eq!(base64(&format!("VA 0 f0 c1 O{mine} b Z\r\n\r\n")).unwrap(), LeaseAnswer::Taken);
        for failure in [
            plain(&format!("VA 2 f0 c1 kj O{of_k}\r\nhi\r\n")),
            plain("VA 2 f0 c1 kk O7\r\nhi\r\n"),
            plain("VALUE k 0 2\r\nhi\r\n"),
            base64("VA 2 f0 c1 O7\r\nhi\r\n"),
            base64("VA 2 f0 c1 kYSBi b\r\nhi\r\n"),
        ] {
            assert!(failure.unwrap_err().is_fatal);
        }
    }

    #[test]
    fn times_are_added_and_limited() {
        assert_eq!(Lease::ttl(60).early(5).stale(30).expiry(), Exptime(90));
        assert_eq!(Lease::ttl(60).early(5).stale(30).recache(), Some(Exptime(35)));
        assert_eq!(Lease::ttl(60).recache(), None);
        let days_40 = 40 * 24 * 60 * 60;
        let Some(Exptime(far)) = Lease::ttl(60).stale(days_40).recache() else { panic!("none") };
        assert!(far > 1_700_000_000, "a Unix time, because the server takes it for one: {far}");
        assert_eq!(Lease::ttl(Ttl::FOREVER).stale(30).expiry(), Exptime::NEVER);
        assert_eq!(Lease::ttl(60).lock(0), Lease::ttl(60).lock(1));
        let second = Duration::from_secs(1);
        let pauses: Vec<_> = (0..8).map(|n| pause(n, second).unwrap().as_millis()).collect();
        assert_eq!(pauses, [5, 10, 20, 40, 80, 100, 100, 100]);
        assert_eq!(pause(7, Duration::from_millis(3)), Some(Duration::from_millis(3)));
        assert_eq!(pause(0, Duration::ZERO), None);
    }

    #[test]
    fn unreadable_values_count_as_missing() {
        let step =
            |found| LeaseStep::of(found, |item: &Item| (item.value != "bad").then_some(1)).unwrap();
        assert!(matches!(step(Ok(LeaseAnswer::Value(item("good", 1)))), LeaseStep::Value(1, _)));
        assert!(matches!(step(Ok(LeaseAnswer::Value(item("bad", 7)))), LeaseStep::Unreadable(7)));
        let classic = Item { cas: None, ..item("bad", 0) };
        assert!(matches!(
            step(Ok(LeaseAnswer::Value(classic))),
            LeaseStep::Missing(StoreCondition::Replace)
        ));
        let won = LeaseAnswer::Won { cas: Some(7), old: Some(item("bad", 7)) };
        let condition = StoreCondition::Lease { cas: Some(7), has_old: false };
        assert!(matches!(step(Ok(won)), LeaseStep::Won(other, None) if other == condition));
        let down = Err(Error::definite(ErrorKind::Timeout));
        assert!(matches!(step(down), LeaseStep::Missing(StoreCondition::Never)));
        let interrupted = Err(Error::definite(ErrorKind::Interrupted));
        assert!(LeaseStep::of(interrupted, |_| Some(1)).is_err());
    }
}
