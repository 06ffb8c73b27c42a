//! Reply encoders. Each function writes the reply to one kind of request, in the dialect of the
//! request's [`ReplyFormat`]. A function writes nothing if `noreply` or a quiet request suppresses
//! the reply. A quiet request suppresses no errors, but `noreply` suppresses most errors.

mod admin;
mod encode;
mod fast_get;
mod fast_set;
mod login;
pub mod resp;
mod stats;

use crate::meta_flags::{Command, number, show, show_request};
use crate::parse::base64;
use crate::request::{
    Arithmetic, Classic, Debug, Delete, DropTag, Fault, FaultReply, Get, Key, MetaFlags,
    ReplyFormat, Status, Store, StoreMode,
};
use crate::text::number::{push, push_len};
use crate::text::tokens::Tokens;

pub use crate::meta_flags::{ShownItem, Ttl};
pub use admin::*;
pub use fast_get::*;
pub use fast_set::*;
pub use login::*;
pub use stats::*;

use admin::server_list;
use encode::{
    HIT_ROOM, binary, binary_error, binary_hit, binary_success, line, meta_key, out_of_memory,
    success, text, value_line, value_room,
};

/// The properties of a hit on which the reply depends.
#[derive(Clone, Copy, Debug)]
pub struct Hit<'k> {
    /// The decoded key, for replies with a key (`VALUE`, binary `getk`, `mg k`).
    pub key: &'k [u8],
    /// Whether replies in memcached's text protocol contain the key in base64: a client sent it in
    /// base64, or it contains bytes that the text protocol cannot carry.
    pub binary_key: bool,
    /// The properties that meta flags show. Classic text and binary show some of them.
    pub item: ShownItem,
    /// Whether this client has won the right to recache the item (`W`).
    pub won: bool,
    /// Whether the item is stale (`X`).
    pub stale: bool,
    /// Whether another client has already won the right to recache the item (`Z`).
    pub win_taken: bool,
    /// Whether the reply omits the value, because the item has the CAS that the request contains
    /// (`mg C`). The reply is then `HD` instead of `VA`.
    pub withheld: bool,
}

/// The outcome of a store, for its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreReply {
    /// The item was stored.
    Stored {
        /// The item's new CAS.
        cas: u64,
        /// The length of the whole value in bytes, also after an append or prepend.
        len: usize,
    },
    /// An add found an item; a replace, append or prepend found none; or the concatenated value
    /// would be too large.
    NotStored,
    /// The item has another CAS.
    Exists,
    /// A store with a CAS has found no item.
    NotFound,
    /// The item would be larger than the limit.
    TooLarge,
    /// Nothing can be evicted to make room.
    OutOfMemory,
    /// The leader of the group has used up its range of CAS values.
    NoCas,
    /// The value of a text request does not end with CRLF.
    BadChunk,
}

/// The outcome of a removal, for its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteReply {
    /// The item was removed or invalidated.
    Deleted {
        /// The CAS of a kept item; 0 if it is unknown. No reply contains this CAS.
        cas: u64,
    },
    /// There is no item.
    NotFound,
    /// The item has another CAS.
    Exists,
    /// Nothing can be evicted to make room for reading the item.
    OutOfMemory,
}

/// The outcome of an increment or decrement, for its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArithmeticReply {
    /// The number was changed or created.
    Number {
        /// The number after the change.
        value: u64,
        /// The item's new CAS.
        cas: u64,
        /// The time to live, for the flag `t`.
        ttl: Ttl,
    },
    /// There is no item.
    NotFound,
    /// The item has another CAS.
    Exists,
    /// memcached's outcome (`NS`) if another connection creates the item between lookup and store,
    /// or if creating the item fails. Larder's operations never have this outcome.
    NotStored,
    /// The item's value is not a number.
    NonNumeric,
    /// Nothing can be evicted to make room for the changed number.
    OutOfMemory,
    /// Nothing can be evicted to make room for a created number.
    NotCreated,
}

