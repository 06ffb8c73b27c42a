//! The last error of each thread, and panics.

use crate::status::Status;
use larder_client::Error;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null;

/// Why a call failed.
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

/// Text up to its first zero.
fn text(text: &str) -> CString {
    CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default()
}

/// Does a call; keeps its error.
pub(crate) fn guarded(call: impl FnOnce() -> Result<Status, Failure>) -> Status {
    let panicked = || Failure::new(Status::Panic, "a fault of the library: it panicked");
    let done = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| Err(panicked()));
    let (status, failure) = match done {
        Ok(status) => (status, Failure::default()),
        Err(failure) => (failure.status.unwrap_or(Status::Other), failure),
    };
    LAST.replace(failure);
    status
}

/// What went wrong in this thread's last call, for people; empty if nothing did. Valid until the thread's next call.
#[unsafe(no_mangle)]
pub extern "C" fn larder_error_message() -> *const c_char {
    LAST.with_borrow(|last| last.message.as_ptr())
}

/// The server that this thread's last call failed for; NULL if it was not for one, or did not fail. Valid until the
/// thread's next call.
#[unsafe(no_mangle)]
pub extern "C" fn larder_error_server() -> *const c_char {
    LAST.with_borrow(|last| last.server.as_ref().map_or(null(), |server| server.as_ptr()))
}

/// Whether the change that this thread's last call asked for may have happened although it failed. Otherwise it has not,
/// and will not.
#[unsafe(no_mangle)]
pub extern "C" fn larder_error_is_ambiguous() -> bool {
    LAST.with_borrow(|last| last.is_ambiguous)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn a_panic_is_a_status() {
        assert_eq!(guarded(|| panic!("not across the boundary")), Status::Panic);
        // SAFETY: the message is valid until the next call.
        let message = unsafe { CStr::from_ptr(larder_error_message()) };
        assert!(message.to_str().unwrap().contains("panicked"));
        assert_eq!(guarded(|| Ok(Status::Ok)), Status::Ok);
        // SAFETY: the same.
        assert!(unsafe { CStr::from_ptr(larder_error_message()) }.is_empty());
    }
}
