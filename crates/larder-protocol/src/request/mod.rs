//! Client requests, in a form that does not depend on the dialect.
//!
//! These types follow meta text, the most expressive dialect. The parsers of classic text and
//! binary convert requests to them. [`ReplyFormat`] has the properties that affect only the reply.

mod admin;
mod format;
mod login;

pub use admin::*;
pub use format::*;
pub use login::*;

/// The maximum length of a key in bytes, as sent in text or binary. For a key in base64, the limit
/// applies to the encoded key.
pub const KEY_LEN_MAX: usize = 250;

/// One request, which borrows from the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'b> {
    /// Look an item up, and optionally touch, create or recache it (`get`, `gat`, `touch`, `mg`,
    /// …).
    Get(Get<'b>),
    /// The end of a classic retrieval line that arrived after the parser had returned the line's
    /// last key.
    GetEnd,
    /// Store a value (`set`, `cas`, `append`, `ms`, …).
    Store(Store<'b>),
    /// Remove or invalidate an item (`delete`, `md`).
    Delete(Delete<'b>),
    /// Increment or decrement a number (`incr`, `decr`, `ma`).
    Arithmetic(Arithmetic<'b>),
    /// Describe an item (`me`).
    Debug(Debug<'b>),
    /// Drop a tag (`mt`).
    DropTag(DropTag<'b>),
    /// Answer after all earlier requests (`mn`, binary noop).
    Noop(ReplyFormat<'b>),
    /// Remove all items.
    FlushAll {
        /// The time of the removal; 0 or less means now.
        at: Exptime,
        /// The dialect of the reply, and whether to suppress it (`noreply`, `flushq`).
        format: ReplyFormat<'b>,
    },
    /// Report the server's version.
    Version(ReplyFormat<'b>),
    /// Set the log level. The parser limits it to 2.
    Verbosity {
        /// The level: 0, 1 or 2.
        level: u32,
        /// The dialect of the reply, and whether to suppress it (`noreply`).
        format: ReplyFormat<'b>,
    },
    /// Report statistics.
    Stats {
        /// The words after `stats` without outer spaces, or the key of a binary stat request.
        topic: &'b [u8],
        /// The dialect of the reply. Each packet of a binary reply repeats the opaque.
        format: ReplyFormat<'b>,
    },
    /// An administrative command.
    Admin {
        /// The command with its arguments.
        command: Admin,
        /// The dialect of the reply, and whether to suppress it (`noreply`).
        format: ReplyFormat<'b>,
    },
    /// A login. Reply to the login before parsing the bytes after it.
    Login(Login<'b>),
    /// Answer all earlier requests, then close the connection.
    Quit(ReplyFormat<'b>),
    /// A protocol violation, with its reply.
    Fault(Fault),
}

/// An expiry as sent, not yet resolved against a clock. 0 means that the item never expires, and a
/// negative number that the item has already expired. Numbers up to [`RELATIVE_SECS_MAX`] are
/// seconds from now, and larger numbers are Unix seconds. Text requests have a signed 32-bit
/// number, and binary requests an unsigned 32-bit number; 64 bits hold both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Exptime(pub i64);

/// The largest relative [`Exptime`]: 30 days.
pub const RELATIVE_SECS_MAX: i64 = 60 * 60 * 24 * 30;

/// A key as sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key<'b> {
    /// The key as sent: 1 to [`KEY_LEN_MAX`] bytes.
    pub wire: &'b [u8],
    /// Whether the key is in base64 (meta flag `b`). The parser has validated the encoding.
    pub base64: bool,
}

impl<'b> Key<'b> {
    /// Returns a key that is not in base64.
    #[inline]
    pub(crate) fn raw(wire: &'b [u8]) -> Self {
        Self { wire, base64: false }
    }
}

/// A lookup, with all options of `mg`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Get<'b> {
    /// The key as sent, in base64 or not.
    pub key: Key<'b>,
    /// Whether the reply has the value (`get`, `gat`, `mg v`, not `touch`).
    pub value: bool,
    /// The new expiry of the item (`touch`, `gat`, `mg T`).
    pub touch: Option<Exptime>,
    /// If there is no item, the request creates an empty item with this expiry (`mg N`).
    pub vivify: Option<Exptime>,
    /// If the item expires in fewer seconds than this, the client wins the right to recache it (`mg
    /// R`). As in an [`Exptime`], a number above [`RELATIVE_SECS_MAX`] is a Unix time. 0 has no
    /// effect.
    pub recache: Option<i32>,
    /// If the item has this CAS, the reply omits the value (`mg C`).
    pub compare: Option<u64>,
    /// The CAS of an item created by `vivify` (`mg E`).
    pub new_cas: Option<u64>,
    /// If true, the access is not recorded (`mg u`).
    pub untracked: bool,
    /// The dialect of the reply, and the requested properties of the item (`gets`, flags of `mg`).
    pub format: ReplyFormat<'b>,
}

impl Get<'_> {
    /// Returns whether the lookup has `touch` or `vivify`, and so may change or create an item. The
    /// right to recompute a stale item does not count as a change, because each replica grants that
    /// right for its own items.
    #[must_use]
    pub fn changes_item(&self) -> bool {
        self.touch.is_some() || self.vivify.is_some()
    }
}

/// The effect of a store on an existing or missing item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreMode {
    /// Stores the value unconditionally.
    Set,
    /// Stores the value only if there is no item.
    Add,
    /// Stores the value only if there is an item.
    Replace,
    /// Appends to the existing value.
    Append,
    /// Prepends to the existing value.
    Prepend,
}

/// A store in classic text, meta or binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store<'b> {
    /// The key as sent, in base64 or not.
    pub key: Key<'b>,
    /// The effect on an existing or missing item.
    pub mode: StoreMode,
    /// Client flags, which the server does not interpret.
    pub client_flags: u32,
    /// The expiry of the item.
    pub expiry: Exptime,
    /// The announced length of the value in bytes.
    pub value_len: usize,
    /// The value; empty in the head of a store ([`Parsed::StoreHead`]).
    pub value: &'b [u8],
    /// Whether CRLF follows the value, as text requires. Always true in binary.
    pub terminated: bool,
    /// The CAS that the item must have for the store. The outcome is `EX` if the CAS differs, and
    /// `NF` if there is no item. Append and prepend ignore the CAS if there is no item. The field
    /// is also `None` if the CAS in the request has no effect: in an `ms`, the mode add ignores
    /// every CAS, and the modes append and prepend ignore a CAS of 0.
    pub compare: Option<u64>,
    /// The CAS of the stored item (`ms E`, never 0).
    pub new_cas: Option<u64>,
    /// If true, a `compare` lower than the item's CAS is accepted, and the item is stored as stale
    /// (`ms I`).
    pub invalidate: bool,
    /// The expiry of the item that an append or prepend creates on a miss (`ms N`).
    pub vivify: Option<Exptime>,
    /// The dialect of the reply, and whether to suppress it (`noreply`, `ms q`, `setq`).
    pub format: ReplyFormat<'b>,
}

impl Store<'_> {
    /// Returns whether `trailer`, the bytes after an uploaded value, ends the value correctly: CRLF
    /// in text, no bytes in binary.
    #[must_use]
    pub fn is_value_end(trailer: &[u8]) -> bool {
        matches!(trailer, b"" | b"\r\n")
    }
}

/// A removal or invalidation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delete<'b> {
    /// The key as sent, in base64 or not.
    pub key: Key<'b>,
    /// The CAS that the item must have to be removed or invalidated (`md C`; 0 never matches).
    pub compare: Option<u64>,
    /// The CAS of a kept item (`md E` with `x` or `I`).
    pub new_cas: Option<u64>,
    /// Whether to mark the item as stale instead of removing it (`md I`).
    pub invalidate: bool,
    /// Whether to remove only the value and keep the item (`md x`).
    pub value_only: bool,
    /// The expiry of a kept item (`md T`).
    pub touch: Option<Exptime>,
    /// The client flags of an item kept without its value (`md F` with `x`).
    pub client_flags: Option<u32>,
    /// The dialect of the reply, and whether to suppress it (`noreply`, `md q`, `deleteq`).
    pub format: ReplyFormat<'b>,
}

/// An increment or decrement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arithmetic<'b> {
    /// The key as sent, in base64 or not.
    pub key: Key<'b>,
    /// Whether to decrement rather than increment.
    pub down: bool,
    /// The amount to add or subtract.
    pub delta: u64,
    /// The expiry of the item that a miss creates with the number `initial` (`ma N`, binary).
    pub vivify: Option<Exptime>,
    /// The number to create; `delta` is not added to it.
    pub initial: u64,
    /// The new expiry of the item after success (`ma T`).
    pub touch: Option<Exptime>,
    /// The CAS that the item must have to be changed (never `Some(0)`).
    pub compare: Option<u64>,
    /// The CAS of the item after the change (`ma E`).
    pub new_cas: Option<u64>,
    /// The dialect of the reply, and whether to suppress it (`noreply`, `ma q`, `incrq`).
    pub format: ReplyFormat<'b>,
}

/// A request to drop a tag, which removes all items with this tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropTag<'b> {
    /// The name of the tag, sent like a key.
    pub tag: Key<'b>,
    /// The dialect of the reply, and whether to suppress it (`mt q`).
    pub format: ReplyFormat<'b>,
}

