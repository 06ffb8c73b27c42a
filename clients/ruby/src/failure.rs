//! Conversion of errors to exceptions.

use larder_client::{Error, ErrorKind};
use magnus::{Class as _, ExceptionClass, Module as _, RModule, Ruby};

/// Converts an error to an exception.
pub(crate) fn exception(ruby: &Ruby, error: &Error) -> magnus::Error {
    new(ruby, error).unwrap_or_else(|error| error)
}

fn new(ruby: &Ruby, error: &Error) -> Result<magnus::Error, magnus::Error> {
    let name = match error.kind() {
        ErrorKind::Key(_) => {
            return Ok(magnus::Error::new(ruby.exception_arg_error(), error.to_string()));
        }
        ErrorKind::ValueTooLong(_) => "ValueOverMaxSize",
        ErrorKind::Connect(_) | ErrorKind::Unavailable { .. } => "RingError",
        ErrorKind::PoolTimeout | ErrorKind::Timeout | ErrorKind::Io(_) => "NetworkError",
        ErrorKind::Closed | ErrorKind::Unexpected(_) => "NetworkError",
        _ => "Error",
    };
    let larder: RModule = ruby.class_object().const_get("Larder")?;
    let class: ExceptionClass = larder.const_get(name)?;
    Ok(class.new_instance((error.to_string(), error.is_ambiguous()))?.into())
}
