//! The table of commands: names, arities and positions of keys.

use super::error::CommandError;
use super::request::Request;

/// A command, or a subcommand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the protocol's own")]
pub enum Verb {
    Append,
    Auth,
    BitCount,
    ClientCaching,
    ClientGetName,
    ClientGetRedir,
    ClientId,
    ClientInfo,
    ClientList,
    ClientNoEvict,
    ClientNoTouch,
    ClientSetInfo,
    ClientSetName,
    ClientTracking,
    ClientTrackingInfo,
    Command,
    CommandCount,
    CommandDocs,
    CommandInfo,
    CommandList,
    ConfigGet,
    ConfigResetStat,
    ConfigSet,
    Copy,
    DbSize,
    Decr,
    DecrBy,
    Del,
    DelEx,
    DelIfEq,
    Discard,
    Echo,
    Eval,
    EvalSha,
    Exec,
    Exists,
    Expire,
    ExpireAt,
    ExpireTime,
    FlushAll,
    FlushDb,
    Get,
    GetBit,
    GetDel,
    GetEx,
    GetRange,
    GetSet,
    Hello,
    Incr,
    IncrBy,
    IncrByFloat,
    Info,
    Keys,
    LatencyHistogram,
    LatencyLatest,
    LatencyReset,
    MGet,
    MSet,
    MSetNx,
    MemoryUsage,
    Multi,
    PExpire,
    PExpireAt,
    PExpireTime,
    PSetEx,
    PTtl,
    Persist,
    Ping,
    Quit,
    Rename,
    RenameNx,
    Reset,
    Role,
    Scan,
    ScriptExists,
    ScriptFlush,
    ScriptLoad,
    Select,
    Set,
    SetBit,
    SetEx,
    SetNx,
    SetRange,
    SlowLogGet,
    SlowLogLen,
    SlowLogReset,
    StrLen,
    Subscribe,
    TagDrop,
    Time,
    Touch,
    Ttl,
    Type,
    Unlink,
    Unsubscribe,
    Unwatch,
    Wait,
    Watch,
}

impl Verb {
    /// Returns whether the command changes items.
    #[must_use]
    pub fn changes_items(self) -> bool {
        matches!(
            self,
            Self::Append
                | Self::Copy
                | Self::Decr
                | Self::DecrBy
                | Self::Del
                | Self::DelEx
                | Self::DelIfEq
                | Self::Eval
                | Self::EvalSha
                | Self::Expire
                | Self::ExpireAt
                | Self::FlushAll
                | Self::FlushDb
                | Self::GetDel
                | Self::GetEx
                | Self::GetSet
                | Self::Incr
                | Self::IncrBy
                | Self::IncrByFloat
                | Self::MSet
                | Self::MSetNx
                | Self::PExpire
                | Self::PExpireAt
                | Self::PSetEx
                | Self::Persist
                | Self::Rename
                | Self::RenameNx
                | Self::Set
                | Self::SetBit
                | Self::SetEx
                | Self::SetNx
                | Self::SetRange
                | Self::TagDrop
                | Self::Unlink
        )
    }
}

impl Verb {
    /// Returns whether a RESP2 connection that subscribes to a channel may send the command.
    #[must_use]
    pub fn is_allowed_for_subscribers(self) -> bool {
        matches!(self, Self::Ping | Self::Quit | Self::Reset | Self::Subscribe | Self::Unsubscribe)
    }

    /// Returns whether a command with several keys can be split into one command per key, each
    /// executed by the owner of the key.
    #[must_use]
    pub fn is_split(self) -> bool {
        !matches!(self, Self::Copy | Self::MSetNx | Self::Rename | Self::RenameNx)
    }
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The command; `None` if it requires a subcommand.
    pub verb: Option<Verb>,
    /// The name in lower case. The name of a subcommand starts with its command's name and `|`.
    pub name: &'static str,
    /// The number of words, the name included. If negative, the command has at least `-arity`
    /// words.
    pub arity: i8,
    /// The index of the first key, the index of the last key (from the end if negative), and the
    /// distance between keys. All three are 0 for a command without keys.
    pub keys: (i8, i8, i8),
}

