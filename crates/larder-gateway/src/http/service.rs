//! Requests about the whole server: statistics, metrics, health, flushes, and tags.
#![expect(unused_qualifications, reason = "utoipa's macro generates them")]

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
    /// Numbers and texts by name. Statistics that memcached has keep its names.
    #[schema(value_type = std::collections::HashMap<String, Value>)]
    statistics: Map<String, Value>,
}

/// Shows a page of statistics.
#[utoipa::path(get, path = "/v1/stats/{topic}", tag = "server", params(
    ("topic" = String, Path, description = "general, items, slabs, settings, conns, extstore, latency, hotkeys, prefixes, memory or mrc"),
), responses(
    (status = 200, description = "the page", body = Statistics),
    (status = 404, description = "there is no such page", body = ProblemBody, content_type = "application/problem+json"),
    (status = 503, description = "the server has no memory for the request at the moment", body = ProblemBody, content_type = "application/problem+json"),
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

/// Parses a decimal number. Fails for other texts: versions, addresses, `inf` and `nan`.
fn decimal(text: &str) -> Result<Value, ()> {
    let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit() || b"-.".contains(&byte));
    let number = text.parse().ok().filter(|_| is_decimal).and_then(Number::from_f64);
    number.map(Value::Number).ok_or(())
}

/// The query of a flush.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct FlushQuery {
    /// Seconds until the flush; without it, the flush takes effect immediately. The time of the flush is rounded to a
    /// whole second: up if the delay is below a minute, else down.
    #[param(minimum = 0.001)]
    delay: Option<f64>,
}

/// Removes all items that were stored before the flush, in all groups of a cluster.
#[utoipa::path(post, path = "/v1/flush", tag = "server", params(FlushQuery), responses(
    (status = 204, description = "all items are removed, or will be after the delay"),
    (status = 400, description = "the query is wrong", body = ProblemBody, content_type = "application/problem+json"),
    (status = 403, description = "the server does not allow flushes (-F)", body = ProblemBody, content_type = "application/problem+json"),
    (status = 503, description = "a group of the cluster is unreachable", body = ProblemBody, content_type = "application/problem+json"),
))]
pub(super) async fn flush(
    State(app): State<App>,
    QueryFields(FlushQuery { delay }): QueryFields<FlushQuery>,
) -> Result<StatusCode, Problem> {
    if !app.view.flush_allowed() {
        return Err(Problem::new(
            StatusCode::FORBIDDEN,
            "This server does not allow flushes (-F).",
        ));
    }
    let Ok(at) = expiry(delay, app.view.now()) else {
        return Err(Problem::bad_request("delay must be a number of seconds above 0."));
    };
    app.items.flush(at).await;
    Ok(StatusCode::NO_CONTENT)
}

/// Drops a tag: removes all items with the tag in one step.
#[utoipa::path(delete, path = "/v1/tags/{tag}", tag = "items", params(
    ("tag" = String, Path, description = "1 to 250 bytes, percent-encoded"),
), responses(
    (status = 204, description = "all items with the tag are removed"),
    (status = 400, description = "the tag is empty or too long", body = ProblemBody, content_type = "application/problem+json"),
    (status = 404, description = "no item has the tag", body = ProblemBody, content_type = "application/problem+json"),
    (status = 501, description = "the engine has no tags", body = ProblemBody, content_type = "application/problem+json"),
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
            let detail = "No item has this tag.";
            Err(Problem::new(StatusCode::NOT_FOUND, detail))
        }
        None => Err(Problem::no_tags()),
    }
}

/// Shows Prometheus metrics in the format that `Accept` prefers.
#[utoipa::path(get, path = "/metrics", tag = "server", responses(
    (status = 200, description = "the metrics", body = String, content_type = "text/plain"),
    (status = 503, description = "the server has no memory for the request at the moment", body = ProblemBody, content_type = "application/problem+json"),
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
            "The metrics cannot be encoded: this is a bug of the server.",
        )),
    }
}

/// Shows that the server runs. Needs no login.
#[utoipa::path(get, path = "/healthz", tag = "server", security(()), responses(
    (status = 200, description = "the server runs", body = String, content_type = "text/plain"),
))]
pub(super) async fn health() -> &'static str {
    "ok\n"
}

/// Shows whether the server accepts requests, rather than shutting down. Needs no login.
#[utoipa::path(get, path = "/readyz", tag = "server", security(()), responses(
    (status = 200, description = "the server accepts requests", body = String, content_type = "text/plain"),
    (status = 503, description = "the server shuts down", body = String, content_type = "text/plain"),
))]
pub(super) async fn readiness(State(app): State<App>) -> (StatusCode, &'static str) {
    if app.view.is_ready() {
        (StatusCode::OK, "ready\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "ending\n")
    }
}
