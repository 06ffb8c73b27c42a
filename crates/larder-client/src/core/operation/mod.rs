//! Requests, and what their answers mean.
//!
//! Classic commands are sent where they can say it, because every server knows them. Keys in base64, and what classic
//! has no command for, are sent as meta commands.

pub(crate) mod batch;

use crate::core::connection::{Answers, Check, Connection, Frame, hash, is_fatal, shown};
use crate::core::key::Key;
use crate::error::{Error, ErrorKind};
use crate::item::{Counted, Item, Stored};
use crate::metrics::Command;
use bytes::Bytes;
use larder_protocol::answer::{Answer, Flag, Refused, Returned};
use larder_protocol::encode::{NewItem, WireKey, classic, meta};
use larder_protocol::{Exptime, StoreMode, VALUE_LEN_MAX};
use std::io;
use std::sync::Arc;

/// How many keys are sent in one line.
const KEYS_PER_LINE: usize = 100;

/// A request to one server, and the state of reading its replies.
pub(crate) trait Operation {
    /// What the caller gets.
    type Output;
    /// Whether it changes nothing, so that it may be repeated.
    fn reads(&self) -> bool;

    /// The output if nothing is known, for a look-up.
    fn nothing(&self) -> Option<Self::Output> {
        None
    }

    /// What it is timed as.
    fn command(&self) -> Command {
        Command::Other
    }

    /// Begins its requests.
    fn begin(&mut self, connection: &mut Connection);

    /// Whether an answer is one that its commands can have, errors apart.
    fn fits(answer: &Answer<'_>) -> bool;

    /// Takes the next reply; returns the output with the last one.
    ///
    /// # Errors
    /// [`Failure`].
    fn take(&mut self, reply: &Bytes) -> Result<Option<Self::Output>, Failure>;
}

/// A reply that has not what was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: ErrorKind,
    /// Whether nothing more has to be expected of the connection.
    pub(crate) is_fatal: bool,
    /// Whether it says that nothing was changed.
    pub(crate) is_definite: bool,
}

impl Failure {
    /// Nobody knows what such a reply says, or which one comes next.
    pub(crate) fn unexpected(shown: impl Into<Box<str>>) -> Self {
        Self { kind: ErrorKind::Unexpected(shown.into()), is_fatal: true, is_definite: false }
    }

    /// What an answer says that is none of those that the request can have.
    pub(crate) fn of(answer: Option<&Answer<'_>>, reply: &[u8]) -> Self {
        let is_fatal = answer.is_none_or(is_fatal);
        match answer {
            // An unknown command.
            Some(Answer::Error { line: b"ERROR", .. }) => Self::unexpected(shown(reply)),
            Some(Answer::Error { line, .. }) if line.starts_with(TOO_MANY) => {
                let error = io::Error::new(io::ErrorKind::ConnectionRefused, shown(line));
                let kind = ErrorKind::Connect(Arc::new(error));
                Self { kind, is_fatal, is_definite: true }
            }
            Some(Answer::Error { client: true, line }) => {
                let kind = ErrorKind::Refused(shown(line).into());
                Self { kind, is_fatal, is_definite: true }
            }
            Some(Answer::Error { client: false, line }) => {
                // Others don't say that nothing was stored: a proxy's, as that a server behind it has not answered in
                // time, or that one of the groups that a flush goes to has no leader.
                let is_definite = matches!(
                    Refused::of(line),
                    Refused::TooLarge | Refused::OutOfMemory | Refused::NoRoom
                );
                let kind = ErrorKind::Server(shown(line).into());
                Self { kind, is_fatal, is_definite }
            }
            _ => Self::unexpected(shown(reply)),
        }
    }
}