/// The description of an item in the reply to `me`.
#[derive(Clone, Copy, Debug)]
pub struct ItemInfo<'k> {
    /// The decoded key.
    pub key: &'k [u8],
    /// Whether replies in memcached's text protocol contain the key in base64: a client sent it in
    /// base64, or it contains bytes that the text protocol cannot carry.
    pub binary_key: bool,
    /// Seconds until the item expires; `None` if the item never expires.
    pub ttl: Option<u32>,
    /// Seconds since the last access.
    pub idle_secs: u32,
    /// The CAS; 0 if the server stores no CAS values (`-C`).
    pub cas: u64,
    /// Whether the item has been read since it was stored.
    pub fetched: bool,
    /// memcached's slab class.
    pub class: u8,
    /// The size of the item in bytes, counted as memcached does.
    pub size: usize,
}

/// Writes the part of a hit that precedes its value. If the function returns true, the caller
/// appends exactly `hit.item.value_len` bytes of value and calls [`hit_tail`]. Otherwise, the reply
/// is complete.
#[inline]
pub fn hit_head(get: &Get<'_>, hit: &Hit<'_>, out: &mut Vec<u8>) -> bool {
    match &get.format {
        ReplyFormat::Meta(flags) => meta_hit(get, flags, hit, out),
        ReplyFormat::Classic(classic) if !get.value => {
            line(classic, "TOUCHED", out);
            false
        }
        ReplyFormat::Classic(_) | ReplyFormat::Binary(_) => {
            let ShownItem { client_flags, cas, value_len, .. } = hit.item;
            let value_len = if get.value { value_len } else { 0 };
            content_head(get, hit.key, client_flags, cas, value_len, out);
            get.value
        }
    }
}

/// Writes the part of a classic or binary hit that precedes its value.
#[inline]
pub fn content_head(
    get: &Get<'_>,
    key: &[u8],
    client_flags: u32,
    cas: u64,
    value_len: usize,
    out: &mut Vec<u8>,
) {
    out.reserve(HIT_ROOM + key.len() + value_room(value_len));
    match &get.format {
        ReplyFormat::Binary(head) => binary_hit(head, key, client_flags, cas, value_len, out),
        ReplyFormat::Classic(classic) => {
            value_line(key, client_flags, out);
            if classic.with_cas {
                push(value_len as u64, out);
                out.push(b' ');
                push(cas, out);
                out.extend_from_slice(b"\r\n");
            } else {
                push_len(value_len, b"\r\n", out);
            }
        }
        ReplyFormat::Meta(_) => (),
    }
}

/// Writes the bytes that follow a value: a line end in text, then `END` if the key is the last of a
/// classic line. Writes nothing in binary.
#[inline]
pub fn hit_tail(get: &Get<'_>, out: &mut Vec<u8>) {
    match &get.format {
        ReplyFormat::Classic(Classic { last: true, .. }) => out.extend_from_slice(b"\r\nEND\r\n"),
        ReplyFormat::Classic(_) | ReplyFormat::Meta(_) => out.extend_from_slice(b"\r\n"),
        ReplyFormat::Binary(_) => (),
    }
}

/// Writes the reply to a miss. `key` is the decoded key.
#[inline]
pub fn miss(get: &Get<'_>, key: &[u8], out: &mut Vec<u8>) {
    match &get.format {
        ReplyFormat::Classic(classic) if get.value => {
            if classic.last {
                get_end(out);
            }
        }
        ReplyFormat::Classic(classic) => line(classic, "NOT_FOUND", out),
        ReplyFormat::Meta(flags) if flags.has(b'q') => (),
        ReplyFormat::Meta(flags) => {
            out.extend_from_slice(b"EN");
            meta_request(Command::Mg, flags, get.key, out);
        }
        ReplyFormat::Binary(head) if head.quiet => (),
        ReplyFormat::Binary(head) if head.with_key => {
            binary(head, Status::NotFound as u16, &[], key, 0, 0, out);
            out.extend_from_slice(key);
        }
        ReplyFormat::Binary(head) => binary_error(head, Status::NotFound, out),
    }
}

