//! Leases: who computes a value that is missing, or will be soon.
//!
//! ```text
//!   mg K … N R ──▶ a value ──────────────────▶ returned
//!             ├──▶ W: this caller computes ──▶ ms K … C<cas>, or md K C<cas> if it fails and there is no value
//!             ├──▶ Z with a value ───────────▶ returned, old as it is
//!             └──▶ Z without one: another computes ──▶ wait, and ask again
//! ```

use crate::core::connection::{Answers, Connection, Frame};
use crate::core::key::Key;
use crate::core::operation::{Failure, Operation, check, opaque};
use crate::error::{Error, ErrorKind};
use crate::item::{Item, Ttl};
use crate::metrics::Command;
use bytes::Bytes;
use larder_protocol::Exptime;
use larder_protocol::answer::{Answer, Flag, Returned};
use larder_protocol::encode::meta;
use std::time::Duration;

/// How long a computed value lives, and who computes the next one when. All times are in seconds.
///
/// ```
/// use larder_client::Lease;
///
/// // Fresh for a minute. In the last 5 s of it one caller computes it anew, and the others get the value that there is.
/// // If nobody asks for it then, it is there for 30 s more, for the others, while the first who asks computes it anew.
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
    /// How long a value is fresh. One that lives [for ever](Ttl::FOREVER) is computed anew only after
    /// it was invalidated, removed or evicted.
    pub fn ttl(ttl: impl Into<Ttl>) -> Self {
        Self { ttl: ttl.into(), early: 0, stale: 0, lock: 10 }
    }

    /// How many seconds before its end one caller computes the value anew. Others get the present one meanwhile.
    /// [Default: 0]
    pub fn early(mut self, secs: u32) -> Self {
        self.early = secs;
        self
    }

    /// How many seconds after its end the value is still given to others while one caller computes it anew. [Default: 0]
    pub fn stale(mut self, secs: u32) -> Self {
        self.stale = secs;
        self
    }

    /// After how many seconds another caller may compute a value that is missing, if the first one neither stores it nor
    /// says that it failed, as when its process was killed; 1 at least. What is computed after this time is returned, but
    /// not stored. [Default: 10]
    pub fn lock(mut self, secs: u32) -> Self {
        self.lock = secs.max(1);
        self
    }

    /// The expiry of an item.
    pub(crate) fn expiry(self) -> Exptime {
        match self.ttl {
            Ttl::FOREVER => Exptime::NEVER,
            ttl => ttl.plus(self.stale).exptime(),
        }
    }

    /// Who asks while fewer seconds are left computes the value anew.
    fn recache_secs(self) -> Option<u32> {
        let secs = self.early.saturating_add(self.stale);
        (secs > 0).then_some(secs)
    }
}

/// What a server has for a caller with a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A value.
    Value(Item),
    /// An old value, while another caller computes a new one.
    Stale(Item),
    /// This caller is to compute the value.
    Won {
        /// That of the item that is to be replaced. `None` if the server keeps none.
        cas: Option<u64>,
        /// What others get meanwhile.
        old: Option<Item>,
    },
    /// No value; another caller computes it.
    Taken,
    /// No value, and no lease.
    Missing,
}

/// A look-up with a lease.
pub(crate) struct Look<'k> {
    pub(crate) key: Key<'k>,
    pub(crate) lease: Lease,
}

impl Operation for Look<'_> {
    type Output = Found;

    /// It may create an item. If it is repeated, because the first answer was lost, the caller at worst finds that the
    /// lease is taken, by itself, and waits.
    fn reads(&self) -> bool {
        true
    }

    fn command(&self) -> Command {
        Command::Lease
    }

    fn fits(answer: &Answer<'_>) -> bool {
        matches!(answer, Answer::Hit { .. } | Answer::NotFound { .. })
    }

    fn begin(&mut self, connection: &mut Connection) {
        const FLAGS: meta::GetFlags = meta::GetFlags::NONE.client_flags().cas().value();
        let flags = match self.key {
            Key::Plain(_) => FLAGS.key(),
            Key::Base64(_) => FLAGS,
        };
        let options = meta::GetOptions {
            vivify: Some(Ttl::secs(self.lease.lock).exptime()),
            recache_secs: self.lease.recache_secs(),
            opaque: Some(opaque(self.key)),
            ..Default::default()
        };
        let write = |out: &mut Vec<u8>| meta::get(self.key.meta(), flags, &options, out);
        connection.begin(Frame::One, || check::<Self>(&[self.key]), write);
    }

    fn take(&mut self, reply: &Bytes) -> Result<Option<Found>, Failure> {
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
            Some(Answer::NotFound { .. }) => Ok(Some(Found::Missing)),
            other => Err(Failure::of(other.as_ref(), reply)),
        }
    }
}

