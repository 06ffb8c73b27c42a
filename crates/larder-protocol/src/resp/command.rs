//! What a request asks for: its arguments, read and checked.

use super::error::CommandError;
use super::number::i64_of;
use super::request::{Arguments, Request};
use super::table::Verb;
use crate::request::{Credentials, Password};

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
    /// [`CommandError::KeyLength`]
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

type Parsed<'b, T> = Result<T, CommandError<'b>>;

impl<'b> Command<'b> {
    /// What `request` asks for, which [`Request::row`] has found to be `verb` of this `name`.
    ///
    /// # Errors
    /// The arguments are wrong.
    pub fn parse(request: &Request<'b>, verb: Verb, name: &'static str) -> Parsed<'b, Self> {
        let mut arguments = request.arguments;
        let mut rest = arguments;
        Ok(match verb {
            Verb::Ping if rest.len() > 1 => return Err(CommandError::Arity(name)),
            Verb::Ping => Self::Ping(rest.next()),
            Verb::Echo => Self::Echo(next(&mut rest)),
            Verb::Hello => Self::Hello(hello(rest)?),
            Verb::Auth => Self::Auth(auth(rest)?),
            Verb::Select => select(next(&mut rest))?,
            Verb::Quit => Self::Quit,
            Verb::Reset => Self::Reset,
            Verb::ClientId => Self::ClientId,
            Verb::ClientGetName => Self::ClientGetName,
            Verb::ClientInfo => Self::Clients(Clients::Own),
            Verb::ClientList => {
                rest.next();
                Self::Clients(clients(rest)?)
            }
            Verb::ClientSetName => Self::ClientSetName(client_name(nth(rest, 1))?),
            Verb::ClientSetInfo => {
                check_client_info(nth(rest, 1), nth(rest, 2))?;
                Self::ClientSetInfo
            }
            Verb::ClientNoEvict | Verb::ClientNoTouch => {
                let word = nth(rest, 1);
                if !is(word, "on") && !is(word, "off") {
                    return Err(CommandError::Syntax);
                }
                Self::ClientMode
            }
            Verb::Scan => Self::Scan(scan(rest)?),
            Verb::Keys => Self::Keys(next(&mut rest)),
            Verb::DbSize => Self::DbSize,
            Verb::FlushAll | Verb::FlushDb => flush(rest)?,
            Verb::TagDrop => Self::DropTag(checked_tag(nth(rest, 0))?),
            Verb::Info => Self::Info(rest),
            Verb::Role => Self::Role,
            Verb::Command => Self::Commands,
            Verb::CommandCount => Self::CommandCount,
            Verb::CommandList => Self::CommandList,
            Verb::CommandDocs => Self::CommandDocs,
            Verb::CommandInfo => {
                rest.next();
                if rest.len() == 0 { Self::Commands } else { Self::CommandInfo(rest) }
            }
            Verb::ConfigGet => {
                rest.next();
                Self::ConfigGet(rest)
            }
            Verb::ConfigSet => {
                rest.next();
                if rest.len() % 2 == 1 {
                    return Err(CommandError::Arity(name));
                }
                Self::ConfigSet(rest)
            }
            Verb::ConfigResetStat => Self::ConfigResetStat,
            Verb::LatencyHistogram => {
                rest.next();
                Self::LatencyHistogram(rest)
            }
            Verb::MemoryUsage => {
                rest.next();
                let key = next(&mut rest);
                check_samples(rest)?;
                Self::Item(checked_key(key)?, ItemCommand::MemoryUsage)
            }
            Verb::Time => Self::Time,
            Verb::Wait => {
                integer(next(&mut rest))?;
                match i64_of(next(&mut rest)) {
                    None => return Err(CommandError::TimeoutNotInteger),
                    Some(..0) => return Err(CommandError::TimeoutNegative),
                    Some(_) => Self::Wait,
                }
            }
            Verb::Multi => Self::Multi,
            Verb::Exec => Self::Exec,
            Verb::Discard => Self::Discard,
            Verb::MGet => Self::Items(ItemsCommand::MGet(rest)),
            Verb::MSet if rest.len() % 2 == 1 => return Err(CommandError::Arity(name)),
            Verb::MSet => Self::Items(ItemsCommand::MSet(rest)),
            Verb::Del | Verb::Unlink => Self::Items(ItemsCommand::Del(rest)),
            Verb::Exists => Self::Items(ItemsCommand::Exists(rest)),
            Verb::Touch => Self::Items(ItemsCommand::Touch(rest)),
            _ => {
                let key = next(&mut arguments);
                let command = item_command(arguments, verb, name)?;
                Self::Item(checked_key(key)?, command)
            }
        })
    }
}

