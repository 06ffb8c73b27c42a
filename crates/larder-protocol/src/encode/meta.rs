//! Meta text: a line with a key and flags, and for `ms` a value behind it.
//!
//! Flags without arguments are sets, such as [`GetFlags`], and best made in constants. Flags with
//! arguments are the fields of options, such as [`GetOptions`]; they are sent behind the others, so
//! that `t` shows the time that an item had left before `T` and `N` changed it.
//!
//! `quiet` keeps the server from answering the ordinary outcome: a miss of `mg`, else success. A
//! [`noop`] behind such requests shows where their answers end.

use super::flags::{Spelled, flag_set};
use super::{MetaKey, push_block, push_expiry};
use crate::request::{Exptime, StoreMode};
use crate::text::number::{push, push_len};

flag_set! {
    /// What `mg` asks for.
    GetFlags {
        /// `v`: the value.
        value: b'v',
        /// `f`: the client flags.
        client_flags: b'f',
        /// `c`: the CAS.
        cas: b'c',
        /// `t`: the seconds left.
        ttl: b't',
        /// `s`: the value's length in bytes.
        value_len: b's',
        /// `k`: the key.
        key: b'k',
        /// `h`: whether the item was read before.
        hit_before: b'h',
        /// `l`: the seconds since the last access.
        idle_secs: b'l',
        /// `u`: do not record this access.
        untracked: b'u',
        /// `q`: do not answer a miss.
        quiet: b'q',
    }
}

flag_set! {
    /// What `ms` asks for.
    SetFlags {
        /// `c`: the new CAS.
        cas: b'c',
        /// `s`: the length of the stored value in bytes.
        value_len: b's',
        /// `k`: the key.
        key: b'k',
        /// `I`: with a CAS that is lower than the item's, store the item as stale.
        invalidate: b'I',
        /// `q`: do not answer success.
        quiet: b'q',
    }
}

flag_set! {
    /// What `md` asks for.
    DeleteFlags {
        /// `k`: the key.
        key: b'k',
        /// `I`: keep the item and mark it as stale.
        invalidate: b'I',
        /// `x`: remove the value and keep the item.
        value_only: b'x',
        /// `q`: do not answer success.
        quiet: b'q',
    }
}

flag_set! {
    /// What `ma` asks for.
    ArithmeticFlags {
        /// `v`: the number after the change.
        value: b'v',
        /// `c`: the new CAS.
        cas: b'c',
        /// `t`: the seconds left.
        ttl: b't',
        /// `k`: the key.
        key: b'k',
        /// `q`: do not answer success.
        quiet: b'q',
    }
}

/// What else `mg` can say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GetOptions {
    /// `T`: set the expiry.
    pub touch: Option<Exptime>,
    /// `N`: on a miss, create an empty item with this expiry; the answer shows `W`.
    pub vivify: Option<Exptime>,
    /// `R`: win the right to recache (`W`) if fewer seconds than these are left; at most
    /// [`i32::MAX`].
    pub recache_secs: Option<u32>,
    /// `C`: send no value if the CAS is this one.
    pub compare: Option<u64>,
    /// `E`: the CAS of an item that `vivify` creates.
    pub new_cas: Option<u64>,
    /// `O`: a number that the answer repeats.
    pub opaque: Option<u64>,
}

/// `mg`: asks for an item.
#[inline]
pub fn get(key: MetaKey<'_>, flags: GetFlags, options: &GetOptions, out: &mut Vec<u8>) {
    head(b"mg ", key, out);
    flags.0.push(out);
    expiry(b" T", options.touch, out);
    expiry(b" N", options.vivify, out);
    number(b" R", options.recache_secs.map(|secs| secs.min(i32::MAX as u32).into()), out);
    number(b" C", options.compare, out);
    number(b" E", options.new_cas, out);
    number(b" O", options.opaque, out);
    out.extend_from_slice(b"\r\n");
}

/// What else `ms` can say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetOptions {
    /// `M`: what to do about what is there.
    pub mode: StoreMode,
    /// `F`: the client flags.
    pub client_flags: u32,
    /// `T`: when the item expires.
    pub expiry: Exptime,
    /// `C`: only if the CAS is this one. Adding ignores it.
    pub compare: Option<u64>,
    /// `E`: the CAS of the stored item; 0 lets the server choose.
    pub new_cas: Option<u64>,
    /// `N`: with [`StoreMode::Append`] and [`StoreMode::Prepend`], create the item on a miss, with
    /// this expiry.
    pub vivify: Option<Exptime>,
    /// `O`: a number that the answer repeats.
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

/// `ms`: stores a value of at most [`VALUE_LEN_MAX`](crate::VALUE_LEN_MAX) bytes.
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

/// The line of `ms`: the value, which has `value_len` bytes, and [`VALUE_END`](super::VALUE_END) are to follow.
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

/// What else `md` can say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// `C`: only if the CAS is this one.
    pub compare: Option<u64>,
    /// `E`: the CAS of an item that is kept; 0 lets the server choose.
    pub new_cas: Option<u64>,
    /// `T`: the expiry of an item that is kept.
    pub touch: Option<Exptime>,
    /// `F`: the client flags of an item that is kept.
    pub client_flags: Option<u32>,
    /// `O`: a number that the answer repeats.
    pub opaque: Option<u64>,
}

/// `md`: removes or invalidates an item.
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

/// What else `ma` can say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArithmeticOptions {
    /// `MD`: count down, to 0 at most, rather than up, modulo 2^64.
    pub down: bool,
    /// `D`: by how much; 1 unless said otherwise.
    pub delta: u64,
    /// `N`: on a miss, create the number with this expiry.
    pub vivify: Option<Exptime>,
    /// `J`: the number that is created, to which `delta` is not applied.
    pub initial: u64,
    /// `T`: set the expiry.
    pub touch: Option<Exptime>,
    /// `C`: only if the CAS is this one; 0 is any.
    pub compare: Option<u64>,
    /// `E`: the CAS of the changed item; 0 lets the server choose.
    pub new_cas: Option<u64>,
    /// `O`: a number that the answer repeats.
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

/// `ma`: counts up or down.
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

/// `me`: asks for a description of an item, for people to read.
pub fn debug(key: MetaKey<'_>, out: &mut Vec<u8>) {
    head(b"me ", key, out);
    out.extend_from_slice(b"\r\n");
}

/// `mn`: answered by [`End`](crate::answer::Answer::End) behind all earlier answers.
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
