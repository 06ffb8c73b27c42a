//! Answers in RESP2 and RESP3, in the words of redis-server.

mod replication;

pub use replication::*;

use replication::or_none;

use crate::resp::{
    Arguments, COMMANDS, Clients, CommandError, ProtocolError, Request, Row, matches,
};
use crate::text::number::push;

/// The version of the protocol that a client has asked for by `HELLO`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the protocol's own")]
pub enum Version {
    #[default]
    Resp2,
    Resp3,
}

/// The version of redis-server whose commands these are, for clients that ask.
pub const REDIS_VERSION: &str = "7.2.4";

/// Writes the answer to a command that was carried out.
pub fn ok(out: &mut Vec<u8>) {
    simple("OK", out);
}

/// Writes the answer to `PING` without an argument.
pub fn pong(out: &mut Vec<u8>) {
    simple("PONG", out);
}

/// Writes the answer to a command that is kept for `EXEC`.
pub fn queued(out: &mut Vec<u8>) {
    simple("QUEUED", out);
}

/// Writes the answer to `RESET`.
pub fn reset(out: &mut Vec<u8>) {
    simple("RESET", out);
}

/// Writes the answer to `TYPE`: all items are strings.
pub fn item_type(exists: bool, out: &mut Vec<u8>) {
    simple(if exists { "string" } else { "none" }, out);
}