/// The longest key in bytes.
pub const KEY_LEN_MAX: usize = 1024;

/// A key, if it is not too long, and not empty.
///
/// # Errors
/// [`CommandError::KeyLength`]
pub fn checked_key<'b>(key: &'b [u8]) -> Parsed<'b, &'b [u8]> {
    match key.len() {
        1..=KEY_LEN_MAX => Ok(key),
        _ => Err(CommandError::KeyLength),
    }
}

/// The most tags that an item can have, and the longest name of one in bytes.
const TAGS_MAX: usize = 7;
const TAG_LEN_MAX: usize = 250;

fn checked_tag<'b>(tag: &'b [u8]) -> Parsed<'b, &'b [u8]> {
    if (1..=TAG_LEN_MAX).contains(&tag.len()) { Ok(tag) } else { Err(CommandError::TagLength) }
}

fn item_command<'b>(
    mut rest: Arguments<'b>,
    verb: Verb,
    name: &'static str,
) -> Parsed<'b, ItemCommand<'b>> {
    let (first, second) = (nth(rest, 0), nth(rest, 1));
    let show_expiry = |in_millis, absolute| ItemCommand::ShowExpiry { in_millis, absolute };
    let plain_set = |value, condition, answer| {
        ItemCommand::Set(Set {
            value,
            condition,
            expiry: NewExpiry::Never,
            answer,
            tags: None,
            name,
        })
    };
    Ok(match verb {
        Verb::Get => ItemCommand::Get,
        Verb::GetDel => ItemCommand::GetDel,
        Verb::GetEx => {
            let options = Options::parse(rest, OptionsOf::GetEx)?;
            ItemCommand::GetEx(match options.expiry {
                ExpiryOption::None => None,
                _ => Some(options.expiry(name)?),
            })
        }
        Verb::Set => {
            rest.next();
            let options = Options::parse(rest, OptionsOf::Set)?;
            let answer = if options.get { SetAnswer::OldValue } else { SetAnswer::Ok };
            let expiry = options.expiry(name)?;
            ItemCommand::Set(Set {
                value: first,
                condition: options.condition,
                expiry,
                answer,
                tags: options.tags,
                name,
            })
        }
        Verb::SetNx => plain_set(first, SetCondition::Absent, SetAnswer::Number),
        Verb::GetSet => plain_set(first, SetCondition::Always, SetAnswer::OldValue),
        Verb::SetEx | Verb::PSetEx => {
            let unit = if verb == Verb::SetEx { Unit::Seconds } else { Unit::Millis };
            let expiry = NewExpiry::At(positive_time(first, unit, false, name)?);
            let (condition, answer) = (SetCondition::Always, SetAnswer::Ok);
            ItemCommand::Set(Set { value: second, condition, expiry, answer, tags: None, name })
        }
        Verb::Append => ItemCommand::Append(first),
        Verb::StrLen => ItemCommand::StrLen,
        Verb::GetRange => ItemCommand::GetRange { start: integer(first)?, end: integer(second)? },
        Verb::Incr => ItemCommand::Add(1),
        Verb::Decr => ItemCommand::Add(-1),
        Verb::IncrBy => ItemCommand::Add(integer(first)?),
        Verb::DecrBy => {
            let delta = integer(first)?.checked_neg();
            ItemCommand::Add(delta.ok_or(CommandError::DecrementOverflow)?)
        }
        Verb::Expire => ItemCommand::Expire(expire(rest, Unit::Seconds, false, name)?),
        Verb::PExpire => ItemCommand::Expire(expire(rest, Unit::Millis, false, name)?),
        Verb::ExpireAt => ItemCommand::Expire(expire(rest, Unit::Seconds, true, name)?),
        Verb::PExpireAt => ItemCommand::Expire(expire(rest, Unit::Millis, true, name)?),
        Verb::Persist => ItemCommand::Persist,
        Verb::Ttl => show_expiry(false, false),
        Verb::PTtl => show_expiry(true, false),
        Verb::ExpireTime => show_expiry(false, true),
        Verb::PExpireTime => show_expiry(true, true),
        Verb::Type => ItemCommand::Type,
        _ => return Err(CommandError::Syntax),
    })
}

