//! The parts of requests to etcd's gateway and of its replies: comparisons, reads, writes, and keys
//! with their values.

use crate::keys::ClusterKey;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

/// Returns a comparison for a transaction: the field `field` of the key has this value. `target` is
/// etcd's name for the kind of comparison.
pub(crate) fn comparison(key: &str, target: &str, field: &str, value: String) -> Value {
    json!({"target": target, "result": "EQUAL", "key": BASE64.encode(key), field: value})
}

/// Returns a comparison for a transaction: the value of the key has this revision. The revision is
/// 0 if the key has no value.
pub(crate) fn has_revision(key: &str, revision: u64) -> Value {
    comparison(key, "MOD", "mod_revision", revision.to_string())
}

/// Returns a comparison for a transaction: the key has this value.
pub(crate) fn has_value(key: &str, value: &[u8]) -> Value {
    comparison(key, "VALUE", "value", BASE64.encode(value))
}

/// Returns a comparison for a transaction: no key has this prefix. The prefix ends with a slash.
pub(crate) fn has_no_key_below(prefix: &str) -> Value {
    let (key, end) = (BASE64.encode(prefix), BASE64.encode(end_of(prefix)));
    // etcd compares each key of the range. For an empty range, it compares the revision 0.
    json!({
        "target": "CREATE", "result": "EQUAL", "key": key, "range_end": end, "create_revision": "0",
    })
}

/// Returns a write for a transaction. `lease` is the ID of the key's lease; 0 for none.
pub(crate) fn put_request(key: &str, value: &[u8], lease: u64) -> Value {
    let (key, value) = (BASE64.encode(key), BASE64.encode(value));
    json!({"requestPut": {"key": key, "value": value, "lease": lease.to_string()}})
}

/// Returns a request that removes a key, for a transaction.
pub(crate) fn delete_request(key: &str) -> Value {
    json!({"requestDeleteRange": {"key": BASE64.encode(key)}})
}

/// The keys that a read returns.
pub(crate) enum Range {
    One(String),
    /// All keys with this prefix, which ends with a slash.
    Under(String),
    /// The keys with this prefix whose values have this revision or a later one.
    ChangedUnder(String, u64),
}

impl Range {
    pub(crate) fn request(&self) -> Value {
        let (key, has_end, since) = match self {
            Self::One(key) => (key, false, 0),
            Self::Under(prefix) => (prefix, true, 0),
            Self::ChangedUnder(prefix, since) => (prefix, true, *since),
        };
        let end = if has_end { BASE64.encode(end_of(key)) } else { String::new() };
        let (key, since) = (BASE64.encode(key), since.to_string());
        json!({"requestRange": {"key": key, "range_end": end, "min_mod_revision": since}})
    }
}

/// Returns the exclusive upper bound of the keys with this prefix. The prefix ends with a slash.
fn end_of(prefix: &str) -> String {
    // '0' follows '/' in ASCII.
    format!("{}0", prefix.trim_end_matches('/'))
}

#[derive(Clone, Debug)]
pub(crate) struct KeyValue {
    pub(crate) key: String,
    pub(crate) value: Vec<u8>,
    pub(crate) revision: u64,
    /// The ID of the key's lease; 0 without a lease.
    pub(crate) lease: u64,
}

impl KeyValue {
    /// Returns the names of the group and the node if this is a valid key of a node; `None` for
    /// other keys.
    pub(crate) fn member(&self) -> Option<(&str, &str)> {
        ClusterKey::parse(&self.key).and_then(ClusterKey::member)
    }
}

pub(crate) fn key_values(range: &Value) -> Option<Vec<KeyValue>> {
    let Some(all) = range.get("kvs") else { return Some(Vec::new()) };
    let bytes = |one: &Value, field| {
        let text = one.get(field).and_then(Value::as_str).unwrap_or_default();
        BASE64.decode(text).ok()
    };
    let read = |one: &Value| {
        // Replace invalid UTF-8, so that one invalid key does not make the other keys unreadable.
        let key = String::from_utf8_lossy(&bytes(one, "key")?).into_owned();
        let (value, revision) = (bytes(one, "value")?, number(one, "mod_revision")?);
        let lease = number(one, "lease").unwrap_or_default();
        Some(KeyValue { key, value, revision, lease })
    };
    all.as_array()?.iter().map(read).collect()
}

/// Reads a number. Returns `None` if the field is missing or is not a number. etcd writes 64-bit
/// numbers as strings.
pub(crate) fn number(object: &Value, field: &str) -> Option<u64> {
    let number = object.get(field)?;
    number.as_u64().or_else(|| number.as_str()?.parse().ok())
}
