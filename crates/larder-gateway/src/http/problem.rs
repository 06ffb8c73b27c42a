//! Error replies: `application/problem+json` (RFC 9457).

use crate::abort::Abort;
use crate::web::memory::Busy;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use serde::Serialize;
use std::borrow::Cow;

const OWNER_UNREACHABLE: &str =
    "The server that owns the item is unreachable: send requests to the leader of its group.";

/// The reason why a request was refused or failed.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    detail: Cow<'static, str>,
    header: Option<(HeaderName, HeaderValue)>,
}

/// The body of a reply that reports a problem.
#[derive(Debug, Serialize)]
pub(super) struct ProblemBody {
    /// The kind of the problem: always `about:blank`, because the status identifies it.
    r#type: &'static str,
    /// The reason phrase of the status.
    title: &'static str,
    /// The status code.
    status: u16,
    /// The cause of the problem and its remedy.
    detail: Cow<'static, str>,
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { status, detail: detail.into(), header: None }
    }

    pub(super) fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.header = Some((name, value));
        self
    }

    pub(super) fn bad_request(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    pub(super) fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "There is no item with this key.")
    }

    pub(super) fn precondition_failed() -> Self {
        let detail = "The item does not meet the condition If-Match or If-None-Match.";
        Self::new(StatusCode::PRECONDITION_FAILED, detail)
    }

    pub(super) fn too_large() -> Self {
        let detail = "The item would be larger than the server's limit (-I).";
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
    }

    pub(super) fn out_of_memory() -> Self {
        let detail = "The server has no memory for the item and can evict nothing.";
        Self::new(StatusCode::INSUFFICIENT_STORAGE, detail)
    }

    pub(super) fn no_tags() -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, "The engine of this server has no tags.")
    }

    pub(super) fn busy() -> Self {
        let detail = "The server has no memory for the request at the moment: retry in a second.";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
            .with(RETRY_AFTER, HeaderValue::from_static("1"))
    }

    pub(super) fn unconfirmed() -> Self {
        let detail = "No other server has confirmed the change in time: it may be lost.";
        Self::new(StatusCode::GATEWAY_TIMEOUT, detail)
    }

    pub(super) fn owner_unreachable() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, OWNER_UNREACHABLE)
    }

    /// Returns whether the problem is [`Self::owner_unreachable`].
    pub(super) fn is_owner_unreachable(&self) -> bool {
        self.detail == OWNER_UNREACHABLE
    }

    pub(super) fn login_required() -> Self {
        let challenge = r#"Basic realm="larder", charset="UTF-8""#;
        Self::new(StatusCode::UNAUTHORIZED, "A login is required: Basic or Bearer.")
            .with(WWW_AUTHENTICATE, HeaderValue::from_static(challenge))
    }

    pub(super) fn status(&self) -> StatusCode {
        self.status
    }

    /// Converts the problem to a reply body, or to the `problem` field of a batch result.
    pub(super) fn into_body(self) -> ProblemBody {
        ProblemBody {
            r#type: "about:blank",
            title: self.status.canonical_reason().unwrap_or_default(),
            status: self.status.as_u16(),
            detail: self.detail,
        }
    }
}

impl From<Abort> for Problem {
    fn from(ended: Abort) -> Self {
        match ended {
            Abort::Unconfirmed => Self::unconfirmed(),
            Abort::OwnerUnreachable => Self::owner_unreachable(),
        }
    }
}

impl From<Busy> for Problem {
    fn from(_: Busy) -> Self {
        Self::busy()
    }
}

/// Returns the reply to a request that would exceed the memory limit.
pub(crate) fn refused(busy: Busy) -> Response<Body> {
    Problem::from(busy).into_response()
}

impl ProblemBody {
    pub(super) fn status(&self) -> u16 {
        self.status
    }
}

impl IntoResponse for Problem {
    fn into_response(mut self) -> Response {
        let (status, header) = (self.status, self.header.take());
        // Serializing the fields cannot fail.
        let body = serde_json::to_vec(&self.into_body()).unwrap_or_default();
        let kind = HeaderValue::from_static("application/problem+json");
        let mut response = (status, [(CONTENT_TYPE, kind)], body).into_response();
        if let Some((name, value)) = header {
            response.headers_mut().insert(name, value);
        }
        response
    }
}