fn next<'b>(arguments: &mut Arguments<'b>) -> &'b [u8] {
    arguments.next().unwrap_or_default()
}

/// The options of `CLIENT LIST`.
fn clients(mut rest: Arguments<'_>) -> Parsed<'_, Clients<'_>> {
    let Some(option) = rest.next() else { return Ok(Clients::All) };
    if is(option, "id") && rest.len() > 0 {
        let is_id = |text| i64_of(text).is_some();
        return if { rest }.all(is_id) {
            Ok(Clients::Ids(rest))
        } else {
            Err(CommandError::ClientId)
        };
    }
    if !is(option, "type") || rest.len() != 1 {
        return Err(CommandError::Syntax);
    }
    let kind = next(&mut rest);
    match ["normal", "master", "replica", "slave", "pubsub"].iter().position(|name| is(kind, name))
    {
        Some(0) => Ok(Clients::All),
        Some(_) => Ok(Clients::None),
        None => Err(CommandError::ClientType(kind)),
    }
}

fn nth<'b>(mut arguments: Arguments<'b>, index: usize) -> &'b [u8] {
    arguments.nth(index).unwrap_or_default()
}

fn integer<'b>(text: &'b [u8]) -> Parsed<'b, i64> {
    i64_of(text).ok_or(CommandError::NotInteger)
}

fn is(word: &[u8], name: &str) -> bool {
    word.eq_ignore_ascii_case(name.as_bytes())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Seconds,
    Millis,
}

/// The expiry of `SET`, which is later than now, or than 1970.
fn positive_time<'b>(
    text: &'b [u8],
    unit: Unit,
    absolute: bool,
    name: &'static str,
) -> Parsed<'b, ExpireTime> {
    match integer(text)? {
        ..=0 => Err(CommandError::ExpireTime(name)),
        time => expire_time(time, unit, absolute, name),
    }
}

fn expire_time<'b>(
    time: i64,
    unit: Unit,
    absolute: bool,
    name: &'static str,
) -> Parsed<'b, ExpireTime> {
    let millis = if unit == Unit::Seconds { time.checked_mul(1000) } else { Some(time) };
    let millis = millis.ok_or(CommandError::ExpireTime(name))?;
    Ok(ExpireTime { millis, absolute, name })
}

fn expire<'b>(
    mut rest: Arguments<'b>,
    unit: Unit,
    absolute: bool,
    name: &'static str,
) -> Parsed<'b, Expire> {
    let time = next(&mut rest);
    let mut conditions = ExpireConditions::default();
    for option in rest {
        match option {
            _ if is(option, "nx") => conditions.has_none = true,
            _ if is(option, "xx") => conditions.has_one = true,
            _ if is(option, "gt") => conditions.later = true,
            _ if is(option, "lt") => conditions.earlier = true,
            _ => return Err(CommandError::ExpireOption(option)),
        }
    }
    let ExpireConditions { has_none, has_one, later, earlier } = conditions;
    if has_none && (has_one || later || earlier) {
        return Err(CommandError::ExpireNx);
    }
    if later && earlier {
        return Err(CommandError::ExpireGtLt);
    }
    Ok(Expire { time: expire_time(integer(time)?, unit, absolute, name)?, conditions })
}