const fn row(name: &'static str, verb: Verb, arity: i8, keys: (i8, i8, i8)) -> Row {
    Row { name, verb: Some(verb), arity, keys }
}

const fn container(name: &'static str) -> Row {
    Row { name, verb: None, arity: -2, keys: NO_KEYS }
}

const NO_KEYS: (i8, i8, i8) = (0, 0, 0);
const ONE_KEY: (i8, i8, i8) = (1, 1, 1);
/// The position of the key, which follows the script and the number of keys. This number is 1 for
/// known scripts.
const SCRIPT_KEY: (i8, i8, i8) = (3, 3, 1);
const TWO_KEYS: (i8, i8, i8) = (1, 2, 1);
const ALL_KEYS: (i8, i8, i8) = (1, -1, 1);

/// All commands. The most frequent ones come first, because lookups are linear.
pub static COMMANDS: [Row; 76] = [
    row("get", Verb::Get, 2, ONE_KEY),
    row("set", Verb::Set, -3, ONE_KEY),
    row("mget", Verb::MGet, -2, ALL_KEYS),
    row("mset", Verb::MSet, -3, (1, -1, 2)),
    row("del", Verb::Del, -2, ALL_KEYS),
    row("setex", Verb::SetEx, 4, ONE_KEY),
    row("incr", Verb::Incr, 2, ONE_KEY),
    row("incrby", Verb::IncrBy, 3, ONE_KEY),
    row("expire", Verb::Expire, -3, ONE_KEY),
    row("exists", Verb::Exists, -2, ALL_KEYS),
    row("append", Verb::Append, 3, ONE_KEY),
    row("auth", Verb::Auth, -2, NO_KEYS),
    row("bitcount", Verb::BitCount, -2, ONE_KEY),
    container("client"),
    Row { name: "command", verb: Some(Verb::Command), arity: -1, keys: NO_KEYS },
    container("config"),
    row("copy", Verb::Copy, -3, TWO_KEYS),
    row("dbsize", Verb::DbSize, 1, NO_KEYS),
    row("decr", Verb::Decr, 2, ONE_KEY),
    row("decrby", Verb::DecrBy, 3, ONE_KEY),
    row("delex", Verb::DelEx, -2, ONE_KEY),
    row("delifeq", Verb::DelIfEq, 3, ONE_KEY),
    row("discard", Verb::Discard, 1, NO_KEYS),
    row("echo", Verb::Echo, 2, NO_KEYS),
    row("eval", Verb::Eval, -3, SCRIPT_KEY),
    row("evalsha", Verb::EvalSha, -3, SCRIPT_KEY),
    row("exec", Verb::Exec, 1, NO_KEYS),
    row("expireat", Verb::ExpireAt, -3, ONE_KEY),
    row("expiretime", Verb::ExpireTime, 2, ONE_KEY),
    row("flushall", Verb::FlushAll, -1, NO_KEYS),
    row("flushdb", Verb::FlushDb, -1, NO_KEYS),
    row("getbit", Verb::GetBit, 3, ONE_KEY),
    row("getdel", Verb::GetDel, 2, ONE_KEY),
    row("getex", Verb::GetEx, -2, ONE_KEY),
    row("getrange", Verb::GetRange, 4, ONE_KEY),
    row("getset", Verb::GetSet, 3, ONE_KEY),
    row("hello", Verb::Hello, -1, NO_KEYS),
    row("incrbyfloat", Verb::IncrByFloat, 3, ONE_KEY),
    row("info", Verb::Info, -1, NO_KEYS),
    row("keys", Verb::Keys, 2, NO_KEYS),
    container("latency"),
    container("memory"),
    row("msetnx", Verb::MSetNx, -3, (1, -1, 2)),
    row("multi", Verb::Multi, 1, NO_KEYS),
    row("persist", Verb::Persist, 2, ONE_KEY),
    row("pexpire", Verb::PExpire, -3, ONE_KEY),
    row("pexpireat", Verb::PExpireAt, -3, ONE_KEY),
    row("pexpiretime", Verb::PExpireTime, 2, ONE_KEY),
    row("ping", Verb::Ping, -1, NO_KEYS),
    row("psetex", Verb::PSetEx, 4, ONE_KEY),
    row("pttl", Verb::PTtl, 2, ONE_KEY),
    row("quit", Verb::Quit, -1, NO_KEYS),
    row("rename", Verb::Rename, 3, TWO_KEYS),
    row("renamenx", Verb::RenameNx, 3, TWO_KEYS),
    row("reset", Verb::Reset, 1, NO_KEYS),
    row("role", Verb::Role, 1, NO_KEYS),
    row("scan", Verb::Scan, -2, NO_KEYS),
    container("script"),
    row("select", Verb::Select, 2, NO_KEYS),
    row("setbit", Verb::SetBit, 4, ONE_KEY),
    row("setnx", Verb::SetNx, 3, ONE_KEY),
    row("setrange", Verb::SetRange, 4, ONE_KEY),
    container("slowlog"),
    row("strlen", Verb::StrLen, 2, ONE_KEY),
    row("subscribe", Verb::Subscribe, -2, NO_KEYS),
    row("substr", Verb::GetRange, 4, ONE_KEY),
    row("tag.drop", Verb::TagDrop, 2, NO_KEYS),
    row("time", Verb::Time, 1, NO_KEYS),
    row("touch", Verb::Touch, -2, ALL_KEYS),
    row("ttl", Verb::Ttl, 2, ONE_KEY),
    row("type", Verb::Type, 2, ONE_KEY),
    row("unlink", Verb::Unlink, -2, ALL_KEYS),
    row("unsubscribe", Verb::Unsubscribe, -1, NO_KEYS),
    row("unwatch", Verb::Unwatch, 1, NO_KEYS),
    row("wait", Verb::Wait, 3, NO_KEYS),
    row("watch", Verb::Watch, -2, ALL_KEYS),
];

