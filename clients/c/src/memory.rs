//! Conversion of the caller's pointers to references and slices. NULL is an error; larder.h documents the other
//! requirements.

use crate::failure::Failure;
use crate::status::Status;
use std::ffi::{CStr, c_char, c_void};

/// Converts a pointer to a reference.
///
/// # Safety
/// The pointer is NULL, or its target is valid for reads while the reference is used.
pub(crate) unsafe fn handle<'h, T>(pointer: *const T) -> Result<&'h T, Failure> {
    // SAFETY: guaranteed by the caller.
    unsafe { pointer.as_ref() }.ok_or_else(null)
}

/// Converts a pointer to a mutable reference.
///
/// # Safety
/// The pointer is NULL, or its target is valid for reads and writes, and is not used otherwise while the reference is.
pub(crate) unsafe fn handle_mut<'h, T>(pointer: *mut T) -> Result<&'h mut T, Failure> {
    // SAFETY: guaranteed by the caller.
    unsafe { pointer.as_mut() }.ok_or_else(null)
}

/// Writes to a target that may be uninitialized.
///
/// # Safety
/// The pointer is NULL, or valid for writes.
pub(crate) unsafe fn put<T>(pointer: *mut T, value: T) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(null());
    }
    // SAFETY: guaranteed by the caller; the pointer is not NULL.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Writes to `len` targets that may be uninitialized.
///
/// # Safety
/// The pointer is NULL, or `len` elements behind it are valid for writes.
pub(crate) unsafe fn put_all<T>(
    pointer: *mut T,
    len: usize,
    values: impl IntoIterator<Item = T>,
) -> Result<(), Failure> {
    if pointer.is_null() && len > 0 {
        return Err(null());
    }
    for (n, value) in values.into_iter().take(len).enumerate() {
        // SAFETY: guaranteed by the caller; the pointer is not NULL.
        let target = unsafe { pointer.add(n) };
        // SAFETY: as above.
        unsafe { target.write(value) };
    }
    Ok(())
}

/// Converts a pointer and a length to a slice.
///
/// # Safety
/// The pointer is NULL, or `len` values behind it are valid for reads while the slice is used.
pub(crate) unsafe fn slice<'s, T>(pointer: *const T, len: usize) -> Result<&'s [T], Failure> {
    match (pointer.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(null()),
        // SAFETY: guaranteed by the caller; the pointer is not NULL.
        (false, len) => Ok(unsafe { std::slice::from_raw_parts(pointer, len) }),
    }
}

/// Converts a pointer and a length to bytes.
///
/// # Safety
/// As for [`slice`].
pub(crate) unsafe fn bytes<'s>(pointer: *const c_void, len: usize) -> Result<&'s [u8], Failure> {
    // SAFETY: guaranteed by the caller.
    unsafe { slice(pointer.cast(), len) }
}

/// Converts a pointer to text.
///
/// # Safety
/// The pointer is NULL, or points to text that ends with a zero byte and is valid while the reference is used.
pub(crate) unsafe fn text<'s>(pointer: *const c_char) -> Result<&'s str, Failure> {
    if pointer.is_null() {
        return Err(null());
    }
    // SAFETY: guaranteed by the caller; the pointer is not NULL.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Failure::new(Status::InvalidArgument, "text is not UTF-8"))
}

/// Frees a pointer from [`Box::into_raw`]. Does nothing for NULL.
///
/// # Safety
/// The pointer is NULL, or comes from [`Box::into_raw`] and is not used again.
pub(crate) unsafe fn free<T>(pointer: *mut T) {
    if !pointer.is_null() {
        // SAFETY: guaranteed by the caller.
        drop(unsafe { Box::from_raw(pointer) });
    }
}

fn null() -> Failure {
    Failure::new(Status::InvalidArgument, "unexpected NULL pointer")
}
