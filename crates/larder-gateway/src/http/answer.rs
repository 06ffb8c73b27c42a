//! Replies whose memory stays reserved until they are sent.

use super::problem::Problem;
use crate::web::app::App;
use crate::web::memory::with_reservation;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde::Serialize;

/// Builds a reply with the JSON text of `value`.
///
/// # Errors
/// The reply would exceed the memory limit.
pub(super) async fn json(app: &App, value: &impl Serialize) -> Result<Response, Problem> {
    // Serializing the types of this crate cannot fail.
    let text = serde_json::to_vec(value).unwrap_or_default();
    whole(app, HeaderValue::from_static("application/json"), text).await
}

/// Builds a reply with the body `bytes` and the content type `kind`.
///
/// # Errors
/// The reply would exceed the memory limit.
pub(super) async fn whole(
    app: &App,
    kind: HeaderValue,
    bytes: impl Into<Bytes>,
) -> Result<Response, Problem> {
    let bytes = with_reservation(app, bytes).await?;
    Ok(([(CONTENT_TYPE, kind)], Body::from(bytes)).into_response())
}