/// Whether an answer is one for this key. Keys in base64 are repeated as raw bytes by some versions of memcached.
fn is_of(key: Key<'_>, returned: &Returned<'_>) -> bool {
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

/// What an item means. One that was created for the lease is empty; so may be a value, but an empty value is so quickly
/// computed that it passes for none while there is a lease.
fn found(item: Item, returned: &Returned<'_>) -> Found {
    let has = |wanted| returned.flags().any(|flag| flag == wanted);
    let (is_won, is_taken) = (has(Flag::Won), has(Flag::WinTaken));
    let is_created = (item.flags == 0 && item.value.is_empty()) && (is_won || is_taken);
    match (is_won, is_created) {
        (true, _) => Found::Won { cas: item.cas, old: (!is_created).then_some(item) },
        (false, true) => Found::Taken,
        (false, false) if is_taken => Found::Stale(item),
        (false, false) => Found::Value(item),
    }
}

/// With what right a computed value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    /// The server gave a lease.
    Lease {
        /// That of the item that is replaced, if it is known.
        cas: Option<u64>,
        /// Whether others have an old value meanwhile.
        has_old: bool,
    },
    /// The server knows no leases: if there is no value yet.
    Add,
    /// The server knows no leases, and has a value that is of no use.
    Replace,
    /// Another has the lease. The server is to be asked again; if that takes too long, the value is not stored.
    Ask,
    /// None: the server failed.
    Nothing,
}

/// What is next, after the server was asked.
#[derive(Debug)]
pub(crate) enum Seen<T> {
    /// The value, and its item.
    Value(T, Item),
    /// This caller computes the value.
    Won(Right, Option<T>),
    /// There is none.
    Missing(Right),
    /// There is one, with this CAS, that can't be read: it is to be removed.
    Unreadable(u64),
}

impl<T> Seen<T> {
    /// What an answer means to a caller that reads values by `read`.
    ///
    /// # Errors
    /// The call was interrupted, or misused. If the cache fails, the value is computed all the same.
    pub(crate) fn of(
        found: Result<Found, Error>,
        read: impl Fn(&Item) -> Option<T>,
    ) -> Result<Self, Error> {
        let item = match found {
            Ok(Found::Value(item) | Found::Stale(item)) => item,
            Ok(Found::Won { cas, old }) => {
                let old = old.and_then(|item| read(&item));
                return Ok(Self::Won(Right::Lease { cas, has_old: old.is_some() }, old));
            }
            Ok(Found::Taken) => return Ok(Self::Missing(Right::Ask)),
            Ok(Found::Missing) => return Ok(Self::Missing(Right::Add)),
            Err(error) if ends_call(&error) => return Err(error),
            Err(_) => return Ok(Self::Missing(Right::Nothing)),
        };
        Ok(match (read(&item), item.cas) {
            (Some(value), _) => Self::Value(value, item),
            (None, Some(cas)) => Self::Unreadable(cas),
            (None, None) => Self::Missing(Right::Replace),
        })
    }
}

/// Whether an error is the caller's business, rather than a cache that fails.
pub(crate) fn ends_call(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Key(_) | ErrorKind::Interrupted | ErrorKind::ClientClosed)
}