/// Writes `END`, the end of the reply to a classic retrieval line.
pub fn get_end(out: &mut Vec<u8>) {
    out.extend_from_slice(b"END\r\n");
}

/// Writes the reply to a lookup of [`SERVERS_KEY`]: an item without expiry. Its CAS is the version
/// of the list.
pub fn servers_item(get: &Get<'_>, servers: &Servers, out: &mut Vec<u8>) {
    let list = server_list(servers);
    let (cas, value_len) = (servers.version.into(), list.len());
    let item = ShownItem { cas, value_len, ..ShownItem::default() };
    let hit = Hit {
        key: SERVERS_KEY,
        binary_key: false,
        item,
        won: false,
        stale: false,
        win_taken: false,
        withheld: get.compare == Some(cas),
    };
    if hit_head(get, &hit, out) {
        out.extend_from_slice(list.as_bytes());
        hit_tail(get, out);
    }
}

/// Refuses a lookup, because memory for its reply could not be allocated.
pub fn get_refused(get: &Get<'_>, out: &mut Vec<u8>) {
    out_of_memory(&get.format, "SERVER_ERROR out of memory writing get response", out);
}

/// Refuses an `mg N`, because memory for the new item could not be allocated.
pub fn get_created_refused(get: &Get<'_>, out: &mut Vec<u8>) {
    out_of_memory(&get.format, "SERVER_ERROR Out of memory allocating new item", out);
}

/// Writes the reply to a store.
pub fn stored(store: &Store<'_>, outcome: StoreReply, out: &mut Vec<u8>) {
    match &store.format {
        ReplyFormat::Classic(classic) => line(classic, stored_line(outcome), out),
        ReplyFormat::Meta(flags) => meta_stored(store, flags, outcome, out),
        ReplyFormat::Binary(head) => match outcome {
            StoreReply::Stored { cas, .. } => binary_success(head, &[], cas, out),
            _ => binary_error(head, stored_status(store.mode, outcome), out),
        },
    }
}

fn stored_line(outcome: StoreReply) -> &'static str {
    match outcome {
        StoreReply::Stored { .. } => "STORED",
        StoreReply::NotStored => "NOT_STORED",
        StoreReply::Exists => "EXISTS",
        StoreReply::NotFound => "NOT_FOUND",
        StoreReply::TooLarge => "SERVER_ERROR object too large for cache",
        StoreReply::OutOfMemory => "SERVER_ERROR out of memory storing object",
        StoreReply::NoCas => "SERVER_ERROR no CAS values left",
        StoreReply::BadChunk => "CLIENT_ERROR bad data chunk",
    }
}

fn stored_status(mode: StoreMode, outcome: StoreReply) -> Status {
    match outcome {
        StoreReply::NotStored if mode == StoreMode::Add => Status::Exists,
        StoreReply::NotStored if mode == StoreMode::Replace => Status::NotFound,
        StoreReply::Exists => Status::Exists,
        StoreReply::NotFound => Status::NotFound,
        StoreReply::TooLarge => Status::TooLarge,
        StoreReply::OutOfMemory | StoreReply::NoCas => Status::OutOfMemory,
        StoreReply::Stored { .. } | StoreReply::NotStored | StoreReply::BadChunk => {
            Status::NotStored
        }
    }
}

fn meta_stored(store: &Store<'_>, flags: &MetaFlags<'_>, outcome: StoreReply, out: &mut Vec<u8>) {
    let (code, cas, value_len) = match outcome {
        StoreReply::Stored { cas, len } => (b"HD", cas, len),
        StoreReply::NotStored => (b"NS", 0, store.value_len),
        StoreReply::Exists => (b"EX", 0, store.value_len),
        StoreReply::NotFound => (b"NF", 0, store.value_len),
        StoreReply::TooLarge
        | StoreReply::OutOfMemory
        | StoreReply::NoCas
        | StoreReply::BadChunk => {
            return text(stored_line(outcome), out);
        }
    };
    if flags.has(b'q') && code == b"HD" {
        return;
    }
    out.extend_from_slice(code);
    let item = ShownItem { cas, value_len, ..ShownItem::default() };
    let key = |out: &mut Vec<u8>| meta_key(store.key.wire, store.key.base64, out);
    show(Command::Ms, Tokens(flags.raw), &item, key, out);
    out.extend_from_slice(b"\r\n");
}

