//! Encoders for classic text requests: a line of words, followed by a value in stores.
//!
//! With `noreply`, the server sends neither a reply nor most errors. The client then cannot detect
//! whether the command was executed. Every key is a [`WireKey`], except the parsed key of
//! [`one_of_line`].

use super::{NewItem, WireKey, push_block, push_expiry, push_value};
use crate::request::{Credentials, Exptime, Get, ReplyFormat, StoreMode};
use crate::text::number::{push, push_len};

/// Writes `get`, which looks up one or more keys. The reply has a hit for each found key, in the
/// order of the keys, and then [`End`](crate::answer::Answer::End).
#[inline]
pub fn get<'k>(keys: impl IntoIterator<Item = WireKey<'k>>, out: &mut Vec<u8>) {
    KeyLine::get(out).all(keys);
}

/// Writes `gets`: as [`get`], but hits have a CAS.
pub fn gets<'k>(keys: impl IntoIterator<Item = WireKey<'k>>, out: &mut Vec<u8>) {
    KeyLine::gets(out).all(keys);
}

/// Writes `gat`: as [`get`], but the server also sets the expiry of the found items.
pub fn gat<'k>(expiry: Exptime, keys: impl IntoIterator<Item = WireKey<'k>>, out: &mut Vec<u8>) {
    KeyLine::gat(expiry, out).all(keys);
}

/// Writes `gats`: as [`gat`], but hits have a CAS.
pub fn gats<'k>(expiry: Exptime, keys: impl IntoIterator<Item = WireKey<'k>>, out: &mut Vec<u8>) {
    KeyLine::gats(expiry, out).all(keys);
}

/// A builder of a multi-key line, for callers that produce one key at a time. Push at least one
/// key, then end the line.
///
/// ```
/// use larder_protocol::encode::{WireKey, classic::KeyLine};
///
/// let (mut out, mut name) = (Vec::new(), [b'k', 0]);
/// let mut line = KeyLine::get(&mut out);
/// for digit in b'0'..b'3' {
///     name[1] = digit;
///     line.push(WireKey::new(&name)?);
/// }
/// line.end();
/// assert_eq!(out, b"get k0 k1 k2\r\n");
/// # Ok::<(), larder_protocol::encode::InvalidKey>(())
/// ```
#[derive(Debug)]
#[must_use = "the line has to be ended"]
pub struct KeyLine<'o> {
    out: &'o mut Vec<u8>,
}

impl<'o> KeyLine<'o> {
    /// Starts a [`get`](fn@get) without keys.
    #[inline]
    pub fn get(out: &'o mut Vec<u8>) -> Self {
        out.extend_from_slice(b"get");
        Self { out }
    }

    /// Starts a [`gets`](fn@gets) without keys.
    pub fn gets(out: &'o mut Vec<u8>) -> Self {
        out.extend_from_slice(b"gets");
        Self { out }
    }

    /// Starts a [`gat`](fn@gat) without keys.
    pub fn gat(expiry: Exptime, out: &'o mut Vec<u8>) -> Self {
        out.extend_from_slice(b"gat ");
        push_expiry(expiry, out);
        Self { out }
    }

    /// Starts a [`gats`](fn@gats) without keys.
    pub fn gats(expiry: Exptime, out: &'o mut Vec<u8>) -> Self {
        out.extend_from_slice(b"gats ");
        push_expiry(expiry, out);
        Self { out }
    }

    /// Appends a space and a key.
    #[inline]
    pub fn push(&mut self, key: WireKey<'_>) {
        self.out.push(b' ');
        key.push(self.out);
    }

    /// Appends the line's end. Without this call, the request is incomplete.
    #[inline]
    pub fn end(self) {
        self.out.extend_from_slice(b"\r\n");
    }

    #[inline]
    fn all<'k>(mut self, keys: impl IntoIterator<Item = WireKey<'k>>) {
        keys.into_iter().for_each(|key| self.push(key));
        self.end();
    }
}

/// Writes one key of a parsed multi-key line as a separate line.
pub fn one_of_line(get: &Get<'_>, out: &mut Vec<u8>) {
    let with_cas = matches!(get.format, ReplyFormat::Classic(format) if format.with_cas);
    let line = match (get.touch, with_cas) {
        (None, false) => KeyLine::get(out),
        (None, true) => KeyLine::gets(out),
        (Some(expiry), false) => KeyLine::gat(expiry, out),
        (Some(expiry), true) => KeyLine::gats(expiry, out),
    };
    line.out.push(b' ');
    line.out.extend_from_slice(get.key.wire);
    line.end();
}

/// Writes `touch`, which sets the expiry of an item.
pub fn touch(key: WireKey<'_>, expiry: Exptime, noreply: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(b"touch ");
    key.push(out);
    out.push(b' ');
    push_expiry(expiry, out);
    line_end(noreply, out);
}

/// Writes `set`, which stores an item unconditionally.
#[inline]
pub fn set(key: WireKey<'_>, item: &NewItem<'_>, noreply: bool, out: &mut Vec<u8>) {
    store(StoreMode::Set, key, item, noreply, out);
}

