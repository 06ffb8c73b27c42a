//! `/v1/batch`: many operations in one request.

use super::app::App;
use super::body::{Arrived, collect};
use super::conditions::{Precondition, etag};
use super::keys::{New, remove, store};
use super::parameters::{Key, expiry};
use super::problem::{Problem, ProblemBody};
use crate::items::Looked;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use futures_util::future::join_all;
use hyper::StatusCode;
use larder_store::Access;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The largest batch, in operations and in bytes of its body and of its answer.
const OPERATIONS_MAX: usize = 1000;
const LEN_MAX: usize = 8 << 20;
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
    /// The value of an item that was looked up, if it is UTF-8.
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
    (status = 413, description = "the batch or its answer has more than 8 MiB, or the batch more than 1000 operations", body = ProblemBody, content_type = "application/problem+json"),
))]
pub(super) async fn batch(
    State(app): State<App>,
    body: Body,
) -> Result<Json<BatchAnswer>, Problem> {
    let body = collect(body, LEN_MAX).await.map_err(|_| too_large())?;
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
        for result in join_all(together.into_iter().map(|operation| run(&app, operation))).await {
            let result = result.unwrap_or_else(refused);
            len += result.value.as_ref().or(result.value_base64.as_ref()).map_or(0, String::len);
            results.push(result);
        }
        if len > LEN_MAX {
            return Err(too_large());
        }
    }
    Ok(Json(BatchAnswer { results }))
}

fn too_large() -> Problem {
    let detail = "A batch has at most 1000 operations, and it and its answer 8 MiB each.";
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
}

fn refused(problem: Problem) -> OperationResult {
    let problem = problem.into_body();
    OperationResult { problem: Some(problem), ..OperationResult::of(StatusCode::OK) }.with_status()
}

impl OperationResult {
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

async fn run(app: &App, operation: Operation) -> Result<OperationResult, Problem> {
    match operation {
        Operation::Get { key } => {
            let key = key.read()?;
            match app.items.get(&key.0, Access::Tracked).await {
                Looked::Found(found) if found.len() > LEN_MAX => Err(too_large()),
                Looked::Found(found) => {
                    let mut whole = BytesMut::with_capacity(found.len());
                    found.value.iter().for_each(|piece| whole.extend_from_slice(piece));
                    let (value, value_base64) = match std::str::from_utf8(&whole) {
                        Ok(text) => (Some(text.to_owned()), None),
                        Err(_) => (None, Some(STANDARD.encode(&whole))),
                    };
                    Ok(OperationResult {
                        value,
                        value_base64,
                        etag: tag_of(found.cas),
                        flags: Some(found.client_flags),
                        ttl: found.ttl,
                        ..OperationResult::of(StatusCode::OK)
                    })
                }
                Looked::Missing => Ok(OperationResult::of(StatusCode::NOT_FOUND)),
                Looked::Busy => Err(Problem::busy()),
                Looked::OutOfMemory => Err(Problem::out_of_memory()),
            }
        }
        Operation::Set { key, value, ttl, flags } => {
            let (key, value) = (key.read()?, Arrived::Whole(value.read()?));
            let new = New { expiry: expiry(ttl, app.view.now())?, client_flags: flags };
            let (status, cas) = store(&*app.items, &key, new, Precondition::None, value).await?;
            Ok(OperationResult { etag: tag_of(cas), ..OperationResult::of(status) })
        }
        Operation::Delete { key } => match remove(&*app.items, &key.read()?.0, None).await {
            Ok(status) => Ok(OperationResult::of(status)),
            Err(problem) if problem.status() == StatusCode::NOT_FOUND => {
                Ok(OperationResult::of(StatusCode::NOT_FOUND))
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
