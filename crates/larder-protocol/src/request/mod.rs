//! What a peer can ask, whichever dialect it asked in.
//!
//! Meta is the richest dialect, so these types speak its language; classic text and binary are
//! lowered into it by their parsers. What only matters to the answer travels in [`ReplyFormat`].

mod admin;
mod format;
mod login;

pub use admin::*;
pub use format::*;
pub use login::*;

/// The longest key in bytes, as sent in text (base64 included) or in binary.
pub const KEY_LEN_MAX: usize = 250;

/// One request, borrowed from the bytes it came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'b> {
    /// Look an item up; perhaps touch, revive or recache it (`get`, `gat`, `touch`, `mg`, …).
    Get(Get<'b>),
    /// A classic retrieval line ended after its last key had already been handed out.
    GetEnd,
    /// Keep a value (`set`, `cas`, `append`, `ms`, …).
    Store(Store<'b>),
    /// Remove or invalidate an item (`delete`, `md`).
    Delete(Delete<'b>),
    /// Count up or down (`incr`, `decr`, `ma`).
    Arithmetic(Arithmetic<'b>),
    /// Describe an item (`me`).
    Debug(Debug<'b>),
    /// `mt`: drop a tag.
    DropTag(DropTag<'b>),
    /// `mn`, binary noop: flushes whatever was answered before it.
    Noop(ReplyFormat<'b>),
    /// Forget everything, now or later.
    FlushAll {
        /// 0 or less is now; as [`Exptime`] otherwise.
        delay: Exptime,
        /// How to answer.
        format: ReplyFormat<'b>,
    },
    /// The server's version.
    Version(ReplyFormat<'b>),
    /// Set the log level. The parser has capped it at 2.
    Verbosity {
        /// 0, 1 or 2.
        level: u32,
        /// How to answer.
        format: ReplyFormat<'b>,
    },
    /// Statistics.
    Stats {
        /// What follows `stats`, outer spaces removed; the key of a binary stat request.
        topic: &'b [u8],
        /// How to answer.
        format: ReplyFormat<'b>,
    },
    /// What an operator asks of the server.
    Admin {
        /// The command.
        command: Admin,
        /// How to answer.
        format: ReplyFormat<'b>,
    },
    /// A login. Nothing behind it may be parsed before it is answered.
    Login(Login<'b>),
    /// Answer what came before, then close.
    Quit(ReplyFormat<'b>),
    /// Bytes that break the protocol: to the server a request whose answer is known.
    Fault(Fault),
}

/// An expiry as sent, not yet resolved against a clock: 0 never; negative already past; up to
/// [`RELATIVE_SECS_MAX`] seconds from now; above that Unix seconds. Text sends a signed 32-bit
/// number and binary an unsigned one, so 64 bits hold both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Exptime(pub i64);

/// The largest relative [`Exptime`]: 30 days.
pub const RELATIVE_SECS_MAX: i64 = 60 * 60 * 24 * 30;

/// A key as sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key<'b> {
    /// As sent: 1 to [`KEY_LEN_MAX`] bytes.
    pub wire: &'b [u8],
    /// Sent in base64 (meta flag `b`). The parser has checked that it decodes.
    pub base64: bool,
}

impl<'b> Key<'b> {
    /// A key that was not sent in base64.
    #[inline]
    pub(crate) fn raw(wire: &'b [u8]) -> Self {
        Self { wire, base64: false }
    }
}

/// A lookup, with all that `mg` can do on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Get<'b> {
    /// Which item.
    pub key: Key<'b>,
    /// The answer carries the value (`get`, `gat`, `mg v`); false for `touch` and `mg` without `v`.
    pub value: bool,
    /// Set the expiry (`touch`, `gat`, `mg T`).
    pub touch: Option<Exptime>,
    /// Create an empty item on a miss, with this expiry (`mg N`).
    pub vivify: Option<Exptime>,
    /// Win the right to recache when less than this is left (`mg R`, seconds).
    pub recache: Option<i32>,
    /// Withhold the value if the CAS is this one (`mg C`).
    pub compare: Option<u64>,
    /// The CAS of an item created by `vivify` (`mg E`).
    pub new_cas: Option<u64>,
    /// Leave no trace: no access is recorded (`mg u`).
    pub untracked: bool,
    /// How to answer.
    pub format: ReplyFormat<'b>,
}

/// What a store does about an item that is or is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreMode {
    /// Whatever is there.
    Set,
    /// Only if nothing is there.
    Add,
    /// Only if something is there.
    Replace,
    /// Behind what is there.
    Append,
    /// Before what is there.
    Prepend,
}

/// A store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store<'b> {
    /// Which item.
    pub key: Key<'b>,
    /// What to do about what is there.
    pub mode: StoreMode,
    /// Opaque to the server.
    pub client_flags: u32,
    /// When it expires.
    pub expiry: Exptime,
    /// The announced length of the value in bytes.
    pub value_len: usize,
    /// The value; empty when this is only a head ([`Parsed::Body`]).
    pub value: &'b [u8],
    /// The value was followed by CRLF, as text must. Always true in binary.
    pub terminated: bool,
    /// Only if the CAS is this one: `EX` if not, `NF` if nothing is there. `None` where the dialect
    /// says that 0, or any number, means no check (add; append with 0).
    pub compare: Option<u64>,
    /// Use this CAS for the stored item (`ms E`, never 0).
    pub new_cas: Option<u64>,
    /// Accept a `compare` that is lower than the item's CAS and store the item stale (`ms I`).
    pub invalidate: bool,
    /// With append and prepend: create on a miss with this expiry (`ms N`).
    pub vivify: Option<Exptime>,
    /// How to answer.
    pub format: ReplyFormat<'b>,
}

impl Store<'_> {
    /// Whether the bytes behind an uploaded value end it: CRLF in text, nothing in binary.
    #[must_use]
    pub fn is_value_end(trailer: &[u8]) -> bool {
        matches!(trailer, b"" | b"\r\n")
    }
}

/// A removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delete<'b> {
    /// Which item.
    pub key: Key<'b>,
    /// Only if the CAS is this one (`md C`: 0 never matches).
    pub compare: Option<u64>,
    /// Use this CAS (`md E` with `x` or `I`).
    pub new_cas: Option<u64>,
    /// Mark stale rather than remove (`md I`).
    pub invalidate: bool,
    /// Drop the value but keep the item (`md x`).
    pub value_only: bool,
    /// The expiry of what is kept (`md T`).
    pub touch: Option<Exptime>,
    /// The client flags of what is kept (`md F`).
    pub client_flags: Option<u32>,
    /// How to answer.
    pub format: ReplyFormat<'b>,
}

/// Counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arithmetic<'b> {
    /// Which item.
    pub key: Key<'b>,
    /// Count down rather than up.
    pub down: bool,
    /// By how much.
    pub delta: u64,
    /// Create on a miss with this expiry and `initial` (`ma N`, binary).
    pub vivify: Option<Exptime>,
    /// The value of an item that is created; the delta is not applied to it.
    pub initial: u64,
    /// Set the expiry on success (`ma T`).
    pub touch: Option<Exptime>,
    /// Only if the CAS is this one (never `Some(0)`).
    pub compare: Option<u64>,
    /// Use this CAS (`ma E`).
    pub new_cas: Option<u64>,
    /// How to answer.
    pub format: ReplyFormat<'b>,
}

/// Drop a tag: all items that carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropTag<'b> {
    /// The name, as a key is sent.
    pub tag: Key<'b>,
    /// How to answer.
    pub format: ReplyFormat<'b>,
}

/// A look behind the scenes (`me`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Debug<'b> {
    /// Which item.
    pub key: Key<'b>,
    /// How to answer.
    pub format: ReplyFormat<'b>,
}

