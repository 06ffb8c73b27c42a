//! Rows of `stats hotkeys` and `stats prefixes`, Larder's own: which keys and prefixes most requests are for. Keys are
//! no metrics.

use crate::stats::row::{Row, Source, Value};
use larder_operations::HotKey;
use larder_protocol::dump::uri;

/// Of each page.
pub(in crate::stats) const SAMPLES: &[Row] = &[Row::gauge(
    "samples",
    Source::Server(|s| s.hottest().samples.into()),
    "Requests that the shares rest on, about one in a hundred; older ones count less.",
)];

pub(in crate::stats) const KEY: &[Row] = &[
    Row::text("key", Source::Hot(name), "The key; of a longer one, the first 250 bytes."),
    Row::gauge("share", Source::Hot(share), "At least this share of requests is for the key."),
];

pub(in crate::stats) const PREFIX: &[Row] = &[
    Row::text("prefix", Source::Hot(name), "What is before the delimiter (`-D`) in the keys."),
    Row::gauge(
        "share",
        Source::Hot(share),
        "At least this share of requests is for keys with the prefix.",
    ),
];

/// The name as dumps write keys: bytes other than letters, digits and `-._~` are percent-encoded.
fn name(hot: &HotKey) -> Value {
    let mut encoded = Vec::new();
    uri(&hot.name, &mut encoded);
    String::from_utf8_lossy(&encoded).into_owned().into()
}

fn share(hot: &HotKey) -> Value {
    Value::Real(hot.share, Some(4))
}
