//! Encoders for meta text requests. Each request is one line: the command and, except for `mn`, a key
//! and flags. In an `ms` request, a value follows the line.
//!
//! Flags without arguments form sets such as [`GetFlags`]. Declare these sets as constants to build
//! them at compile time. Flags with arguments are fields of options such as [`GetOptions`]. The
//! encoders write these flags after the flags of the set, so that `t` shows the time to live before
//! `T` and `N` change it.
//!
//! `quiet` suppresses the reply to a miss of `mg`, and to the success of any other command. A
//! [`noop`] after quiet requests marks the end of their replies.

use super::flags::{FlagText, flag_set};
use super::{MetaKey, push_block, push_expiry};
use crate::request::{Exptime, StoreMode};
use crate::text::number::{push, push_len};

flag_set! {
    /// The flags of `mg`.
    GetFlags {
        /// Requests the value (`v`).
        value: b'v',
        /// Requests the client flags (`f`).
        client_flags: b'f',
        /// Requests the CAS (`c`).
        cas: b'c',
        /// Requests the seconds until the item expires (`t`).
        ttl: b't',
        /// Requests the value's length in bytes (`s`).
        value_len: b's',
        /// Requests the key (`k`).
        key: b'k',
        /// Requests whether the item had been read before (`h`).
        hit_before: b'h',
        /// Requests the seconds since the last access (`l`).
        idle_secs: b'l',
        /// Does not record this access (`u`).
        untracked: b'u',
        /// Suppresses the reply to a miss (`q`).
        quiet: b'q',
    }
}

flag_set! {
    /// The flags of `ms`.
    SetFlags {
        /// Requests the new CAS (`c`).
        cas: b'c',
        /// Requests the length of the stored value in bytes (`s`).
        value_len: b's',
        /// Requests the key (`k`).
        key: b'k',
        /// Stores the item as stale if `compare` is lower than the item's CAS (`I`).
        invalidate: b'I',
        /// Suppresses the reply to success (`q`).
        quiet: b'q',
    }
}

flag_set! {
    /// The flags of `md`.
    DeleteFlags {
        /// Requests the key (`k`).
        key: b'k',
        /// Keeps the item and marks it as stale (`I`).
        invalidate: b'I',
        /// Removes the value and keeps the item (`x`).
        value_only: b'x',
        /// Suppresses the reply to success (`q`).
        quiet: b'q',
    }
}

flag_set! {
    /// The flags of `ma`.
    ArithmeticFlags {
        /// Requests the number after the change (`v`).
        value: b'v',
        /// Requests the new CAS (`c`).
        cas: b'c',
        /// Requests the seconds until the item expires (`t`).
        ttl: b't',
        /// Requests the key (`k`).
        key: b'k',
        /// Suppresses the reply to success (`q`).
        quiet: b'q',
    }
}

/// The flags of `mg` that have arguments. By default, the request has none of these flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GetOptions {
    /// `T`: the new expiry of the item.
    pub touch: Option<Exptime>,
    /// `N`: if there is no item, the server creates an empty item with this expiry, and the reply
    /// has the flag `W`.
    pub vivify: Option<Exptime>,
    /// `R`: if the item expires before this time, the client wins the right to recache the item,
    /// and the reply has the flag `W`. 0 has no effect.
    pub recache: Option<Exptime>,
    /// `C`: if the item has this CAS, the reply omits the value.
    pub compare: Option<u64>,
    /// `E`: the CAS of an item that `vivify` creates.
    pub new_cas: Option<u64>,
    /// `O`: a number that the reply repeats.
    pub opaque: Option<u64>,
}

/// Writes `mg`, which looks up an item.
#[inline]
pub fn get(key: MetaKey<'_>, flags: GetFlags, options: &GetOptions, out: &mut Vec<u8>) {
    head(b"mg ", key, out);
    flags.0.push(out);
    expiry(b" T", options.touch, out);
    expiry(b" N", options.vivify, out);
    expiry(b" R", options.recache, out);
    number(b" C", options.compare, out);
    number(b" E", options.new_cas, out);
    number(b" O", options.opaque, out);
    out.extend_from_slice(b"\r\n");
}

/// The flags of `ms` that have arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetOptions {
    /// `M`: the effect on an existing or missing item.
    pub mode: StoreMode,
    /// `F`: the client flags.
    pub client_flags: u32,
    /// `T`: the expiry of the item.
    pub expiry: Exptime,
    /// `C`: the CAS that the item must have for the store. [`StoreMode::Add`] ignores this field,
    /// and [`StoreMode::Append`] and [`StoreMode::Prepend`] ignore 0.
    pub compare: Option<u64>,
    /// `E`: the CAS of the stored item; with 0, the server chooses the CAS.
    pub new_cas: Option<u64>,
    /// `N`: the expiry of the item that [`StoreMode::Append`] or [`StoreMode::Prepend`] creates on
    /// a miss.
    pub vivify: Option<Exptime>,
    /// `O`: a number that the reply repeats.
    pub opaque: Option<u64>,
}

impl Default for SetOptions {
    fn default() -> Self {
        Self {
            mode: StoreMode::Set,
            client_flags: 0,
            expiry: Exptime::NEVER,
            compare: None,
            new_cas: None,
            vivify: None,
            opaque: None,
        }
    }
}

/// Writes `ms`, which stores a value of at most [`VALUE_LEN_MAX`](crate::VALUE_LEN_MAX) bytes.
#[expect(clippy::inline_always, reason = "most options are constants of the caller")]
#[inline(always)]
pub fn set(
    key: MetaKey<'_>,
    value: &[u8],
    flags: SetFlags,
    options: &SetOptions,
    out: &mut Vec<u8>,
) {
    set_head(key, value.len(), flags, options, out);
    push_block(value, out);
}