/// A request for the description of an item (`me`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Debug<'b> {
    /// The key as sent, in base64 or not.
    pub key: Key<'b>,
    /// The dialect of the reply: always meta text.
    pub format: ReplyFormat<'b>,
}

/// A protocol violation: its reply, and the recovery of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The reply to the client, if any.
    pub reply: FaultReply,
    /// The recovery of the connection.
    pub then: Recovery,
}

/// The reply to a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultReply {
    /// No reply. The request has `noreply`, the server closes the connection without a reply, or
    /// the parser has only skipped blanks.
    Silent,
    /// A line, without its CRLF.
    Text(&'static str),
    /// A binary error reply.
    Binary {
        /// The head of the request.
        head: BinaryHead,
        /// The status, which also determines the text.
        status: Status,
    },
}

/// The recovery of a connection after a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Continue after the consumed bytes.
    Continue,
    /// Drop this many further bytes, then answer and continue.
    Swallow(u64),
    /// Answer immediately, then drop everything up to and including the next LF, which has not
    /// arrived yet, and continue.
    SwallowLine,
    /// Answer, then close the connection.
    Close,
}

/// Binary error statuses.
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

/// The result of parsing the start of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed<'b> {
    /// A complete request, in the first `consumed` bytes.
    Request {
        /// The request, which borrows from the buffer.
        request: Request<'b>,
        /// The length of the request in bytes. Drop these bytes after answering the request.
        consumed: usize,
    },
    /// The head of a store with an incomplete value.
    StoreHead {
        /// The store, with an empty `value`.
        store: Store<'b>,
        /// The number of bytes before the value. [`crate::Parser::parse_head`] can parse these
        /// bytes again.
        head_len: usize,
        /// The length of the value in bytes. In text, it includes the CRLF after the value.
        body_len: u64,
    },
    /// The request is incomplete: read more. This is not an error, because a stream may be split
    /// anywhere.
    Incomplete,
}

/// The maximum length, in bytes, that a text store can announce for its value.
pub const VALUE_LEN_MAX: usize = 2_147_483_645;
