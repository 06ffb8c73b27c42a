//! What is wrong with a request. The words are in [`crate::reply::resp`].

use super::request::Request;

/// Why a command is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandError<'b> {
    /// There is no such command.
    UnknownCommand(Request<'b>),
    /// The command has no such subcommand.
    UnknownSubcommand {
        /// The command's name.
        command: &'static str,
        /// The subcommand as it was sent.
        subcommand: &'b [u8],
    },
    /// There are too few or too many arguments for the command of this name.
    Arity(&'static str),
    /// The arguments do not go together.
    Syntax,
    /// An argument is no number, or a number that is too large.
    NotInteger,
    /// There is no such type of clients.
    ClientType(&'b [u8]),
    /// No connection can have this number.
    ClientId,
    /// The timeout of `WAIT` is no number.
    TimeoutNotInteger,
    /// The timeout of `WAIT` is below 0.
    TimeoutNegative,
    /// A database that is no number of 32 bits.
    IntRange,
    /// The expiry is not positive, or too late. The name is the command's.
    ExpireTime(&'static str),
    /// `EXPIRE` has no such option.
    ExpireOption(&'b [u8]),
    /// `NX` with another option of `EXPIRE`.
    ExpireNx,
    /// `GT` with `LT`.
    ExpireGtLt,
    /// A decrement of the smallest number.
    DecrementOverflow,
    /// The sum does not fit a number.
    Overflow,
    /// There is no such database.
    DatabaseRange,
    /// The protocol version of `HELLO` is no number.
    HelloVersion,
    /// There is no such protocol version.
    NoProtocol,
    /// `HELLO` has no such option, or too few arguments for it.
    HelloOption(&'b [u8]),
    /// `HELLO` without a login, where one is required.
    HelloLogin,
    /// A login is required.
    LoginRequired,
    /// The items are a copy of another server's, which alone takes changes.
    ReadOnly,
    /// The group of servers has no leader at the moment.
    NoLeader,
    /// The user or the password is wrong.
    WrongPassword,
    /// `AUTH` without a name, where no login is required.
    NoPassword,
    /// The name of a client has a blank, or another byte that is not allowed.
    ClientName,
    /// An attribute that `CLIENT SETINFO` does not know.
    ClientInfo(&'b [u8]),
    /// The value of `CLIENT SETINFO` has a byte that is not allowed. The name is the attribute's.
    ClientInfoValue(&'static str),
    /// `MULTI` within `MULTI`.
    NestedMulti,
    /// `EXEC` without `MULTI`.
    ExecWithoutMulti,
    /// `DISCARD` without `MULTI`.
    DiscardWithoutMulti,
    /// A command of the transaction was refused.
    Aborted,
    /// The commands of a transaction take too much memory.
    TransactionTooLarge,
    /// There is no memory for an item, or for an answer.
    OutOfMemory,
    /// The value would be longer than the largest item.
    TooLarge,
    /// The key is longer than [`crate::resp::KEY_LEN_MAX`], or empty.
    KeyLength,
    /// An item has one to seven tags, if any.
    TagCount,
    /// The name of a tag is longer than 250 bytes, or empty.
    TagLength,
    /// The engine has no tags.
    NoTags,
    /// Flushing is disabled.
    FlushDisabled,
    /// The cursor of `SCAN` is no number.
    Cursor,
    /// Keys may not be dumped.
    DumpsDisabled,
    /// The keys take too much memory for one answer.
    TooManyKeys,
    /// `CONFIG SET` can't change this setting.
    ConfigName(&'b [u8]),
    /// The value for `maxmemory` is no number of bytes.
    NoMemoryValue,
    /// The memory limit can't be that, but from the first to the second number of bytes.
    MemoryRange(u64, u64),
}

/// What was read, or the error that it is answered with.
pub(super) type Parsed<'b, T> = Result<T, CommandError<'b>>;
