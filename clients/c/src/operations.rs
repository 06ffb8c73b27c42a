//! The calls of a client.

use crate::client::Client;
use crate::failure::{Failure, guarded};
use crate::memory::{bytes, handle, put, put_all, slice};
use crate::status::Status;
use crate::value::Value;
use larder_client::{CountOutcome, Error, Item, StoreMode, StoreRequest, Ttl, blocking};
use std::ffi::{c_char, c_void};
use std::iter::repeat;
use std::ptr::null_mut;

/// Converts the client and the key of a call to references.
///
/// # Safety
/// While the references are used, `client` is NULL or valid, and `key` is NULL or points to
/// `key_len` readable bytes.
unsafe fn target<'t>(
    client: *const Client,
    key: *const c_char,
    key_len: usize,
) -> Result<(&'t blocking::Client, &'t [u8]), Failure> {
    // SAFETY: `client` is NULL or valid.
    let client = unsafe { handle(client) }?;
    // SAFETY: `key` is NULL or has `key_len` readable bytes.
    let key = unsafe { bytes(key.cast(), key_len) }?;
    Ok((&client.0, key))
}

/// Looks up a key with `call`. Sets `*value` to the found value, or to NULL if no value was found.
///
/// # Safety
/// `client` is NULL or valid. `key` is NULL or has `key_len` readable bytes. `value` is NULL or
/// writable.
unsafe fn look_up(
    client: *const Client,
    (key, key_len): (*const c_char, usize),
    value: *mut *mut Value,
    call: impl FnOnce(&blocking::Client, &[u8]) -> Result<Option<Item>, Error>,
) -> Status {
    guarded(|| {
        // SAFETY: `value` is NULL or writable.
        unsafe { put(value, null_mut()) }?;
        // SAFETY: `client` is NULL or valid, and `key` is NULL or has `key_len` readable bytes.
        let (client, key) = unsafe { target(client, key, key_len) }?;
        let Some(item) = call(client, key)? else { return Ok(Status::NotFound) };
        // SAFETY: `value` is NULL or writable.
        unsafe { put(value, Value::raw(item)) }?;
        Ok(Status::Ok)
    })
}

/// Stores a value. The last parameter contains the mode, the TTL in seconds, the flags, and the CAS
/// that the current item must have, if any.
///
/// # Safety
/// `client` is NULL or valid. `key` is NULL or has `key_len` readable bytes. `value` is NULL or has
/// `value_len` readable bytes.
unsafe fn store(
    client: *const Client,
    (key, key_len): (*const c_char, usize),
    (value, value_len): (*const c_void, usize),
    (mode, ttl, flags, cas): (StoreMode, u32, u32, Option<u64>),
) -> Status {
    guarded(|| {
        // SAFETY: `client` is NULL or valid, and `key` is NULL or has `key_len` readable bytes.
        let (client, key) = unsafe { target(client, key, key_len) }?;
        // SAFETY: `value` is NULL or has `value_len` readable bytes.
        let value = unsafe { bytes(value, value_len) }?;
        let request = StoreRequest { mode, key, value, ttl: Ttl::secs(ttl), flags, cas };
        Ok(client.store_one(request)?.into())
    })
}

/// Increments or decrements a number with `call`. Writes the new number to `number`, unless
/// `number` is NULL.
///
/// # Safety
/// `client` is NULL or valid. `key` is NULL or has `key_len` readable bytes. `number` is NULL or
/// writable.
unsafe fn count(
    client: *const Client,
    (key, key_len): (*const c_char, usize),
    number: *mut u64,
    call: impl FnOnce(&blocking::Client, &[u8]) -> Result<CountOutcome, Error>,
) -> Status {
    guarded(|| {
        // SAFETY: `client` is NULL or valid, and `key` is NULL or has `key_len` readable bytes.
        let (client, key) = unsafe { target(client, key, key_len) }?;
        match call(client, key)? {
            CountOutcome::Number(_) if number.is_null() => Ok(Status::Ok),
            // SAFETY: `number` is writable, because it is not NULL.
            CountOutcome::Number(counted) => unsafe { put(number, counted) }.map(|()| Status::Ok),
            CountOutcome::NotFound => Ok(Status::NotFound),
            CountOutcome::NotANumber => Ok(Status::NotANumber),
        }
    })
}

/// Runs `call`, which returns whether the item existed. Returns [`Status::NotFound`] if the item
/// did not exist.
///
/// # Safety
/// `client` is NULL or valid. `key` is NULL or has `key_len` readable bytes.
unsafe fn find(
    client: *const Client,
    (key, key_len): (*const c_char, usize),
    call: impl FnOnce(&blocking::Client, &[u8]) -> Result<bool, Error>,
) -> Status {
    guarded(|| {
        // SAFETY: `client` is NULL or valid, and `key` is NULL or has `key_len` readable bytes.
        let (client, key) = unsafe { target(client, key, key_len) }?;
        Ok(if call(client, key)? { Status::Ok } else { Status::NotFound })
    })
}

