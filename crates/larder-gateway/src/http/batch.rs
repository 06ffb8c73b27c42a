//! `/v1/batch`: many operations in one request.

use super::app::App;
use super::body::{Arrived, UNANNOUNCED_MAX, announced_len, collect};
use super::conditions::{Precondition, etag};
use super::keys::{New, remove, store};
use super::memory::Counted;
use super::parameters::{Key, expiry};
use super::problem::{Problem, ProblemBody};
use crate::items::{Found, Looked};
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::future::join_all;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use larder_store::Access;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The largest batch, in operations, in bytes of its body, and in bytes of the values of its answer.
const OPERATIONS_MAX: usize = 1000;
const LEN_MAX: usize = 8 << 20;
const ANSWER_LEN_MAX: usize = 4 << 20;
/// How often a value is there while the answer is written, in which each byte may become two.
const COPIES: usize = 3;
/// What the rest of a result takes in the answer, in bytes.
const RESULT_LEN: usize = 200;
/// Look-ups that wait for slower storage at the same time.
const AT_ONCE: usize = 32;

/// A batch.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Batch {
    /// Up to 1000 operations, which are done in this order.
    #[schema(max_items = 1000)]
    operations: Vec<Operation>,
}

/// An operation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
enum Operation {
    /// Looks an item up.
    Get {
        #[serde(flatten)]
        key: KeyField,
    },
    /// Stores an item.
    Set {
        #[serde(flatten)]
        key: KeyField,
        #[serde(flatten)]
        value: ValueField,
        /// Seconds until the item expires, rounded up to whole ones; it does not without them.
        #[schema(minimum = 0.001)]
        ttl: Option<f64>,
        /// Client flags.
        #[serde(default)]
        flags: u32,
    },
    /// Removes an item.
    Delete {
        #[serde(flatten)]
        key: KeyField,
    },
}

/// A key, as text or in base64.
#[derive(Debug, Deserialize, ToSchema)]
enum KeyField {
    /// As text, 1 to 250 bytes of UTF-8.
    #[serde(rename = "key")]
    Text(String),
    /// In base64.
    #[serde(rename = "key_base64")]
    Base64(String),
}

/// A value, as text or in base64.
#[derive(Debug, Deserialize, ToSchema)]
enum ValueField {
    /// As text.
    #[serde(rename = "value")]
    Text(String),
    /// In base64.
    #[serde(rename = "value_base64")]
    Base64(String),
}

/// What a batch answers.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BatchAnswer {
    /// A result for each operation, in their order.
    results: Vec<OperationResult>,
}

/// The result of an operation.
#[derive(Debug, Serialize, ToSchema)]
struct OperationResult {
    /// What the operation would have been answered with alone: 200, 201, 204, 404 and so on.
    status: u16,
    /// The value of an item that was looked up, if it is text in UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    /// The value of an item that was looked up, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    value_base64: Option<String>,
    /// The entity tag of an item that was looked up or stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    etag: Option<String>,
    /// The client flags of an item that was looked up.
    #[serde(skip_serializing_if = "Option::is_none")]
    flags: Option<u32>,
    /// Seconds until an item that was looked up expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl: Option<u32>,
    /// Why the operation was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<ProblemBody>,
}

/// Does up to 1000 operations, in order. Each succeeds or fails by itself.
#[utoipa::path(post, path = "/v1/batch", tag = "items", request_body = Batch, responses(
    (status = 200, description = "a result for each operation", body = BatchAnswer),
    (status = 400, description = "the body is no batch", body = ProblemBody, content_type = "application/problem+json"),
    (status = 503, description = "too much is being received and sent", body = ProblemBody, content_type = "application/problem+json"),
    (status = 411, description = "a body of more than 64 KiB needs a length", body = ProblemBody, content_type = "application/problem+json"),
    (status = 413, description = "the batch has more than 8 MiB, or more than 1000 operations", body = ProblemBody, content_type = "application/problem+json"),
))]
pub(super) async fn batch(
    State(app): State<App>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let max = if announced_len(&headers).is_some() { LEN_MAX } else { UNANNOUNCED_MAX };
    let (body, mut reserved) = collect(&app, body, announced_len(&headers), max).await?;
    let taken = body.len();
    let batch: Batch = serde_json::from_slice(&body)
        .map_err(|error| Problem::bad_request(format!("The body is no batch: {error}")))?;
    if batch.operations.len() > OPERATIONS_MAX {
        return Err(too_large());
    }
    let (mut results, mut len) = (Vec::new(), 0);
    let mut operations = batch.operations.into_iter().peekable();
    while let Some(first) = operations.next() {
        // Look-ups that follow one another may wait together; changes take effect in their order.
        let mut together = vec![first];
        let is_get = |operation: &Operation| matches!(operation, Operation::Get { .. });
        while together.iter().all(is_get)
            && together.len() < AT_ONCE
            && let Some(next) = operations.next_if(is_get)
        {
            together.push(next);
        }
        for outcome in join_all(together.into_iter().map(|operation| run(&app, operation))).await {
            let result = match outcome {
                Ok(Outcome::Found(found)) => {
                    let more = len + found.len();
                    let room = if more > ANSWER_LEN_MAX {
                        Err(too_large())
                    } else {
                        reserved
                            .require(&app, taken + more * COPIES + results.len() * RESULT_LEN)
                            .await
                    };
                    room.map(|()| {
                        len = more;
                        OperationResult::found(&found)
                    })
                }
                Ok(Outcome::Done(result)) => Ok(result),
                Err(problem) => Err(problem),
            };
            results.push(result.unwrap_or_else(refused));
        }
    }
    let mut bytes = Vec::with_capacity((COPIES - 1) * len + results.len() * RESULT_LEN);
    // Its types can be written as JSON, and a vector can be written to.
    let _ = serde_json::to_writer(&mut bytes, &BatchAnswer { results });
    let answer = Bytes::from(Counted { bytes, _reserved: reserved });
    let kind = HeaderValue::from_static("application/json");
    Ok(([(CONTENT_TYPE, kind)], Body::from(answer)).into_response())
}

