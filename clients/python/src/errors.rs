//! Exceptions with pymemcache's names.

use crate::gil;
use larder_client::{Error, ErrorKind};
use pyo3::create_exception;
use pyo3::exceptions::{
    PyConnectionAbortedError, PyConnectionError, PyException, PyKeyboardInterrupt, PyTimeoutError,
};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::io;

create_exception!(
    larder_client,
    MemcacheError,
    PyException,
    "The base class of the client's exceptions."
);
create_exception!(
    larder_client,
    MemcacheClientError,
    MemcacheError,
    "The server or the client refused the request. A retry cannot succeed."
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
    "A key, value or argument is invalid."
);
create_exception!(
    larder_client,
    MemcacheServerError,
    MemcacheError,
    "The server reported an error of its own."
);
create_exception!(
    larder_client,
    MemcacheUnknownError,
    MemcacheError,
    "The reply does not match the request."
);
create_exception!(
    larder_client,
    MemcacheUnexpectedCloseError,
    MemcacheServerError,
    "The server closed the connection."
);

/// Converts an error to an exception. The exception's attribute `is_ambiguous` states whether the
/// change may have happened, and `_may_move` states whether the call may use another server.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    let raised = of_kind(py, error);
    let value = raised.value(py);
    // Ignore the results, because not every exception class accepts attributes.
    drop(value.setattr("is_ambiguous", error.is_ambiguous()));
    drop(value.setattr("_may_move", may_move(error)));
    raised
}

/// Returns whether a client with `failover` may repeat the call on another server. The conditions
/// are those of `larder_client::Failover::Next`.
fn may_move(error: &Error) -> bool {
    error.is_fault() && !error.is_ambiguous() && !matches!(error.kind(), ErrorKind::Timeout)
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

/// Returns an `OSError`, or the subclass of `OSError` for this error, such as
/// `ConnectionRefusedError`.
fn system_error(error: &io::Error, text: String) -> PyErr {
    match error.raw_os_error() {
        Some(number) => pyo3::exceptions::PyOSError::new_err((number, text)),
        None => io::Error::new(error.kind(), text).into(),
    }
}

/// Returns the text of a server's error without `CLIENT_ERROR` or `SERVER_ERROR`. As in pymemcache,
/// it is a `bytes` object.
fn words(py: Python<'_>, line: &str) -> Py<PyBytes> {
    let words = line.split_once(' ').map_or(line, |(_, words)| words);
    PyBytes::new(py, words.as_bytes()).unbind()
}
