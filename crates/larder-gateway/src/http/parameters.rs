//! Parameters of requests: the key in the path, and the fields of the query.

use super::problem::Problem;
use crate::expiry::expiry_after;
use crate::items::Items;
use crate::web::app::App;
use axum::extract::{FromRequestParts, Query};
use hyper::header::HeaderName;
use hyper::http::request::Parts;
use larder_operations::{TAG_LEN_MAX, Tags};
use larder_store::{Expiry, Now, Refusal, TAGS_MAX};
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// The path prefix of keys.
const KEYS: &str = "/v1/keys/";

/// The maximum length of a key, in bytes.
const KEY_LEN_MAX: usize = larder_store::KEY_LEN_MAX;

/// The header with an item's client flags.
pub(super) const LARDER_FLAGS: HeaderName = HeaderName::from_static("larder-flags");

/// The key of an item: 1 to [`KEY_LEN_MAX`] bytes of any kind. In a path, a key is one
/// percent-encoded segment.
pub(super) struct Key(pub(super) Vec<u8>);

impl Key {
    /// Checks the length of a key.
    ///
    /// # Errors
    /// A [`Problem`] if the key is empty or too long.
    pub(super) fn new(bytes: Vec<u8>) -> Result<Self, Problem> {
        if (1..=KEY_LEN_MAX).contains(&bytes.len()) {
            return Ok(Self(bytes));
        }
        Err(Problem::bad_request(format!("A key has 1 to {KEY_LEN_MAX} bytes.")))
    }
}

impl FromRequestParts<App> for Key {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        // Decode the path here: the router's parameters are UTF-8 text, but keys may be any bytes.
        let below = parts.uri.path().strip_prefix(KEYS).unwrap_or_default();
        let segment = below.split('/').next().unwrap_or_default();
        Self::new(percent_decode_str(segment).collect())
    }
}

/// The fields of a query. Unknown fields are refused, so that a misspelled name does not select a
/// default.
pub(super) struct QueryFields<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequestParts<App> for QueryFields<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let query = Query::from_request_parts(parts, app).await;
        query
            .map(|Query(fields)| Self(fields))
            .map_err(|error| Problem::bad_request(error.body_text()))
    }
}

/// The query of a touch.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TouchQuery {
    /// Seconds until the item expires; `None` if it never does. Times below a minute are exact to
    /// the millisecond; longer times are rounded down to a whole second.
    pub(super) ttl: Option<f64>,
}

/// The query of a store.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoreQuery {
    /// Seconds until the item expires; `None` if it never does. Times below a minute are exact to
    /// the millisecond; longer times are rounded down to a whole second.
    pub(super) ttl: Option<f64>,
    /// Tags of the item: one to seven names of 1 to 250 bytes, separated by commas. Dropping any of
    /// the tags removes the item.
    pub(super) tags: Option<String>,
}

/// Resolves the names of an item's tags.
///
/// # Errors
/// A [`Problem`]: there are too many tags, a name is empty or too long, the engine does not support
/// tags, or the engine could not allocate memory for a tag.
pub(super) fn tags<'n>(
    items: &dyn Items,
    names: impl Iterator<Item = &'n str>,
) -> Result<Tags, Problem> {
    let names: Vec<Vec<u8>> = names.map(|name| name.as_bytes().to_vec()).collect();
    if names.len() > TAGS_MAX {
        return Err(Problem::bad_request(format!("An item has at most {TAGS_MAX} tags.")));
    }
    if names.iter().any(|name| !(1..=TAG_LEN_MAX).contains(&name.len())) {
        return Err(Problem::bad_request(format!("A tag has 1 to {TAG_LEN_MAX} bytes.")));
    }
    items.tags(&names).map_err(|refusal| match refusal {
        Refusal::NoTags => Problem::no_tags(),
        _ => Problem::out_of_memory(),
    })
}

/// Converts a time to live in seconds to an expiry. `None` becomes [`Expiry::Never`].
///
/// # Errors
/// A [`Problem`] if the time is not above 0, or is too long.
pub(super) fn expiry(ttl: Option<f64>, now: Now) -> Result<Expiry, Problem> {
    let Some(ttl) = ttl else { return Ok(Expiry::Never) };
    let refused =
        || Problem::bad_request("ttl must be a number of seconds above 0 that ends before 2106.");
    if !(ttl > 0.0 && ttl <= f64::from(u32::MAX)) {
        return Err(refused());
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is above 0 and at most a thousand times u32::MAX"
    )]
    let millis = (ttl * 1000.0).ceil() as u64;
    expiry_after(millis, now).ok_or_else(refused)
}