/// The options that follow the value of `SET`, or the key of `GETEX`.
struct Options<'b> {
    condition: SetCondition,
    get: bool,
    expiry: ExpiryOption<'b>,
    tags: Option<(Arguments<'b>, usize)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum OptionsOf {
    Set,
    GetEx,
}

#[derive(Clone, Copy)]
enum ExpiryOption<'b> {
    None,
    Keep,
    Persist,
    Time { text: &'b [u8], unit: Unit, absolute: bool },
}

impl<'b> Options<'b> {
    fn parse(mut rest: Arguments<'b>, of: OptionsOf) -> Parsed<'b, Self> {
        let mut options = Self {
            condition: SetCondition::Always,
            get: false,
            expiry: ExpiryOption::None,
            tags: None,
        };
        let is_set = of == OptionsOf::Set;
        while let Some(word) = rest.next() {
            let before = options.expiry;
            // The last of several that are alike counts.
            let mut time = |unit, absolute| match before {
                ExpiryOption::None => time_option(rest.next(), unit, absolute),
                ExpiryOption::Time { unit: other, absolute: is_absolute, .. }
                    if (other, is_absolute) == (unit, absolute) =>
                {
                    time_option(rest.next(), unit, absolute)
                }
                _ => Err(CommandError::Syntax),
            };
            match word {
                _ if is(word, "nx") && is_set && options.condition != SetCondition::Present => {
                    options.condition = SetCondition::Absent;
                }
                _ if is(word, "xx") && is_set && options.condition != SetCondition::Absent => {
                    options.condition = SetCondition::Present;
                }
                _ if is(word, "get") && is_set => options.get = true,
                _ if is(word, "tags") && is_set && options.tags.is_none() => {
                    let count = usize::try_from(integer(rest.next().ok_or(CommandError::Syntax)?)?);
                    let count = count.ok().filter(|count| (1..=TAGS_MAX).contains(count));
                    let count = count.ok_or(CommandError::TagCount)?;
                    options.tags = Some((rest, count));
                    for _ in 0..count {
                        checked_tag(rest.next().ok_or(CommandError::Syntax)?)?;
                    }
                }
                _ if is(word, "keepttl") && is_set => match options.expiry {
                    ExpiryOption::None | ExpiryOption::Keep => options.expiry = ExpiryOption::Keep,
                    _ => return Err(CommandError::Syntax),
                },
                _ if is(word, "persist") && !is_set => match options.expiry {
                    ExpiryOption::None | ExpiryOption::Persist => {
                        options.expiry = ExpiryOption::Persist;
                    }
                    _ => return Err(CommandError::Syntax),
                },
                _ if is(word, "ex") => options.expiry = time(Unit::Seconds, false)?,
                _ if is(word, "px") => options.expiry = time(Unit::Millis, false)?,
                _ if is(word, "exat") => options.expiry = time(Unit::Seconds, true)?,
                _ if is(word, "pxat") => options.expiry = time(Unit::Millis, true)?,
                _ => return Err(CommandError::Syntax),
            }
        }
        Ok(options)
    }

    fn expiry(&self, name: &'static str) -> Parsed<'b, NewExpiry> {
        Ok(match self.expiry {
            ExpiryOption::None | ExpiryOption::Persist => NewExpiry::Never,
            ExpiryOption::Keep => NewExpiry::Keep,
            ExpiryOption::Time { text, unit, absolute } => {
                NewExpiry::At(positive_time(text, unit, absolute, name)?)
            }
        })
    }
}

fn time_option<'b>(
    text: Option<&'b [u8]>,
    unit: Unit,
    absolute: bool,
) -> Parsed<'b, ExpiryOption<'b>> {
    let text = text.ok_or(CommandError::Syntax)?;
    Ok(ExpiryOption::Time { text, unit, absolute })
}

fn flush<'b>(rest: Arguments<'b>) -> Parsed<'b, Command<'b>> {
    let word = nth(rest, 0);
    match rest.len() {
        0 => Ok(Command::Flush),
        1 if is(word, "async") || is(word, "sync") => Ok(Command::Flush),
        _ => Err(CommandError::Syntax),
    }
}

