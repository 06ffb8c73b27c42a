//! Commands with their arguments. `command_parser.rs` reads and checks these.

use super::error::Parsed;
use super::key::checked_key;
use super::request::Arguments;
use crate::request::Credentials;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the protocol's own")]
pub enum Command<'b> {
    Ping(Option<&'b [u8]>),
    Echo(&'b [u8]),
    Hello(Hello<'b>),
    Auth(Auth<'b>),
    /// The number of a database.
    Select(i32),
    Quit,
    Reset,
    ClientId,
    ClientGetName,
    /// `CLIENT INFO`, `CLIENT LIST`
    Clients(Clients<'b>),
    ClientSetName(&'b [u8]),
    ClientSetInfo,
    /// `CLIENT NO-EVICT` and `NO-TOUCH`, which change nothing.
    ClientMode,
    /// An operation on one key.
    Item(&'b [u8], ItemCommand<'b>),
    /// An operation on several keys, one after the other.
    Items(ItemsCommand<'b>),
    Scan(Scan<'b>),
    /// A pattern.
    Keys(&'b [u8]),
    DbSize,
    Flush,
    /// Drop a tag (`TAG.DROP`).
    DropTag(&'b [u8]),
    Info(Arguments<'b>),
    Role,
    Commands,
    CommandCount,
    CommandList,
    CommandDocs,
    CommandInfo(Arguments<'b>),
    ConfigGet(Arguments<'b>),
    /// `CONFIG SET`: names and values in turn.
    ConfigSet(Arguments<'b>),
    ConfigResetStat,
    /// The names of classes; all if there are none.
    LatencyHistogram(Arguments<'b>),
    Time,
    /// `WAIT`: how many replicas have this connection's changes.
    Wait,
    Multi,
    Exec,
    Discard,
}

/// Connections that are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clients<'b> {
    /// All.
    All,
    /// The one that asks.
    Own,
    /// None: those of a kind that does not exist.
    None,
    /// Those of these numbers.
    Ids(Arguments<'b>),
}

/// An operation on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the protocol's own")]
pub enum ItemCommand<'b> {
    Get,
    Set(Set<'b>),
    GetDel,
    GetEx(Option<NewExpiry>),
    Append(&'b [u8]),
    StrLen,
    GetRange {
        start: i64,
        end: i64,
    },
    /// Adds to a number.
    Add(i64),
    Expire(Expire),
    Persist,
    /// `TTL` and its variants.
    ShowExpiry {
        /// In milliseconds rather than seconds.
        in_millis: bool,
        /// As a Unix time rather than the time that is left.
        absolute: bool,
    },
    Type,
    MemoryUsage,
}

/// An operation on several keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the protocol's own")]
pub enum ItemsCommand<'b> {
    MGet(Arguments<'b>),
    /// Keys and values in turn.
    MSet(Arguments<'b>),
    Del(Arguments<'b>),
    Exists(Arguments<'b>),
    Touch(Arguments<'b>),
}

impl<'b> ItemsCommand<'b> {
    /// Its words behind the name, and how many of them there are for each key, which is the first.
    #[must_use]
    pub fn words(&self) -> (Arguments<'b>, usize) {
        match *self {
            Self::MSet(words) => (words, 2),
            Self::MGet(words) | Self::Del(words) | Self::Exists(words) | Self::Touch(words) => {
                (words, 1)
            }
        }
    }

    /// The name of the command that does the same with one key.
    #[must_use]
    pub fn of_one_key(&self) -> &'static str {
        match self {
            Self::MGet(_) => "GET",
            Self::MSet(_) => "SET",
            Self::Del(_) => "DEL",
            Self::Exists(_) => "EXISTS",
            Self::Touch(_) => "TOUCH",
        }
    }

    /// Checks the keys of a command that is not carried out at all if one is wrong.
    ///
    /// # Errors
    /// [`CommandError::KeyLength`](super::CommandError::KeyLength)
    pub fn check_keys(&self) -> Parsed<'b, ()> {
        match self {
            Self::MSet(words) => words.step_by(2).try_for_each(|key| checked_key(key).map(|_| ())),
            _ => Ok(()),
        }
    }
}

/// `SET` and its relatives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set<'b> {
    /// The value.
    pub value: &'b [u8],
    /// Whether an item has to be there, or must not.
    pub condition: SetCondition,
    /// The expiry of the item.
    pub expiry: NewExpiry,
    /// What is answered.
    pub answer: SetAnswer,
    /// The tags of the item, if there are any: so many of the arguments that follow.
    pub tags: Option<(Arguments<'b>, usize)>,
    /// The name of the command, for errors.
    pub name: &'static str,
}

impl<'b> Set<'b> {
    /// The names of the item's tags.
    pub fn tags(&self) -> impl Iterator<Item = &'b [u8]> {
        self.tags.into_iter().flat_map(|(tags, count)| tags.take(count))
    }
}

/// Whether an item has to be there for a `SET`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetCondition {
    /// It does not matter.
    Always,
    /// `NX`
    Absent,
    /// `XX`
    Present,
}

/// The answer to a `SET`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetAnswer {
    /// `OK`, or null if the condition was not met.
    Ok,
    /// The old value, or null.
    OldValue,
    /// 1, or 0 if the condition was not met.
    Number,
}

/// What becomes of the expiry of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewExpiry {
    /// The item never expires (for `GETEX`, `PERSIST`).
    Never,
    /// The item keeps its expiry (`KEEPTTL`).
    Keep,
    /// The item expires then.
    At(ExpireTime),
}

/// An expiry as sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpireTime {
    /// Milliseconds from now, or since 1970.
    pub millis: i64,
    /// Whether it is a Unix time.
    pub absolute: bool,
    /// The name of the command, for errors.
    pub name: &'static str,
}

/// `EXPIRE` and its variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expire {
    /// The new expiry.
    pub time: ExpireTime,
    /// When the expiry is set.
    pub conditions: ExpireConditions,
}

/// The options of `EXPIRE`. All that are given have to hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpireConditions {
    /// `NX`: the item has no expiry.
    pub has_none: bool,
    /// `XX`: the item has an expiry.
    pub has_one: bool,
    /// `GT`: the new expiry is later.
    pub later: bool,
    /// `LT`: the new expiry is earlier.
    pub earlier: bool,
}

/// `SCAN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scan<'b> {
    /// What the call before has answered; 0 for the first.
    pub cursor: u64,
    /// `MATCH`: what keys have to match.
    pub pattern: Option<&'b [u8]>,
    /// `COUNT`: about how many items are looked at.
    pub count: usize,
    /// `TYPE` with another type than strings.
    pub finds_nothing: bool,
}

/// `HELLO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello<'b> {
    /// Whether RESP3 is asked for; `None` keeps the version.
    pub resp3: Option<bool>,
    /// `AUTH`
    pub credentials: Option<Credentials<'b>>,
    /// `SETNAME`
    pub client_name: Option<&'b [u8]>,
}

/// `AUTH`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Auth<'b> {
    /// The user, `default` if none is named, and the password.
    pub credentials: Credentials<'b>,
    /// Whether a user is named.
    pub is_named: bool,
}

impl<'b> Command<'b> {}