fn simple(word: &str, out: &mut Vec<u8>) {
    out.push(b'+');
    out.extend_from_slice(word.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Writes a number.
pub fn integer(number: i64, out: &mut Vec<u8>) {
    out.push(b':');
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Writes that there is nothing.
pub fn null(version: Version, out: &mut Vec<u8>) {
    out.extend_from_slice(match version {
        Version::Resp2 => b"$-1\r\n",
        Version::Resp3 => b"_\r\n",
    });
}

/// Writes a string.
#[inline]
pub fn bulk(bytes: &[u8], out: &mut Vec<u8>) {
    out.reserve(bytes.len() + BULK_ROOM);
    bulk_head(bytes.len(), out);
    out.extend_from_slice(bytes);
    bulk_tail(out);
}

/// The bytes that a string takes beside itself, at most.
const BULK_ROOM: usize = 26;

/// Writes what precedes the bytes of a string.
#[inline]
pub fn bulk_head(len: usize, out: &mut Vec<u8>) {
    length(b'$', len, out);
}

/// Writes what follows the bytes of a string.
#[inline]
pub fn bulk_tail(out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\n");
}

/// Writes what precedes the elements of an array.
pub fn array(len: usize, out: &mut Vec<u8>) {
    length(b'*', len, out);
}

/// Writes what precedes the keys and values of a map with `len` keys.
fn map(version: Version, len: usize, out: &mut Vec<u8>) {
    match version {
        Version::Resp2 => length(b'*', 2 * len, out),
        Version::Resp3 => length(b'%', len, out),
    }
}

fn length(kind: u8, len: usize, out: &mut Vec<u8>) {
    out.push(kind);
    push(len as u64, out);
    out.extend_from_slice(b"\r\n");
}

/// Writes the answer to `HELLO` from the client of this number. `follows`: the server follows another one.
pub fn hello(version: Version, client: u64, follows: bool, out: &mut Vec<u8>) {
    map(version, 8, out);
    for (name, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
        bulk(name.as_bytes(), out);
        bulk(value.as_bytes(), out);
    }
    bulk(b"proto", out);
    integer(if version == Version::Resp2 { 2 } else { 3 }, out);
    bulk(b"id", out);
    integer(client.cast_signed(), out);
    let role = if follows { "replica" } else { "master" };
    for (name, value) in [("mode", "standalone"), ("role", role), ("server_name", "larder")] {
        bulk(name.as_bytes(), out);
        bulk(value.as_bytes(), out);
    }
    bulk(b"modules", out);
    array(0, out);
}

/// A page of `INFO`. Its numbers are those of memcached's `stats`.
#[derive(Debug)]
pub struct InfoPage<'b> {
    /// The sections that are asked for; all if there are none.
    sections: Arguments<'b>,
    /// The value of each line of [`INFO`].
    values: Vec<String>,
    /// What is shown of replication, instead of the lines for a server that knows of no other.
    replication: Option<Replication>,
}

/// The section of each line, its name, and the statistic that it shows, or else its value.
const INFO: [(&str, &str, Result<&str, &str>); 18] = [
    ("Server", "redis_version", Err(REDIS_VERSION)),
    ("Server", "redis_mode", Err("standalone")),
    ("Server", "server_name", Err("larder")),
    ("Server", "larder_version", Ok("version")),
    ("Server", "process_id", Ok("pid")),
    ("Server", "uptime_in_seconds", Ok("uptime")),
    ("Clients", "connected_clients", Ok("curr_connections")),
    ("Memory", "used_memory", Ok("bytes")),
    ("Memory", "maxmemory", Ok("limit_maxbytes")),
    ("Persistence", "loading", Err("0")),
    ("Stats", "total_connections_received", Ok("total_connections")),
    ("Stats", "total_net_input_bytes", Ok("bytes_read")),
    ("Stats", "total_net_output_bytes", Ok("bytes_written")),
    ("Stats", "evicted_keys", Ok("evictions")),
    ("Stats", "keyspace_hits", Ok("get_hits")),
    ("Stats", "keyspace_misses", Ok("get_misses")),
    (REPLICATION, "role", Err("master")),
    (REPLICATION, "connected_slaves", Err("0")),
];

const REPLICATION: &str = "Replication";

impl<'b> InfoPage<'b> {
    /// A page with these sections.
    #[must_use]
    pub fn new(sections: Arguments<'b>) -> Self {
        let values = INFO.iter().map(|(_, _, source)| source.err().unwrap_or("0").to_owned());
        Self { sections, values: values.collect(), replication: None }
    }

    /// Takes what the server is to other servers.
    pub fn set_replication(&mut self, replication: Option<Replication>) {
        self.replication = replication;
    }

    /// Takes a statistic, if the page shows it.
    pub fn set(&mut self, statistic: &str, value: &str) {
        let lines = INFO.iter().zip(&mut self.values);
        for (_, shown) in lines.filter(|((_, _, source), _)| *source == Ok(statistic)) {
            value.clone_into(shown);
        }
    }

    /// Writes the answer to `INFO`.
    pub fn write(&self, version: Version, out: &mut Vec<u8>) {
        let (mut page, mut last) = (String::new(), "");
        for ((section, name, _), value) in INFO.iter().zip(&self.values) {
            if !self.shows(section) {
                continue;
            }
            let begins = *section != last;
            if begins {
                let gap = if last.is_empty() { "" } else { "\r\n" };
                page.push_str(&format!("{gap}# {section}\r\n"));
                last = section;
            }
            match &self.replication {
                Some(replication) if *section == REPLICATION => {
                    if begins {
                        page.push_str(&replication.lines());
                    }
                }
                _ => page.push_str(&format!("{name}:{value}\r\n")),
            }
        }
        text_page(version, page.as_bytes(), out);
    }

    fn shows(&self, section: &str) -> bool {
        const ALL: [&str; 3] = ["all", "default", "everything"];
        let mut sections = self.sections;
        let is = |name: &str, asked: &[u8]| name.as_bytes().eq_ignore_ascii_case(asked);
        sections.len() == 0
            || sections.any(|asked| is(section, asked) || ALL.iter().any(|all| is(all, asked)))
    }
}

/// Writes the answer to `ROLE`. A server without followers and leader is a master.
pub fn role(replication: &Replication, out: &mut Vec<u8>) {
    match &replication.link {
        Some(link) => {
            array(5, out);
            bulk(b"slave", out);
            bulk(link.leader.0.as_bytes(), out);
            integer(link.leader.1.into(), out);
            bulk(link.state.name().as_bytes(), out);
            integer(or_none(link.offset), out);
        }
        None => {
            array(3, out);
            bulk(b"master", out);
            integer(or_none(Some(replication.offset)), out);
            // Those that are not up to date are left out.
            let followers = replication.followers.iter().filter(|follower| !follower.is_copying);
            array(followers.clone().count(), out);
            for follower in followers {
                array(3, out);
                bulk(follower.host.as_bytes(), out);
                bulk(follower.port.to_string().as_bytes(), out);
                bulk(follower.offset.to_string().as_bytes(), out);
            }
        }
    }
}

/// Writes lines of text, which RESP3 tells from other strings.
fn text_page(version: Version, page: &[u8], out: &mut Vec<u8>) {
    match version {
        Version::Resp2 => bulk(page, out),
        Version::Resp3 => {
            length(b'=', page.len() + 4, out);
            out.extend_from_slice(b"txt:");
            out.extend_from_slice(page);
            bulk_tail(out);
        }
    }
}

/// The connections of `CLIENT LIST` and `CLIENT INFO`, made from the lines of memcached's `stats conns`.
#[derive(Debug)]
pub struct ClientPage<'b> {
    wanted: Clients<'b>,
    /// The connection that asks, and its name.
    own: (u64, &'b [u8]),
    client: Client,
    page: Vec<u8>,
}

/// What is known of a connection.
#[derive(Debug, Default)]
struct Client {
    id: u64,
    peer: String,
    /// Listeners have none.
    listener: Option<String>,
    idle_secs: String,
}

impl<'b> ClientPage<'b> {
    /// A page for the connection of this number and name.
    #[must_use]
    pub fn new(wanted: Clients<'b>, id: u64, name: &'b [u8]) -> Self {
        Self { wanted, own: (id, name), client: Client::default(), page: Vec::new() }
    }

    /// Takes a line of `stats conns`. Those of one connection follow each other.
    pub fn set(&mut self, name: &str, value: &str) {
        let Some((id, field)) = name.split_once(':') else { return };
        let Ok(id) = id.parse() else { return };
        if id != self.client.id {
            self.end_client();
            self.client.id = id;
        }
        // `tcp:127.0.0.1:7` there is `127.0.0.1:7` here.
        let address = || value.split_once(':').map_or(value, |(_, address)| address).to_owned();
        match field {
            "addr" => self.client.peer = address(),
            "listen_addr" => self.client.listener = Some(address()),
            "secs_since_last_cmd" => value.clone_into(&mut self.client.idle_secs),
            _ => (),
        }
    }

    fn end_client(&mut self) {
        let Client { id, peer, listener, idle_secs } = std::mem::take(&mut self.client);
        let Some(listener) = listener.filter(|_| self.wants(id)) else { return };
        let begin = format!("id={id} addr={peer} laddr={listener} name=");
        self.page.extend_from_slice(begin.as_bytes());
        if id == self.own.0 {
            self.page.extend_from_slice(self.own.1);
        }
        let end =
            format!(" idle={idle_secs} flags=N db=0 sub=0 psub=0 ssub=0 multi=-1 user=default\n");
        self.page.extend_from_slice(end.as_bytes());
    }

    fn wants(&self, id: u64) -> bool {
        match self.wanted {
            Clients::All => true,
            Clients::Own => id == self.own.0,
            Clients::None => false,
            Clients::Ids(mut ids) => ids.any(|text| text == id.to_string().as_bytes()),
        }
    }

    /// Writes the answer.
    pub fn write(mut self, version: Version, out: &mut Vec<u8>) {
        self.end_client();
        text_page(version, &self.page, out);
    }
}

/// Writes what precedes the array of keys in the answer to `SCAN`.
pub fn scan_head(cursor: u64, out: &mut Vec<u8>) {
    array(2, out);
    bulk(itoa::Buffer::new().format(cursor).as_bytes(), out);
}

/// Writes the answer to `TIME`, from milliseconds since 1970.
pub fn time(millis: u64, out: &mut Vec<u8>) {
    array(2, out);
    bulk((millis / 1000).to_string().as_bytes(), out);
    bulk((millis % 1000 * 1000).to_string().as_bytes(), out);
}

/// Writes the answer to `CONFIG GET`: the settings whose names match one of `patterns`, which may
/// be as those of `KEYS`. `limit_bytes` is the memory limit, `bulk_len_max` the longest argument, `databases` their number.
pub fn config(
    version: Version,
    patterns: Arguments<'_>,
    limit_bytes: u64,
    bulk_len_max: usize,
    databases: u32,
    out: &mut Vec<u8>,
) {
    let (limit, bulk_len_max) = (limit_bytes.to_string(), bulk_len_max.to_string());
    let databases = databases.to_string();
    let settings = [
        ("appendonly", "no"),
        ("databases", &*databases),
        ("maxmemory", &*limit),
        ("proto-max-bulk-len", &*bulk_len_max),
        ("save", ""),
    ];
    let is_asked = |name: &str| {
        { patterns }.any(|pattern| matches(&pattern.to_ascii_lowercase(), name.as_bytes()))
    };
    let shown = settings.iter().filter(|(name, _)| is_asked(name));
    map(version, shown.clone().count(), out);
    for (name, value) in shown {
        bulk(name.as_bytes(), out);
        bulk(value.as_bytes(), out);
    }
}

/// The latencies of a class of commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassLatencies {
    /// The name of the class.
    pub name: &'static str,
    /// How many requests there were.
    pub count: u64,
    /// Times in microseconds, ascending, each with the number of requests that took no longer.
    pub micros: Vec<(u64, u64)>,
}

/// Writes the answer to `LATENCY HISTOGRAM`.
pub fn latencies(version: Version, classes: &[ClassLatencies], out: &mut Vec<u8>) {
    let number = |number: u64, out: &mut Vec<u8>| {
        integer(i64::try_from(number).unwrap_or(i64::MAX), out);
    };
    map(version, classes.len(), out);
    for class in classes {
        bulk(class.name.as_bytes(), out);
        map(version, 2, out);
        bulk(b"calls", out);
        number(class.count, out);
        bulk(b"histogram_usec", out);
        map(version, class.micros.len(), out);
        for (micros, count) in &class.micros {
            number(*micros, out);
            number(*count, out);
        }
    }
}

/// Writes the answer to `COMMAND COUNT`.
pub fn command_count(out: &mut Vec<u8>) {
    integer(COMMANDS.len().cast_signed() as i64, out);
}

/// Writes the answer to `COMMAND LIST`.
pub fn command_list(out: &mut Vec<u8>) {
    array(COMMANDS.len(), out);
    COMMANDS.iter().for_each(|row| bulk(row.name.as_bytes(), out));
}

/// Writes the answer to `COMMAND DOCS`: no command is described.
pub fn command_docs(version: Version, out: &mut Vec<u8>) {
    map(version, 0, out);
}

/// Writes the answer to `COMMAND`.
pub fn commands(out: &mut Vec<u8>) {
    array(COMMANDS.len(), out);
    COMMANDS.iter().for_each(|row| command(row, out));
}

/// Writes the answer to `COMMAND INFO` for one name.
pub fn command_info(version: Version, name: &[u8], out: &mut Vec<u8>) {
    match Row::named(name) {
        Some(row) => command(row, out),
        None => null(version, out),
    }
}

/// Writes a command's name, its number of words and its keys, without flags and the like.
fn command(row: &Row, out: &mut Vec<u8>) {
    let (first, last, step) = row.keys;
    array(10, out);
    bulk(row.name.as_bytes(), out);
    integer(row.arity.into(), out);
    array(0, out);
    [first, last, step].into_iter().for_each(|number| integer(number.into(), out));
    (0..4).for_each(|_| array(0, out));
}

/// Writes the answer to bytes that are no RESP.
pub fn protocol_error(error: ProtocolError, out: &mut Vec<u8>) {
    let mut text = b"ERR Protocol error: ".to_vec();
    text.extend_from_slice(match error {
        ProtocolError::ArrayLength => b"invalid multibulk length",
        ProtocolError::LongArrayLength => b"too big mbulk count string",
        ProtocolError::UnauthenticatedArrayLength => b"unauthenticated multibulk length",
        ProtocolError::NotBulk(_) => b"expected '$', got '",
        ProtocolError::BulkLength { .. } => b"invalid bulk length",
        ProtocolError::LongBulkLength => b"too big bulk count string",
        ProtocolError::UnauthenticatedBulkLength => b"unauthenticated bulk length",
        ProtocolError::LongLine => b"too big inline request",
        ProtocolError::Quotes => b"unbalanced quotes in request",
        ProtocolError::TooLong => b"too big request",
    });
    if let ProtocolError::NotBulk(found) = error {
        text.extend_from_slice(&[found, b'\'']);
    }
    error_line(&text, out);
}

/// Writes the answer to a command that is refused.
pub fn error(error: &CommandError<'_>, out: &mut Vec<u8>) {
    let mut text = match coded(error) {
        Some(line) => return error_line(line.as_bytes(), out),
        None => b"ERR ".to_vec(),
    };
    match error {
        CommandError::UnknownCommand(request) => unknown_command(request, &mut text),
        CommandError::UnknownSubcommand { command, subcommand } => {
            text.extend_from_slice(b"unknown subcommand '");
            text.extend_from_slice(c_text(subcommand, SHOWN_LEN_MAX));
            let line = format!("'. Try {} HELP.", command.to_uppercase());
            text.extend_from_slice(line.as_bytes());
        }
        CommandError::Arity(name) => {
            let line = format!("wrong number of arguments for '{name}' command");
            text.extend_from_slice(line.as_bytes());
        }
        CommandError::ExpireTime(name) => {
            let line = format!("invalid expire time in '{name}' command");
            text.extend_from_slice(line.as_bytes());
        }
        CommandError::ExpireOption(option) => {
            text.extend_from_slice(b"Unsupported option ");
            text.extend_from_slice(c_text(option, usize::MAX));
        }
        CommandError::HelloOption(option) => {
            text.extend_from_slice(b"Syntax error in HELLO option '");
            text.extend_from_slice(c_text(option, usize::MAX));
            text.push(b'\'');
        }
        CommandError::ClientType(name) => {
            text.extend_from_slice(b"Unknown client type '");
            text.extend_from_slice(c_text(name, usize::MAX));
            text.push(b'\'');
        }
        CommandError::ClientInfo(attribute) => {
            text.extend_from_slice(b"Unrecognized option '");
            text.extend_from_slice(c_text(attribute, usize::MAX));
            text.push(b'\'');
        }
        CommandError::ClientInfoValue(name) => {
            let line = format!("{name} cannot contain spaces, newlines or special characters.");
            text.extend_from_slice(line.as_bytes());
        }
        CommandError::ConfigName(name) => {
            text.extend_from_slice(b"Unknown option or number of arguments for CONFIG SET - '");
            text.extend_from_slice(c_text(name, usize::MAX));
            text.push(b'\'');
        }
        CommandError::MemoryRange(least, most) => {
            let line = format!("{CONFIG_FAILED} the limit can be from {least} to {most} bytes");
            text.extend_from_slice(line.as_bytes());
        }
        CommandError::NoMemoryValue => {
            text.extend_from_slice(CONFIG_FAILED.as_bytes());
            text.extend_from_slice(b" argument must be a memory value");
        }
        _ => text.extend_from_slice(words(error).as_bytes()),
    }
    error_line(&text, out);
}

/// What precedes why a memory limit is refused.
const CONFIG_FAILED: &str = "CONFIG SET failed (possibly related to argument 'maxmemory') -";

/// The words of errors that have a code of their own.
fn coded(error: &CommandError<'_>) -> Option<&'static str> {
    Some(match error {
        CommandError::NoProtocol => "NOPROTO unsupported protocol version",
        CommandError::ReadOnly => "READONLY You can't write against a read only replica.",
        CommandError::NoLeader => "MASTERDOWN this group of servers has no leader",
        CommandError::LoginRequired => "NOAUTH Authentication required.",
        CommandError::HelloLogin => {
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO \
             <proto> AUTH <user> <pass> option can be used to authenticate the client and select \
             the RESP protocol version at the same time"
        }
        CommandError::WrongPassword => {
            "WRONGPASS invalid username-password pair or user is disabled."
        }
        CommandError::Aborted => "EXECABORT Transaction discarded because of previous errors.",
        CommandError::OutOfMemory => "OOM command not allowed when used memory > 'maxmemory'.",
        _ => return None,
    })
}

/// The words of errors that are always the same, after `ERR`.
fn words(error: &CommandError<'_>) -> &'static str {
    match error {
        CommandError::NotInteger => "value is not an integer or out of range",
        CommandError::ClientId => "Invalid client ID",
        CommandError::TimeoutNotInteger => "timeout is not an integer or out of range",
        CommandError::TimeoutNegative => "timeout is negative",
        CommandError::IntRange => {
            "value is out of range, value must between -2147483648 and 2147483647"
        }
        CommandError::ExpireNx => "NX and XX, GT or LT options at the same time are not compatible",
        CommandError::ExpireGtLt => "GT and LT options at the same time are not compatible",
        CommandError::DecrementOverflow => "decrement would overflow",
        CommandError::Overflow => "increment or decrement would overflow",
        CommandError::DatabaseRange => "DB index is out of range",
        CommandError::HelloVersion => "Protocol version is not an integer or out of range",
        CommandError::NoPassword => {
            "AUTH <password> called without any password configured for the default user. Are you \
             sure your configuration is correct?"
        }
        CommandError::ClientName => {
            "Client names cannot contain spaces, newlines or special characters."
        }
        CommandError::NestedMulti => "MULTI calls can not be nested",
        CommandError::ExecWithoutMulti => "EXEC without MULTI",
        CommandError::DiscardWithoutMulti => "DISCARD without MULTI",
        CommandError::TransactionTooLarge => "the transaction is too large",
        CommandError::TooLarge => "string exceeds maximum allowed size (proto-max-bulk-len)",
        CommandError::KeyLength => "a key has 1 to 1024 bytes",
        CommandError::TagCount => "an item has 1 to 7 tags",
        CommandError::TagLength => "a tag has 1 to 250 bytes",
        CommandError::NoTags => "this engine keeps no tags",
        CommandError::FlushDisabled => "flushing is disabled",
        CommandError::Cursor => "invalid cursor",
        CommandError::DumpsDisabled => "dumping keys is disabled",
        CommandError::TooManyKeys => "the keys take too much memory: use SCAN",
        _ => "syntax error",
    }
}

fn unknown_command(request: &Request<'_>, text: &mut Vec<u8>) {
    text.extend_from_slice(b"unknown command '");
    text.extend_from_slice(c_text(request.name, SHOWN_LEN_MAX));
    text.extend_from_slice(b"', with args beginning with: ");
    let begin = text.len();
    for argument in request.arguments {
        let room = SHOWN_LEN_MAX.saturating_sub(text.len() - begin);
        if room == 0 {
            break;
        }
        text.push(b'\'');
        text.extend_from_slice(c_text(argument, room));
        text.extend_from_slice(b"' ");
    }
}

/// How many bytes of a command that is not known are shown, and of all its arguments.
const SHOWN_LEN_MAX: usize = 128;

/// A string as C prints it: at most `len_max` bytes, and none from a NUL on.
fn c_text(bytes: &[u8], len_max: usize) -> &[u8] {
    let bytes = bytes.get(..len_max).unwrap_or(bytes);
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Writes an error, whose words may contain what the client has sent.
fn error_line(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'-');
    out.extend(text.iter().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte }));
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::{Bounds, Command, Read, read, split_line};

    const BOUNDS: Bounds = Bounds { bulk_len_max: 1000, request_len_max: 4000, needs_login: false };

    /// The error that an inline request is answered with, empty if it is right.
    fn refusal(line: &str) -> String {
        let (mut raw, mut out) = (Vec::new(), Vec::new());
        split_line(line.as_bytes(), &mut raw).unwrap();
        let Read::Request { request, .. } = read(&raw, &BOUNDS) else { panic!("{line}") };
        let parsed = request.row().and_then(|(row, verb)| Command::parse(&request, verb, row.name));
        if let Err(refused) = parsed {
            error(&refused, &mut out);
        }
        String::from_utf8(out).unwrap().trim_end().to_owned()
    }

    /// The words were taken from redis-server 7.0.15.
    #[test]
    fn errors_are_those_of_redis_server() {
        for (line, expected) in [
            ("get k", ""),
            ("GET", "-ERR wrong number of arguments for 'get' command"),
            ("foo", "-ERR unknown command 'foo', with args beginning with: "),
            (r"foo 'a\'b' c", "-ERR unknown command 'foo', with args beginning with: 'a'b' 'c' "),
            (r#"foo "a\r\nb""#, "-ERR unknown command 'foo', with args beginning with: 'a  b' "),
            ("client", "-ERR wrong number of arguments for 'client' command"),
            ("client foo", "-ERR unknown subcommand 'foo'. Try CLIENT HELP."),
            ("client id x", "-ERR wrong number of arguments for 'client|id' command"),
            ("config get", "-ERR wrong number of arguments for 'config|get' command"),
            ("HELLO 4", "-NOPROTO unsupported protocol version"),
            ("HELLO x", "-ERR Protocol version is not an integer or out of range"),
            ("HELLO 3 foo", "-ERR Syntax error in HELLO option 'foo'"),
            ("HELLO 3 auth a", "-ERR Syntax error in HELLO option 'auth'"),
            ("HELLO 3 auth a b setname c", ""),
            ("select 0", ""),
            ("select x", "-ERR value is not an integer or out of range"),
            (
                "select 99999999999",
                "-ERR value is out of range, value must between -2147483648 and 2147483647",
            ),
            ("auth a b c", "-ERR syntax error"),
            ("ping a b", "-ERR wrong number of arguments for 'ping' command"),
            ("mset a b c", "-ERR wrong number of arguments for 'mset' command"),
            ("set k v ex 0", "-ERR invalid expire time in 'set' command"),
            ("setex k 0 v", "-ERR invalid expire time in 'setex' command"),
            ("set k v ex 9223372036854775807", "-ERR invalid expire time in 'set' command"),
            ("set k v EX", "-ERR syntax error"),
            ("set k v ex 1 ex 2", ""),
            ("set k v ex 1 px 2", "-ERR syntax error"),
            ("set k v keepttl ex 2", "-ERR syntax error"),
            ("set k v nx xx", "-ERR syntax error"),
            ("set k v KEEPTTL keepttl GET nx nx", ""),
            ("set k v persist", "-ERR syntax error"),
            ("set k v ex x", "-ERR value is not an integer or out of range"),
            ("getex k persist persist", ""),
            ("getex k nx", "-ERR syntax error"),
            ("expire k x foo", "-ERR Unsupported option foo"),
            ("expire k -1 gt", ""),
            (
                "expire k x nx xx",
                "-ERR NX and XX, GT or LT options at the same time are not compatible",
            ),
            ("expire k x gt lt", "-ERR GT and LT options at the same time are not compatible"),
            ("expire k 9223372036854775807", "-ERR invalid expire time in 'expire' command"),
            ("decrby a -9223372036854775808", "-ERR decrement would overflow"),
            ("getrange k a b", "-ERR value is not an integer or out of range"),
            ("substr k a", "-ERR wrong number of arguments for 'substr' command"),
            ("flushall async", ""),
            ("flushall async a", "-ERR syntax error"),
            ("config set a", "-ERR wrong number of arguments for 'config|set' command"),
            ("client no-touch x", "-ERR syntax error"),
            ("memory usage k samples", "-ERR syntax error"),
            ("memory usage k samples 0", ""),
            (
                "client setname 'a b'",
                "-ERR Client names cannot contain spaces, newlines or special characters.",
            ),
        ] {
            assert_eq!(refusal(line), expected.trim_end(), "{line}");
        }
    }

    #[test]
    fn unknown_commands_are_shown_in_part() {
        let long = "x".repeat(200);
        let shown = refusal(&format!("{long} a {long} b"));
        let (name, argument) = ("x".repeat(128), "x".repeat(124));
        let expected =
            format!("-ERR unknown command '{name}', with args beginning with: 'a' '{argument}'");
        assert_eq!(shown, expected);
    }

    /// The arguments of an inline request.
    fn with_arguments(line: &str, work: impl FnOnce(Arguments<'_>)) {
        let mut raw = Vec::new();
        split_line(line.as_bytes(), &mut raw).unwrap();
        let Read::Request { request, .. } = read(&raw, &BOUNDS) else { panic!("{line}") };
        work(request.arguments);
    }

    #[test]
    fn versions_differ_in_null_and_maps() {
        let mut out = Vec::new();
        for version in [Version::Resp2, Version::Resp3] {
            null(version, &mut out);
            with_arguments("get SA*", |patterns| config(version, patterns, 1, 1, 1, &mut out));
            with_arguments("info persistence", |sections| {
                InfoPage::new(sections).write(version, &mut out);
            });
        }
        let page = "# Persistence\r\nloading:0\r\n";
        let expected = format!(
            "$-1\r\n*2\r\n$4\r\nsave\r\n$0\r\n\r\n$26\r\n{page}\r\n\
             _\r\n%1\r\n$4\r\nsave\r\n$0\r\n\r\n=30\r\ntxt:{page}\r\n"
        );
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn protocol_errors_are_those_of_redis_server() {
        let mut out = Vec::new();
        protocol_error(ProtocolError::NotBulk(b'\n'), &mut out);
        assert_eq!(out, b"-ERR Protocol error: expected '$', got ' '\r\n");
    }
}
