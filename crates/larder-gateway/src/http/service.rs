//! What concerns the server as a whole: statistics, metrics, health, flushes.
#![expect(unused_qualifications, reason = "the macro of utoipa writes them")]

use super::answer::{json, whole};
use super::parameters::{QueryFields, expiry};
use super::problem::{Problem, ProblemBody};
use crate::metrics::Format;
use crate::web::app::App;
use axum::extract::{Path, State};
use axum::response::Response;
use hyper::header::{ACCEPT, HeaderValue};
use hyper::{HeaderMap, StatusCode, Uri};
use larder_operations::TAG_LEN_MAX;
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};
use utoipa::{IntoParams, ToSchema};

/// A page of statistics.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Statistics {
    /// Numbers and texts by the names that memcached gives them.
    #[schema(value_type = std::collections::HashMap<String, Value>)]
    statistics: Map<String, Value>,
}

/// Shows a page of statistics.
#[utoipa::path(get, path = "/v1/stats/{topic}", tag = "server", params(
    ("topic" = String, Path, description = "general, items, slabs, settings, conns, extstore, latency, hotkeys, prefixes, memory or mrc"),
), responses(
    (status = 200, description = "the page", body = Statistics),
    (status = 404, description = "there is no such page", body = ProblemBody, content_type = "application/problem+json"),
    (status = 503, description = "too much is being received and sent", body = ProblemBody, content_type = "application/problem+json"),
))]
pub(super) async fn statistics(
    State(app): State<App>,
    Path(topic): Path<String>,
) -> Result<Response, Problem> {
    let mut statistics = Map::new();
    let is_there = app.view.statistics(&topic, &mut |name, value| {
        let number = || value.parse::<u64>().map(Value::from).or_else(|_| decimal(value));
        let value = number().unwrap_or_else(|()| Value::from(value));
        statistics.insert(name.to_owned(), value);
    });
    if is_there {
        return json(&app, &Statistics { statistics }).await;
    }
    let detail = "The pages are general, items, slabs, settings, conns, extstore, latency, hotkeys, prefixes, memory and mrc.";
    Err(Problem::new(StatusCode::NOT_FOUND, detail))
}

/// A number that is written like one, rather than a version or an address.
fn decimal(text: &str) -> Result<Value, ()> {
    let is_written_so = text.bytes().all(|byte| byte.is_ascii_digit() || b"-.".contains(&byte));
    let number = text.parse().ok().filter(|_| is_written_so).and_then(Number::from_f64);
    number.map(Value::Number).ok_or(())
}

/// When a flush takes effect.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct FlushQuery {
    /// Seconds until then, rounded up to whole ones; without it, the flush takes effect at once.
    #[param(minimum = 0.001)]
    delay: Option<f64>,
}

/// Removes all items that were stored before, those of all groups of a cluster.
#[utoipa::path(post, path = "/v1/flush", tag = "server", params(FlushQuery), responses(
    (status = 204, description = "all items are removed, or will be"),
    (status = 400, description = "the query is wrong", body = ProblemBody, content_type = "application/problem+json"),
    (status = 403, description = "the server allows no flushes (-F)", body = ProblemBody, content_type = "application/problem+json"),
    (status = 503, description = "not all groups of the cluster could be asked", body = ProblemBody, content_type = "application/problem+json"),
))]
pub(super) async fn flush(
    State(app): State<App>,
    QueryFields(FlushQuery { delay }): QueryFields<FlushQuery>,
) -> Result<StatusCode, Problem> {
    if !app.view.flush_allowed() {
        return Err(Problem::new(StatusCode::FORBIDDEN, "This server allows no flushes (-F)."));
    }
    let Ok(at) = expiry(delay, app.view.now()) else {
        return Err(Problem::bad_request("delay must be a number of seconds above 0."));
    };
    app.items.flush(at).await;
    Ok(StatusCode::NO_CONTENT)
}

/// Drops a tag: removes all items that have it, however many there are, in one step.
#[utoipa::path(delete, path = "/v1/tags/{tag}", tag = "items", params(
    ("tag" = String, Path, description = "1 to 250 bytes, percent-encoded"),
), responses(
    (status = 204, description = "items with the tag are removed"),
    (status = 400, description = "the tag is too long", body = ProblemBody, content_type = "application/problem+json"),
    (status = 404, description = "there are no items with the tag", body = ProblemBody, content_type = "application/problem+json"),
    (status = 501, description = "the engine keeps no tags", body = ProblemBody, content_type = "application/problem+json"),
))]
pub(super) async fn drop_tag(State(app): State<App>, uri: Uri) -> Result<StatusCode, Problem> {
    let name = uri.path().strip_prefix("/v1/tags/").unwrap_or_default();
    let name: Vec<u8> = percent_decode_str(name).collect();
    if !(1..=TAG_LEN_MAX).contains(&name.len()) {
        return Err(Problem::bad_request(format!("A tag has 1 to {TAG_LEN_MAX} bytes.")));
    }
    match app.items.drop_tag(&name) {
        Some(true) => Ok(StatusCode::NO_CONTENT),
        Some(false) => {
            let detail = "There are no items with this tag.";
            Err(Problem::new(StatusCode::NOT_FOUND, detail))
        }
        None => Err(Problem::no_tags()),
    }
}

/// Shows metrics for Prometheus, in the format that `Accept` asks for.
#[utoipa::path(get, path = "/metrics", tag = "server", responses(
    (status = 200, description = "the metrics", body = String, content_type = "text/plain"),
    (status = 503, description = "too much is being received and sent", body = ProblemBody, content_type = "application/problem+json"),
))]
pub(super) async fn metrics(
    State(app): State<App>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let format = Format::accepted(accept.unwrap_or_default());
    let kind = HeaderValue::from_static(format.content_type());
    match app.metrics.encode(format) {
        Some(body) => whole(&app, kind, body).await,
        None => Err(Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "The metrics cannot be encoded, which is a bug of the server.",
        )),
    }
}

/// Whether the server runs. It needs no login.
#[utoipa::path(get, path = "/healthz", tag = "server", security(()), responses(
    (status = 200, description = "it does", body = String, content_type = "text/plain"),
))]
pub(super) async fn health() -> &'static str {
    "ok\n"
}

/// Whether the server takes requests, rather than ending. It needs no login.
#[utoipa::path(get, path = "/readyz", tag = "server", security(()), responses(
    (status = 200, description = "it does", body = String, content_type = "text/plain"),
    (status = 503, description = "it is ending", body = String, content_type = "text/plain"),
))]
pub(super) async fn readiness(State(app): State<App>) -> (StatusCode, &'static str) {
    if app.view.is_ready() {
        (StatusCode::OK, "ready\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "ending\n")
    }
}