/// Reads the value of a key. Returns LARDER_STATUS_NOT_FOUND if the item does not exist.
/// larder_value_free() frees the value.
///
/// # Safety
/// `client` is NULL or valid. `key` is NULL or has `key_len` readable bytes. `value` is NULL or
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_get(
    client: *const Client,
    key: *const c_char,
    key_len: usize,
    value: *mut *mut Value,
) -> Status {
    let get = |client: &blocking::Client, key: &[u8]| {
        // `Client::get` sends the same request, but drops the flags.
        client.get_many(&[key]).map(|mut items| items.pop().flatten())
    };
    // SAFETY: `client`, `key` and `value` are as `look_up` requires.
    unsafe { look_up(client, (key, key_len), value, get) }
}

/// Like larder_get(), but also reads the CAS of the value.
///
/// # Safety
/// `client` is NULL or valid. `key` is NULL or has `key_len` readable bytes. `value` is NULL or
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_gets(
    client: *const Client,
    key: *const c_char,
    key_len: usize,
    value: *mut *mut Value,
) -> Status {
    // SAFETY: `client`, `key` and `value` are as `look_up` requires.
    unsafe { look_up(client, (key, key_len), value, |client, key| client.gets(key)) }
}

/// Like larder_gets(), but also sets the expiry of the item to `ttl` seconds from now, or to never
/// if `ttl` is 0.
///
/// # Safety
/// `client` is NULL or valid. `key` is NULL or has `key_len` readable bytes. `value` is NULL or
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_gat(
    client: *const Client,
    key: *const c_char,
    key_len: usize,
    ttl: u32,
    value: *mut *mut Value,
) -> Status {
    // SAFETY: `client`, `key` and `value` are as `look_up` requires.
    unsafe { look_up(client, (key, key_len), value, |client, key| client.gat(key, ttl)) }
}

/// Reads the values of `count` keys. Sends one batch of requests to each server. Writes `count`
/// pointers to `values`, in the order of the keys. A pointer is NULL if its item does not exist.
/// After an error, all pointers are NULL. larder_value_free() frees each value.
///
/// # Safety
/// `client` is NULL or valid. `keys` and `key_lens` are NULL or have `count` readable elements.
/// Each key is NULL or has the number of readable bytes in `key_lens`. `values` is NULL or has
/// `count` writable elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_get_many(
    client: *const Client,
    keys: *const *const c_char,
    key_lens: *const usize,
    count: usize,
    values: *mut *mut Value,
) -> Status {
    guarded(|| {
        // SAFETY: `values` is NULL or has `count` writable elements.
        unsafe { put_all(values, count, repeat(null_mut())) }?;
        // SAFETY: `client` is NULL or valid.
        let client = unsafe { handle(client) }?;
        // SAFETY: `keys` is NULL or has `count` readable elements.
        let pointers = unsafe { slice(keys, count) }?;
        // SAFETY: `key_lens` is NULL or has `count` readable elements.
        let lens = unsafe { slice(key_lens, count) }?;
        let pairs = pointers.iter().zip(lens);
        // SAFETY: each element of `keys` is NULL or has as many readable bytes as its element of
        // `key_lens`.
        let keys: Result<Vec<_>, _> =
            pairs.map(|(key, len)| unsafe { bytes(key.cast(), *len) }).collect();
        let items = client.0.get_many(&keys?)?.into_iter();
        let found = items.map(|item| item.map_or(null_mut(), Value::raw));
        // SAFETY: `values` is NULL or has `count` writable elements.
        unsafe { put_all(values, count, found) }?;
        Ok(Status::Ok)
    })
}

/// Stores a value with flags, whether or not the item exists. The item expires in `ttl` seconds, or
/// never if `ttl` is 0.
///
/// # Safety
/// `client` is NULL or valid. `key` is NULL or has `key_len` readable bytes. `value` is NULL or has
/// `value_len` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_set(
    client: *const Client,
    key: *const c_char,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
    ttl: u32,
    flags: u32,
) -> Status {
    // SAFETY: `client`, `key` and `value` are as `store` requires.
    unsafe {
        let mode = StoreMode::Set;
        store(client, (key, key_len), (value, value_len), (mode, ttl, flags, None))
    }
}

/// Like larder_set(), but stores the value only if the item does not exist. Otherwise returns
/// LARDER_STATUS_NOT_STORED.
///
/// # Safety
/// `client` is NULL or valid. `key` is NULL or has `key_len` readable bytes. `value` is NULL or has
/// `value_len` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_add(
    client: *const Client,
    key: *const c_char,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
    ttl: u32,
    flags: u32,
) -> Status {
    // SAFETY: `client`, `key` and `value` are as `store` requires.
    unsafe {
        let mode = StoreMode::Add;
        store(client, (key, key_len), (value, value_len), (mode, ttl, flags, None))
    }
}

