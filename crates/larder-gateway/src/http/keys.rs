//! `/v1/keys/{key}`: requests about one item.

use super::body::{Pieces, ReceivedValue, read_value};
use super::conditions::{Precondition, etag, of_change};
use super::content_types::{flags_of, type_of};
use super::parameters::{self, Key, LARDER_FLAGS, QueryFields, TouchQuery, expiry, tags};
use super::problem::Problem;
use super::range::{cut, part};
use crate::items::{Items, LookupOutcome, StoredItem, is_binary};
use crate::web::app::App;
use crate::web::memory::with_reservation;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::future::try_join_all;
use headers::{ContentRange, HeaderMapExt, IfMatch, IfNoneMatch};
use hyper::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_SECURITY_POLICY,
    CONTENT_TYPE, HeaderValue, RANGE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{HeaderMap, Method, StatusCode};
use larder_operations::{
    ArithmeticOutcome, Count, CreateNumber, ExpireOutcome, Remove, RemoveOutcome, Store, StoreMode,
    StoreOutcome, Tags,
};
use larder_store::Expiry;
use serde::{Deserialize, Serialize};
use tokio::task::yield_now;

/// Looks an item up.
pub(super) async fn get(
    State(app): State<App>,
    method: Method,
    Key(key): Key,
    mut headers: HeaderMap,
) -> Result<Response, Problem> {
    if method != Method::GET {
        // Only GET has ranges (RFC 9110, 14.2).
        headers.remove(RANGE);
    }
    let found = loop {
        match app.items.get(&key, true).await {
            LookupOutcome::Found(found) => break found,
            LookupOutcome::Missing => return Err(Problem::not_found()),
            // Close a connection that does not read its large value, and retry.
            LookupOutcome::Busy if app.connections.close_slow() => yield_now().await,
            LookupOutcome::Busy => return Err(Problem::busy()),
            LookupOutcome::OutOfMemory => return Err(Problem::out_of_memory()),
            LookupOutcome::OwnerUnreachable => return Err(Problem::owner_unreachable()),
        }
    };
    let found = if found.len() < app.items.upload_len_min() {
        // Count the memory of a small value, which is a copy. The memory of a large value is
        // already counted.
        let pieces = found.value.into_iter().map(|piece| with_reservation(&app, piece));
        StoredItem { value: try_join_all(pieces).await?, ..found }
    } else {
        found
    };
    show(found, &headers, app.view.login_required())
}

/// Builds the reply for an item: its value, the requested range of the value, or 304 if the client
/// already has the current value.
///
/// # Errors
/// A [`Problem`]: `If-Match` does not hold, or no byte of the value is in the range.
fn show(found: StoredItem, headers: &HeaderMap, is_private: bool) -> Result<Response, Problem> {
    let (tag, len) = (etag(found.cas), found.len() as u64);
    if let Some(condition) = headers.typed_get::<IfMatch>() {
        let passes = tag.as_ref().is_some_and(|tag| condition.precondition_passes(tag));
        if !passes && condition != IfMatch::any() {
            return Err(Problem::precondition_failed());
        }
    }
    let condition = headers.typed_get::<IfNoneMatch>();
    let is_known = match (condition, &tag) {
        (Some(condition), Some(tag)) => !condition.precondition_passes(tag),
        (Some(condition), None) => condition == IfNoneMatch::any(),
        (None, _) => false,
    };
    let part = if is_known { None } else { part(headers, tag.as_ref(), len)? };
    let mut response = Response::new(Body::empty());
    let out = response.headers_mut();
    if let Some(tag) = tag {
        out.typed_insert(tag);
    }
    let control = match (found.ttl_secs(), is_private) {
        (Some(ttl), true) => format!("private, max-age={ttl}"),
        (Some(ttl), false) => format!("max-age={ttl}"),
        (None, true) => "private, no-cache".to_owned(),
        (None, false) => "no-cache".to_owned(),
    };
    if let Ok(control) = HeaderValue::try_from(control) {
        out.insert(CACHE_CONTROL, control);
    }
    out.insert(LARDER_FLAGS, found.client_flags.into());
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        return Ok(response);
    }
    out.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    out.insert(CONTENT_TYPE, HeaderValue::from_static(type_of(found.client_flags)));
    // A stored value must not run as a page of this server's origin if a browser opens it.
    out.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    out.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
    let (first, end) = part.unwrap_or((0, len));
    out.insert(CONTENT_LENGTH, (end - first).into());
    if part.is_some() {
        let range = ContentRange::bytes(first..end, len);
        range.into_iter().for_each(|range| out.typed_insert(range));
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    *response.body_mut() = Body::new(Pieces(cut(found.value, first, end)));
    Ok(response)
}

