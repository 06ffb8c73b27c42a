//! What a request says beside its body: the key in its path, and the fields of its query.

use super::app::App;
use super::problem::Problem;
use axum::extract::{FromRequestParts, Query};
use hyper::header::HeaderName;
use hyper::http::request::Parts;
use larder_store::{Expiry, Seconds};
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::IntoParams;

/// The path below which there are keys.
const KEYS: &str = "/v1/keys/";

/// The longest key in bytes.
const KEY_LEN_MAX: usize = 250;

/// The header with an item's client flags.
pub(super) const LARDER_FLAGS: HeaderName = HeaderName::from_static("larder-flags");

/// The key of an item: one segment of the path, percent-decoded; any bytes.
pub(super) struct Key(pub(super) Vec<u8>);

impl Key {
    /// # Errors
    /// A [`Problem`] if no item can have it.
    pub(super) fn new(bytes: Vec<u8>) -> Result<Self, Problem> {
        if (1..=KEY_LEN_MAX).contains(&bytes.len()) {
            return Ok(Self(bytes));
        }
        Err(Problem::bad_request(format!("A key has 1 to {KEY_LEN_MAX} bytes.")))
    }

    /// Whether memcached's text protocol can't write it, so that it is shown in base64 there.
    pub(super) fn is_binary(&self) -> bool {
        self.0.iter().any(|byte| *byte <= b' ' || *byte == 0x7f)
    }
}

impl FromRequestParts<App> for Key {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        // The parameters that the router has found are text already.
        let below = parts.uri.path().strip_prefix(KEYS).unwrap_or_default();
        let segment = below.split('/').next().unwrap_or_default();
        Self::new(percent_decode_str(segment).collect())
    }
}

/// The fields of a query. Fields that are unknown are refused, so that a wrong name is no silent default.
pub(super) struct Fields<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequestParts<App> for Fields<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let query = Query::from_request_parts(parts, app).await;
        query
            .map(|Query(fields)| Self(fields))
            .map_err(|error| Problem::bad_request(error.body_text()))
    }
}

/// How long an item lives.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Lifetime {
    /// Seconds until the item expires, rounded up to whole ones; without it, the item does not expire.
    #[param(minimum = 0.001, example = 60)]
    pub(super) ttl: Option<f64>,
}

/// The expiry that a time to live means.
///
/// # Errors
/// A [`Problem`] if it is none.
pub(super) fn expiry(ttl: Option<f64>, now: Seconds) -> Result<Expiry, Problem> {
    let Some(ttl) = ttl else { return Ok(Expiry::Never) };
    if !(ttl > 0.0 && ttl <= f64::from(u32::MAX)) {
        return Err(Problem::bad_request("ttl must be a number of seconds above 0."));
    }
    #[expect(clippy::cast_possible_truncation, reason = "it is in the range of u32")]
    let secs = ttl.ceil() as u32;
    Ok(Expiry::At(Seconds(now.0.saturating_add(secs))))
}
