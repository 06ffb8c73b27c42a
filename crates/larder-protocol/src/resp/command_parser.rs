//! Parses and checks the arguments of commands.

use super::command::{
    Auth, Clients, Command, CommandFilter, Expire, ExpireConditions, ExpireTime, Hello,
    ItemCommand, ItemsCommand, NewExpiry, Scan, Set, SetAnswer, SetCondition,
};
use super::error::{CommandError, Parsed};
use super::key::checked_key;
use super::number::i64_of;
use super::request::{Arguments, Request};
use super::script::ScriptCall;
use super::table::Verb;
use crate::request::{Credentials, Password};

impl<'b> Command<'b> {
    /// Parses a request. `verb` and `name` are those that [`Request::row`] has found.
    ///
    /// # Errors
    /// An argument is invalid.
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
            Verb::Eval => Self::Script(ScriptCall::parse(rest, false)?),
            Verb::EvalSha => Self::Script(ScriptCall::parse(rest, true)?),
            Verb::ScriptLoad => Self::ScriptLoad(nth(rest, 1)),
            Verb::ScriptExists => {
                rest.next();
                Self::ScriptExists(rest)
            }
            Verb::ScriptFlush => {
                rest.next();
                let mode = rest.next();
                let is_mode = mode.is_none_or(|mode| is(mode, "async") || is(mode, "sync"));
                if rest.len() > 0 || !is_mode {
                    return Err(CommandError::ScriptFlushMode);
                }
                Self::ScriptFlush
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
            Verb::CommandList => {
                rest.next();
                Self::CommandList(command_filter(rest)?)
            }
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
            Verb::DelEx if rest.len() == 1 => Self::Items(ItemsCommand::Del(rest)),
            _ => {
                let key = next(&mut arguments);
                let command = item_command(arguments, verb, name)?;
                Self::Item(checked_key(key)?, command)
            }
        })
    }
}

/// The maximum number of tags of an item.
const TAGS_MAX: usize = 7;

/// The longest name of a tag in bytes.
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
        Verb::DelIfEq => ItemCommand::DeleteIf { value: first, equal: true },
        Verb::DelEx if rest.len() != 2 => return Err(CommandError::Arity(name)),
        Verb::DelEx if is(first, "ifeq") => ItemCommand::DeleteIf { value: second, equal: true },
        Verb::DelEx if is(first, "ifne") => ItemCommand::DeleteIf { value: second, equal: false },
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

/// Parses the options of `COMMAND LIST`.
fn command_filter(mut rest: Arguments<'_>) -> Parsed<'_, CommandFilter<'_>> {
    if rest.len() == 0 {
        return Ok(CommandFilter::All);
    }
    let (option, kind, argument) = (next(&mut rest), next(&mut rest), rest.next());
    match argument {
        Some(pattern) if is(option, "filterby") && rest.len() == 0 => match kind {
            _ if is(kind, "pattern") => Ok(CommandFilter::Pattern(pattern)),
            _ if is(kind, "module") || is(kind, "aclcat") => Ok(CommandFilter::None),
            _ => Err(CommandError::Syntax),
        },
        _ => Err(CommandError::Syntax),
    }
}

/// Parses the options of `CLIENT LIST`.
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

/// Parses the expiry of `SET`, `GETEX` and `SETEX`, which has to be positive.
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
    condition: SetCondition<'b>,
    get: bool,
    expiry: ExpiryOption<'b>,
    pub(super) tags: Option<(Arguments<'b>, usize)>,
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
            // Of several equal options, the last one counts.
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
                _ if is(word, "nx") && is_set && options.may_be(SetCondition::Absent) => {
                    options.condition = SetCondition::Absent;
                }
                _ if is(word, "xx") && is_set && options.may_be(SetCondition::Present) => {
                    options.condition = SetCondition::Present;
                }
                _ if is(word, "ifeq") && is_set && options.condition == SetCondition::Always => {
                    options.condition =
                        SetCondition::Equal(rest.next().ok_or(CommandError::Syntax)?);
                }
                _ if is(word, "ifne") && is_set && options.condition == SetCondition::Always => {
                    options.condition =
                        SetCondition::Unequal(rest.next().ok_or(CommandError::Syntax)?);
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

    /// Whether the options may have this condition: they have no other one.
    fn may_be(&self, condition: SetCondition<'_>) -> bool {
        [SetCondition::Always, condition].contains(&self.condition)
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

/// The default `COUNT` of `SCAN`.
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

/// Checks `SAMPLES count`, which has no effect because there are no nested values.
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

/// Checks the name or version of a client's library. The server does not store it.
fn check_client_info<'b>(attribute: &'b [u8], value: &'b [u8]) -> Parsed<'b, ()> {
    let known = ["lib-name", "lib-ver"].into_iter().find(|known| is(attribute, known));
    let known = known.ok_or(CommandError::ClientInfo(attribute))?;
    if is_printable(value) { Ok(()) } else { Err(CommandError::ClientInfoValue(known)) }
}