/// Writes the reply to a removal.
pub fn deleted(delete: &Delete<'_>, outcome: DeleteReply, out: &mut Vec<u8>) {
    let (word, code, status) = match outcome {
        DeleteReply::Deleted { .. } => ("DELETED", b"HD", None),
        DeleteReply::NotFound => ("NOT_FOUND", b"NF", Some(Status::NotFound)),
        DeleteReply::Exists => ("EXISTS", b"EX", Some(Status::Exists)),
        DeleteReply::OutOfMemory => {
            return out_of_memory(&delete.format, "SERVER_ERROR out of memory", out);
        }
    };
    match &delete.format {
        ReplyFormat::Classic(classic) => line(classic, word, out),
        ReplyFormat::Meta(flags) if flags.has(b'q') && status.is_none() => (),
        ReplyFormat::Meta(flags) => {
            out.extend_from_slice(code);
            meta_request(Command::Md, flags, delete.key, out);
        }
        ReplyFormat::Binary(head) => match status {
            Some(status) => binary_error(head, status, out),
            None => binary_success(head, &[], 0, out),
        },
    }
}

/// Writes the reply to `mt`. `found` states whether items may have had the tag.
pub fn tag_dropped(drop: &DropTag<'_>, found: bool, out: &mut Vec<u8>) {
    let ReplyFormat::Meta(flags) = &drop.format else { return };
    if found && flags.has(b'q') {
        return;
    }
    out.extend_from_slice(if found { b"HD" } else { b"NF" });
    meta_request(Command::Md, flags, drop.tag, out);
}

/// Refuses a request with tags, because the tag table is full or the engine does not support tags.
pub fn tags_refused(is_full: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(if is_full {
        b"SERVER_ERROR out of memory for tags\r\n".as_slice()
    } else {
        b"SERVER_ERROR this engine keeps no tags\r\n"
    });
}

/// Writes the reply to an increment or decrement.
pub fn counted(arithmetic: &Arithmetic<'_>, outcome: ArithmeticReply, out: &mut Vec<u8>) {
    match (&arithmetic.format, outcome) {
        (ReplyFormat::Classic(classic), ArithmeticReply::Number { value, .. }) => {
            if !classic.noreply {
                number(b"", value, out);
                out.extend_from_slice(b"\r\n");
            }
        }
        (ReplyFormat::Classic(classic), _) => line(classic, counted_line(outcome), out),
        (ReplyFormat::Meta(flags), _) => meta_counted(arithmetic, flags, outcome, out),
        (ReplyFormat::Binary(head), ArithmeticReply::Number { value, cas, .. }) => {
            binary_success(head, &value.to_be_bytes(), cas, out);
        }
        (ReplyFormat::Binary(head), _) => binary_error(head, counted_status(outcome), out),
    }
}

fn counted_line(outcome: ArithmeticReply) -> &'static str {
    match outcome {
        ArithmeticReply::Exists => "EXISTS",
        ArithmeticReply::NotStored => "NOT_STORED",
        ArithmeticReply::NonNumeric => {
            "CLIENT_ERROR cannot increment or decrement non-numeric value"
        }
        ArithmeticReply::OutOfMemory => "SERVER_ERROR out of memory",
        ArithmeticReply::NotCreated => "SERVER_ERROR Out of memory allocating new item",
        ArithmeticReply::Number { .. } | ArithmeticReply::NotFound => "NOT_FOUND",
    }
}

