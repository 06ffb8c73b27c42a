//! Errors with redis-server's messages.

use crate::resp::{CommandError, ProtocolError, Request, TrackingError};

/// The error for a connection above the server's limit. The server then closes the connection.
pub const TOO_MANY_CONNECTIONS: &[u8] = b"-ERR max number of clients reached\r\n";

/// Writes the reply to a protocol violation.
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

/// Writes the reply to a refused command.
pub fn error(error: &CommandError<'_>, out: &mut Vec<u8>) {
    let mut text = match coded(error) {
        Some(line) => return error_line(line.as_bytes(), out),
        None => b"ERR ".to_vec(),
    };
    match error {
        CommandError::UnknownCommand(request) => unknown_command(request, &mut text),
        CommandError::UnknownSubcommand { command, subcommand } => {
            text.extend_from_slice(b"unknown subcommand '");
            text.extend_from_slice(c_text(subcommand, QUOTED_LEN_MAX));
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
        CommandError::OverlappingPrefixes { prefix, other, is_tracked } => {
            text.extend_from_slice(b"Prefix '");
            text.extend_from_slice(c_text(prefix, usize::MAX));
            text.extend_from_slice(match is_tracked {
                true => b"' overlaps with an existing prefix '",
                false => b"' overlaps with another provided prefix '",
            });
            text.extend_from_slice(c_text(other, usize::MAX));
            text.extend_from_slice(b"'. Prefixes for a single client must not overlap.");
        }
        CommandError::Subscribed(name) => {
            let line = format!(
                "Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET \
                 are allowed in this context"
            );
            text.extend_from_slice(line.as_bytes());
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
        CommandError::DuplicateSetting(name) => {
            text.extend_from_slice(b"CONFIG SET failed (possibly related to argument '");
            text.extend_from_slice(c_text(name, usize::MAX));
            text.extend_from_slice(b"') - duplicate parameter");
        }
        CommandError::MemoryRange(least, most) => {
            let line = format!("{CONFIG_FAILED} the limit can be from {least} to {most} bytes");
            text.extend_from_slice(line.as_bytes());
        }
        CommandError::KeyCount(most) => {
            text.extend_from_slice(format!("the command takes up to {most} keys").as_bytes());
        }
        CommandError::NoMemoryValue => {
            text.extend_from_slice(CONFIG_FAILED.as_bytes());
            text.extend_from_slice(b" argument must be a memory value");
        }
        _ => text.extend_from_slice(words(error).as_bytes()),
    }
    error_line(&text, out);
}

/// The start of the message that refuses a memory limit.
const CONFIG_FAILED: &str = "CONFIG SET failed (possibly related to argument 'maxmemory') -";

/// Returns the message of an error whose code is not `ERR`, or `None` for the code `ERR`.
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
        CommandError::CrossSlot => "CROSSSLOT Keys in request don't hash to the same slot",
        CommandError::NoScript => "NOSCRIPT No matching script. Please use EVAL.",
        CommandError::Aborted => "EXECABORT Transaction discarded because of previous errors.",
        CommandError::WatchedItemChanged => {
            "EXECABORT a watched key has changed or moved while EXEC ran: this command was stopped, and those after it were not executed"
        }
        CommandError::OutOfMemory => "OOM command not allowed when used memory > 'maxmemory'.",
        _ => return None,
    })
}