fn select<'b>(text: &'b [u8]) -> Parsed<'b, Command<'b>> {
    match i32::try_from(integer(text)?) {
        Ok(number) => Ok(Command::Select(number)),
        Err(_) => Err(CommandError::IntRange),
    }
}

/// How many items `SCAN` looks at without `COUNT`.
const SCAN_COUNT: usize = 10;

fn scan<'b>(mut rest: Arguments<'b>) -> Parsed<'b, Scan<'b>> {
    let cursor = str::from_utf8(next(&mut rest)).ok().and_then(|text| text.parse().ok());
    let cursor = cursor.ok_or(CommandError::Cursor)?;
    let mut scan = Scan { cursor, pattern: None, count: SCAN_COUNT, finds_nothing: false };
    while let Some(word) = rest.next() {
        let value = rest.next().ok_or(CommandError::Syntax)?;
        match word {
            _ if is(word, "match") => scan.pattern = Some(value),
            _ if is(word, "type") => scan.finds_nothing = !is(value, "string"),
            _ if is(word, "count") => {
                let count = usize::try_from(integer(value)?).map_err(|_| CommandError::Syntax)?;
                scan.count = if count == 0 { return Err(CommandError::Syntax) } else { count };
            }
            _ => return Err(CommandError::Syntax),
        }
    }
    Ok(scan)
}

/// `SAMPLES count`: there are no nested values to sample.
fn check_samples(mut rest: Arguments<'_>) -> Parsed<'_, ()> {
    while let Some(word) = rest.next() {
        let count = rest.next().filter(|_| is(word, "samples")).ok_or(CommandError::Syntax)?;
        if integer(count)? < 0 {
            return Err(CommandError::Syntax);
        }
    }
    Ok(())
}

fn credentials<'b>(user: &'b [u8], password: &'b [u8]) -> Credentials<'b> {
    Credentials { user, password: Password(password) }
}

fn auth<'b>(rest: Arguments<'b>) -> Parsed<'b, Auth<'b>> {
    let (first, second) = (nth(rest, 0), nth(rest, 1));
    match rest.len() {
        1 => Ok(Auth { credentials: credentials(b"default", first), is_named: false }),
        2 => Ok(Auth { credentials: credentials(first, second), is_named: true }),
        _ => Err(CommandError::Syntax),
    }
}

fn hello<'b>(mut rest: Arguments<'b>) -> Parsed<'b, Hello<'b>> {
    let mut hello = Hello { resp3: None, credentials: None, client_name: None };
    let Some(version) = rest.next() else { return Ok(hello) };
    hello.resp3 = match i64_of(version) {
        Some(2) => Some(false),
        Some(3) => Some(true),
        Some(_) => return Err(CommandError::NoProtocol),
        None => return Err(CommandError::HelloVersion),
    };
    while let Some(option) = rest.next() {
        if is(option, "auth") && rest.len() >= 2 {
            hello.credentials = Some(credentials(next(&mut rest), next(&mut rest)));
        } else if is(option, "setname") && rest.len() >= 1 {
            hello.client_name = Some(client_name(next(&mut rest))?);
        } else {
            return Err(CommandError::HelloOption(option));
        }
    }
    Ok(hello)
}

fn is_printable(text: &[u8]) -> bool {
    text.iter().all(|byte| (b'!'..=b'~').contains(byte))
}

fn client_name<'b>(name: &'b [u8]) -> Parsed<'b, &'b [u8]> {
    if is_printable(name) { Ok(name) } else { Err(CommandError::ClientName) }
}

/// The name and version of a client's library are accepted, but not shown anywhere.
fn check_client_info<'b>(attribute: &'b [u8], value: &'b [u8]) -> Parsed<'b, ()> {
    let known = ["lib-name", "lib-ver"].into_iter().find(|known| is(attribute, known));
    let known = known.ok_or(CommandError::ClientInfo(attribute))?;
    if is_printable(value) { Ok(()) } else { Err(CommandError::ClientInfoValue(known)) }
}