fn counted_status(outcome: ArithmeticReply) -> Status {
    match outcome {
        ArithmeticReply::Exists => Status::Exists,
        ArithmeticReply::NotStored => Status::NotStored,
        ArithmeticReply::NonNumeric => Status::NonNumeric,
        ArithmeticReply::OutOfMemory | ArithmeticReply::NotCreated => Status::OutOfMemory,
        ArithmeticReply::Number { .. } | ArithmeticReply::NotFound => Status::NotFound,
    }
}

fn meta_counted(
    arithmetic: &Arithmetic<'_>,
    flags: &MetaFlags<'_>,
    outcome: ArithmeticReply,
    out: &mut Vec<u8>,
) {
    let code = match outcome {
        ArithmeticReply::Number { value, cas, ttl } => {
            if !flags.has(b'q') {
                meta_number(arithmetic, flags, value, cas, &ttl, out);
            }
            return;
        }
        ArithmeticReply::NotFound => b"NF",
        ArithmeticReply::Exists => b"EX",
        ArithmeticReply::NotStored => b"NS",
        ArithmeticReply::NonNumeric
        | ArithmeticReply::OutOfMemory
        | ArithmeticReply::NotCreated => {
            return text(counted_line(outcome), out);
        }
    };
    out.extend_from_slice(code);
    meta_request(Command::Ma, flags, arithmetic.key, out);
}

fn meta_number(
    arithmetic: &Arithmetic<'_>,
    flags: &MetaFlags<'_>,
    value: u64,
    cas: u64,
    ttl: &Ttl,
    out: &mut Vec<u8>,
) {
    let mut digits = itoa::Buffer::new();
    let digits = digits.format(value);
    let wants_value = flags.has(b'v');
    if wants_value {
        number(b"VA ", digits.len() as u64, out);
    } else {
        out.extend_from_slice(b"HD");
    }
    let item = ShownItem { cas, ttl: *ttl, ..ShownItem::default() };
    let key = |out: &mut Vec<u8>| meta_key(arithmetic.key.wire, arithmetic.key.base64, out);
    show(Command::Ma, Tokens(flags.raw), &item, key, out);
    out.extend_from_slice(b"\r\n");
    if wants_value {
        text(digits, out);
    }
}

/// Writes the reply to `me`: an item's description, or a miss.
pub fn item_info(debug: &Debug<'_>, found: Option<&ItemInfo<'_>>, out: &mut Vec<u8>) {
    let Some(item) = found else {
        out.extend_from_slice(b"EN\r\n");
        return;
    };
    out.extend_from_slice(b"ME ");
    if item.binary_key {
        base64::encode(item.key, out);
    } else {
        out.extend_from_slice(if debug.key.base64 { item.key } else { debug.key.wire });
    }
    out.extend_from_slice(b" exp=");
    match item.ttl {
        Some(ttl) => number(b"", ttl.into(), out),
        None => out.extend_from_slice(b"-1"),
    }
    number(b" la=", item.idle_secs.into(), out);
    number(b" cas=", item.cas, out);
    out.extend_from_slice(if item.fetched { b" fetch=yes" } else { b" fetch=no" });
    number(b" cls=", item.class.into(), out);
    number(b" size=", item.size as u64, out);
    out.extend_from_slice(b"\r\n");
}

/// Writes the reply to a fault. [`crate::Recovery`] determines when the caller sends it.
pub fn fault(fault: &Fault, out: &mut Vec<u8>) {
    match &fault.reply {
        FaultReply::Silent => (),
        FaultReply::Text(line) => text(line, out),
        FaultReply::Binary { head, status } => binary_error(head, *status, out),
    }
}

/// Writes the reply to `mn` or a binary noop.
pub fn noop(format: &ReplyFormat<'_>, out: &mut Vec<u8>) {
    success(format, "MN", out);
}

/// Writes the reply to an executed command without a result: `flush_all`, `verbosity`, and
/// administrative commands.
pub fn ok(format: &ReplyFormat<'_>, out: &mut Vec<u8>) {
    success(format, "OK", out);
}

