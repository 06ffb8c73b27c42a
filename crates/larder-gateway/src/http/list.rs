//! `/v1/keys`: paged lists of the keys of this server's items.

use super::answer::json;
use super::parameters::QueryFields;
use super::problem::Problem;
use crate::items::ListedItem;
use crate::web::app::App;
use crate::web::memory::Reservation;
use axum::extract::State;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::StatusCode;
use larder_store::KEY_LEN_MAX;
use serde::{Deserialize, Serialize};

/// The maximum number of items that a client can request per page.
const ITEMS_MAX: usize = 1000;

/// The maximum memory for a listed item, in bytes. The key counts twice: once for the page and once
/// for the reply.
const ITEM_LEN_MAX: usize = 2 * (KEY_LEN_MAX + 128);

/// The query of a page.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    /// The cursor from the previous page; 0, the default, requests the first page.
    #[serde(default)]
    cursor: u64,
    /// The approximate number of items per page.
    #[serde(default = "default_limit")]
    limit: usize,
}

fn default_limit() -> usize {
    100
}

/// A page of keys.
#[derive(Debug, Serialize)]
pub(super) struct Keys {
    /// Items, in no particular order.
    keys: Vec<Item>,
    /// The cursor of the next page; missing on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<u64>,
}

/// An item.
#[derive(Debug, Serialize)]
struct Item {
    /// The key, if it is UTF-8 text without control characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// The key in base64, unless `key` contains it.
    #[serde(skip_serializing_if = "Option::is_none")]
    key_base64: Option<String>,
    /// The length of the value in bytes.
    length: usize,
    /// Seconds until the item expires; missing if it never does.
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl: Option<u32>,
}

/// Lists a page of keys. All pages together contain every item that exists during the whole
/// listing, with one exception: a store between two pages may move an item in the index, and the
/// list may then lack this item.
pub(super) async fn list(
    State(app): State<App>,
    QueryFields(ListQuery { cursor, limit }): QueryFields<ListQuery>,
) -> Result<Response, Problem> {
    if !app.view.dumps_allowed() {
        let detail = "This server does not allow listing keys (-X).";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail));
    }
    if !(1..=ITEMS_MAX).contains(&limit) {
        return Err(Problem::bad_request("limit must be 1 to 1000."));
    }
    // Reserve memory for the longest possible keys, in the page and in the reply.
    let mut reserved = Reservation::empty(&app.view);
    reserved.require(&app, limit * ITEM_LEN_MAX).await?;
    let page = app.items.page(cursor, limit).await.ok_or_else(|| {
        let detail = "The engine of this server cannot list keys page by page.";
        Problem::new(StatusCode::NOT_IMPLEMENTED, detail)
    })?;
    let keys = page.items.into_iter().map(Item::from).collect();
    json(&app, &Keys { keys, cursor: page.next }).await
}

impl From<ListedItem> for Item {
    fn from(ListedItem { key, value_len: length, ttl }: ListedItem) -> Self {
        // Keys with control characters are sent as base64. JSON escapes most of these characters
        // with six bytes, which could exceed the reserved memory.
        let is_text = |text: &str| !text.chars().any(char::is_control);
        let (key, key_base64) = match String::from_utf8(key) {
            Ok(text) if is_text(&text) => (Some(text), None),
            Ok(text) => (None, Some(STANDARD.encode(text))),
            Err(error) => (None, Some(STANDARD.encode(error.as_bytes()))),
        };
        Self { key, key_base64, length, ttl }
    }
}
