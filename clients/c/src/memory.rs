//! Conversions of the caller's pointers to references, slices and text. NULL is an error, with
//! three exceptions: slices of length 0, [`optional_text`] and [`free`].

use crate::failure::Failure;
use crate::status::Status;
use std::ffi::{CStr, c_char, c_void};

/// Converts a pointer to a reference.
///
/// # Safety
/// The pointer is NULL or aligned. If it is not NULL, its target is initialized, and no code writes
/// to the target while the reference is used.
pub(crate) unsafe fn handle<'h, T>(pointer: *const T) -> Result<&'h T, Failure> {
    // SAFETY: the caller guarantees that `pointer` is NULL or valid for reads.
    unsafe { pointer.as_ref() }.ok_or_else(null)
}

/// Converts a pointer to a mutable reference.
///
/// # Safety
/// The pointer is NULL or aligned. If it is not NULL, its target is initialized, and no other code
/// uses the target while the reference is used.
pub(crate) unsafe fn handle_mut<'h, T>(pointer: *mut T) -> Result<&'h mut T, Failure> {
    // SAFETY: the caller guarantees that `pointer` is NULL, or that no other code uses its target.
    unsafe { pointer.as_mut() }.ok_or_else(null)
}

/// Writes to a target that may be uninitialized.
///
/// # Safety
/// The pointer is NULL, or aligned and valid for writes.
pub(crate) unsafe fn put<T>(pointer: *mut T, value: T) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(null());
    }
    // SAFETY: `pointer` is not NULL, so the caller guarantees that it is valid for writes.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Writes up to `len` values to consecutive targets, which may be uninitialized.
///
/// # Safety
/// The pointer is NULL or aligned. If it is not NULL, it points to `len` consecutive elements that
/// are valid for writes.
pub(crate) unsafe fn put_all<T>(
    pointer: *mut T,
    len: usize,
    values: impl IntoIterator<Item = T>,
) -> Result<(), Failure> {
    if pointer.is_null() && len > 0 {
        return Err(null());
    }
    for (n, value) in values.into_iter().take(len).enumerate() {
        // SAFETY: `pointer` is not NULL, so the caller guarantees `len` elements, and `n` is below
        // `len`.
        let target = unsafe { pointer.add(n) };
        // SAFETY: `target` is one of the `len` elements, which are valid for writes.
        unsafe { target.write(value) };
    }
    Ok(())
}

/// Converts a pointer and a length to a slice.
///
/// # Safety
/// The pointer is NULL or aligned. If it is not NULL, it points to `len` consecutive values. They
/// belong to one allocation and are initialized, and no code writes to them while the slice is
/// used.
pub(crate) unsafe fn slice<'s, T>(pointer: *const T, len: usize) -> Result<&'s [T], Failure> {
    match (pointer.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(null()),
        // SAFETY: `pointer` is not NULL, so the caller guarantees `len` values that are readable
        // and not written.
        (false, len) => Ok(unsafe { std::slice::from_raw_parts(pointer, len) }),
    }
}

/// Converts a pointer and a length to bytes.
///
/// # Safety
/// The same requirements as for [`slice`] of bytes hold.
pub(crate) unsafe fn bytes<'s>(pointer: *const c_void, len: usize) -> Result<&'s [u8], Failure> {
    // SAFETY: the caller gives the guarantees of `slice` for `pointer` and `len`.
    unsafe { slice(pointer.cast(), len) }
}

/// Converts a pointer to text.
///
/// # Safety
/// The pointer is NULL, or points to bytes that end with a zero and are not written while the
/// reference is used.
pub(crate) unsafe fn text<'s>(pointer: *const c_char) -> Result<&'s str, Failure> {
    if pointer.is_null() {
        return Err(null());
    }
    // SAFETY: `pointer` is not NULL, so the caller guarantees that its text ends with a zero.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Failure::new(Status::InvalidArgument, "text is not UTF-8"))
}

/// Converts a pointer to text. Returns `None` for NULL.
///
/// # Safety
/// The same requirements as for [`text`] hold.
pub(crate) unsafe fn optional_text<'s>(pointer: *const c_char) -> Result<Option<&'s str>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller gives the guarantees of `text`.
    unsafe { text(pointer) }.map(Some)
}

/// Frees the target of a pointer from [`Box::into_raw`]. Does nothing for NULL.
///
/// # Safety
/// The pointer is NULL, or [`Box::into_raw`] returned it for the same type and no code uses it
/// again.
pub(crate) unsafe fn free<T>(pointer: *mut T) {
    if !pointer.is_null() {
        // SAFETY: the caller guarantees that `Box::into_raw` returned `pointer`, and that no code
        // uses it again.
        drop(unsafe { Box::from_raw(pointer) });
    }
}

fn null() -> Failure {
    Failure::new(Status::InvalidArgument, "unexpected NULL pointer")
}
