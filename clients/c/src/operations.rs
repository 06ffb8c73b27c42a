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

/// Converts the client and the key of a call.
///
/// # Safety
/// As larder.h demands.
unsafe fn target<'t>(
    client: *const Client,
    key: *const c_char,
    key_len: usize,
) -> Result<(&'t blocking::Client, &'t [u8]), Failure> {
    // SAFETY: as larder.h demands.
    let client = unsafe { handle(client) }?;
    // SAFETY: as larder.h demands.
    let key = unsafe { bytes(key.cast(), key_len) }?;
    Ok((&client.0, key))
}

/// Carries out a lookup of a key.
///
/// # Safety
/// As larder.h demands.
unsafe fn look_up(
    client: *const Client,
    (key, key_len): (*const c_char, usize),
    value: *mut *mut Value,
    call: impl FnOnce(&blocking::Client, &[u8]) -> Result<Option<Item>, Error>,
) -> Status {
    guarded(|| {
        // SAFETY: as larder.h demands.
        unsafe { put(value, null_mut()) }?;
        // SAFETY: as larder.h demands.
        let (client, key) = unsafe { target(client, key, key_len) }?;
        let Some(item) = call(client, key)? else { return Ok(Status::NotFound) };
        // SAFETY: as larder.h demands.
        unsafe { put(value, Value::raw(item)) }?;
        Ok(Status::Ok)
    })
}

/// Carries out a store: the mode, the TTL in seconds, the flags, and the CAS that the item must have.
///
/// # Safety
/// As larder.h demands.
unsafe fn store(
    client: *const Client,
    (key, key_len): (*const c_char, usize),
    (value, value_len): (*const c_void, usize),
    (mode, ttl, flags, cas): (StoreMode, u32, u32, Option<u64>),
) -> Status {
    guarded(|| {
        // SAFETY: as larder.h demands.
        let (client, key) = unsafe { target(client, key, key_len) }?;
        // SAFETY: as larder.h demands.
        let value = unsafe { bytes(value, value_len) }?;
        let request = StoreRequest { mode, key, value, ttl: Ttl::secs(ttl), flags, cas };
        Ok(client.store_one(request)?.into())
    })
}

/// Carries out an increment or decrement.
///
/// # Safety
/// As larder.h demands.
unsafe fn count(
    client: *const Client,
    (key, key_len): (*const c_char, usize),
    number: *mut u64,
    call: impl FnOnce(&blocking::Client, &[u8]) -> Result<CountOutcome, Error>,
) -> Status {
    guarded(|| {
        // SAFETY: as larder.h demands.
        let (client, key) = unsafe { target(client, key, key_len) }?;
        match call(client, key)? {
            CountOutcome::Number(_) if number.is_null() => Ok(Status::Ok),
            // SAFETY: as larder.h demands.
            CountOutcome::Number(counted) => unsafe { put(number, counted) }.map(|()| Status::Ok),
            CountOutcome::NotFound => Ok(Status::NotFound),
            CountOutcome::NotANumber => Ok(Status::NotANumber),
        }
    })
}

/// Carries out a call whose result is whether the item exists.
///
/// # Safety
/// As larder.h demands.
unsafe fn find(
    client: *const Client,
    (key, key_len): (*const c_char, usize),
    call: impl FnOnce(&blocking::Client, &[u8]) -> Result<bool, Error>,
) -> Status {
    guarded(|| {
        // SAFETY: as larder.h demands.
        let (client, key) = unsafe { target(client, key, key_len) }?;
        Ok(if call(client, key)? { Status::Ok } else { Status::NotFound })
    })
}

/// Reads the value of a key. larder_value_free() frees it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_get(
    client: *const Client,
    key: *const c_char,
    key_len: usize,
    value: *mut *mut Value,
) -> Status {
    let get = |client: &blocking::Client, key: &[u8]| {
        // Sends the same request as `get`, which would not return the flags.
        client.get_many(&[key]).map(|mut items| items.pop().flatten())
    };
    // SAFETY: as larder.h demands.
    unsafe { look_up(client, (key, key_len), value, get) }
}

/// Like larder_get(), and also reads the CAS of the value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_gets(
    client: *const Client,
    key: *const c_char,
    key_len: usize,
    value: *mut *mut Value,
) -> Status {
    // SAFETY: as larder.h demands.
    unsafe { look_up(client, (key, key_len), value, |client, key| client.gets(key)) }
}

/// Like larder_gets(), and sets the expiry of the item: in `ttl` seconds, or never with 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_gat(
    client: *const Client,
    key: *const c_char,
    key_len: usize,
    ttl: u32,
    value: *mut *mut Value,
) -> Status {
    // SAFETY: as larder.h demands.
    unsafe { look_up(client, (key, key_len), value, |client, key| client.gat(key, ttl)) }
}

