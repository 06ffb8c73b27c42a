//! Each thread's last error, and panic handling.

use crate::status::Status;
use larder_client::Error;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null;

/// The error of a call. The default value represents success.
#[derive(Debug, Default)]
pub(crate) struct Failure {
    status: Option<Status>,
    message: CString,
    server: Option<CString>,
    is_ambiguous: bool,
}

thread_local! {
    static LAST: RefCell<Failure> = RefCell::default();
}

impl Failure {
    pub(crate) fn new(status: Status, message: &str) -> Self {
        Self { status: Some(status), message: text(message), ..Self::default() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self {
            status: Some(error.kind().into()),
            message: text(&error.to_string()),
            server: error.server().map(text),
            is_ambiguous: error.is_ambiguous(),
        }
    }
}

/// Converts text to a C string. Truncates the text at its first zero byte.
fn text(text: &str) -> CString {
    CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default()
}

/// Runs a call and returns its status. Sets this thread's last error to the call's error, or clears
/// it after a success. A panic becomes [`Status::Panic`].
pub(crate) fn guarded(call: impl FnOnce() -> Result<Status, Failure>) -> Status {
    let panicked = || Failure::new(Status::Panic, "bug in the library: it panicked");
    let result = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| Err(panicked()));
    let (status, failure) = match result {
        Ok(status) => (status, Failure::default()),
        Err(failure) => (failure.status.unwrap_or(Status::Other), failure),
    };
    LAST.replace(failure);
    status
}

/// Describes the error of this thread's last call. The description is empty if the call returned no
/// error. The pointer is valid until the thread's next call.
#[unsafe(no_mangle)]
pub extern "C" fn larder_error_message() -> *const c_char {
    LAST.with_borrow(|last| last.message.as_ptr())
}

/// Returns the address of the server at which this thread's last call failed. Returns NULL if the
/// call succeeded or its error does not concern one server. The address is valid until the thread's
/// next call.
#[unsafe(no_mangle)]
pub extern "C" fn larder_error_server() -> *const c_char {
    LAST.with_borrow(|last| last.server.as_ref().map_or(null(), |server| server.as_ptr()))
}

/// Returns whether this thread's last call failed but its requested change may have happened. If
/// the call failed and the result is false, the change has not happened and will not happen.
#[unsafe(no_mangle)]
pub extern "C" fn larder_error_is_ambiguous() -> bool {
    LAST.with_borrow(|last| last.is_ambiguous)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn a_panic_becomes_a_status() {
        assert_eq!(guarded(|| panic!("not across the boundary")), Status::Panic);
        // SAFETY: the message ends with a zero and is valid until the next `guarded`.
        let message = unsafe { CStr::from_ptr(larder_error_message()) };
        assert!(message.to_str().unwrap().contains("panicked"));
        assert_eq!(guarded(|| Ok(Status::Ok)), Status::Ok);
        // SAFETY: the message ends with a zero and is valid until the next `guarded`.
        assert!(unsafe { CStr::from_ptr(larder_error_message()) }.is_empty());
    }
}
