//! Encoders for binary requests: a 24-byte head, then extras, key and value.
//!
//! The protocol allows any bytes in keys. This module requires a [`WireKey`], so that classic text
//! can address the same item. Values have at most [`VALUE_LEN_MAX`](crate::VALUE_LEN_MAX) bytes.

use super::{NewItem, WireKey};
use crate::parse::binary::{HEAD_LEN, MAGIC, NO_CREATE, opcode};
use crate::request::{Credentials, Exptime, RELATIVE_SECS_MAX, StoreMode};

/// Options that every binary request has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Bytes that the reply repeats unchanged.
    pub opaque: [u8; 4],
    /// Suppresses the reply to a `get` that misses, and to any other command that succeeds. A
    /// [`noop`] after quiet requests marks the end of their replies. Commands without a quiet form
    /// ignore this option.
    pub quiet: bool,
}

/// Writes `get`, which looks up a key. With `with_key`, writes `getk`, whose reply has the key.
#[inline]
pub fn get(key: WireKey<'_>, with_key: bool, options: Options, out: &mut Vec<u8>) {
    let opcode = match (with_key, options.quiet) {
        (false, false) => opcode::GET,
        (false, true) => opcode::GETQ,
        (true, false) => opcode::GETK,
        (true, true) => opcode::GETKQ,
    };
    request(opcode, options, 0, &[], key.bytes(), &[], out);
}

/// Writes `gat`, which looks up a key and sets the expiry. With `with_key`, writes `gatk`, whose
/// reply has the key.
pub fn gat(key: WireKey<'_>, expiry: Exptime, with_key: bool, options: Options, out: &mut Vec<u8>) {
    let opcode = match (with_key, options.quiet) {
        (false, false) => opcode::GAT,
        (false, true) => opcode::GATQ,
        (true, false) => opcode::GATK,
        (true, true) => opcode::GATKQ,
    };
    request(opcode, options, 0, &wire_expiry(expiry), key.bytes(), &[], out);
}

/// Writes `touch`, which sets the expiry of an item. There is no quiet form.
pub fn touch(key: WireKey<'_>, expiry: Exptime, options: Options, out: &mut Vec<u8>) {
    request(opcode::TOUCH, options, 0, &wire_expiry(expiry), key.bytes(), &[], out);
}

/// Writes `set`, `add`, `replace`, `append` or `prepend`. If `cas` is not 0, the server stores the
/// value only if the existing item has this CAS.
#[inline]
pub fn store(
    mode: StoreMode,
    key: WireKey<'_>,
    item: &NewItem<'_>,
    cas: u64,
    options: Options,
    out: &mut Vec<u8>,
) {
    let (loud, quiet) = match mode {
        StoreMode::Set => (opcode::SET, opcode::SETQ),
        StoreMode::Add => (opcode::ADD, opcode::ADDQ),
        StoreMode::Replace => (opcode::REPLACE, opcode::REPLACEQ),
        StoreMode::Append => (opcode::APPEND, opcode::APPENDQ),
        StoreMode::Prepend => (opcode::PREPEND, opcode::PREPENDQ),
    };
    let opcode = if options.quiet { quiet } else { loud };
    if matches!(mode, StoreMode::Append | StoreMode::Prepend) {
        return request(opcode, options, cas, &[], key.bytes(), item.value, out);
    }
    let [f0, f1, f2, f3] = item.client_flags.to_be_bytes();
    let [e0, e1, e2, e3] = wire_expiry(item.expiry);
    let extras = [f0, f1, f2, f3, e0, e1, e2, e3];
    request(opcode, options, cas, &extras, key.bytes(), item.value, out);
}

/// Writes `delete`, which removes an item. If `cas` is not 0, the server removes the item only if
/// it has this CAS.
pub fn delete(key: WireKey<'_>, cas: u64, options: Options, out: &mut Vec<u8>) {
    let opcode = if options.quiet { opcode::DELETEQ } else { opcode::DELETE };
    request(opcode, options, cas, &[], key.bytes(), &[], out);
}

/// Options of `increment` and `decrement`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Whether to decrement instead of increment. A decrement stops at 0. An increment wraps around
    /// at 2^64.
    pub down: bool,
    /// The amount to add or subtract.
    pub delta: u64,
    /// If there is no item, the request creates a number with this expiry. With `None`, it creates
    /// nothing.
    pub vivify: Option<Exptime>,
    /// The number to create; `delta` is not added to it.
    pub initial: u64,
}

/// Writes `increment` or `decrement`. If `cas` is not 0, the server changes the item only if it has
/// this CAS.
pub fn arithmetic(key: WireKey<'_>, count: &Count, cas: u64, options: Options, out: &mut Vec<u8>) {
    let opcode = match (count.down, options.quiet) {
        (false, false) => opcode::INCREMENT,
        (false, true) => opcode::INCREMENTQ,
        (true, false) => opcode::DECREMENT,
        (true, true) => opcode::DECREMENTQ,
    };
    let mut extras = [0; 20];
    let (delta, rest) = extras.split_at_mut(8);
    let (initial, expiry) = rest.split_at_mut(8);
    delta.copy_from_slice(&count.delta.to_be_bytes());
    initial.copy_from_slice(&count.initial.to_be_bytes());
    expiry.copy_from_slice(&count.vivify.map_or(NO_CREATE.to_be_bytes(), wire_expiry));
    request(opcode, options, cas, &extras, key.bytes(), &[], out);
}