/// Reads the values of `count` keys, with one batch of requests to each server. `values` has room for `count` values
/// and receives them in the order of the keys, NULL for missing ones. larder_value_free() frees each value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_get_many(
    client: *const Client,
    keys: *const *const c_char,
    key_lens: *const usize,
    count: usize,
    values: *mut *mut Value,
) -> Status {
    guarded(|| {
        // SAFETY: as larder.h demands.
        unsafe { put_all(values, count, repeat(null_mut())) }?;
        // SAFETY: as larder.h demands.
        let client = unsafe { handle(client) }?;
        // SAFETY: as larder.h demands.
        let pointers = unsafe { slice(keys, count) }?;
        // SAFETY: as larder.h demands.
        let lens = unsafe { slice(key_lens, count) }?;
        let pairs = pointers.iter().zip(lens);
        // SAFETY: as larder.h demands.
        let keys: Result<Vec<_>, _> =
            pairs.map(|(key, len)| unsafe { bytes(key.cast(), *len) }).collect();
        let items = client.0.get_many(&keys?)?.into_iter();
        let found = items.map(|item| item.map_or(null_mut(), Value::raw));
        // SAFETY: as larder.h demands.
        unsafe { put_all(values, count, found) }?;
        Ok(Status::Ok)
    })
}

/// Stores a value with flags, whether or not the item exists. It expires in `ttl` seconds, or never with 0.
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
    // SAFETY: as larder.h demands.
    unsafe {
        let mode = StoreMode::Set;
        store(client, (key, key_len), (value, value_len), (mode, ttl, flags, None))
    }
}

/// Like larder_set(), but only if the item does not exist; otherwise LARDER_STATUS_NOT_STORED.
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
    // SAFETY: as larder.h demands.
    unsafe {
        let mode = StoreMode::Add;
        store(client, (key, key_len), (value, value_len), (mode, ttl, flags, None))
    }
}

/// Like larder_set(), but only if the item exists; otherwise LARDER_STATUS_NOT_STORED.
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
    // SAFETY: as larder.h demands.
    unsafe {
        let mode = StoreMode::Replace;
        store(client, (key, key_len), (value, value_len), (mode, ttl, flags, None))
    }
}

/// Like larder_set(), but only if the present item has this CAS; otherwise LARDER_STATUS_EXISTS or
/// LARDER_STATUS_NOT_FOUND.
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
    // SAFETY: as larder.h demands.
    unsafe {
        let mode = StoreMode::Set;
        store(client, (key, key_len), (value, value_len), (mode, ttl, flags, Some(cas)))
    }
}

/// Appends bytes to a value; LARDER_STATUS_NOT_STORED if the item does not exist.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_append(
    client: *const Client,
    key: *const c_char,
    key_len: usize,
    more: *const c_void,
    more_len: usize,
) -> Status {
    // SAFETY: as larder.h demands.
    unsafe { store(client, (key, key_len), (more, more_len), (StoreMode::Append, 0, 0, None)) }
}

/// Prepends bytes to a value; LARDER_STATUS_NOT_STORED if the item does not exist.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_prepend(
    client: *const Client,
    key: *const c_char,
    key_len: usize,
    more: *const c_void,
    more_len: usize,
) -> Status {
    // SAFETY: as larder.h demands.
    unsafe { store(client, (key, key_len), (more, more_len), (StoreMode::Prepend, 0, 0, None)) }
}

/// Removes an item.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_delete(
    client: *const Client,
    key: *const c_char,
    key_len: usize,
) -> Status {
    // SAFETY: as larder.h demands.
    unsafe { find(client, (key, key_len), |client, key| client.delete(key)) }
}

/// Sets the expiry of an item: in `ttl` seconds, or never with 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_touch(
    client: *const Client,
    key: *const c_char,
    key_len: usize,
    ttl: u32,
) -> Status {
    // SAFETY: as larder.h demands.
    unsafe { find(client, (key, key_len), |client, key| client.touch(key, ttl)) }
}

/// Adds to a number, modulo 2^64. Writes the new number to `number`, unless that is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_incr(
    client: *const Client,
    key: *const c_char,
    key_len: usize,
    delta: u64,
    number: *mut u64,
) -> Status {
    // SAFETY: as larder.h demands.
    unsafe { count(client, (key, key_len), number, |client, key| client.incr(key, delta)) }
}

/// Subtracts from a number, but not below 0. Writes the new number to `number`, unless that is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_decr(
    client: *const Client,
    key: *const c_char,
    key_len: usize,
    delta: u64,
    number: *mut u64,
) -> Status {
    // SAFETY: as larder.h demands.
    unsafe { count(client, (key, key_len), number, |client, key| client.decr(key, delta)) }
}

/// Removes all items from every server.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_flush(client: *const Client) -> Status {
    guarded(|| {
        // SAFETY: as larder.h demands.
        unsafe { handle(client) }?.0.flush()?;
        Ok(Status::Ok)
    })
}