/// Like larder_set(), but stores the value only if the item exists. Otherwise returns
/// LARDER_STATUS_NOT_STORED.
///
/// # Safety
/// `client` is NULL or valid. `key` is NULL or has `key_len` readable bytes. `value` is NULL or has
/// `value_len` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_replace(
    client: *const Client,
    key: *const c_char,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
    ttl: u32,
    flags: u32,
) -> Status {
    // SAFETY: `client`, `key` and `value` are as `store` requires.
    unsafe {
        let mode = StoreMode::Replace;
        store(client, (key, key_len), (value, value_len), (mode, ttl, flags, None))
    }
}

/// Like larder_set(), but stores the value only if the current item has this CAS. Returns
/// LARDER_STATUS_EXISTS if the item has another CAS, and LARDER_STATUS_NOT_FOUND if it does not
/// exist.
///
/// # Safety
/// `client` is NULL or valid. `key` is NULL or has `key_len` readable bytes. `value` is NULL or has
/// `value_len` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_cas(
    client: *const Client,
    key: *const c_char,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
    ttl: u32,
    flags: u32,
    cas: u64,
) -> Status {
    // SAFETY: `client`, `key` and `value` are as `store` requires.
    unsafe {
        let mode = StoreMode::Set;
        store(client, (key, key_len), (value, value_len), (mode, ttl, flags, Some(cas)))
    }
}

/// Appends bytes to a value. Returns LARDER_STATUS_NOT_STORED if the item does not exist.
///
/// # Safety
/// `client` is NULL or valid. `key` is NULL or has `key_len` readable bytes. `more` is NULL or has
/// `more_len` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_append(
    client: *const Client,
    key: *const c_char,
    key_len: usize,
    more: *const c_void,
    more_len: usize,
) -> Status {
    // SAFETY: `client`, `key` and `more` are as `store` requires.
    unsafe { store(client, (key, key_len), (more, more_len), (StoreMode::Append, 0, 0, None)) }
}

/// Prepends bytes to a value. Returns LARDER_STATUS_NOT_STORED if the item does not exist.
///
/// # Safety
/// `client` is NULL or valid. `key` is NULL or has `key_len` readable bytes. `more` is NULL or has
/// `more_len` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_prepend(
    client: *const Client,
    key: *const c_char,
    key_len: usize,
    more: *const c_void,
    more_len: usize,
) -> Status {
    // SAFETY: `client`, `key` and `more` are as `store` requires.
    unsafe { store(client, (key, key_len), (more, more_len), (StoreMode::Prepend, 0, 0, None)) }
}

/// Removes an item. Returns LARDER_STATUS_NOT_FOUND if the item does not exist.
///
/// # Safety
/// `client` is NULL or valid. `key` is NULL or has `key_len` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_delete(
    client: *const Client,
    key: *const c_char,
    key_len: usize,
) -> Status {
    // SAFETY: `client` and `key` are as `find` requires.
    unsafe { find(client, (key, key_len), |client, key| client.delete(key)) }
}

/// Sets the expiry of an item to `ttl` seconds from now, or to never if `ttl` is 0. Returns
/// LARDER_STATUS_NOT_FOUND if the item does not exist.
///
/// # Safety
/// `client` is NULL or valid. `key` is NULL or has `key_len` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_touch(
    client: *const Client,
    key: *const c_char,
    key_len: usize,
    ttl: u32,
) -> Status {
    // SAFETY: `client` and `key` are as `find` requires.
    unsafe { find(client, (key, key_len), |client, key| client.touch(key, ttl)) }
}

/// Adds `delta` to a number, modulo 2^64. If the call succeeds and `number` is not NULL, writes the
/// new number to `number`. Returns LARDER_STATUS_NOT_FOUND if the item does not exist, and
/// LARDER_STATUS_NOT_A_NUMBER if its value is not a number.
///
/// # Safety
/// `client` is NULL or valid. `key` is NULL or has `key_len` readable bytes. `number` is NULL or
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_incr(
    client: *const Client,
    key: *const c_char,
    key_len: usize,
    delta: u64,
    number: *mut u64,
) -> Status {
    // SAFETY: `client`, `key` and `number` are as `count` requires.
    unsafe { count(client, (key, key_len), number, |client, key| client.incr(key, delta)) }
}

/// Subtracts `delta` from a number, but not below 0. If the call succeeds and `number` is not NULL,
/// writes the new number to `number`. Returns LARDER_STATUS_NOT_FOUND if the item does not exist,
/// and LARDER_STATUS_NOT_A_NUMBER if its value is not a number.
///
/// # Safety
/// `client` is NULL or valid. `key` is NULL or has `key_len` readable bytes. `number` is NULL or
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_decr(
    client: *const Client,
    key: *const c_char,
    key_len: usize,
    delta: u64,
    number: *mut u64,
) -> Status {
    // SAFETY: `client`, `key` and `number` are as `count` requires.
    unsafe { count(client, (key, key_len), number, |client, key| client.decr(key, delta)) }
}

/// Removes all items from every server. After an error, some servers may have removed their items.
///
/// # Safety
/// `client` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_flush(client: *const Client) -> Status {
    guarded(|| {
        // SAFETY: `client` is NULL or valid.
        unsafe { handle(client) }?.0.flush()?;
        Ok(Status::Ok)
    })
}