/// Returns the constant message of an error, which follows the code `ERR`.
fn words(error: &CommandError<'_>) -> &'static str {
    match error {
        CommandError::NotInteger => "value is not an integer or out of range",
        CommandError::NotFloat => "value is not a valid float",
        CommandError::FloatRange => "increment would produce NaN or Infinity",
        CommandError::OffsetRange => "offset is out of range",
        CommandError::BitOffset => "bit offset is not an integer or out of range",
        CommandError::NotBit => "bit is not an integer or out of range",
        CommandError::SameKey => "source and destination objects are the same",
        CommandError::NoSuchKey => "no such key",
        CommandError::ClientId => "Invalid client ID",
        CommandError::Tracking(error) => tracking_words(*error),
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
        CommandError::WatchInMulti => "WATCH inside MULTI is not allowed",
        CommandError::WatchWithoutCas => "WATCH needs CAS values, which -C disables",
        CommandError::WatchOfOther => {
            "WATCH of a key that another server owns: connect to the leader of its group"
        }
        CommandError::TransactionTooLarge => "the transaction is too large",
        CommandError::TooLarge => "string exceeds maximum allowed size (proto-max-bulk-len)",
        CommandError::KeyLength => "a key has 1 to 1024 bytes",
        CommandError::TagCount => "an item has 1 to 7 tags",
        CommandError::TagLength => "a tag has 1 to 250 bytes",
        CommandError::NoTags => "this engine keeps no tags",
        CommandError::FlushDisabled => "flushing is disabled",
        CommandError::NegativeKeys => "Number of keys can't be negative",
        CommandError::TooFewKeys => "Number of keys can't be greater than number of args",
        CommandError::UnknownScript => {
            "unknown script: this server runs no Lua, but the scripts with one key that docs/scripts.md lists"
        }
        CommandError::ScriptFlushMode => "SCRIPT FLUSH only support SYNC|ASYNC option",
        CommandError::ScriptArguments => "the script has too few arguments",
        CommandError::Cursor => "invalid cursor",
        CommandError::DumpsDisabled => "dumping keys is disabled",
        CommandError::TooManyKeys => "the keys take too much memory: use SCAN",
        _ => "syntax error",
    }
}

fn tracking_words(error: TrackingError) -> &'static str {
    match error {
        TrackingError::SecondRedirect => "A client can only redirect to a single other client",
        TrackingError::NoRedirectTarget => "The client ID you want redirect to does not exist",
        TrackingError::PrefixWithoutBroadcast => "PREFIX option requires BCAST mode to be enabled",
        TrackingError::TooManyPrefixes => "a connection tracks up to 128 prefixes",
        TrackingError::SwitchesBroadcast => {
            "You can't switch BCAST mode on/off before disabling tracking for this client, and then \
             re-enabling it with a different mode."
        }
        TrackingError::OptionWithBroadcast => "OPTIN and OPTOUT are not compatible with BCAST",
        TrackingError::OptInWithOptOut => "You can't specify both OPTIN mode and OPTOUT mode",
        TrackingError::SwitchesOption => {
            "You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and then \
             re-enabling it with a different mode."
        }
        TrackingError::CachingWithoutOption => {
            "CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or \
             OPTOUT mode enabled"
        }
        TrackingError::CachingWithoutOptIn => {
            "CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode."
        }
        TrackingError::CachingWithoutOptOut => {
            "CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode."
        }
        TrackingError::NoTracker => "CLIENT TRACKING is not available on this server",
        TrackingError::Channel => {
            "the only channel is __redis__:invalidate, for CLIENT TRACKING with REDIRECT"
        }
    }
}

fn unknown_command(request: &Request<'_>, text: &mut Vec<u8>) {
    text.extend_from_slice(b"unknown command '");
    text.extend_from_slice(c_text(request.name, QUOTED_LEN_MAX));
    text.extend_from_slice(b"', with args beginning with: ");
    let begin = text.len();
    for argument in request.arguments {
        let room = QUOTED_LEN_MAX.saturating_sub(text.len() - begin);
        if room == 0 {
            break;
        }
        text.push(b'\'');
        text.extend_from_slice(c_text(argument, room));
        text.extend_from_slice(b"' ");
    }
}

/// The error message about an unknown command or subcommand shows at most this many bytes of its
/// name. The message truncates the list of an unknown command's arguments at about the same length.
const QUOTED_LEN_MAX: usize = 128;

/// Returns a string as C prints it: at most `len_max` bytes, up to the first NUL.
fn c_text(bytes: &[u8], len_max: usize) -> &[u8] {
    let bytes = bytes.get(..len_max).unwrap_or(bytes);
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Writes an error. Replaces line ends, because the message may contain bytes that the client sent.
fn error_line(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'-');
    out.extend(text.iter().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte }));
    out.extend_from_slice(b"\r\n");
}