/// What a server says to those for whom it has no connection, before it closes theirs.
const TOO_MANY: &[u8] = b"ERROR Too many open connections";
/// The output of a reply that has one answer.
pub(crate) fn one<T>(
    reply: &Bytes,
    known: impl FnOnce(&Answer<'_>) -> Option<T>,
) -> Result<Option<T>, Failure> {
    let answer = Answers(reply).next();
    let output = answer.as_ref().and_then(known);
    output.map(Some).ok_or_else(|| Failure::of(answer.as_ref(), reply))
}

/// An item of a hit, if it is that of `key`. Its value is a part of the reply, which is not copied.
fn item(reply: &Bytes, key: Key<'_>, value: &[u8], returned: &Returned<'_>) -> Option<Item> {
    let is_right = match (returned, key) {
        (Returned::Classic { key: name, .. }, Key::Plain(key)) => *name == key.bytes(),
        (Returned::Meta(_), Key::Base64(_)) => {
            let expected = opaque(key);
            let is_mine = |digits: &[u8]| digits == itoa::Buffer::new().format(expected).as_bytes();
            returned.flags().any(|flag| matches!(flag, Flag::Opaque(digits) if is_mine(digits)))
        }
        _ => false,
    };
    let flags = returned.client_flags().unwrap_or(0);
    is_right.then(|| Item { value: reply.slice_ref(value), flags, cas: returned.cas() })
}

/// The number that the answer for a key in base64 has to repeat. The key itself would be repeated as raw bytes by some
/// versions of memcached.
pub(crate) fn opaque(key: Key<'_>) -> u64 {
    hash(key.bytes())
}

/// What replies to an operation on these keys may be.
pub(crate) fn check<O: Operation>(keys: &[Key<'_>]) -> Check {
    Check::new(keys.iter().map(|key| hash(key.bytes())), O::fits)
}

/// A look-up of one key.
pub(crate) struct Get<'k> {
    pub(crate) key: Key<'k>,
    /// Whether the CAS is wanted.
    pub(crate) cas: bool,
    /// The expiry that the item gets.
    pub(crate) touch: Option<Exptime>,
}

impl Operation for Get<'_> {
    type Output = Option<Item>;
    fn reads(&self) -> bool {
        self.touch.is_none()
    }

    fn command(&self) -> Command {
        if self.touch.is_some() { Command::Touch } else { Command::Get }
    }

    fn nothing(&self) -> Option<Self::Output> {
        Some(None)
    }

    fn fits(answer: &Answer<'_>) -> bool {
        matches!(answer, Answer::Hit { .. } | Answer::End | Answer::NotFound { .. })
    }

    fn begin(&mut self, connection: &mut Connection) {
        let checked = || check::<Self>(&[self.key]);
        match self.key {
            Key::Plain(key) => connection.begin(Frame::Last, checked, |out| {
                match (self.cas, self.touch) {
                    (false, None) => classic::get([key], out),
                    (true, None) => classic::gets([key], out),
                    (false, Some(expiry)) => classic::gat(expiry, [key], out),
                    (true, Some(expiry)) => classic::gats(expiry, [key], out),
                };
            }),
            Key::Base64(_) => connection.begin(Frame::One, checked, |out| {
                write_meta_get(self.key, self.cas, self.touch, out);
            }),
        }
    }

    fn take(&mut self, reply: &Bytes) -> Result<Option<Self::Output>, Failure> {
        let mut answers = Answers(reply);
        let first = answers.next();
        match (&first, answers.next()) {
            (Some(Answer::End | Answer::NotFound { .. }), None) => Ok(Some(None)),
            (Some(Answer::Hit { value, returned }), None | Some(Answer::End)) => {
                let item = item(reply, self.key, value, returned);
                item.map(|item| Some(Some(item))).ok_or_else(|| Failure::of(first.as_ref(), reply))
            }
            _ => Err(Failure::of(first.as_ref(), reply)),
        }
    }
}

fn write_meta_get(key: Key<'_>, cas: bool, touch: Option<Exptime>, out: &mut Vec<u8>) {
    const FLAGS: meta::GetFlags = meta::GetFlags::NONE.client_flags().value();
    let flags = if cas { FLAGS.cas() } else { FLAGS };
    let opaque = Some(opaque(key));
    meta::get(key.meta(), flags, &meta::GetOptions { touch, opaque, ..Default::default() }, out);
}

