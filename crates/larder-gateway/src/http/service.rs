//! Requests about the whole server: statistics, metrics, health, flushes, and tags.

use super::answer::{json, whole};
use super::parameters::{QueryFields, expiry};
use super::problem::Problem;
use crate::metrics::{Format, scrape};
use crate::web::app::App;
use axum::extract::{Path, State};
use axum::response::Response;
use hyper::header::{ACCEPT, HeaderValue};
use hyper::{HeaderMap, StatusCode, Uri};
use larder_operations::TAG_LEN_MAX;
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};

/// A page of statistics.
#[derive(Debug, Serialize)]
pub(super) struct Statistics {
    /// The value of each statistic, a number or a string. Statistics that also exist in memcached
    /// keep memcached's names.
    statistics: Map<String, Value>,
}

/// Shows a page of statistics.
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

/// Parses a decimal number. Fails for all other strings, such as versions and addresses, and for
/// `inf` and `nan`.
fn decimal(text: &str) -> Result<Value, ()> {
    let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit() || b"-.".contains(&byte));
    let number = text.parse().ok().filter(|_| is_decimal).and_then(Number::from_f64);
    number.map(Value::Number).ok_or(())
}

/// The query of a flush.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FlushQuery {
    /// Seconds until the flush. With `None`, the flush takes effect immediately. The time of the
    /// flush is rounded to a whole second: up if the delay is below a minute, else down.
    delay: Option<f64>,
}

/// Removes all items that were stored before the flush, in all groups of a cluster.
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
pub(super) async fn metrics(
    State(app): State<App>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let format = Format::accepted(accept.unwrap_or_default());
    let kind = HeaderValue::from_static(format.content_type());
    whole(&app, kind, scrape(&*app.view, format)).await
}

/// Shows that the server is running. Clients need no login for this route.
pub(super) async fn health() -> &'static str {
    "ok\n"
}

/// Shows whether the server accepts requests or is shutting down. Clients need no login for this
/// route.
pub(super) async fn readiness(State(app): State<App>) -> (StatusCode, &'static str) {
    if app.view.is_ready() {
        (StatusCode::OK, "ready\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "ending\n")
    }
}
