//! Pointers of callers as references and slices. NULL is refused; what else a pointer has to be is said in the header.

use crate::failure::Failure;
use crate::status::Status;
use std::ffi::{CStr, c_char, c_void};

/// # Safety
/// The pointer is NULL, or what it points to is valid for reads as long as the reference is used.
pub(crate) unsafe fn handle<'h, T>(pointer: *const T) -> Result<&'h T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(null)
}

/// # Safety
/// The pointer is NULL, or what it points to is valid for reads and writes, and nobody else uses it meanwhile.
pub(crate) unsafe fn handle_mut<'h, T>(pointer: *mut T) -> Result<&'h mut T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_mut() }.ok_or_else(null)
}

/// Writes to where there may be nothing yet.
///
/// # Safety
/// The pointer is NULL, or valid for writes.
pub(crate) unsafe fn put<T>(pointer: *mut T, value: T) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(null());
    }
    // SAFETY: the caller's promise; it is not NULL.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Writes to each of `len` places, where there may be nothing yet.
///
/// # Safety
/// The pointer is NULL, or `len` places behind it are valid for writes.
pub(crate) unsafe fn put_all<T>(
    pointer: *mut T,
    len: usize,
    values: impl IntoIterator<Item = T>,
) -> Result<(), Failure> {
    if pointer.is_null() && len > 0 {
        return Err(null());
    }
    for (n, value) in values.into_iter().take(len).enumerate() {
        // SAFETY: the caller's promise; it is not NULL.
        let place = unsafe { pointer.add(n) };
        // SAFETY: the same.
        unsafe { place.write(value) };
    }
    Ok(())
}

/// # Safety
/// The pointer is NULL, or `len` values behind it are valid for reads as long as the slice is used.
pub(crate) unsafe fn slice<'s, T>(pointer: *const T, len: usize) -> Result<&'s [T], Failure> {
    match (pointer.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(null()),
        // SAFETY: the caller's promise; it is not NULL.
        (false, len) => Ok(unsafe { std::slice::from_raw_parts(pointer, len) }),
    }
}

/// # Safety
/// As for [`slice`].
pub(crate) unsafe fn bytes<'s>(pointer: *const c_void, len: usize) -> Result<&'s [u8], Failure> {
    // SAFETY: the caller's promise.
    unsafe { slice(pointer.cast(), len) }
}

/// # Safety
/// The pointer is NULL, or points to text that ends with a zero.
pub(crate) unsafe fn text<'s>(pointer: *const c_char) -> Result<&'s str, Failure> {
    if pointer.is_null() {
        return Err(null());
    }
    // SAFETY: the caller's promise; it is not NULL.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Failure::new(Status::InvalidArgument, "text has to be UTF-8"))
}

/// Frees what [`Box::into_raw`] has given out; NULL is nothing.
///
/// # Safety
/// The pointer is NULL or comes from there, and is not used any more.
pub(crate) unsafe fn free<T>(pointer: *mut T) {
    if !pointer.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(pointer) });
    }
}

fn null() -> Failure {
    Failure::new(Status::InvalidArgument, "a pointer is NULL")
}