fn too_large() -> Problem {
    let detail =
        "A batch has at most 1000 operations and 8 MiB, and the values of its answer 4 MiB.";
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
}

fn refused(problem: Problem) -> OperationResult {
    let problem = problem.into_body();
    OperationResult { problem: Some(problem), ..OperationResult::of(StatusCode::OK) }.with_status()
}

impl OperationResult {
    fn found(found: &Found) -> Self {
        let mut whole = Vec::with_capacity(found.len());
        found.value.iter().for_each(|piece| whole.extend_from_slice(piece));
        // Other control characters would take six bytes each.
        let is_text = |text: &str| !text.chars().any(|c| c.is_control() && !"\n\r\t".contains(c));
        let (value, value_base64) = match String::from_utf8(whole) {
            Ok(text) if is_text(&text) => (Some(text), None),
            Ok(text) => (None, Some(STANDARD.encode(text))),
            Err(error) => (None, Some(STANDARD.encode(error.as_bytes()))),
        };
        Self {
            value,
            value_base64,
            etag: tag_of(found.cas),
            flags: Some(found.client_flags),
            ttl: found.ttl,
            ..Self::of(StatusCode::OK)
        }
    }

    fn of(status: StatusCode) -> Self {
        let status = status.as_u16();
        Self {
            status,
            value: None,
            value_base64: None,
            etag: None,
            flags: None,
            ttl: None,
            problem: None,
        }
    }

    /// The status of its problem.
    fn with_status(mut self) -> Self {
        self.status = self.problem.as_ref().map_or(self.status, ProblemBody::status);
        self
    }
}

/// What an operation came to.
enum Outcome {
    /// An item that was looked up, whose value is still in the cache.
    Found(Found),
    Done(OperationResult),
}

async fn run(app: &App, operation: Operation) -> Result<Outcome, Problem> {
    let done = |status| Ok(Outcome::Done(OperationResult::of(status)));
    match operation {
        Operation::Get { key } => match app.items.get(&key.read()?.0, Access::Tracked).await {
            Looked::Found(found) => Ok(Outcome::Found(found)),
            Looked::Missing => done(StatusCode::NOT_FOUND),
            Looked::Busy => Err(Problem::busy()),
            Looked::OutOfMemory => Err(Problem::out_of_memory()),
        },
        Operation::Set { key, value, ttl, flags } => {
            let (key, bytes) = (key.read()?, value.read()?);
            let value = Arrived::Whole { bytes, _reserved: None };
            let new = New { expiry: expiry(ttl, app.view.now())?, client_flags: flags };
            let (status, cas) = store(&*app.items, &key, new, Precondition::None, value).await?;
            Ok(Outcome::Done(OperationResult { etag: tag_of(cas), ..OperationResult::of(status) }))
        }
        Operation::Delete { key } => match remove(&*app.items, &key.read()?.0, None).await {
            Ok(status) => done(status),
            Err(problem) if problem.status() == StatusCode::NOT_FOUND => {
                done(StatusCode::NOT_FOUND)
            }
            Err(problem) => Err(problem),
        },
    }
}

fn tag_of(cas: u64) -> Option<String> {
    etag(cas).map(|_| format!("\"{cas:x}\""))
}

fn decoded(text: &str) -> Result<Bytes, Problem> {
    let bytes = STANDARD.decode(text);
    bytes
        .map(Bytes::from)
        .map_err(|_| Problem::bad_request("This is not base64, with its padding."))
}

impl KeyField {
    fn read(self) -> Result<Key, Problem> {
        match self {
            Self::Text(text) => Key::new(text.into_bytes()),
            Self::Base64(text) => Key::new(decoded(&text)?.into()),
        }
    }
}

impl ValueField {
    fn read(self) -> Result<Bytes, Problem> {
        match self {
            Self::Text(text) => Ok(Bytes::from(text)),
            Self::Base64(text) => decoded(&text),
        }
    }
}