/// Refuses a change, because the server is a replica.
pub fn read_only(format: &ReplyFormat<'_>, out: &mut Vec<u8>) {
    let words = "SERVER_ERROR this server is a replica: send changes to its leader";
    match format {
        ReplyFormat::Classic(classic) => line(classic, words, out),
        ReplyFormat::Meta(_) => text(words, out),
        ReplyFormat::Binary(head) => binary_error(head, Status::NotSupported, out),
    }
}

/// Refuses a request about an item, because no leader can answer it.
pub fn no_leader(format: &ReplyFormat<'_>, out: &mut Vec<u8>) {
    let words = "SERVER_ERROR no leader";
    match format {
        ReplyFormat::Classic(classic) => line(classic, words, out),
        ReplyFormat::Meta(_) => text(words, out),
        ReplyFormat::Binary(head) => binary_error(head, Status::TemporaryFailure, out),
    }
}

/// Refuses `flush_all` on a server that forbids it (`-F`).
pub fn flush_refused(format: &ReplyFormat<'_>, out: &mut Vec<u8>) {
    match format {
        ReplyFormat::Classic(classic) => line(classic, "CLIENT_ERROR flush_all not allowed", out),
        ReplyFormat::Meta(_) => text("CLIENT_ERROR flush_all not allowed", out),
        ReplyFormat::Binary(head) => binary_error(head, Status::AuthFailure, out),
    }
}

/// Writes the reply to `version`.
pub fn version(format: &ReplyFormat<'_>, version: &str, out: &mut Vec<u8>) {
    match format {
        ReplyFormat::Binary(head) => {
            binary(head, 0, &[], &[], version.len(), 0, out);
            out.extend_from_slice(version.as_bytes());
        }
        ReplyFormat::Classic(_) | ReplyFormat::Meta(_) => {
            out.extend_from_slice(b"VERSION ");
            text(version, out);
        }
    }
}

/// Writes the binary reply to `quit`. In text, `quit` has no reply.
pub fn quit(format: &ReplyFormat<'_>, out: &mut Vec<u8>) {
    if let ReplyFormat::Binary(head) = format {
        binary_success(head, &[], 0, out);
    }
}

/// Writes the part of an `mg` hit that precedes its value.
#[inline]
fn meta_hit(get: &Get<'_>, flags: &MetaFlags<'_>, hit: &Hit<'_>, out: &mut Vec<u8>) -> bool {
    let with_value = get.value && !hit.withheld;
    let value_len = if with_value { hit.item.value_len } else { 0 };
    out.reserve(HIT_ROOM + flags.raw.len() + 2 * hit.key.len() + value_room(value_len));
    if with_value {
        number(b"VA ", hit.item.value_len as u64, out);
    } else {
        out.extend_from_slice(b"HD");
    }
    show(Command::Mg, Tokens(flags.raw), &hit.item, |out| meta_item_key(get.key, hit, out), out);
    for (mark, shown) in [(b" Z", hit.win_taken), (b" X", hit.stale), (b" W", hit.won)] {
        if shown {
            out.extend_from_slice(mark);
        }
    }
    out.extend_from_slice(b"\r\n");
    with_value
}

/// Writes the key of an item, in base64 if `hit.binary_key` is set.
fn meta_item_key(requested: Key<'_>, hit: &Hit<'_>, out: &mut Vec<u8>) {
    if !hit.binary_key {
        meta_key(hit.key, false, out);
    } else if requested.base64 {
        meta_key(requested.wire, true, out);
    } else {
        out.extend_from_slice(b" k");
        base64::encode(hit.key, out);
        out.extend_from_slice(b" b");
    }
}

/// Writes the flags of a reply without an item, and the line's end.
fn meta_request(command: Command, flags: &MetaFlags<'_>, key: Key<'_>, out: &mut Vec<u8>) {
    let key = |out: &mut Vec<u8>| meta_key(key.wire, key.base64, out);
    show_request(command, Tokens(flags.raw), key, out);
    out.extend_from_slice(b"\r\n");
}
