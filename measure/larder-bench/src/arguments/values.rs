//! Types and parsers of option values.

use crate::settings::{DataSize, Ratio};
use larder_target::Protocol;
use std::str::FromStr;
use std::time::Duration;

/// The argument of `--connection-timeout`. `None` stands for 0: the system's limit before the run,
/// and the value of `--timeout` during the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeout(pub Option<Duration>);

/// The argument of `--requests`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requests {
    /// A number.
    Count(u64),
    /// `allkeys`: each connection sends one request per key. If the sets use the partitioned key
    /// pattern, each connection sends one request per key of the largest part.
    AllKeys,
}

impl FromStr for Requests {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "allkeys" {
            return Ok(Self::AllKeys);
        }
        match text.parse() {
            Ok(count) if count > 0 => Ok(Self::Count(count)),
            _ => Err("expected a positive number or `allkeys`".to_owned()),
        }
    }
}

pub(super) fn pair<A: FromStr, B: FromStr>(text: &str) -> Option<(A, B)> {
    let (a, b) = text.split_once(':')?;
    Some((a.parse().ok()?, b.parse().ok()?))
}

pub(super) fn log_normal(text: &str) -> Option<DataSize> {
    let mut parts = text.split(':');
    let (median, sigma): (f64, f64) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let maximum = parts.next().map_or(Ok(1_000_000), str::parse).ok()?;
    let sound = median >= 1.0 && sigma >= 0.0 && sigma.is_finite() && parts.next().is_none();
    sound.then_some(DataSize::LogNormal { median, sigma, maximum })
}

pub(super) fn protocol(name: &str) -> Result<Protocol, String> {
    match name {
        "text" | "memcache_text" => Ok(Protocol::Text),
        "meta" | "memcache_meta" => Ok(Protocol::Meta),
        "binary" | "memcache_binary" => Ok(Protocol::Binary),
        "resp" | "resp2" | "redis" => Ok(Protocol::Resp),
        _ => Err(
            "expected text, meta, binary or resp (or memtier's memcache_text, memcache_binary or \
                  redis)"
                .to_owned(),
        ),
    }
}

pub(super) fn ratio(text: &str) -> Result<Ratio, String> {
    match pair(text) {
        Some((0, 0)) | None => Err("expected sets:gets, such as 1:10".to_owned()),
        Some((sets, gets)) => Ok(Ratio { sets, gets }),
    }
}

pub(super) fn range<T: FromStr + PartialOrd>(text: &str) -> Result<(T, T), String> {
    let parsed = text
        .split_once('-')
        .and_then(|(least, most)| Some((least.parse::<T>().ok()?, most.parse::<T>().ok()?)));
    parsed
        .filter(|(least, most)| least <= most)
        .ok_or_else(|| "expected MIN-MAX, such as 1-1024".to_owned())
}

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let secs: f64 =
        text.parse().map_err(|_| "expected a number of seconds, such as 60 or 0.5".to_owned())?;
    Duration::try_from_secs_f64(secs)
        .ok()
        .filter(|time| !time.is_zero())
        .ok_or_else(|| "expected more than 0 seconds".to_owned())
}

pub(super) fn seconds_or_none(text: &str) -> Result<Timeout, String> {
    if text.parse() == Ok(0.0) {
        return Ok(Timeout(None));
    }
    seconds(text).map(|time| Timeout(Some(time)))
}

pub(super) fn speed(text: &str) -> Result<f64, String> {
    let speed = text.parse().ok().filter(|speed| *speed > 0.0 && *speed <= 1e6);
    speed.ok_or_else(|| "expected a number above 0 and at most 1,000,000".to_owned())
}

pub(super) fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|count| *count > 0)
        .ok_or_else(|| "expected a number of at least 1".to_owned())
}
