//! Errors of commands. [`crate::reply::resp`] has the messages.

use super::request::Request;
use super::tracking::error::TrackingError;

/// The reason for refusing a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandError<'b> {
    /// The server has no command with this name.
    UnknownCommand(Request<'b>),
    /// The command has no such subcommand.
    UnknownSubcommand {
        /// The command's name.
        command: &'static str,
        /// The subcommand as sent.
        subcommand: &'b [u8],
    },
    /// The command with this name has too few or too many arguments.
    Arity(&'static str),
    /// The arguments are invalid or cannot be combined.
    Syntax,
    /// An argument, or the value to change, is not a number or is out of range.
    NotInteger,
    /// An argument, or the value to change, is not a decimal number.
    NotFloat,
    /// The sum of decimal numbers is infinite or too large.
    FloatRange,
    /// The offset of a byte is negative.
    OffsetRange,
    /// The offset of a bit is not a number, is negative, or is beyond 512 MiB.
    BitOffset,
    /// A bit is neither 0 nor 1.
    NotBit,
    /// The two keys of a command are equal.
    SameKey,
    /// No item has the key.
    NoSuchKey,
    /// One server must execute the command, but its keys belong to different groups.
    CrossSlot,
    /// A command has more keys than allowed. The argument is the maximum.
    KeyCount(usize),
    /// This type of clients is unknown.
    ClientType(&'b [u8]),
    /// A connection number is malformed.
    ClientId,
    /// A change of tracking, or a subscription, is refused.
    Tracking(TrackingError),
    /// Two prefixes of `CLIENT TRACKING` overlap.
    OverlappingPrefixes {
        /// The refused prefix.
        prefix: &'b [u8],
        /// The other prefix.
        other: &'b [u8],
        /// True if the connection already tracks the other prefix, false if the request contains
        /// both prefixes.
        is_tracked: bool,
    },
    /// A RESP2 connection that subscribes to a channel has sent another command. The argument is
    /// the command's name.
    Subscribed(&'static str),
    /// The timeout of `WAIT` is not a number.
    TimeoutNotInteger,
    /// The timeout of `WAIT` is below 0.
    TimeoutNegative,
    /// The number of a database does not fit in 32 bits.
    IntRange,
    /// The expiry is not positive, or is later than the latest possible expiry. The argument is the
    /// command's name.
    ExpireTime(&'static str),
    /// `EXPIRE` has no such option.
    ExpireOption(&'b [u8]),
    /// `NX` is given with another option of `EXPIRE`.
    ExpireNx,
    /// `GT` is given with `LT`.
    ExpireGtLt,
    /// The amount of `DECRBY` is -2^63, whose negation does not fit in 64 bits.
    DecrementOverflow,
    /// The sum does not fit in 64 bits.
    Overflow,
    /// There is no database with the requested number.
    DatabaseRange,
    /// The protocol version of `HELLO` is not a number.
    HelloVersion,
    /// The protocol version of `HELLO` is neither 2 nor 3.
    NoProtocol,
    /// `HELLO` has no such option, or the request has too few arguments for the option.
    HelloOption(&'b [u8]),
    /// `HELLO` has no option `AUTH`, although the server requires a login.
    HelloLogin,
    /// A login is required.
    LoginRequired,
    /// The server is a replica: only the leader accepts changes.
    ReadOnly,
    /// No leader of the group that owns the key can answer.
    NoLeader,
    /// The user or the password is wrong.
    WrongPassword,
    /// `AUTH` has no user name, and the server requires no login.
    NoPassword,
    /// The name of a client has a blank or another invalid byte.
    ClientName,
    /// `CLIENT SETINFO` has no such attribute.
    ClientInfo(&'b [u8]),
    /// The value of `CLIENT SETINFO` has an invalid byte. The argument is the attribute's name.
    ClientInfoValue(&'static str),
    /// `MULTI` is sent within a transaction.
    NestedMulti,
    /// `EXEC` is sent without `MULTI`.
    ExecWithoutMulti,
    /// `DISCARD` is sent without `MULTI`.
    DiscardWithoutMulti,
    /// A command of the transaction was refused.
    Aborted,
    /// `WATCH` is sent within a transaction.
    WatchInMulti,
    /// `WATCH` is sent to a server without CAS values (`-C`). The server detects changes of an item
    /// by its CAS.
    WatchWithoutCas,
    /// Another server owns a key of `WATCH`.
    WatchOfOther,
    /// A watched item, or the owner of its key, changed after the transaction had already changed
    /// items or answered a command.
    WatchedItemChanged,
    /// The queued commands of a transaction need too much memory.
    TransactionTooLarge,
    /// Memory could not be allocated for an item, for a reply, or for the state of the connection.
    OutOfMemory,
    /// The value would exceed the maximum item size.
    TooLarge,
    /// The key is longer than [`crate::resp::KEY_LEN_MAX`], or empty.
    KeyLength,
    /// The number of tags is not between one and seven.
    TagCount,
    /// The name of a tag is longer than 250 bytes, or empty.
    TagLength,
    /// The engine does not support tags.
    NoTags,
    /// Flushes are disabled.
    FlushDisabled,
    /// The cursor of `SCAN` is not a number.
    Cursor,
    /// Dumps of keys are disabled.
    DumpsDisabled,
    /// The keys need too much memory for one reply.
    TooManyKeys,
    /// `CONFIG SET` does not support this setting.
    ConfigName(&'b [u8]),
    /// `EVAL` or `EVALSHA` has a negative number of keys.
    NegativeKeys,
    /// `EVAL` or `EVALSHA` has fewer arguments than keys.
    TooFewKeys,
    /// There is no script with this hash.
    NoScript,
    /// The server does not support the script, or the request does not have exactly one key.
    UnknownScript,
    /// `SCRIPT FLUSH` has an unknown argument, or more than one.
    ScriptFlushMode,
    /// A script has too few arguments.
    ScriptArguments,
    /// `CONFIG SET` names this setting twice.
    DuplicateSetting(&'b [u8]),
    /// The value for `maxmemory` is not a number of bytes.
    NoMemoryValue,
    /// The memory limit is out of range. The arguments are the smallest and largest limit in bytes.
    MemoryRange(u64, u64),
}

/// The result of parsing: a value, or the error for the reply.
pub(super) type Parsed<'b, T> = Result<T, CommandError<'b>>;