/// Writes the line of `ms`. The caller sends a value of `value_len` bytes and
/// [`VALUE_END`](super::VALUE_END) after it.
#[expect(clippy::inline_always, reason = "most options are constants of the caller")]
#[inline(always)]
pub fn set_head(
    key: MetaKey<'_>,
    value_len: usize,
    flags: SetFlags,
    options: &SetOptions,
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(b"ms ");
    key.push(out);
    out.push(b' ');
    push_len(value_len, b"", out);
    base64_flag(key, out);
    flags.0.push(out);
    let mode: &[u8] = match options.mode {
        StoreMode::Set => b"",
        StoreMode::Add => b" ME",
        StoreMode::Replace => b" MR",
        StoreMode::Append => b" MA",
        StoreMode::Prepend => b" MP",
    };
    out.extend_from_slice(mode);
    number(b" F", (options.client_flags != 0).then_some(options.client_flags.into()), out);
    expiry(b" T", (options.expiry != Exptime::NEVER).then_some(options.expiry), out);
    number(b" C", options.compare, out);
    number(b" E", options.new_cas, out);
    expiry(b" N", options.vivify, out);
    number(b" O", options.opaque, out);
    out.extend_from_slice(b"\r\n");
}

/// The flags of `md` that have arguments. By default, the request has none of these flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// `C`: the CAS that the item must have to be removed or invalidated.
    pub compare: Option<u64>,
    /// `E`: the CAS of the kept item; with 0, the server chooses the CAS.
    pub new_cas: Option<u64>,
    /// `T`: the expiry of the kept item.
    pub touch: Option<Exptime>,
    /// `F`: the client flags of an item that the flag `x` keeps without its value.
    pub client_flags: Option<u32>,
    /// `O`: a number that the reply repeats.
    pub opaque: Option<u64>,
}

/// Writes `md`, which removes or invalidates an item.
pub fn delete(key: MetaKey<'_>, flags: DeleteFlags, options: &DeleteOptions, out: &mut Vec<u8>) {
    head(b"md ", key, out);
    flags.0.push(out);
    number(b" C", options.compare, out);
    number(b" E", options.new_cas, out);
    expiry(b" T", options.touch, out);
    number(b" F", options.client_flags.map(u64::from), out);
    number(b" O", options.opaque, out);
    out.extend_from_slice(b"\r\n");
}

/// The flags of `ma` that have arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArithmeticOptions {
    /// `MD`: whether to decrement instead of increment. A decrement stops at 0. An increment wraps
    /// around at 2^64.
    pub down: bool,
    /// `D`: the amount to add or subtract, 1 by default.
    pub delta: u64,
    /// `N`: the expiry of the number that a miss creates.
    pub vivify: Option<Exptime>,
    /// `J`: the number to create; `delta` is not added to it.
    pub initial: u64,
    /// `T`: the new expiry of the item.
    pub touch: Option<Exptime>,
    /// `C`: the CAS that the item must have to be changed; 0 matches any CAS.
    pub compare: Option<u64>,
    /// `E`: the CAS of the changed item; with 0, the server chooses the CAS.
    pub new_cas: Option<u64>,
    /// `O`: a number that the reply repeats.
    pub opaque: Option<u64>,
}

impl Default for ArithmeticOptions {
    fn default() -> Self {
        Self {
            down: false,
            delta: 1,
            vivify: None,
            initial: 0,
            touch: None,
            compare: None,
            new_cas: None,
            opaque: None,
        }
    }
}

/// Writes `ma`, which increments or decrements a number.
pub fn arithmetic(
    key: MetaKey<'_>,
    flags: ArithmeticFlags,
    options: &ArithmeticOptions,
    out: &mut Vec<u8>,
) {
    head(b"ma ", key, out);
    flags.0.push(out);
    if options.down {
        out.extend_from_slice(b" MD");
    }
    number(b" D", (options.delta != 1).then_some(options.delta), out);
    expiry(b" N", options.vivify, out);
    number(b" J", (options.initial != 0).then_some(options.initial), out);
    expiry(b" T", options.touch, out);
    number(b" C", options.compare, out);
    number(b" E", options.new_cas, out);
    number(b" O", options.opaque, out);
    out.extend_from_slice(b"\r\n");
}

/// Writes `me`, which requests a human-readable description of an item.
pub fn debug(key: MetaKey<'_>, out: &mut Vec<u8>) {
    head(b"me ", key, out);
    out.extend_from_slice(b"\r\n");
}

/// Writes `mn`, whose reply, [`End`](crate::answer::Answer::End), follows all earlier replies.
#[inline]
pub fn noop(out: &mut Vec<u8>) {
    out.extend_from_slice(b"mn\r\n");
}

#[inline]
fn head(verb: &[u8; 3], key: MetaKey<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(verb);
    key.push(out);
    base64_flag(key, out);
}

#[inline]
fn base64_flag(key: MetaKey<'_>, out: &mut Vec<u8>) {
    if key.is_base64() {
        out.extend_from_slice(b" b");
    }
}

#[inline]
fn number(flag: &[u8; 2], number: Option<u64>, out: &mut Vec<u8>) {
    if let Some(number) = number {
        out.extend_from_slice(flag);
        push(number, out);
    }
}

#[inline]
fn expiry(flag: &[u8; 2], expiry: Option<Exptime>, out: &mut Vec<u8>) {
    if let Some(expiry) = expiry {
        out.extend_from_slice(flag);
        push_expiry(expiry, out);
    }
}
