//! The Host field of a request (RFC 9112, 3.2).

use hyper::header::{HOST, HeaderValue};
use hyper::{HeaderMap, Version};

/// Returns the Host field, or `None` if the request has no such field and its HTTP version permits
/// that.
///
/// # Errors
/// The reason for a refusal: a missing field with HTTP/1.1, or several fields.
pub(crate) fn host_field(
    version: Version,
    headers: &HeaderMap,
) -> Result<Option<&HeaderValue>, &'static str> {
    let mut fields = headers.get_all(HOST).iter();
    match (fields.next(), fields.next()) {
        (_, Some(_)) => Err("There is more than one Host field."),
        (None, None) if version == Version::HTTP_11 => Err("The Host field is missing."),
        (field, None) => Ok(field),
    }
}
