//! Exceptions, with pymemcache's names.

use crate::gil;
use larder_client::{Error, ErrorKind};
use pyo3::create_exception;
use pyo3::exceptions::{
    PyConnectionAbortedError, PyConnectionError, PyException, PyKeyboardInterrupt, PyTimeoutError,
};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::io;

create_exception!(larder_client, MemcacheError, PyException, "What the other exceptions are.");
create_exception!(
    larder_client,
    MemcacheClientError,
    MemcacheError,
    "The server refused the request, and would do so again."
);
create_exception!(
    larder_client,
    MemcacheUnknownCommandError,
    MemcacheClientError,
    "The server does not know the command."
);
create_exception!(
    larder_client,
    MemcacheIllegalInputError,
    MemcacheClientError,
    "No server takes such a key, value or argument."
);
create_exception!(
    larder_client,
    MemcacheServerError,
    MemcacheError,
    "The server could not do what was asked."
);
create_exception!(
    larder_client,
    MemcacheUnknownError,
    MemcacheError,
    "The server's answer is not one to the request."
);
create_exception!(
    larder_client,
    MemcacheUnexpectedCloseError,
    MemcacheServerError,
    "The server closed the connection."
);

/// The exception for an error. Its attribute `is_ambiguous` says whether the change may have happened.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    let raised = of_kind(py, error);
    // An exception class that has no room for attributes loses the attribute, not the exception.
    drop(raised.value(py).setattr("is_ambiguous", error.is_ambiguous()));
    raised
}

fn of_kind(py: Python<'_>, error: &Error) -> PyErr {
    let text = error.to_string();
    match error.kind() {
        ErrorKind::Key(_) | ErrorKind::ValueTooLong(_) => MemcacheIllegalInputError::new_err(text),
        ErrorKind::Refused(line) => MemcacheClientError::new_err(words(py, line)),
        ErrorKind::Server(line) => MemcacheServerError::new_err(words(py, line)),
        ErrorKind::Unexpected(shown) if shown.starts_with("ERROR") => {
            MemcacheUnknownCommandError::new_err(text)
        }
        ErrorKind::Closed => MemcacheUnexpectedCloseError::new_err(text),
        ErrorKind::Timeout | ErrorKind::PoolTimeout => PyTimeoutError::new_err(text),
        ErrorKind::Connect(io) | ErrorKind::Io(io) => system_error(io, text),
        ErrorKind::Unavailable { .. } => PyConnectionError::new_err(text),
        ErrorKind::ClientClosed => PyConnectionAbortedError::new_err(text),
        ErrorKind::Interrupted => gil::raised().unwrap_or_else(|| PyKeyboardInterrupt::new_err(())),
        _ => MemcacheUnknownError::new_err(text),
    }
}

/// `OSError`, or its subclass for such an error, as `ConnectionRefusedError`.
fn system_error(error: &io::Error, text: String) -> PyErr {
    match error.raw_os_error() {
        Some(number) => pyo3::exceptions::PyOSError::new_err((number, text)),
        None => io::Error::new(error.kind(), text).into(),
    }
}

/// What a server said, without `CLIENT_ERROR` or `SERVER_ERROR`: bytes, as pymemcache has it.
fn words(py: Python<'_>, line: &str) -> Py<PyBytes> {
    let words = line.split_once(' ').map_or(line, |(_, words)| words);
    PyBytes::new(py, words.as_bytes()).unbind()
}
