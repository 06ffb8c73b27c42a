//! Converts a request into a [`Command`]: parses all arguments, except those after the key of a
//! command on one key, which `item_parser.rs` parses.

use super::command::{
    Auth, Clients, Command, CommandFilter, CopyItem, CopyKind, Hello, ItemCommand, ItemsCommand,
    Scan,
};
use super::error::{CommandError, Parsed};
use super::item_parser::{checked_tag, item_command};
use super::key::checked_key;
use super::number::i64_of;
use super::request::{Arguments, Request};
use super::script::ScriptCall;
use super::table::Verb;
use super::tracking::options::{caching, tracking};
use super::words::{integer, is, next, nth};
use crate::request::{Credentials, Password};

impl<'b> Command<'b> {
    /// Parses a request. `verb` and `name` are from the row of [`Request::row`].
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
            Verb::Select => Self::Select(database_of(next(&mut rest))?),
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
            Verb::ClientTracking => {
                rest.next();
                Self::ClientTracking(tracking(rest)?)
            }
            Verb::ClientCaching => Self::ClientCaching(caching(nth(rest, 1))),
            Verb::ClientGetRedir => Self::ClientGetRedir,
            Verb::ClientTrackingInfo => Self::ClientTrackingInfo,
            Verb::Subscribe => Self::Subscribe(rest),
            Verb::Unsubscribe => Self::Unsubscribe(rest),
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
            Verb::LatencyLatest => Self::LatencyLatest,
            Verb::LatencyReset => Self::LatencyReset,
            Verb::SlowLogGet => {
                rest.next();
                if let Some(count) = rest.next() {
                    integer(count)?;
                }
                if rest.len() > 0 {
                    return Err(CommandError::Arity(name));
                }
                Self::SlowLogGet
            }
            Verb::SlowLogLen => Self::SlowLogLen,
            Verb::SlowLogReset => Self::SlowLogReset,
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
            Verb::Watch => Self::Watch(rest),
            Verb::Unwatch => Self::Unwatch,
            Verb::MGet => Self::Items(ItemsCommand::MGet(rest)),
            Verb::MSet if rest.len() % 2 == 1 => return Err(CommandError::Arity(name)),
            Verb::MSet => Self::Items(ItemsCommand::MSet(rest)),
            Verb::MSetNx if rest.len() % 2 == 1 => return Err(CommandError::Arity(name)),
            Verb::MSetNx => {
                { rest }.step_by(2).try_for_each(|key| checked_key(key).map(|_| ()))?;
                Self::AddItems(rest)
            }
            Verb::Rename | Verb::RenameNx => {
                let is_rename = verb == Verb::Rename;
                let kind = if is_rename { CopyKind::Rename } else { CopyKind::RenameNx };
                let (from, to) = (checked_key(next(&mut rest))?, checked_key(next(&mut rest))?);
                Self::CopyItem(CopyItem { from, to, kind })
            }
            Verb::Copy => Self::CopyItem(copy(rest)?),
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

/// Parses the keys and options of `COPY`.
fn copy<'b>(mut rest: Arguments<'b>) -> Parsed<'b, CopyItem<'b>> {
    let (from, to) = (next(&mut rest), next(&mut rest));
    let (mut database, mut replaces) = (0, false);
    while let Some(option) = rest.next() {
        match option {
            _ if is(option, "replace") => replaces = true,
            _ if is(option, "db") => {
                database = database_of(rest.next().ok_or(CommandError::Syntax)?)?
            }
            _ => return Err(CommandError::Syntax),
        }
    }
    let (from, to) = (checked_key(from)?, checked_key(to)?);
    Ok(CopyItem { from, to, kind: CopyKind::Copy { database, replaces } })
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

fn flush<'b>(rest: Arguments<'b>) -> Parsed<'b, Command<'b>> {
    let word = nth(rest, 0);
    match rest.len() {
        0 => Ok(Command::Flush),
        1 if is(word, "async") || is(word, "sync") => Ok(Command::Flush),
        _ => Err(CommandError::Syntax),
    }
}

/// Parses a database number, which may be out of range.
fn database_of(text: &[u8]) -> Parsed<'_, i32> {
    i32::try_from(integer(text)?).map_err(|_| CommandError::IntRange)
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

/// Checks the name or version of a client's library (`CLIENT SETINFO`). The server does not store
/// the value.
fn check_client_info<'b>(attribute: &'b [u8], value: &'b [u8]) -> Parsed<'b, ()> {
    let known = ["lib-name", "lib-ver"].into_iter().find(|known| is(attribute, known));
    let known = known.ok_or(CommandError::ClientInfo(attribute))?;
    if is_printable(value) { Ok(()) } else { Err(CommandError::ClientInfoValue(known)) }
}
