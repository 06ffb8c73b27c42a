//! `/v1/batch`: many operations in one request.

use super::body::{ReceivedValue, UNANNOUNCED_MAX, announced_len, collect};
use super::conditions::{Precondition, etag};
use super::keys::{NewItem, remove, store};
use super::parameters::{Key, expiry, tags};
use super::problem::{Problem, ProblemBody};
use crate::abort;
use crate::items::{LookupOutcome, StoredItem};
use crate::web::app::App;
use crate::web::memory::{share, with_guard};
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::future::join_all;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use larder_store::TAGS_MAX;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

/// The maximum number of operations in a batch.
const OPERATIONS_MAX: usize = 1000;
/// The maximum length of a batch's body, in bytes.
const LEN_MAX: usize = 8 << 20;
/// The maximum total length, in bytes, of the values in the reply to a batch.
const ANSWER_LEN_MAX: usize = 4 << 20;
/// The body of a batch, and the values in its reply, also have a second limit: the memory limit of
/// all gateway connections divided by this number. This limit applies if it is lower than
/// [`LEN_MAX`] or [`ANSWER_LEN_MAX`].
const SHARE: usize = 4;
/// The memory for the body of a batch is this many times the body's length: once for the received
/// bytes, and once for the decoded operations.
const BODY_COPIES: usize = 2;
/// While the reply is written, the memory for a value is this many times its length: once for the
/// value, and twice for its JSON text, which has up to two bytes for each byte of the value.
const VALUE_COPIES: usize = 3;
/// The memory, in bytes, that a result needs in the reply in addition to its value.
const RESULT_LEN: usize = 200;
/// A batch runs at most this many lookups concurrently, so that their waits for slower storage
/// overlap.
const CONCURRENT_MAX: usize = 32;
/// When a batch has waited for unreachable servers for longer than this in total, its remaining
/// operations fail.
const UNREACHABLE_TIME_MAX: Duration = Duration::from_secs(3);

/// A batch of operations.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Batch {
    /// Up to 1000 operations, executed in this order.
    #[serde(deserialize_with = "operations")]
    operations: Vec<Operation>,
}

/// One operation of a batch.
#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", try_from = "OperationFields")]
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
        /// Seconds until the item expires; `None` if it never does.
        ttl: Option<f64>,
        /// The client flags; 0 if omitted.
        #[serde(default)]
        flags: u32,
        /// Tags: up to seven names of 1 to 250 bytes.
        #[serde(default)]
        tags: Vec<String>,
    },
    /// Removes an item.
    Delete {
        #[serde(flatten)]
        key: KeyField,
    },
}

/// A key, as text or in base64.
#[derive(Debug, Deserialize)]
enum KeyField {
    /// The key as text: 1 to 1024 bytes of UTF-8.
    #[serde(rename = "key")]
    Text(String),
    /// The key in base64.
    #[serde(rename = "key_base64")]
    Base64(String),
}

/// A value, as text or in base64.
#[derive(Debug, Deserialize)]
enum ValueField {
    /// The value as text.
    #[serde(rename = "value")]
    Text(String),
    /// The value in base64.
    #[serde(rename = "value_base64")]
    Base64(String),
}

/// The reply to a batch.
#[derive(Debug, Serialize)]
pub(super) struct BatchAnswer {
    /// One result for each operation, in the same order.
    results: Vec<OperationResult>,
}

/// The result of an operation.
#[derive(Debug, Serialize)]
struct OperationResult {
    /// The status that the operation would have as a single request: 200, 201, 204, 404 and so on.
    status: u16,
    /// The value of a found item, if it is UTF-8 text without control characters other than tabs
    /// and line ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    /// The value of a found item in base64, unless `value` contains it.
    #[serde(skip_serializing_if = "Option::is_none")]
    value_base64: Option<String>,
    /// The entity tag of a found or stored item. Missing if the engine stores no CAS values.
    #[serde(skip_serializing_if = "Option::is_none")]
    etag: Option<String>,
    /// The client flags of a found item.
    #[serde(skip_serializing_if = "Option::is_none")]
    flags: Option<u32>,
    /// Seconds until a found item expires; missing if it never does.
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl: Option<u32>,
    /// The reason why the operation failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<ProblemBody>,
}