pub(crate) static SUBCOMMANDS: [Row; 29] = [
    row("client|caching", Verb::ClientCaching, 3, NO_KEYS),
    row("client|getname", Verb::ClientGetName, 2, NO_KEYS),
    row("client|getredir", Verb::ClientGetRedir, 2, NO_KEYS),
    row("client|id", Verb::ClientId, 2, NO_KEYS),
    row("client|info", Verb::ClientInfo, 2, NO_KEYS),
    row("client|list", Verb::ClientList, -2, NO_KEYS),
    row("client|no-evict", Verb::ClientNoEvict, 3, NO_KEYS),
    row("client|no-touch", Verb::ClientNoTouch, 3, NO_KEYS),
    row("client|setinfo", Verb::ClientSetInfo, 4, NO_KEYS),
    row("client|setname", Verb::ClientSetName, 3, NO_KEYS),
    row("client|tracking", Verb::ClientTracking, -3, NO_KEYS),
    row("client|trackinginfo", Verb::ClientTrackingInfo, 2, NO_KEYS),
    row("command|count", Verb::CommandCount, 2, NO_KEYS),
    row("command|docs", Verb::CommandDocs, -2, NO_KEYS),
    row("command|info", Verb::CommandInfo, -2, NO_KEYS),
    row("command|list", Verb::CommandList, -2, NO_KEYS),
    row("config|get", Verb::ConfigGet, -3, NO_KEYS),
    row("config|resetstat", Verb::ConfigResetStat, 2, NO_KEYS),
    row("config|set", Verb::ConfigSet, -4, NO_KEYS),
    row("latency|histogram", Verb::LatencyHistogram, -2, NO_KEYS),
    row("latency|latest", Verb::LatencyLatest, 2, NO_KEYS),
    row("latency|reset", Verb::LatencyReset, -2, NO_KEYS),
    row("memory|usage", Verb::MemoryUsage, -3, (2, 2, 1)),
    row("script|exists", Verb::ScriptExists, -3, NO_KEYS),
    row("script|flush", Verb::ScriptFlush, -2, NO_KEYS),
    row("script|load", Verb::ScriptLoad, 3, NO_KEYS),
    row("slowlog|get", Verb::SlowLogGet, -2, NO_KEYS),
    row("slowlog|len", Verb::SlowLogLen, 2, NO_KEYS),
    row("slowlog|reset", Verb::SlowLogReset, 2, NO_KEYS),
];

