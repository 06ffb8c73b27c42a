//! A stream of look-aside requests: made up by [`super::workload`], or read by [`super::trace`].

use crate::simulate::Request;
use rapidhash::RapidHashMap;
use serde::Serialize;
use std::borrow::Cow;
use std::num::NonZeroU32;

/// Bytes in the keys of a stream that was made up: `key` and ten digits.
const NUMBERED_BYTES: usize = 13;

/// Requests in the order in which they are made.
#[derive(Clone, Debug, PartialEq)]
pub struct Stream {
    /// What to call it.
    pub name: String,
    /// A request's `size` is that of the value alone. Keys are numbered from 0 without gaps.
    pub requests: Vec<Request>,
    /// What each key is, unless they are made up.
    pub(super) names: Option<Vec<Box<[u8]>>>,
    /// Which requests the figures are about.
    pub counted: Counted,
    /// The memory limit that it is meant for, in MiB, if it is for a certain one.
    pub memory_mb: Option<u64>,
}

/// Which requests of a stream are counted. Those before them only fill the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counted {
    /// All.
    #[default]
    All,
    /// Those from this one on.
    From(usize),
    /// Those from this one on, and what they miss is not stored.
    LookUpsFrom(usize),
}

impl Counted {
    /// The first request that is counted.
    #[must_use]
    pub fn first(self) -> usize {
        match self {
            Self::All => 0,
            Self::From(first) | Self::LookUpsFrom(first) => first,
        }
    }

    /// Whether a request that misses is followed by a set.
    #[must_use]
    pub fn stores(self, index: usize) -> bool {
        !matches!(self, Self::LookUpsFrom(first) if index >= first)
    }
}

/// What a stream's items would take if all were kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Footprint {
    /// Keys that differ.
    pub keys: u64,
    /// Bytes of keys and values, each key's largest, without any overhead.
    pub bytes: u64,
}

impl Stream {
    /// What a key is called.
    #[must_use]
    pub fn key(&self, key: u32) -> Cow<'_, [u8]> {
        match &self.names {
            Some(names) => Cow::Borrowed(&names[key as usize]),
            None => Cow::Owned(format!("key{key:010}").into_bytes()),
        }
    }

    /// The requests with what an item takes for their size: its key, its value, and `overhead`
    /// bytes.
    #[must_use]
    pub fn charged(&self, overhead: u32) -> Vec<Request> {
        let charge = |request: &Request| {
            let beside = u32::try_from(self.key_bytes(request.key)).unwrap_or(u32::MAX);
            let size = request.size.saturating_add(beside).saturating_add(overhead);
            Request { size, ..*request }
        };
        self.requests.iter().map(charge).collect()
    }

    /// What it would take to keep everything.
    #[must_use]
    pub fn footprint(&self) -> Footprint {
        let mut largest: RapidHashMap<u32, u64> = RapidHashMap::default();
        for request in &self.requests {
            let size = largest.entry(request.key).or_default();
            *size = u64::from(request.size).max(*size);
        }
        let bytes = |(key, size): (&u32, &u64)| self.key_bytes(*key) as u64 + size;
        Footprint { keys: largest.len() as u64, bytes: largest.iter().map(bytes).sum() }
    }

    /// Whether anything expires, so that time matters.
    #[must_use]
    pub fn has_ttls(&self) -> bool {
        self.requests.iter().any(|request| request.ttl_secs.is_some())
    }

    /// The largest value in bytes.
    #[must_use]
    pub fn value_bytes_max(&self) -> usize {
        self.requests.iter().map(|request| request.size as usize).max().unwrap_or(0)
    }

    /// Makes its time go faster: all times and TTLs are divided by `speed`. TTLs are rounded to
    /// whole seconds, as no protocol has less, and are 1 at least; returns how many requests have
    /// a TTL that was lengthened so.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rounds")]
    pub fn speed_up(&mut self, speed: f64) -> u64 {
        let mut lengthened = 0;
        for request in &mut self.requests {
            request.now_ms = (request.now_ms as f64 / speed) as u64;
            if let Some(ttl) = request.ttl_secs {
                let secs = f64::from(ttl.get()) / speed;
                lengthened += u64::from(secs < 1.0);
                request.ttl_secs = Some(NonZeroU32::MIN.max(rounded(secs)));
            }
        }
        lengthened
    }

    pub(super) fn key_bytes(&self, key: u32) -> usize {
        self.names.as_ref().map_or(NUMBERED_BYTES, |names| names[key as usize].len())
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rounds")]
fn rounded(secs: f64) -> NonZeroU32 {
    NonZeroU32::new(secs.round() as u32).unwrap_or(NonZeroU32::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> Stream {
        let ask =
            |now_ms, key, size, ttl| Request { now_ms, key, size, ttl_secs: NonZeroU32::new(ttl) };
        let requests = vec![ask(0, 0, 10, 100), ask(500, 1, 20, 4), ask(2000, 0, 30, 0)];
        let (counted, memory_mb) = (Counted::All, None);
        Stream { name: String::new(), requests, names: None, counted, memory_mb }
    }

    #[test]
    fn a_footprint_has_each_key_once_at_its_largest() {
        assert_eq!(stream().footprint(), Footprint { keys: 2, bytes: 13 + 30 + 13 + 20 });
    }

    #[test]
    fn what_is_charged_is_key_value_and_overhead() {
        let sizes: Vec<u32> = stream().charged(50).iter().map(|request| request.size).collect();
        assert_eq!(sizes, [73, 83, 93]);
    }

    #[test]
    fn time_and_ttls_are_sped_up_together() {
        let mut stream = stream();
        assert_eq!(stream.speed_up(10.0), 1);
        let times: Vec<u64> = stream.requests.iter().map(|request| request.now_ms).collect();
        let ttls: Vec<u32> =
            stream.requests.iter().map(|r| r.ttl_secs.map_or(0, NonZeroU32::get)).collect();
        assert_eq!((times, ttls), (vec![0, 50, 200], vec![10, 1, 0]));
    }
}
