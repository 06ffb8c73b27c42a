//! Conditional requests. Entity tags are CAS values.

use super::problem::Problem;
use headers::ETag;
use hyper::HeaderMap;
use hyper::header::{HeaderName, IF_MATCH, IF_NONE_MATCH};

/// The precondition of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Precondition {
    /// No condition.
    None,
    /// There is no item (`If-None-Match: *`).
    Missing,
    /// There is an item (`If-Match: *`).
    Present,
    /// The item has this CAS (`If-Match: "..."`). The condition never holds for 0, because no item
    /// has the CAS 0.
    Is(u64),
}

/// Returns the entity tag of an item with this CAS, or `None` if the CAS is 0 because the engine
/// stores no CAS values.
pub(super) fn etag(cas: u64) -> Option<ETag> {
    (cas != 0).then(|| format!("\"{cas:x}\"").parse().ok()).flatten()
}

/// Reads the precondition of a change from the headers.
///
/// # Errors
/// A [`Problem`] if a header is malformed, or if [`Precondition`] has no variant for the condition.
/// The engine cannot check other conditions atomically with the change.
pub(super) fn of_change(headers: &HeaderMap) -> Result<Precondition, Problem> {
    match (value(headers, IF_MATCH)?, value(headers, IF_NONE_MATCH)?) {
        (None, None) => Ok(Precondition::None),
        (Some("*"), None) => Ok(Precondition::Present),
        (None, Some("*")) => Ok(Precondition::Missing),
        (Some(tag), None) => cas_of(tag).map(Precondition::Is),
        _ => Err(Problem::bad_request(
            "A change may have one condition: If-Match with * or one entity tag, or If-None-Match: *.",
        )),
    }
}

/// Returns the value of a header, or `None` if it is missing. Fails if there are several values or
/// the value is not an ASCII string.
fn value(headers: &HeaderMap, name: HeaderName) -> Result<Option<&str>, Problem> {
    let mut values = headers.get_all(&name).iter();
    let (first, second) = (values.next(), values.next());
    let text = first.map(|value| value.to_str().map(str::trim)).transpose();
    match (text, second) {
        (Ok(text), None) => Ok(text),
        _ => Err(Problem::bad_request(format!("{name} must be * or one entity tag."))),
    }
}

fn cas_of(tag: &str) -> Result<u64, Problem> {
    let quoted = tag.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let is_one = |text: &&str| !text.contains('"');
    match quoted.filter(is_one) {
        // A weak entity tag, or a tag that no item can have, becomes 0, which matches no item.
        Some(digits) => Ok(u64::from_str_radix(digits, 16).unwrap_or(0)),
        None if tag.starts_with("W/\"") && !tag.contains(',') => Ok(0),
        None => Err(Problem::bad_request("If-Match must be * or one entity tag in quotes.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn precondition(pairs: &[(HeaderName, &str)]) -> Option<Precondition> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name, value.parse().unwrap());
        }
        of_change(&headers).ok()
    }

    #[test]
    fn a_change_has_at_most_one_condition() {
        let is = |pairs: &[(HeaderName, &str)]| precondition(pairs);
        assert_eq!(is(&[]), Some(Precondition::None));
        assert_eq!(is(&[(IF_MATCH, " * ")]), Some(Precondition::Present));
        assert_eq!(is(&[(IF_NONE_MATCH, "*")]), Some(Precondition::Missing));
        assert_eq!(is(&[(IF_MATCH, "\"1f\"")]), Some(Precondition::Is(31)));
        assert_eq!(is(&[(IF_MATCH, "\"other\"")]), Some(Precondition::Is(0)));
        assert_eq!(is(&[(IF_MATCH, "W/\"1f\"")]), Some(Precondition::Is(0)));
        for refused in [
            &[(IF_MATCH, "1f")][..],
            &[(IF_MATCH, "\"1\", \"2\"")],
            &[(IF_MATCH, "\"1\""), (IF_MATCH, "\"2\"")],
            &[(IF_NONE_MATCH, "\"1\"")],
            &[(IF_MATCH, "*"), (IF_NONE_MATCH, "*")],
            &[(IF_MATCH, "")],
        ] {
            assert_eq!(is(refused), None, "{refused:?}");
        }
        let tag = etag(31).unwrap();
        assert_eq!(tag, "\"1f\"".parse().unwrap());
        assert!(etag(0).is_none());
    }
}
