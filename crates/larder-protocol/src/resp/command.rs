//! Commands with their arguments. `command_parser.rs` creates them.

use super::decimal::Decimal;
use super::error::Parsed;
use super::key::checked_key;
use super::request::Arguments;
use super::script::ScriptCall;
use super::tracking::options::Tracking;
use crate::request::Credentials;

/// A command with its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the protocol's own")]
pub enum Command<'b> {
    Ping(Option<&'b [u8]>),
    Echo(&'b [u8]),
    Hello(Hello<'b>),
    Auth(Auth<'b>),
    /// The number of the database to select.
    Select(i32),
    Quit,
    Reset,
    ClientId,
    ClientGetName,
    /// `CLIENT INFO`, `CLIENT LIST`.
    Clients(Clients<'b>),
    ClientSetName(&'b [u8]),
    ClientSetInfo,
    /// `CLIENT NO-EVICT` and `CLIENT NO-TOUCH`, which have no effect.
    ClientMode,
    ClientTracking(Tracking<'b>),
    /// `CLIENT CACHING YES` or `NO`; `None` for another word.
    ClientCaching(Option<bool>),
    ClientGetRedir,
    ClientTrackingInfo,
    /// The channels to subscribe to.
    Subscribe(Arguments<'b>),
    /// The channels to unsubscribe from; empty for all channels.
    Unsubscribe(Arguments<'b>),
    /// An operation on one key.
    Item(&'b [u8], ItemCommand<'b>),
    /// An operation on several keys, executed in the order of the keys.
    Items(ItemsCommand<'b>),
    /// Copies or renames an item.
    CopyItem(CopyItem<'b>),
    /// `MSETNX`: alternating keys and values.
    AddItems(Arguments<'b>),
    /// `EVAL`, `EVALSHA`.
    Script(ScriptCall<'b>),
    /// `SCRIPT LOAD`: the text of the script.
    ScriptLoad(&'b [u8]),
    /// `SCRIPT EXISTS`: hashes in hexadecimal digits.
    ScriptExists(Arguments<'b>),
    ScriptFlush,
    Scan(Scan<'b>),
    /// The pattern that the keys must match.
    Keys(&'b [u8]),
    DbSize,
    Flush,
    /// `TAG.DROP`: the name of the tag.
    DropTag(&'b [u8]),
    Info(Arguments<'b>),
    Role,
    Commands,
    CommandCount,
    CommandList(CommandFilter<'b>),
    CommandDocs,
    CommandInfo(Arguments<'b>),
    ConfigGet(Arguments<'b>),
    /// `CONFIG SET`: alternating names and values.
    ConfigSet(Arguments<'b>),
    ConfigResetStat,
    /// The names of classes; empty for all classes.
    LatencyHistogram(Arguments<'b>),
    LatencyLatest,
    LatencyReset,
    SlowLogGet,
    SlowLogLen,
    SlowLogReset,
    Time,
    /// `WAIT`: reports the number of replicas that have this connection's changes.
    Wait,
    Multi,
    Exec,
    Discard,
    /// The keys to watch.
    Watch(Arguments<'b>),
    Unwatch,
}

/// The commands that `COMMAND LIST` lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandFilter<'b> {
    /// All commands, without their subcommands.
    All,
    /// `FILTERBY PATTERN`: the commands and subcommands whose names match.
    Pattern(&'b [u8]),
    /// `FILTERBY MODULE` and `ACLCAT`: no commands, because no command belongs to a module or
    /// category.
    None,
}

/// A selection of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clients<'b> {
    /// All connections.
    All,
    /// The requesting connection.
    Own,
    /// No connections: the client requested a type of connections that this server does not have.
    None,
    /// The connections with these numbers.
    Ids(Arguments<'b>),
}

/// An operation on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the protocol's own")]
pub enum ItemCommand<'b> {
    Get,
    Set(Set<'b>),
    GetDel,
    /// `DELIFEQ`, and `DELEX` with `IFEQ` or `IFNE`.
    DeleteIf {
        /// The value to compare with.
        value: &'b [u8],
        /// True to remove the item if its value equals `value`, false to remove it if its value
        /// differs.
        equal: bool,
    },
    /// The new expiry; `None` keeps the expiry.
    GetEx(Option<NewExpiry>),
    Append(&'b [u8]),
    StrLen,
    GetRange {
        start: i64,
        end: i64,
    },
    /// `SETRANGE`: overwrites the bytes from the offset on.
    SetRange {
        offset: u64,
        bytes: &'b [u8],
    },
    /// `SETBIT`: the offset of the bit, and its new value.
    SetBit(u64, bool),
    /// `GETBIT`: the offset of the bit.
    GetBit(u64),
    /// `BITCOUNT`: the first and the last offset, both included. Offsets are in bits with
    /// `in_bits`, otherwise in bytes.
    BitCount {
        start: i64,
        end: i64,
        in_bits: bool,
    },
    /// Adds this amount to a number.
    Add(i64),
    /// `INCRBYFLOAT`: adds this amount to a number.
    AddDecimal(Decimal),
    Expire(Expire),
    Persist,
    /// `TTL` and its variants.
    ShowExpiry {
        /// Whether to reply with milliseconds rather than seconds.
        in_millis: bool,
        /// Whether to reply with a Unix time rather than the time to live.
        absolute: bool,
    },
    Type,
    MemoryUsage,
}

/// `RENAME`, `RENAMENX` and `COPY`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyItem<'b> {
    /// The key of the item.
    pub from: &'b [u8],
    /// The key of the new item.
    pub to: &'b [u8],
    /// `RENAME`, `RENAMENX` or `COPY`, with the command's own options.
    pub kind: CopyKind,
}

/// The command of a [`CopyItem`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyKind {
    /// `RENAME`. The reply is `OK`, or an error if there is no item to rename.
    Rename,
    /// `RENAMENX`. The reply is 1 if the item was renamed, 0 if there is an item with the new key,
    /// and an error if there is no item to rename.
    RenameNx,
    /// `COPY`. The reply is 1 if the item was copied, and 0 if there is an item with the new key or
    /// no item to copy. Equal keys are an error.
    Copy {
        /// The new item's database number, which may be out of range.
        database: i32,
        /// Whether to replace an item with the new key.
        replaces: bool,
    },
}

/// An operation on several keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the protocol's own")]
pub enum ItemsCommand<'b> {
    MGet(Arguments<'b>),
    /// Alternating keys and values.
    MSet(Arguments<'b>),
    Del(Arguments<'b>),
    Exists(Arguments<'b>),
    Touch(Arguments<'b>),
}

impl<'b> ItemsCommand<'b> {
    /// Returns the words after the command's name, and the number of words per key. The first word
    /// of each key's group is the key.
    #[must_use]
    pub fn words(&self) -> (Arguments<'b>, usize) {
        match *self {
            Self::MSet(words) => (words, 2),
            Self::MGet(words) | Self::Del(words) | Self::Exists(words) | Self::Touch(words) => {
                (words, 1)
            }
        }
    }

    /// Returns the name of the equivalent command with one key.
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

    /// Checks all keys of an `MSET`, because one invalid key invalidates the whole command. Does
    /// not check the keys of other commands.
    pub fn check_keys(&self) -> Parsed<'b, ()> {
        match self {
            Self::MSet(words) => words.step_by(2).try_for_each(|key| checked_key(key).map(|_| ())),
            _ => Ok(()),
        }
    }
}

/// `SET` and its variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set<'b> {
    /// The bytes to store.
    pub value: &'b [u8],
    /// The condition for storing the value.
    pub condition: SetCondition<'b>,
    /// The expiry of the item.
    pub expiry: NewExpiry,
    /// The kind of the reply.
    pub answer: SetAnswer,
    /// The arguments, starting with the first tag, and the number of tags. `None` without the
    /// option `TAGS`.
    pub tags: Option<(Arguments<'b>, usize)>,
    /// The name of the command, for error messages.
    pub name: &'static str,
}

impl<'b> Set<'b> {
    /// Returns the names of the item's tags.
    pub fn tags(&self) -> impl Iterator<Item = &'b [u8]> {
        self.tags.into_iter().flat_map(|(tags, count)| tags.take(count))
    }
}

/// The condition of a `SET` for storing the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetCondition<'b> {
    /// Stores the value unconditionally.
    Always,
    /// `NX`: stores the value only if there is no item.
    Absent,
    /// `XX`: stores the value only if there is an item.
    Present,
    /// `IFEQ`: stores the value only if there is an item with this value.
    Equal(&'b [u8]),
    /// `IFNE`: stores the value unless there is an item with this value.
    Unequal(&'b [u8]),
}

/// The reply to a `SET`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetAnswer {
    /// `OK`, or null if the condition was not met.
    Ok,
    /// The old value, or null.
    OldValue,
    /// 1, or 0 if the condition was not met.
    Number,
}

/// The new expiry of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewExpiry {
    /// The item never expires (for `GETEX`, `PERSIST`).
    Never,
    /// The item keeps its expiry (`KEEPTTL`).
    Keep,
    /// The item expires at this time.
    At(ExpireTime),
}

/// An expiry as sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpireTime {
    /// Milliseconds from now, or since 1970.
    pub millis: i64,
    /// Whether `millis` is a Unix time.
    pub absolute: bool,
    /// The name of the command, for error messages.
    pub name: &'static str,
}

/// `EXPIRE` and its variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expire {
    /// The new expiry.
    pub time: ExpireTime,
    /// The conditions for setting the expiry.
    pub conditions: ExpireConditions,
}

/// The conditions in the options of `EXPIRE`. The command has an effect only if all given
/// conditions hold.
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
    /// The cursor in the previous reply; 0 for the first call.
    pub cursor: u64,
    /// `MATCH`: a pattern for keys.
    pub pattern: Option<&'b [u8]>,
    /// `COUNT`: the approximate number of items to visit.
    pub count: usize,
    /// Whether `TYPE` is a type other than `string`, so that no item matches.
    pub finds_nothing: bool,
}

/// `HELLO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello<'b> {
    /// Whether to select RESP3, rather than RESP2; `None` keeps the version.
    pub resp3: Option<bool>,
    /// `AUTH`: a login.
    pub credentials: Option<Credentials<'b>>,
    /// `SETNAME`: the name of the connection.
    pub client_name: Option<&'b [u8]>,
}

/// `AUTH`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Auth<'b> {
    /// The user, by default `default`, and the password.
    pub credentials: Credentials<'b>,
    /// Whether the request has a user name.
    pub is_named: bool,
}