/// Look-ups of several keys: an item for each that is found, in their order.
pub(crate) struct GetMany<'k, 'a> {
    keys: &'a [Key<'k>],
    cas: bool,
    found: Vec<Option<Item>>,
    /// How many replies are still to come.
    left: usize,
}

impl<'k, 'a> GetMany<'k, 'a> {
    pub(crate) fn new(keys: &'a [Key<'k>], cas: bool) -> Self {
        Self { keys, cas, found: Vec::new(), left: 0 }
    }

    /// One that was begun, and to which so many replies come.
    #[cfg(feature = "pipeline")]
    pub(crate) fn begun(keys: &'a [Key<'k>], replies: usize) -> Self {
        Self { left: replies, ..Self::new(keys, false) }
    }

    /// The first of the keys that are asked for together: those of a line, or one in base64.
    fn group(keys: &'a [Key<'k>]) -> &'a [Key<'k>] {
        let is_plain = |key: &&Key<'k>| matches!(key, Key::Plain(_));
        let plain = keys.iter().take(KEYS_PER_LINE).take_while(is_plain).count();
        keys.get(..plain.max(1)).unwrap_or(keys)
    }
}

impl Operation for GetMany<'_, '_> {
    type Output = Vec<Option<Item>>;
    fn reads(&self) -> bool {
        true
    }

    fn command(&self) -> Command {
        Command::GetMany
    }

    fn nothing(&self) -> Option<Self::Output> {
        Some(vec![None; self.keys.len()])
    }

    fn fits(answer: &Answer<'_>) -> bool {
        Get::fits(answer)
    }

    fn begin(&mut self, connection: &mut Connection) {
        (self.found, self.left) = (Vec::with_capacity(self.keys.len()), 0);
        let mut rest = self.keys;
        while let [first, ..] = rest {
            let group = Self::group(rest);
            let checked = || check::<Self>(group);
            match first {
                Key::Base64(_) => connection.begin(Frame::One, checked, |out| {
                    write_meta_get(*first, self.cas, None, out);
                }),
                Key::Plain(_) => connection.begin(Frame::Last, checked, |out| {
                    let keys = group.iter().filter_map(|key| match key {
                        Key::Plain(key) => Some(*key),
                        Key::Base64(_) => None,
                    });
                    if self.cas { classic::gets(keys, out) } else { classic::get(keys, out) }
                }),
            }
            self.left += 1;
            rest = rest.get(group.len()..).unwrap_or_default();
        }
    }

    fn take(&mut self, reply: &Bytes) -> Result<Option<Self::Output>, Failure> {
        let begin = self.found.len();
        let group = Self::group(self.keys.get(begin..).unwrap_or_default());
        self.found.resize(begin + group.len(), None);
        let mut next = 0;
        for answer in Answers(reply) {
            match &answer {
                Answer::Hit { value, returned } => {
                    // Servers answer in the order of the keys, but proxies need not.
                    let hit = (next..group.len()).chain(0..next).find_map(|n| {
                        let slot = self.found.get_mut(begin + n).filter(|slot| slot.is_none())?;
                        *slot = item(reply, *group.get(n)?, value, returned);
                        slot.is_some().then_some(n)
                    });
                    let Some(n) = hit else { return Err(Failure::of(Some(&answer), reply)) };
                    next = n + 1;
                }
                Answer::End | Answer::NotFound { .. } => break,
                other => return Err(Failure::of(Some(other), reply)),
            }
        }
        self.left = self.left.saturating_sub(1);
        Ok((self.left == 0).then(|| std::mem::take(&mut self.found)))
    }
}

/// A store.
#[derive(Clone)]
pub(crate) struct Store<'k, 'v> {
    pub(crate) key: Key<'k>,
    pub(crate) mode: StoreMode,
    pub(crate) item: NewItem<'v>,
    /// Stores it only if the item has this CAS. The mode is `Set` then.
    pub(crate) compare: Option<u64>,
}

impl<'k, 'v> Store<'k, 'v> {
    /// # Errors
    /// No request can have this key, or the value is too long.
    pub(crate) fn new(
        mode: StoreMode,
        key: &'k [u8],
        item: NewItem<'v>,
        compare: Option<u64>,
    ) -> Result<Self, Error> {
        let key = Key::new(key)?;
        if item.value.len() > VALUE_LEN_MAX {
            return Err(Error::definite(ErrorKind::ValueTooLong(item.value.len())));
        }
        Ok(Self { key, mode, item, compare })
    }

