//! Ranges of values: the header `Range` (RFC 9110, 14.1.2).

use super::problem::Problem;
use bytes::Bytes;
use headers::{ETag, HeaderMapExt, IfRange};
use hyper::header::HeaderValue;
use hyper::{HeaderMap, StatusCode};
use std::collections::VecDeque;

/// Returns the start and end of the requested range in a value of `len` bytes, or `None` for the
/// whole value. Also returns `None` if the header is malformed or has several ranges, or if
/// `If-Range` does not match `tag`.
///
/// # Errors
/// A [`Problem`]: no byte of the value is in the range.
pub(super) fn part(
    headers: &HeaderMap,
    tag: Option<&ETag>,
    len: u64,
) -> Result<Option<(u64, u64)>, Problem> {
    let is_for_another =
        headers.typed_get::<IfRange>().is_some_and(|condition| condition.is_modified(tag, None));
    let text = headers.get(hyper::header::RANGE).and_then(|text| text.to_str().ok());
    let Some(range) = text.filter(|_| !is_for_another).and_then(ByteRange::parse) else {
        return Ok(None);
    };
    if len == 0 && matches!(range, ByteRange::Last(1..)) {
        // The end of an empty value can be sent, but the reply cannot state its range.
        return Ok(None);
    }
    let found = range.within(len);
    match found {
        Some(found) => Ok(Some(found)),
        None => {
            let problem = Problem::new(
                StatusCode::RANGE_NOT_SATISFIABLE,
                "No byte of the value is in the range.",
            );
            let whole = HeaderValue::try_from(format!("bytes */{len}"));
            Err(match whole {
                Ok(whole) => problem.with(hyper::header::CONTENT_RANGE, whole),
                Err(_) => problem,
            })
        }
    }
}

/// A requested range of bytes (RFC 9110, 14.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ByteRange {
    /// The bytes from the first offset to the second one, inclusive. Without a second offset, the
    /// range ends at the end of the value.
    From(u64, Option<u64>),
    /// This many bytes at the end of the value.
    Last(u64),
}

impl ByteRange {
    /// Parses a range. Returns `None` if the string is malformed or has several ranges.
    fn parse(text: &str) -> Option<Self> {
        let (unit, range) = text.split_once('=')?;
        let (first, last) = range.trim().split_once('-').filter(|_| unit.trim() == "bytes")?;
        let number = |text: &str| {
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| text.parse().unwrap_or(u64::MAX))
        };
        match (first, last) {
            ("", last) => number(last).map(Self::Last),
            (first, "") => number(first).map(|first| Self::From(first, None)),
            (first, last) => {
                let (first, last) = (number(first)?, number(last)?);
                (first <= last).then_some(Self::From(first, Some(last)))
            }
        }
    }

    /// Returns the start and end (exclusive) of the range in a value of `len` bytes, or `None` if
    /// no byte of the value is in the range.
    fn within(self, len: u64) -> Option<(u64, u64)> {
        let (first, end) = match self {
            Self::From(first, None) => (first, len),
            Self::From(first, Some(last)) => (first, last.saturating_add(1).min(len)),
            Self::Last(count) => (len.saturating_sub(count), len),
        };
        (first < end).then_some((first, end))
    }
}

/// Returns the bytes of a value from `first` to `end` (exclusive).
pub(super) fn cut(value: Vec<Bytes>, first: u64, end: u64) -> VecDeque<Bytes> {
    let (mut at, mut parts) = (0_u64, VecDeque::new());
    for piece in value {
        let len = piece.len() as u64;
        let (from, to) = (first.saturating_sub(at).min(len), end.saturating_sub(at).min(len));
        if from < to {
            // Both offsets are within the piece.
            let of = |offset| usize::try_from(offset).unwrap_or(piece.len());
            parts.push_back(piece.slice(of(from)..of(to)));
        }
        at += len;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_parsed_as_rfc_9110_says() {
        for (text, parsed, of_ten) in [
            ("bytes=0-0", Some(ByteRange::From(0, Some(0))), Some((0, 1))),
            ("bytes=3-", Some(ByteRange::From(3, None)), Some((3, 10))),
            ("bytes=3-99", Some(ByteRange::From(3, Some(99))), Some((3, 10))),
            ("bytes=-4", Some(ByteRange::Last(4)), Some((6, 10))),
            ("bytes=-500", Some(ByteRange::Last(500)), Some((0, 10))),
            ("bytes=-0", Some(ByteRange::Last(0)), None),
            ("bytes=10-", Some(ByteRange::From(10, None)), None),
            ("bytes=99999999999999999999-", Some(ByteRange::From(u64::MAX, None)), None),
            ("bytes=5-2", None, None),
            ("bytes=x", None, None),
            ("bytes=", None, None),
            ("bytes=-", None, None),
            ("bytes=+1-2", None, None),
            ("bytes=0-1,3-4", None, None),
            ("items=0-1", None, None),
        ] {
            let range = ByteRange::parse(text);
            assert_eq!(
                (range, range.and_then(|range| range.within(10))),
                (parsed, of_ten),
                "{text}"
            );
        }
    }

    #[test]
    fn a_value_is_cut_across_its_pieces() {
        let value = || ["abc", "", "defg", "h"].map(Bytes::from).to_vec();
        let joined = |first, end| -> String {
            let parts = cut(value(), first, end);
            parts.iter().map(|part| std::str::from_utf8(part).unwrap()).collect()
        };
        for first in 0..=8_usize {
            for end in first..=8 {
                let expected = &"abcdefgh"[first..end];
                assert_eq!(joined(first as u64, end as u64), expected);
            }
        }
    }
}
