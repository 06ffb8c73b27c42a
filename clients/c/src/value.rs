//! Values that lookups return.

use crate::memory::{free, handle};
use larder_client::Item;
use std::ffi::c_void;
use std::ptr::null;

/// A value with its flags. A value from larder_gets() or larder_gat() also has a CAS.
#[derive(Debug)]
pub struct Value(pub(crate) Item);

impl Value {
    pub(crate) fn raw(item: Item) -> *mut Self {
        Box::into_raw(Box::new(Self(item)))
    }
}

/// Returns a pointer to the bytes of a value, or NULL if `value` is NULL. The bytes are valid until
/// the value is freed.
///
/// # Safety
/// `value` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_value_data(value: *const Value) -> *const c_void {
    // SAFETY: `value` is NULL or valid.
    unsafe { handle(value) }.map_or(null(), |value| value.0.value.as_ptr().cast())
}

/// Returns the length of a value in bytes, or 0 if `value` is NULL.
///
/// # Safety
/// `value` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_value_len(value: *const Value) -> usize {
    // SAFETY: `value` is NULL or valid.
    unsafe { handle(value) }.map_or(0, |value| value.0.value.len())
}

/// Returns the flags of a value, or 0 if `value` is NULL.
///
/// # Safety
/// `value` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_value_flags(value: *const Value) -> u32 {
    // SAFETY: `value` is NULL or valid.
    unsafe { handle(value) }.map_or(0, |value| value.0.flags)
}

/// Returns the CAS of a value from larder_gets() or larder_gat(). Returns 0 for other values and
/// for NULL.
///
/// # Safety
/// `value` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_value_cas(value: *const Value) -> u64 {
    // SAFETY: `value` is NULL or valid.
    unsafe { handle(value) }.map_or(0, |value| value.0.cas.unwrap_or(0))
}

/// Frees a value.
///
/// # Safety
/// `value` is NULL or valid. No thread uses it during or after the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_value_free(value: *mut Value) {
    // SAFETY: `value` is NULL or was returned by a lookup, and is not used again.
    unsafe { free(value) };
}