    pub(crate) fn known(answer: &Answer<'_>) -> Option<Stored> {
        match answer {
            Answer::Stored { .. } | Answer::Done { .. } => Some(Stored::Stored),
            Answer::NotStored { .. } => Some(Stored::NotStored),
            Answer::Exists { .. } => Some(Stored::Exists),
            Answer::NotFound { .. } => Some(Stored::NotFound),
            _ => None,
        }
    }
}

impl Operation for Store<'_, '_> {
    type Output = Stored;
    fn reads(&self) -> bool {
        false
    }

    fn command(&self) -> Command {
        Command::Store
    }

    fn fits(answer: &Answer<'_>) -> bool {
        Self::known(answer).is_some()
    }

    fn begin(&mut self, connection: &mut Connection) {
        let Self { mode, item, compare, .. } = *self;
        connection.begin(
            Frame::One,
            || check::<Self>(&[]),
            |out| match (self.key, compare) {
                (Key::Plain(key), None) => classic::store(mode, key, &item, false, out),
                (Key::Plain(key), Some(cas)) => classic::cas(key, &item, cas, false, out),
                (Key::Base64(key), _) => {
                    let NewItem { value, client_flags, expiry } = item;
                    let options = meta::SetOptions {
                        mode,
                        client_flags,
                        expiry,
                        compare,
                        ..Default::default()
                    };
                    meta::set(key, value, meta::SetFlags::NONE, &options, out);
                }
            },
        );
    }

    fn take(&mut self, reply: &Bytes) -> Result<Option<Stored>, Failure> {
        one(reply, Self::known)
    }
}

/// A removal; whether there was an item.
#[derive(Clone)]
pub(crate) struct Delete<'k> {
    pub(crate) key: Key<'k>,
    /// Removes the item only if it has this CAS.
    pub(crate) compare: Option<u64>,
    /// Marks the item as stale for so long, instead of removing it.
    pub(crate) stale: Option<Exptime>,
}

impl Delete<'_> {
    pub(crate) fn known(answer: &Answer<'_>) -> Option<bool> {
        match answer {
            Answer::Deleted | Answer::Done { .. } => Some(true),
            Answer::NotFound { .. } | Answer::Exists { .. } => Some(false),
            _ => None,
        }
    }
}

impl Operation for Delete<'_> {
    type Output = bool;
    fn reads(&self) -> bool {
        false
    }

    fn command(&self) -> Command {
        Command::Delete
    }

    fn fits(answer: &Answer<'_>) -> bool {
        Self::known(answer).is_some()
    }

    fn begin(&mut self, connection: &mut Connection) {
        let Self { compare, stale, .. } = *self;
        connection.begin(
            Frame::One,
            || check::<Self>(&[]),
            |out| match self.key {
                Key::Plain(key) if compare.is_none() && stale.is_none() => {
                    classic::delete(key, false, out)
                }
                key => {
                    let none = meta::DeleteFlags::NONE;
                    let flags = if stale.is_some() { none.invalidate() } else { none };
                    let options =
                        meta::DeleteOptions { compare, touch: stale, ..Default::default() };
                    meta::delete(key.meta(), flags, &options, out);
                }
            },
        );
    }

    fn take(&mut self, reply: &Bytes) -> Result<Option<bool>, Failure> {
        one(reply, Self::known)
    }
}

/// A change of an item's expiry; whether there is an item.
pub(crate) struct Touch<'k> {
    pub(crate) key: Key<'k>,
    pub(crate) expiry: Exptime,
}

impl Touch<'_> {
    pub(crate) fn known(answer: &Answer<'_>) -> Option<bool> {
        match answer {
            Answer::Touched | Answer::Done { .. } => Some(true),
            Answer::NotFound { .. } => Some(false),
            _ => None,
        }
    }
}