/// Writes `add`, which stores an item only if the key has no item.
pub fn add(key: WireKey<'_>, item: &NewItem<'_>, noreply: bool, out: &mut Vec<u8>) {
    store(StoreMode::Add, key, item, noreply, out);
}

/// Writes `replace`, which stores an item only if the key already has an item.
pub fn replace(key: WireKey<'_>, item: &NewItem<'_>, noreply: bool, out: &mut Vec<u8>) {
    store(StoreMode::Replace, key, item, noreply, out);
}

/// Writes `append`, which appends a value to the existing value.
pub fn append(key: WireKey<'_>, value: &[u8], noreply: bool, out: &mut Vec<u8>) {
    store(StoreMode::Append, key, &NewItem::of(value), noreply, out);
}

/// Writes `prepend`, which prepends a value to the existing value.
pub fn prepend(key: WireKey<'_>, value: &[u8], noreply: bool, out: &mut Vec<u8>) {
    store(StoreMode::Prepend, key, &NewItem::of(value), noreply, out);
}

/// Writes `cas`, which stores an item only if the existing item has this CAS.
pub fn cas(key: WireKey<'_>, item: &NewItem<'_>, cas: u64, noreply: bool, out: &mut Vec<u8>) {
    store_head(b"cas ", key, item, out);
    push_len(item.value.len(), b" ", out);
    push(cas, out);
    line_end(noreply, out);
    push_block(item.value, out);
}

/// Writes the store that `mode` selects.
#[inline]
pub fn store(
    mode: StoreMode,
    key: WireKey<'_>,
    item: &NewItem<'_>,
    noreply: bool,
    out: &mut Vec<u8>,
) {
    let verb: &[u8] = match mode {
        StoreMode::Set => b"set ",
        StoreMode::Add => b"add ",
        StoreMode::Replace => b"replace ",
        StoreMode::Append => b"append ",
        StoreMode::Prepend => b"prepend ",
    };
    store_head(verb, key, item, out);
    if noreply {
        push_len(item.value.len(), b"", out);
        line_end(noreply, out);
        push_block(item.value, out);
    } else {
        push_value(item.value, out);
    }
}

/// Writes the words of a store that precede the length of its value.
#[inline]
fn store_head(verb: &[u8], key: WireKey<'_>, item: &NewItem<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(verb);
    key.push(out);
    if item.client_flags == 0 {
        out.extend_from_slice(b" 0 ");
    } else {
        out.push(b' ');
        push(item.client_flags.into(), out);
        out.push(b' ');
    }
    push_expiry(item.expiry, out);
    out.push(b' ');
}

/// Writes `delete`, which removes an item.
pub fn delete(key: WireKey<'_>, noreply: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(b"delete ");
    key.push(out);
    line_end(noreply, out);
}

/// Writes `incr`, which adds `delta` to a number, modulo 2^64.
pub fn incr(key: WireKey<'_>, delta: u64, noreply: bool, out: &mut Vec<u8>) {
    count(b"incr ", key, delta, noreply, out);
}

/// Writes `decr`, which subtracts `delta` from a number, down to 0.
pub fn decr(key: WireKey<'_>, delta: u64, noreply: bool, out: &mut Vec<u8>) {
    count(b"decr ", key, delta, noreply, out);
}

fn count(verb: &[u8], key: WireKey<'_>, delta: u64, noreply: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(verb);
    key.push(out);
    out.push(b' ');
    push(delta, out);
    line_end(noreply, out);
}

/// Writes `flush_all`, which removes all items after `delay`. Like an expiry, the delay is either a
/// number of seconds from now or a Unix time. `Exptime::NEVER` means now.
pub fn flush_all(delay: Exptime, noreply: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(b"flush_all ");
    push_expiry(delay, out);
    line_end(noreply, out);
}

/// Writes `version`, which requests the server's version.
pub fn version(out: &mut Vec<u8>) {
    out.extend_from_slice(b"version\r\n");
}

/// Writes `verbosity`, which sets the log level, 0 to 2.
pub fn verbosity(level: u32, noreply: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(b"verbosity ");
    push(level.into(), out);
    line_end(noreply, out);
}

/// Writes `stats`, which requests a page of statistics. An empty topic selects the general page.
/// Each word of the topic must be a valid key. The reply consists of statistics and a final
/// [`End`](crate::answer::Answer::End).
pub fn stats<'w>(topic: impl IntoIterator<Item = WireKey<'w>>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"stats");
    KeyLine { out }.all(topic);
}

/// Writes `quit`, which closes the connection without a reply.
pub fn quit(out: &mut Vec<u8>) {
    out.extend_from_slice(b"quit\r\n");
}

/// Writes a login to a server with a password file (`-Y`). The login must be the first request of a
/// connection. The user name must not contain a space.
pub fn login(credentials: &Credentials<'_>, out: &mut Vec<u8>) {
    let Credentials { user, password } = credentials;
    out.extend_from_slice(b"set auth 0 0 ");
    push_len(user.len() + 1 + password.0.len(), b"\r\n", out);
    out.extend_from_slice(user);
    out.push(b' ');
    push_block(password.0, out);
}

fn line_end(noreply: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(if noreply { b" noreply\r\n" } else { b"\r\n" });
}