/// Executes up to 1000 operations in order. Each succeeds or fails independently.
pub(super) async fn batch(
    State(app): State<App>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let share = share(&*app.view) / SHARE;
    let (len_max, answer_len_max) = (LEN_MAX.min(share), ANSWER_LEN_MAX.min(share));
    let max = if announced_len(&headers).is_some() { len_max } else { UNANNOUNCED_MAX };
    let (body, mut reserved) = collect(&app, body, announced_len(&headers), max).await?;
    let taken = BODY_COPIES * body.len() + OPERATIONS_MAX * size_of::<Operation>();
    reserved.require(&app, taken).await?;
    let batch: Batch = serde_json::from_slice(&body).map_err(|error| {
        if error.to_string().starts_with(&format!("{TOO_MANY} {OPERATIONS_MAX} operations")) {
            return too_large(len_max, answer_len_max);
        }
        Problem::bad_request(format!("The body is not a valid batch: {error}"))
    })?;
    let (mut results, mut len) = (Vec::new(), 0);
    let (mut has_changed, mut unreachable_time) = (false, Duration::ZERO);
    let mut operations = batch.operations.into_iter().peekable();
    while let Some(first) = operations.next() {
        // Consecutive lookups run concurrently; changes run one after the other.
        let changes = !matches!(first, Operation::Get { .. });
        let mut together = vec![first];
        let is_get = |operation: &Operation| matches!(operation, Operation::Get { .. });
        while together.iter().all(is_get)
            && together.len() < CONCURRENT_MAX
            && let Some(next) = operations.next_if(is_get)
        {
            together.push(next);
        }
        let started = Instant::now();
        let run = |operation| async {
            if unreachable_time > UNREACHABLE_TIME_MAX {
                return Err(Problem::owner_unreachable());
            }
            // If an operation is aborted, only that operation fails, not the whole batch.
            abort::run_abortable(run(&app, operation, has_changed)).await.map_err(Problem::from)?
        };
        let outcomes = join_all(together.into_iter().map(run)).await;
        if outcomes
            .iter()
            .any(|outcome| matches!(outcome, Err(problem) if problem.is_owner_unreachable()))
        {
            unreachable_time += started.elapsed();
        }
        has_changed |= changes;
        for outcome in outcomes {
            let result = match outcome {
                Ok(Outcome::Found(found)) => {
                    let more = len + found.len();
                    let room = if more > answer_len_max {
                        Err(too_large(len_max, answer_len_max))
                    } else {
                        reserved
                            .require(&app, taken + more * VALUE_COPIES + results.len() * RESULT_LEN)
                            .await
                            .map_err(Problem::from)
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
    let mut bytes = Vec::with_capacity((VALUE_COPIES - 1) * len + results.len() * RESULT_LEN);
    // Serializing these types to a vector cannot fail.
    let _ = serde_json::to_writer(&mut bytes, &BatchAnswer { results });
    let answer = with_guard(bytes.into(), reserved);
    let kind = HeaderValue::from_static("application/json");
    Ok(([(CONTENT_TYPE, kind)], Body::from(answer)).into_response())
}

fn too_large(len_max: usize, answer_len_max: usize) -> Problem {
    let detail = format!(
        "A batch may have {OPERATIONS_MAX} operations and {} KiB, and its answer {} KiB of values.",
        len_max >> 10,
        answer_len_max >> 10
    );
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
}

/// The start of the error messages for a batch with too many operations and for an operation with
/// too many tags.
const TOO_MANY: &str = "there are more than";

/// The fields of an operation in JSON. This type is deserialized instead of [`Operation`]: serde
/// would buffer all unknown fields of a tagged enum in memory.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OperationFields {
    op: Kind,
    key: Option<String>,
    key_base64: Option<String>,
    value: Option<String>,
    value_base64: Option<String>,
    ttl: Option<f64>,
    flags: Option<u32>,
    #[serde(default, deserialize_with = "tag_names")]
    tags: Option<Vec<String>>,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Get,
    Set,
    Delete,
}

impl TryFrom<OperationFields> for Operation {
    type Error = &'static str;

    fn try_from(fields: OperationFields) -> Result<Self, &'static str> {
        let OperationFields { op, key, key_base64, value, value_base64, ttl, flags, tags } = fields;
        let key = match (key, key_base64) {
            (Some(text), None) => KeyField::Text(text),
            (None, Some(text)) => KeyField::Base64(text),
            _ => return Err("an operation has key or key_base64"),
        };
        let value = match (value, value_base64) {
            (Some(text), None) => Some(ValueField::Text(text)),
            (None, Some(text)) => Some(ValueField::Base64(text)),
            (None, None) => None,
            _ => return Err("a set has value or value_base64"),
        };
        if op == Kind::Set {
            let value = value.ok_or("a set has value or value_base64")?;
            let (flags, tags) = (flags.unwrap_or(0), tags.unwrap_or_default());
            return Ok(Self::Set { key, value, ttl, flags, tags });
        }
        if value.is_some() || ttl.is_some() || flags.is_some() || tags.is_some() {
            return Err("only a set has value, ttl, flags and tags");
        }
        Ok(if op == Kind::Get { Self::Get { key } } else { Self::Delete { key } })
    }
}

fn operations<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Operation>, D::Error> {
    from.deserialize_seq(BoundedList { max: OPERATIONS_MAX, of: "operations", item: PhantomData })
}

fn tag_names<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<String>>, D::Error> {
    from.deserialize_seq(BoundedList { max: TAGS_MAX, of: "tags", item: PhantomData }).map(Some)
}

/// The deserializer of a list of up to `max` elements. Deserialization of a longer list stops with
/// an error, so that the list cannot take more memory.
struct BoundedList<T> {
    max: usize,
    of: &'static str,
    item: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for BoundedList<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "up to {} {}", self.max, self.of)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Vec<T>, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = from.next_element()? {
            if list.len() == self.max {
                return Err(A::Error::custom(format!("{TOO_MANY} {} {}", self.max, self.of)));
            }
            list.push(item);
        }
        Ok(list)
    }
}

fn refused(problem: Problem) -> OperationResult {
    let problem = problem.into_body();
    OperationResult { problem: Some(problem), ..OperationResult::of(StatusCode::OK) }.with_status()
}

impl OperationResult {
    fn found(found: &StoredItem) -> Self {
        let mut whole = Vec::with_capacity(found.len());
        found.value.iter().for_each(|piece| whole.extend_from_slice(piece));
        // Text with control characters other than tabs and line ends is sent as base64. JSON
        // escapes most of these characters with six bytes, which could exceed the reserved memory.
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
            ttl: found.ttl_secs(),
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

    /// Sets the status to that of the problem, if there is one.
    fn with_status(mut self) -> Self {
        self.status = self.problem.as_ref().map_or(self.status, ProblemBody::status);
        self
    }
}

/// The outcome of an operation.
enum Outcome {
    /// A found item. Its value is not yet copied into the reply.
    Found(StoredItem),
    Done(OperationResult),
}

/// Executes an operation. `has_changed` is true if an earlier operation of the batch may have
/// changed an item. In this case, a replica must not answer a lookup, because the replica may lack
/// the change.
async fn run(app: &App, operation: Operation, has_changed: bool) -> Result<Outcome, Problem> {
    let done = |status| Ok(Outcome::Done(OperationResult::of(status)));
    match operation {
        Operation::Get { key } => match app.items.get(&key.read()?.0, !has_changed).await {
            LookupOutcome::Found(found) => Ok(Outcome::Found(found)),
            LookupOutcome::Missing => done(StatusCode::NOT_FOUND),
            LookupOutcome::Busy => Err(Problem::busy()),
            LookupOutcome::OutOfMemory => Err(Problem::out_of_memory()),
            LookupOutcome::OwnerUnreachable => Err(Problem::owner_unreachable()),
        },
        Operation::Set { key, value, ttl, flags, tags: names } => {
            let (key, bytes) = (key.read()?, value.read()?);
            let value = ReceivedValue::Whole { bytes, _reserved: None };
            let new = NewItem {
                expiry: expiry(ttl, app.view.now())?,
                client_flags: flags,
                tags: tags(&*app.items, names.iter().map(String::as_str))?,
            };
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
        .map_err(|_| Problem::bad_request("A key or value is not valid base64 with padding."))
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