impl Operation for Touch<'_> {
    type Output = bool;
    fn reads(&self) -> bool {
        false
    }

    fn command(&self) -> Command {
        Command::Touch
    }

    fn fits(answer: &Answer<'_>) -> bool {
        Self::known(answer).is_some()
    }

    fn begin(&mut self, connection: &mut Connection) {
        connection.begin(
            Frame::One,
            || check::<Self>(&[]),
            |out| match self.key {
                Key::Plain(key) => classic::touch(key, self.expiry, false, out),
                Key::Base64(key) => {
                    let options =
                        meta::GetOptions { touch: Some(self.expiry), ..Default::default() };
                    meta::get(key, meta::GetFlags::NONE, &options, out);
                }
            },
        );
    }

    fn take(&mut self, reply: &Bytes) -> Result<Option<bool>, Failure> {
        one(reply, Self::known)
    }
}

/// Counting.
pub(crate) struct Count<'k> {
    pub(crate) key: Key<'k>,
    pub(crate) down: bool,
    pub(crate) delta: u64,
    /// The number and the expiry of an item that is created if there is none.
    pub(crate) create: Option<(u64, Exptime)>,
}

impl Count<'_> {
    pub(crate) fn known(answer: &Answer<'_>) -> Option<Counted> {
        match answer {
            Answer::Number(number) => Some(Counted::Number(*number)),
            Answer::Hit { value, returned: Returned::Meta(_) } => {
                let digits = std::str::from_utf8(value).ok()?;
                digits.parse().ok().map(Counted::Number)
            }
            Answer::NotFound { .. } => Some(Counted::NotFound),
            Answer::Error { client: true, line } if Refused::of(line) == Refused::NotANumber => {
                Some(Counted::NotANumber)
            }
            _ => None,
        }
    }
}

impl Operation for Count<'_> {
    type Output = Counted;
    fn reads(&self) -> bool {
        false
    }

    fn command(&self) -> Command {
        Command::Count
    }

    fn fits(answer: &Answer<'_>) -> bool {
        Self::known(answer).is_some()
    }

    fn begin(&mut self, connection: &mut Connection) {
        let Self { down, delta, create, .. } = *self;
        connection.begin(
            Frame::One,
            || check::<Self>(&[]),
            |out| match (self.key, create) {
                (Key::Plain(key), None) if down => classic::decr(key, delta, false, out),
                (Key::Plain(key), None) => classic::incr(key, delta, false, out),
                (key, _) => {
                    let (initial, vivify) =
                        create.map_or((0, None), |(initial, at)| (initial, Some(at)));
                    let options = meta::ArithmeticOptions {
                        down,
                        delta,
                        vivify,
                        initial,
                        ..Default::default()
                    };
                    meta::arithmetic(
                        key.meta(),
                        meta::ArithmeticFlags::NONE.value(),
                        &options,
                        out,
                    );
                }
            },
        );
    }

    fn take(&mut self, reply: &Bytes) -> Result<Option<Counted>, Failure> {
        one(reply, Self::known)
    }
}

/// A flush of all items.
pub(crate) struct Flush(pub(crate) Exptime);

impl Flush {
    pub(crate) fn known(answer: &Answer<'_>) -> Option<()> {
        matches!(answer, Answer::Ok).then_some(())
    }
}

impl Operation for Flush {
    type Output = ();
    fn reads(&self) -> bool {
        false
    }

    fn fits(answer: &Answer<'_>) -> bool {
        Self::known(answer).is_some()
    }

    fn begin(&mut self, connection: &mut Connection) {
        connection.begin(
            Frame::One,
            || check::<Self>(&[]),
            |out| classic::flush_all(self.0, false, out),
        );
    }

    fn take(&mut self, reply: &Bytes) -> Result<Option<()>, Failure> {
        one(reply, Self::known)
    }
}

/// The server's version.
pub(crate) struct Version;

impl Version {
    pub(crate) fn known(answer: &Answer<'_>) -> Option<String> {
        match answer {
            Answer::Version(version) => Some(String::from_utf8_lossy(version).into_owned()),
            _ => None,
        }
    }
}

impl Operation for Version {
    type Output = String;
    fn reads(&self) -> bool {
        true
    }