/// Stores an item.
pub(super) async fn put(
    State(app): State<App>,
    key: Key,
    QueryFields(stored): QueryFields<parameters::StoreQuery>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    if headers.contains_key(CONTENT_RANGE) {
        // Otherwise, a part of a value would replace the whole value (RFC 9110, 14.5).
        return Err(Problem::bad_request("A PUT cannot store a part of a value (Content-Range)."));
    }
    let condition = of_change(&headers)?;
    let names = stored.tags.iter().flat_map(|tags| tags.split(','));
    let new = NewItem {
        expiry: expiry(stored.ttl, app.view.now())?,
        client_flags: flags(&headers)?,
        tags: tags(&*app.items, names)?,
    };
    let max = app.view.limits().item_size_max;
    let value = read_value(&app, &key.0, body, &headers, max).await?;
    let (status, cas) = store(&*app.items, &key, new, condition, value).await?;
    let mut response = status.into_response();
    if let Some(tag) = etag(cas) {
        response.headers_mut().typed_insert(tag);
    }
    Ok(response)
}

/// The attributes of an item to store.
pub(super) struct NewItem {
    pub(super) expiry: Expiry,
    pub(super) client_flags: u32,
    pub(super) tags: Tags,
}

/// Returns the client flags in `Larder-Flags`. Without this header, returns the flags for
/// `Content-Type`, or 0 if neither header is present.
fn flags(headers: &HeaderMap) -> Result<u32, Problem> {
    if let Some(flags) = headers.get(LARDER_FLAGS) {
        let number = flags.to_str().ok().and_then(|text| text.parse().ok());
        return number
            .ok_or_else(|| Problem::bad_request("Larder-Flags must be a number of 32 bits."));
    }
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    Ok(content_type.map_or(0, flags_of))
}

/// Stores an item. Returns the status (204 if the item replaced another one, otherwise 201) and the
/// CAS of the new item. Without a condition, a concurrent change by another client can cause a 201
/// instead of a 204, or the reverse.
pub(super) async fn store(
    items: &dyn Items,
    key: &Key,
    NewItem { expiry, client_flags, tags }: NewItem,
    condition: Precondition,
    value: ReceivedValue,
) -> Result<(StatusCode, u64), Problem> {
    let replaces = match condition {
        Precondition::None => items.exists(&key.0).await,
        Precondition::Missing => false,
        Precondition::Present | Precondition::Is(_) => true,
    };
    let mode = match condition {
        Precondition::Missing => StoreMode::Add,
        Precondition::Present => StoreMode::Replace,
        Precondition::None | Precondition::Is(_) => StoreMode::Set,
    };
    let compare = if let Precondition::Is(cas) = condition { Some(cas) } else { None };
    let bytes =
        if let ReceivedValue::Whole { bytes, .. } = &value { bytes.clone() } else { Bytes::new() };
    let op = Store {
        mode,
        value: &bytes,
        value_len: value.len(),
        client_flags,
        expiry,
        compare,
        tags: &tags,
        binary_key: is_binary(&key.0),
        ..Store::default()
    };
    match items.store(&key.0, op, value.into_upload()).await {
        StoreOutcome::Stored { cas, .. } if replaces => Ok((StatusCode::NO_CONTENT, cas)),
        StoreOutcome::Stored { cas, .. } => Ok((StatusCode::CREATED, cas)),
        StoreOutcome::NotStored | StoreOutcome::Exists | StoreOutcome::NotFound => {
            Err(Problem::precondition_failed())
        }
        StoreOutcome::TooLarge => Err(Problem::too_large()),
        StoreOutcome::OutOfMemory | StoreOutcome::NoCas | StoreOutcome::Pending => {
            Err(Problem::out_of_memory())
        }
    }
}

/// Removes an item.
pub(super) async fn delete(
    State(app): State<App>,
    Key(key): Key,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    let compare = match of_change(&headers)? {
        Precondition::None | Precondition::Present => None,
        Precondition::Is(cas) => Some(cas),
        Precondition::Missing => return Err(Problem::precondition_failed()),
    };
    remove(&*app.items, &key, compare).await
}

/// Removes an item; with `compare`, only if it has this CAS.
pub(super) async fn remove(
    items: &dyn Items,
    key: &[u8],
    compare: Option<u64>,
) -> Result<StatusCode, Problem> {
    match items.remove(key, Remove { compare, ..Remove::default() }).await {
        RemoveOutcome::Removed => Ok(StatusCode::NO_CONTENT),
        RemoveOutcome::NotFound => Err(Problem::not_found()),
        RemoveOutcome::Exists => Err(Problem::precondition_failed()),
        RemoveOutcome::OutOfMemory | RemoveOutcome::Pending => Err(Problem::out_of_memory()),
    }
}

/// The query of an increment or decrement.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CountQuery {
    /// The amount to add or subtract.
    #[serde(default = "one")]
    by: u64,
    /// The value of an item to create. With `None`, a missing item is not created.
    initial: Option<u64>,
    /// Seconds until a created item expires; `None` if it never does.
    ttl: Option<f64>,
}

fn one() -> u64 {
    1
}

/// The reply to an increment or decrement.
#[derive(Debug, Serialize)]
pub(super) struct Number {
    /// The number after the change.
    value: u64,
}