/// Writes `flush`, which removes all items after `delay`. Like an expiry, the delay is either a
/// number of seconds from now or a Unix time. `Exptime::NEVER` means now.
pub fn flush_all(delay: Exptime, options: Options, out: &mut Vec<u8>) {
    let opcode = if options.quiet { opcode::FLUSHQ } else { opcode::FLUSH };
    request(opcode, options, 0, &wire_expiry(delay), &[], &[], out);
}

/// Writes `noop`, whose reply follows all earlier replies.
#[inline]
pub fn noop(options: Options, out: &mut Vec<u8>) {
    request(opcode::NOOP, options, 0, &[], &[], &[], out);
}

/// Writes `version`, which requests the server's version.
pub fn version(options: Options, out: &mut Vec<u8>) {
    request(opcode::VERSION, options, 0, &[], &[], &[], out);
}

/// Writes `stat`, which requests a page of statistics. An empty topic selects the general page. The
/// topic must have at most [`KEY_LEN_MAX`](crate::KEY_LEN_MAX) bytes. The reply ends with a
/// statistic whose name is empty.
pub fn stat(topic: &[u8], options: Options, out: &mut Vec<u8>) {
    request(opcode::STAT, options, 0, &[], topic, &[], out);
}

/// Writes `quit`, which closes the connection. The server answers unless the request is quiet.
pub fn quit(options: Options, out: &mut Vec<u8>) {
    let opcode = if options.quiet { opcode::QUITQ } else { opcode::QUIT };
    request(opcode, options, 0, &[], &[], &[], out);
}

/// Requests the list of the server's SASL mechanisms.
pub fn sasl_list(options: Options, out: &mut Vec<u8>) {
    request(opcode::SASL_LIST, options, 0, &[], &[], &[], out);
}

/// Logs in with the SASL mechanism PLAIN. User name and password must not contain a zero byte.
pub fn sasl_plain(credentials: &Credentials<'_>, options: Options, out: &mut Vec<u8>) {
    const MECHANISM: &[u8] = b"PLAIN";
    let Credentials { user, password } = credentials;
    let message_len = user.len() + password.0.len() + 2;
    head(opcode::SASL_AUTH, options, 0, [0, MECHANISM.len(), message_len], out);
    for part in [MECHANISM, &[0], user, &[0], password.0] {
        out.extend_from_slice(part);
    }
}

/// Encodes an expiry. The field is unsigned, so a negative expiry becomes the smallest number that
/// servers read as a Unix time, a time in 1970.
fn wire_expiry(expiry: Exptime) -> [u8; 4] {
    let secs = i64::from(expiry.wire());
    let secs = if secs < 0 { RELATIVE_SECS_MAX + 1 } else { secs };
    u32::try_from(secs).unwrap_or_default().to_be_bytes()
}

#[expect(
    clippy::inline_always,
    reason = "most arguments are constants, including the length of the extras"
)]
#[inline(always)]
fn request<const EXTRAS_LEN: usize>(
    opcode: u8,
    options: Options,
    cas: u64,
    extras: &[u8; EXTRAS_LEN],
    key: &[u8],
    value: &[u8],
    out: &mut Vec<u8>,
) {
    head(opcode, options, cas, [extras.len(), key.len(), value.len()], out);
    out.extend_from_slice(extras);
    out.extend_from_slice(key);
    out.extend_from_slice(value);
}

/// Writes a head. `lens` contains the lengths of extras, key and value, in bytes.
#[expect(
    clippy::cast_possible_truncation,
    reason = "extras have a few bytes, keys at most KEY_LEN_MAX, values at most VALUE_LEN_MAX"
)]
#[expect(clippy::inline_always, reason = "inlined into `request` for the same reason")]
#[inline(always)]
fn head(opcode: u8, options: Options, cas: u64, lens: [usize; 3], out: &mut Vec<u8>) {
    let [extras_len, key_len, value_len] = lens;
    let [k0, k1] = (key_len as u16).to_be_bytes();
    let [b0, b1, b2, b3] = ((extras_len + key_len + value_len) as u32).to_be_bytes();
    let [o0, o1, o2, o3] = options.opaque;
    let [c0, c1, c2, c3, c4, c5, c6, c7] = cas.to_be_bytes();
    let extras_len = extras_len as u8;
    let bytes: [u8; HEAD_LEN] = [
        MAGIC, opcode, k0, k1, extras_len, 0, 0, 0, b0, b1, b2, b3, o0, o1, o2, o3, c0, c1, c2, c3,
        c4, c5, c6, c7,
    ];
    out.extend_from_slice(&bytes);
}