    fn fits(answer: &Answer<'_>) -> bool {
        Self::known(answer).is_some()
    }

    fn begin(&mut self, connection: &mut Connection) {
        connection.begin(Frame::One, || check::<Self>(&[]), classic::version);
    }

    fn take(&mut self, reply: &Bytes) -> Result<Option<String>, Failure> {
        one(reply, Self::known)
    }
}

/// Whether the server knows meta commands.
pub(crate) struct KnowsMeta;

impl Operation for KnowsMeta {
    type Output = bool;
    fn reads(&self) -> bool {
        true
    }

    fn fits(answer: &Answer<'_>) -> bool {
        matches!(answer, Answer::End)
    }

    fn begin(&mut self, connection: &mut Connection) {
        connection.begin(Frame::One, || check::<Self>(&[]), meta::noop);
    }

    fn take(&mut self, reply: &Bytes) -> Result<Option<bool>, Failure> {
        one(reply, |answer| match answer {
            Answer::End => Some(true),
            Answer::Error { line: b"ERROR", .. } => Some(false),
            _ => None,
        })
    }
}

/// A page of statistics.
pub(crate) struct Stats<'t>(pub(crate) Option<WireKey<'t>>);

impl Operation for Stats<'_> {
    type Output = Vec<(String, String)>;
    fn reads(&self) -> bool {
        true
    }

    fn fits(answer: &Answer<'_>) -> bool {
        matches!(answer, Answer::Stat { .. } | Answer::End | Answer::Ok)
    }

    fn begin(&mut self, connection: &mut Connection) {
        connection.begin(Frame::Last, || check::<Self>(&[]), |out| classic::stats(self.0, out));
    }

    fn take(&mut self, reply: &Bytes) -> Result<Option<Self::Output>, Failure> {
        let mut page = Vec::new();
        for answer in Answers(reply) {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            match &answer {
                Answer::Stat { name, value } => page.push((text(name), text(value))),
                Answer::End | Answer::Ok => return Ok(Some(page)),
                other => return Err(Failure::of(Some(other), reply)),
            }
        }
        Err(Failure::of(None, reply))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(bytes: &str) -> Key<'_> {
        Key::new(bytes.as_bytes()).unwrap()
    }

    /// What an operation sends, and its output if the server answers so.
    fn check<O: Operation>(
        mut operation: O,
        request: &str,
        answers: &str,
    ) -> Result<O::Output, Failure> {
        let mut connection = Connection::default();
        operation.begin(&mut connection);
        assert_eq!(std::str::from_utf8(connection.output()).unwrap(), request);
        connection.sent(request.len());
        connection.room()[..answers.len()].copy_from_slice(answers.as_bytes());
        connection.received(answers.len());
        while let Some(reply) = connection.next_reply().unwrap() {
            if let Some(output) = operation.take(&reply)? {
                assert!(connection.is_settled(), "nothing is left");
                return Ok(output);
            }
        }
        panic!("the reply is not whole");
    }

    fn value(item: Option<Item>) -> Option<(String, u32, Option<u64>)> {
        item.map(|item| (String::from_utf8(item.value.to_vec()).unwrap(), item.flags, item.cas))
    }

    #[test]
    fn look_ups() {
        let get = |name, cas, touch| Get { key: key(name), cas, touch };
        let hit =
            check(get("a", false, None), "get a\r\n", "VALUE a 7 2\r\nhi\r\nEND\r\n").unwrap();
        assert_eq!(value(hit), Some(("hi".into(), 7, None)));
        let hit =
            check(get("a", true, None), "gets a\r\n", "VALUE a 0 0 9\r\n\r\nEND\r\n").unwrap();
        assert_eq!(value(hit), Some((String::new(), 0, Some(9))));
        let expiry = Some(Exptime(60));
        assert_eq!(check(get("a", false, expiry), "gat 60 a\r\n", "END\r\n").unwrap(), None);
        let mine = opaque(key("a b"));
        let request = format!("mg YSBi b f v O{mine}\r\n");
        let answer = format!("VA 2 f7 O{mine} b\r\nhi\r\n");
        let hit = check(get("a b", false, None), &request, &answer).unwrap();
        assert_eq!(value(hit), Some(("hi".into(), 7, None)));
        assert_eq!(check(get("a b", false, None), &request, "EN\r\n").unwrap(), None);
    }

    #[test]
    fn a_value_of_another_key_is_never_returned() {
        let get = || Get { key: key("a"), cas: false, touch: None };
        for answer in [
            "VALUE b 0 1\r\nx\r\nEND\r\n",
            "VALUE a 0 1\r\nx\r\nVALUE a 0 1\r\ny\r\nEND\r\n",
            "VA 1\r\nx\r\nEND\r\n",
        ] {
            let failure = check(get(), "get a\r\n", answer).unwrap_err();
            assert!(
                failure.is_fatal && matches!(failure.kind, ErrorKind::Unexpected(_)),
                "{answer}"
            );
        }
        let in_base64 = Get { key: key("a b"), cas: false, touch: None };
        let (mine, other) = (opaque(key("a b")), opaque(key("a c")));
        let request = format!("mg YSBi b f v O{mine}\r\n");
        let failure = check(in_base64, &request, &format!("VA 1 O{other}\r\nx\r\n")).unwrap_err();
        assert!(failure.is_fatal);
        let keys = ["a", "b"].map(key);
        for other in ["c", "a"] {
            let hits = format!("VALUE a 0 1\r\nx\r\nVALUE {other} 0 1\r\ny\r\nEND\r\n");
            let failure = check(GetMany::new(&keys, false), "get a b\r\n", &hits);
            assert!(failure.unwrap_err().is_fatal, "{other}");
        }
    }

    #[test]
    fn hits_may_come_in_any_order() {
        let keys = ["a", "b", "c", "a", "d"].map(key);
        let hits = ["d", "a", "b", "a"].map(|key| format!("VALUE {key} 0 1\r\n{key}\r\n"));
        let found = check(
            GetMany::new(&keys, false),
            "get a b c a d\r\n",
            &format!("{}END\r\n", hits.concat()),
        );
        let found = found.unwrap().into_iter().map(|item| value(item).map(|item| item.0));
        let expected =
            ["a", "b", "", "a", "d"].map(|name| (!name.is_empty()).then(|| name.to_owned()));
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn several_keys_are_asked_for_by_line() {
        let keys = ["a", "b", "x y", "c", "a"].map(key);
        let mine = opaque(keys[2]);
        let found = check(
            GetMany::new(&keys, false),
            &format!("get a b\r\nmg eCB5 b f v O{mine}\r\nget c a\r\n"),
            &format!(
                "VALUE b 1 1\r\n2\r\nEND\r\nVA 1 f2 O{mine}\r\n3\r\nVALUE a 0 1\r\n1\r\nEND\r\n"
            ),
        )
        .unwrap();
        let found: Vec<_> = found.into_iter().map(|item| value(item).map(|item| item.0)).collect();
        assert_eq!(found, [None, Some("2".into()), Some("3".into()), None, Some("1".into())]);
        let many: Vec<String> = (0..250).map(|n| format!("k{n}")).collect();
        let keys: Vec<Key<'_>> = many.iter().map(|name| key(name)).collect();
        let lines = many.chunks(100).map(|names| format!("get {}\r\n", names.join(" ")));
        let found =
            check(GetMany::new(&keys, false), &lines.collect::<String>(), &"END\r\n".repeat(3));
        assert_eq!(found.unwrap(), vec![None; 250]);
    }

    #[test]
    fn changes() {
        let store = |name, mode, compare| {
            let item = NewItem { value: b"hi", client_flags: 7, expiry: Exptime(60) };
            Store { key: key(name), mode, item, compare }
        };
        for (request, answer, expected) in [
            ("set a 7 60 2\r\nhi\r\n", "STORED\r\n", Stored::Stored),
            ("set a 7 60 2\r\nhi\r\n", "NOT_STORED\r\n", Stored::NotStored),
        ] {
            assert_eq!(check(store("a", StoreMode::Set, None), request, answer).unwrap(), expected);
        }
        let cas =
            check(store("a", StoreMode::Set, Some(9)), "cas a 7 60 2 9\r\nhi\r\n", "EXISTS\r\n");
        assert_eq!(cas.unwrap(), Stored::Exists);
        let request = "ms YSBi 2 b MA F7 T60\r\nhi\r\n";
        assert_eq!(
            check(store("a b", StoreMode::Append, None), request, "NS\r\n").unwrap(),
            Stored::NotStored
        );
        let delete = |name, stale| Delete { key: key(name), compare: None, stale };
        assert!(check(delete("a", None), "delete a\r\n", "DELETED\r\n").unwrap());
        assert!(!check(delete("a b", None), "md YSBi b\r\n", "NF\r\n").unwrap());
        assert!(check(delete("a", Some(Exptime(30))), "md a I T30\r\n", "HD\r\n").unwrap());
        let touch = |name| Touch { key: key(name), expiry: Exptime(60) };
        assert!(check(touch("a"), "touch a 60\r\n", "TOUCHED\r\n").unwrap());
        assert!(!check(touch("a b"), "mg YSBi b T60\r\n", "EN\r\n").unwrap());
        let count = |name, create| Count { key: key(name), down: true, delta: 5, create };
        assert_eq!(check(count("n", None), "decr n 5\r\n", "37\r\n").unwrap(), Counted::Number(37));
        assert_eq!(
            check(count("n", None), "decr n 5\r\n", "NOT_FOUND\r\n").unwrap(),
            Counted::NotFound
        );
        let error = "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
        assert_eq!(check(count("n", None), "decr n 5\r\n", error).unwrap(), Counted::NotANumber);
        let create = Some((100, Exptime(60)));
        let request = "ma n v MD D5 N60 J100\r\n";
        assert_eq!(
            check(count("n", create), request, "VA 3\r\n100\r\n").unwrap(),
            Counted::Number(100)
        );
    }

    #[test]
    fn errors_of_the_server_are_told_apart() {
        let set = || Store {
            key: key("a"),
            mode: StoreMode::Set,
            item: NewItem::of(b"x"),
            compare: None,
        };
        let failure = |answer| check(set(), "set a 0 0 1\r\nx\r\n", answer).unwrap_err();
        let full = failure("SERVER_ERROR out of memory storing object\r\n");
        assert!(!full.is_fatal && full.is_definite && matches!(full.kind, ErrorKind::Server(_)));
        let timeout = failure("SERVER_ERROR timed out waiting for the backend\r\n");
        assert!(!timeout.is_definite && matches!(timeout.kind, ErrorKind::Server(_)));
        let crowded = failure("ERROR Too many open connections\r\n");
        assert!(crowded.is_definite && matches!(crowded.kind, ErrorKind::Connect(_)));
        let refused = failure("CLIENT_ERROR bad data chunk\r\n");
        assert!(refused.is_fatal && matches!(refused.kind, ErrorKind::Refused(_)));
        for other in ["ERROR\r\n", "END\r\n", "what?\r\n"] {
            let failure = failure(other);
            assert!(
                failure.is_fatal
                    && !failure.is_definite
                    && matches!(failure.kind, ErrorKind::Unexpected(_)),
                "{other}"
            );
        }
    }

    #[test]
    fn pages() {
        let page = check(Stats(None), "stats\r\n", "STAT a 1\r\nSTAT b x y\r\nEND\r\n").unwrap();
        assert_eq!(page, [("a".into(), "1".into()), ("b".into(), "x y".into())]);
        assert_eq!(check(Version, "version\r\n", "VERSION 1.6.18\r\n").unwrap(), "1.6.18");
        assert!(check(KnowsMeta, "mn\r\n", "MN\r\n").unwrap());
        assert!(!check(KnowsMeta, "mn\r\n", "ERROR\r\n").unwrap());
        assert!(check(KnowsMeta, "mn\r\n", "SERVER_ERROR out of memory\r\n").is_err());
        check(Flush(Exptime::NEVER), "flush_all 0\r\n", "OK\r\n").unwrap();
    }
}