/// Adds to a number. The sum wraps at 2^64.
pub(super) async fn incr(
    State(app): State<App>,
    key: Key,
    QueryFields(step): QueryFields<CountQuery>,
    headers: HeaderMap,
) -> Result<Json<Number>, Problem> {
    count(&app, &key, &step, &headers, false).await
}

/// Subtracts from a number. The result is at least 0.
pub(super) async fn decr(
    State(app): State<App>,
    key: Key,
    QueryFields(step): QueryFields<CountQuery>,
    headers: HeaderMap,
) -> Result<Json<Number>, Problem> {
    count(&app, &key, &step, &headers, true).await
}

async fn count(
    app: &App,
    key: &Key,
    step: &CountQuery,
    headers: &HeaderMap,
    down: bool,
) -> Result<Json<Number>, Problem> {
    let expiry = expiry(step.ttl, app.view.now())?;
    let create = |value| CreateNumber { value, expiry, binary_key: is_binary(&key.0), tags: &[] };
    let (compare, create) = match of_change(headers)? {
        Precondition::None => (None, step.initial.map(create)),
        Precondition::Present => (None, None),
        // No item has the CAS 0, so this condition cannot hold. Refuse the request here: a
        // forwarded request uses the meta protocol, in which an increment with CAS 0 has no condition.
        Precondition::Is(0) | Precondition::Missing => return Err(Problem::precondition_failed()),
        Precondition::Is(cas) => (Some(cas), None),
    };
    let op = Count { down, delta: step.by, create, compare, ..Count::default() };
    match app.items.count(&key.0, op).await {
        ArithmeticOutcome::Number { value, .. } => Ok(Json(Number { value })),
        ArithmeticOutcome::NotFound => Err(Problem::not_found()),
        ArithmeticOutcome::Exists => Err(Problem::precondition_failed()),
        ArithmeticOutcome::NonNumeric => {
            Err(Problem::new(StatusCode::CONFLICT, "The value is not a number of decimal digits."))
        }
        ArithmeticOutcome::OutOfMemory { .. } | ArithmeticOutcome::Pending => {
            Err(Problem::out_of_memory())
        }
    }
}

/// Appends to the value of an item.
pub(super) async fn append(
    State(app): State<App>,
    key: Key,
    headers: HeaderMap,
    body: Body,
) -> Result<StatusCode, Problem> {
    concatenate(&app, &key, &headers, body, StoreMode::Append).await
}

/// Prepends to the value of an item.
pub(super) async fn prepend(
    State(app): State<App>,
    key: Key,
    headers: HeaderMap,
    body: Body,
) -> Result<StatusCode, Problem> {
    concatenate(&app, &key, &headers, body, StoreMode::Prepend).await
}

async fn concatenate(
    app: &App,
    key: &Key,
    headers: &HeaderMap,
    body: Body,
    mode: StoreMode,
) -> Result<StatusCode, Problem> {
    let compare = match of_change(headers)? {
        Precondition::None | Precondition::Present => None,
        // No item has the CAS 0, so this condition cannot hold. Refuse the request here: a
        // forwarded request uses the meta protocol, in which an append with CAS 0 has no condition.
        Precondition::Is(0) | Precondition::Missing => return Err(Problem::precondition_failed()),
        Precondition::Is(cas) => Some(cas),
    };
    let max = app.view.limits().item_size_max;
    let value = read_value(app, &key.0, body, headers, max).await?;
    let bytes = Bytes::copy_from_slice(value.bytes());
    let op = Store { mode, value: &bytes, value_len: value.len(), compare, ..Store::default() };
    match app.items.store(&key.0, op, value.into_upload()).await {
        StoreOutcome::Stored { .. } => Ok(StatusCode::NO_CONTENT),
        StoreOutcome::NotStored if app.items.exists(&key.0).await => Err(Problem::too_large()),
        StoreOutcome::NotStored | StoreOutcome::NotFound => Err(Problem::not_found()),
        StoreOutcome::Exists => Err(Problem::precondition_failed()),
        StoreOutcome::TooLarge => Err(Problem::too_large()),
        StoreOutcome::OutOfMemory | StoreOutcome::NoCas | StoreOutcome::Pending => {
            Err(Problem::out_of_memory())
        }
    }
}

/// Sets the expiry of an item.
pub(super) async fn touch(
    State(app): State<App>,
    Key(key): Key,
    QueryFields(lifetime): QueryFields<TouchQuery>,
) -> Result<StatusCode, Problem> {
    let expiry = expiry(lifetime.ttl, app.view.now())?;
    match app.items.expire(&key, expiry).await {
        ExpireOutcome::Changed | ExpireOutcome::Kept => Ok(StatusCode::NO_CONTENT),
        ExpireOutcome::NotFound => Err(Problem::not_found()),
        ExpireOutcome::OutOfMemory | ExpireOutcome::Pending => Err(Problem::out_of_memory()),
    }
}
