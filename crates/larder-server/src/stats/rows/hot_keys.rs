//! Rows of `stats hotkeys` and `stats prefixes`, Larder's own: the keys and prefixes with the most
//! requests. These rows are not metrics, because clients choose the keys.

use crate::stats::row::{Row, Source, Value};
use larder_operations::HotKey;
use larder_protocol::dump::uri;

/// The first row of each page.
pub(in crate::stats) const SAMPLES: &[Row] = &[Row::gauge(
    "samples",
    Source::Server(|s| s.hottest().samples.into()),
    "Sampled requests of the estimate, about one in a hundred; older samples count less.",
)];

pub(in crate::stats) const KEY: &[Row] = &[
    Row::text("key", Source::Hot(name), "The key; of a longer one, the first 250 bytes."),
    Row::gauge("share", Source::Hot(share), "At least this share of requests is for the key."),
];

pub(in crate::stats) const PREFIX: &[Row] = &[
    Row::text("prefix", Source::Hot(name), "The part of the keys before the delimiter (`-D`)."),
    Row::gauge(
        "share",
        Source::Hot(share),
        "At least this share of requests is for keys with the prefix.",
    ),
];

/// Returns the name in the encoding of dumps: bytes other than letters, digits and `-._~` are
/// percent-encoded.
fn name(hot: &HotKey) -> Value {
    let mut encoded = Vec::new();
    uri(&hot.name, &mut encoded);
    String::from_utf8_lossy(&encoded).into_owned().into()
}

fn share(hot: &HotKey) -> Value {
    Value::Real(hot.share, Some(4))
}