impl Row {
    /// Finds the command with this name. Ignores the case of letters.
    #[must_use]
    pub fn named(name: &[u8]) -> Option<&'static Self> {
        COMMANDS.iter().find(|row| row.name.as_bytes().eq_ignore_ascii_case(name))
    }

    /// Finds the subcommand with this name.
    fn subcommand(&self, name: &[u8]) -> Option<&'static Self> {
        SUBCOMMANDS.iter().find(|row| {
            let (command, subcommand) = row.name.split_once('|').unwrap_or_default();
            command == self.name && subcommand.as_bytes().eq_ignore_ascii_case(name)
        })
    }

    /// Returns whether the server that owns the command's keys has to execute the command. `WATCH`
    /// has keys, but the server of the connection executes it.
    #[must_use]
    pub fn needs_owner(&self) -> bool {
        self.keys != NO_KEYS && self.verb != Some(Verb::Watch)
    }

    fn takes(&self, words: usize) -> bool {
        let bound = usize::from(self.arity.unsigned_abs());
        if self.arity < 0 { words >= bound } else { words == bound }
    }
}

impl<'b> Request<'b> {
    /// Finds the row of the request's command.
    ///
    /// # Errors
    /// There is no such command or subcommand, or the number of arguments is wrong.
    pub fn row(&self) -> Result<(&'static Row, Verb), CommandError<'b>> {
        let Some(row) = Row::named(self.name) else {
            return Err(CommandError::UnknownCommand(*self));
        };
        let has_subcommands = matches!(
            row.name,
            "client" | "command" | "config" | "latency" | "memory" | "script" | "slowlog"
        );
        let row = match self.arguments.clone().next().filter(|_| has_subcommands) {
            Some(subcommand) => row
                .subcommand(subcommand)
                .ok_or(CommandError::UnknownSubcommand { command: row.name, subcommand })?,
            None => row,
        };
        match row.verb {
            Some(verb) if row.takes(self.arguments.len() + 1) => Ok((row, verb)),
            _ => Err(CommandError::Arity(row.name)),
        }
    }

    /// Returns the keys of the request. `row` is the row of the request's command.
    pub fn keys(&self, row: &Row) -> impl Iterator<Item = &'b [u8]> + use<'b> {
        let (first, last, step) = row.keys;
        let words = self.arguments.len() + 1;
        let first = usize::from(first.unsigned_abs());
        let last = match usize::from(last.unsigned_abs()) {
            back if last < 0 => words.saturating_sub(back),
            last => last,
        };
        let count = if first == 0 { 0 } else { (last + 1).saturating_sub(first) };
        let step = usize::from(step.unsigned_abs()).max(1);
        self.arguments.skip(first.saturating_sub(1)).take(count).step_by(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_in_lower_case() {
        for row in COMMANDS.iter().chain(&SUBCOMMANDS) {
            assert_eq!(row.name, row.name.to_lowercase());
            let named = COMMANDS.iter().chain(&SUBCOMMANDS).filter(|other| other.name == row.name);
            assert_eq!(named.count(), 1, "{}", row.name);
        }
        assert_eq!(Row::named(b"GetRange").map(|row| row.name), Some("getrange"));
    }
}