/// How long to wait before the server is asked again, after so many pauses: 5, 10, 20 … 100 ms. `None` if no time is
/// left.
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

    fn look(name: &str, lease: Lease, request: &str, answer: &str) -> Result<Found, Failure> {
        let (mut look, mut connection) = (Look { key: key(name), lease }, Connection::default());
        look.begin(&mut connection);
        assert_eq!(std::str::from_utf8(connection.output()).unwrap(), request);
        look.take(&Bytes::from(answer.to_owned())).map(Option::unwrap)
    }

    fn item(value: &str, cas: u64) -> Item {
        Item { value: Bytes::from(value.to_owned()), flags: 0, cas: Some(cas) }
    }

    #[test]
    fn the_answers_of_memcached() {
        let mine = opaque(key("k"));
        let request = format!("mg k f c v k N10 R5 O{mine}\r\n");
        let ask = |answer: &str| {
            let answer = answer.replace("kk", &format!("kk O{mine}"));
            look("k", Lease::ttl(60).early(5), &request, &answer).unwrap()
        };
        let won = |cas, old| Found::Won { cas: Some(cas), old };
        for (answer, expected) in [
            ("VA 0 f0 c1 kk W\r\n\r\n", won(1, None)),
            ("VA 0 f0 c1 kk Z\r\n\r\n", Found::Taken),
            ("VA 2 f0 c2 kk\r\nhi\r\n", Found::Value(item("hi", 2))),
            ("VA 2 f0 c2 kk W\r\nhi\r\n", won(2, Some(item("hi", 2)))),
            ("VA 2 f0 c2 kk Z\r\nhi\r\n", Found::Stale(item("hi", 2))),
            ("VA 2 f0 c3 kk X W\r\nhi\r\n", won(3, Some(item("hi", 3)))),
            ("VA 2 f0 c3 kk Z X\r\nhi\r\n", Found::Stale(item("hi", 3))),
            // What was created for a lease, and then invalidated.
            ("VA 0 f0 c6 kk X W\r\n\r\n", won(6, None)),
            ("VA 0 f0 c6 kk Z X\r\n\r\n", Found::Taken),
            // An empty value.
            ("VA 0 f0 c7 kk\r\n\r\n", Found::Value(item("", 7))),
            // A server without CAS.
            ("VA 0 f0 c0 kk W\r\n\r\n", Found::Won { cas: None, old: None }),
            ("EN\r\n", Found::Missing),
        ] {
            assert_eq!(ask(answer), expected, "{answer}");
        }
    }

    #[test]
    fn the_answer_for_another_key_is_none() {
        let of_k = opaque(key("k"));
        let request = format!("mg k f c v k N10 O{of_k}\r\n");
        let plain = |answer: &str| look("k", Lease::ttl(60), &request, answer);
        assert_eq!(plain(&format!("VA 0 f0 c1 kk O{of_k} Z\r\n\r\n")).unwrap(), Found::Taken);
        let mine = opaque(key("a b"));
        let request = format!("mg YSBi b f c v N10 O{mine}\r\n");
        let base64 = |answer: &str| look("a b", Lease::ttl(60), &request, answer);
        assert_eq!(base64(&format!("VA 0 f0 c1 O{mine} b Z\r\n\r\n")).unwrap(), Found::Taken);
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
    fn times() {
        assert_eq!(Lease::ttl(60).early(5).stale(30).expiry(), Exptime(90));
        assert_eq!(Lease::ttl(60).early(5).stale(30).recache_secs(), Some(35));
        assert_eq!(Lease::ttl(60).recache_secs(), None);
        assert_eq!(Lease::ttl(Ttl::FOREVER).stale(30).expiry(), Exptime::NEVER);
        assert_eq!(Lease::ttl(60).lock(0), Lease::ttl(60).lock(1));
        let second = Duration::from_secs(1);
        let pauses: Vec<_> = (0..8).map(|n| pause(n, second).unwrap().as_millis()).collect();
        assert_eq!(pauses, [5, 10, 20, 40, 80, 100, 100, 100]);
        assert_eq!(pause(7, Duration::from_millis(3)), Some(Duration::from_millis(3)));
        assert_eq!(pause(0, Duration::ZERO), None);
    }

    #[test]
    fn values_that_can_not_be_read_pass_for_none() {
        let see =
            |found| Seen::of(found, |item: &Item| (item.value != "bad").then_some(1)).unwrap();
        assert!(matches!(see(Ok(Found::Value(item("good", 1)))), Seen::Value(1, _)));
        assert!(matches!(see(Ok(Found::Value(item("bad", 7)))), Seen::Unreadable(7)));
        let classic = Item { cas: None, ..item("bad", 0) };
        assert!(matches!(see(Ok(Found::Value(classic))), Seen::Missing(Right::Replace)));
        let won = Found::Won { cas: Some(7), old: Some(item("bad", 7)) };
        let right = Right::Lease { cas: Some(7), has_old: false };
        assert!(matches!(see(Ok(won)), Seen::Won(seen, None) if seen == right));
        let down = Err(Error::definite(ErrorKind::Timeout));
        assert!(matches!(see(down), Seen::Missing(Right::Nothing)));
        let interrupted = Err(Error::definite(ErrorKind::Interrupted));
        assert!(Seen::of(interrupted, |_| Some(1)).is_err());
    }
}