/// What a peer did wrong, and what becomes of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// How it is answered.
    pub reply: FaultReply,
    /// How the connection goes on.
    pub then: Recovery,
}

/// The answer to a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultReply {
    /// Nothing: `noreply`, or a silent close.
    Silent,
    /// A line, without its CRLF.
    Text(&'static str),
    /// A binary status with its own text.
    Binary {
        /// What the answer repeats.
        head: BinaryHead,
        /// Status and text.
        status: Status,
    },
}

/// What follows a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Go on behind the consumed bytes.
    Continue,
    /// Drop this many further bytes, then answer, then go on.
    Swallow(u64),
    /// Drop everything up to and including the next LF (its line is longer than the buffer), then go
    /// on. The answer is sent at once.
    SwallowLine,
    /// Answer and close.
    Close,
}

/// Binary statuses that are not success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
#[expect(missing_docs, reason = "the names are the protocol's own")]
pub enum Status {
    NotFound = 0x01,
    Exists = 0x02,
    TooLarge = 0x03,
    InvalidArguments = 0x04,
    NotStored = 0x05,
    NonNumeric = 0x06,
    AuthFailure = 0x20,
    UnknownCommand = 0x81,
    OutOfMemory = 0x82,
    NotSupported = 0x83,
    TemporaryFailure = 0x86,
}

/// What the front of a buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed<'b> {
    /// A whole request, in the first `consumed` bytes.
    Request {
        /// The request.
        request: Request<'b>,
        /// Bytes to drop once it is answered.
        consumed: usize,
    },
    /// A store whose value is not all here yet.
    Body {
        /// The store, its `value` empty.
        store: Store<'b>,
        /// Bytes before the value. [`crate::Parser::parse_head`] reads them again later.
        head_len: usize,
        /// Bytes from the value on, its CRLF included.
        body_len: u64,
    },
    /// The request is not all here: read more. On a stream that is ordinary, hence no error.
    Incomplete,
}

/// The longest value that a text store can announce, in bytes.
pub const VALUE_LEN_MAX: usize = 2_147_483_645;
