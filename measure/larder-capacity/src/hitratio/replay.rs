//! Replays a stream to a server, as an application does with a look-aside cache.
//!
//! [`replay`] sends gets in batches. The sets for keys that missed are part of the next batch,
//! before its gets. In a stream with TTLs, these sets follow immediately in a separate batch. A
//! batch ends before a key that it already contains, so no get overtakes the set of its key. The
//! only difference from a replay of one request at a time is that all gets of a batch precede the
//! sets for their misses.

use super::stream::Stream;
use crate::simulate::Request;
use crate::values::Values;
use larder_target::blocking::{Connection, Item};
use rapidhash::RapidHashSet;
use serde::Serialize;
use std::io;
use std::num::NonZeroU32;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Counts of hits and misses, in requests and in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HitStats {
    /// Number of gets.
    pub requests: u64,
    /// Number of gets that missed.
    pub misses: u64,
    /// Total size of the requested values.
    pub bytes: u64,
    /// Total size of the values of gets that missed.
    pub missed_bytes: u64,
}

impl HitStats {
    /// Counts a request for a value of `bytes` bytes.
    pub fn count(&mut self, hit: bool, bytes: u32) {
        let miss = u64::from(!hit);
        self.requests += 1;
        self.misses += miss;
        self.bytes += u64::from(bytes);
        self.missed_bytes += miss * u64::from(bytes);
    }

    /// Returns the number of gets that hit.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.requests - self.misses
    }

    /// Returns misses ÷ requests, or 0 without requests.
    #[must_use]
    pub fn miss_ratio(&self) -> f64 {
        self.misses as f64 / self.requests.max(1) as f64
    }

    /// Returns missed bytes ÷ requested bytes, or 0 without requests.
    #[must_use]
    pub fn byte_miss_ratio(&self) -> f64 {
        self.missed_bytes as f64 / self.bytes.max(1) as f64
    }
}

/// The result of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Replayed {
    /// Hits and misses of the counted requests. Result files call them `tally`.
    #[serde(rename = "tally")]
    pub stats: HitStats,
    /// Number of sets that the server rejected.
    pub refused: u64,
    /// Number of hits with a wrong value. Unlike the other counts, it includes the requests that
    /// only fill the cache. A value of the correct key counts as correct even if its length is that
    /// of another request.
    pub wrong: u64,
    /// Duration of the replay.
    pub seconds: f64,
    /// Maximum delay of a request after its scheduled time; 0 without TTLs.
    pub behind_seconds: f64,
}

/// Replays a stream in batches of at most `pipeline` gets, one batch at a time, round-robin over
/// the connections. If the stream has TTLs, the replay sends each request at its scheduled time.
/// Otherwise, it sends a batch as soon as the previous batch is answered.
///
/// # Errors
/// The connection fails, a reply of the server is malformed, or the reply to a get is an error.
///
/// # Panics
/// `connections` is empty.
pub fn replay(
    connections: &mut [Connection],
    stream: &Stream,
    pipeline: u16,
) -> io::Result<Replayed> {
    let start = Instant::now();
    let mut replay = Replay {
        connections,
        batches_played: 0,
        stream,
        played: 0,
        values: Values::new(stream.value_bytes_max()),
        replayed: Replayed::default(),
        missed: Vec::new(),
    };
    let mut clock = stream.has_ttls().then_some(Clock { start, behind: Duration::ZERO });
    let mut rest = stream.requests.as_slice();
    while let Some(first) = rest.first() {
        let due_ms = clock.as_mut().map_or(u64::MAX, |clock| clock.wait_for(first.now_ms));
        let most = usize::from(pipeline.max(1)).min(replay.until_counted());
        let (batch, later) = rest.split_at(batch_len(rest, due_ms, most));
        replay.play(batch)?;
        rest = later;
        if clock.is_some() || rest.is_empty() {
            replay.play(&[])?;
        }
    }
    replay.replayed.seconds = start.elapsed().as_secs_f64();
    replay.replayed.behind_seconds = clock.map_or(0.0, |clock| clock.behind.as_secs_f64());
    Ok(replay.replayed)
}

struct Clock {
    start: Instant,
    behind: Duration,
}

impl Clock {
    /// Sleeps until the stream time `due_ms`. Returns the stream time after the sleep, in ms.
    fn wait_for(&mut self, due_ms: u64) -> u64 {
        let due = Duration::from_millis(due_ms);
        let now = self.start.elapsed();
        sleep(due.saturating_sub(now));
        self.behind = self.behind.max(now.saturating_sub(due));
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Returns the number of requests in the next batch, from 1 to `most`. The batch ends before the
/// first request that is due after `due_ms`, and before the first key that it already contains.
fn batch_len(requests: &[Request], due_ms: u64, most: usize) -> usize {
    let mut keys = RapidHashSet::default();
    let fits = |request: &&Request| request.now_ms <= due_ms && keys.insert(request.key);
    requests.iter().take(most).take_while(fits).count().max(1)
}

struct Replay<'r> {
    connections: &'r mut [Connection],
    /// Number of sent batches.
    batches_played: usize,
    stream: &'r Stream,
    /// Number of sent requests.
    played: usize,
    values: Values,
    replayed: Replayed,
    /// Requests that missed and whose sets were not sent yet.
    missed: Vec<Request>,
}

impl Replay<'_> {
    /// Returns the number of requests to send before the first counted request, where a batch must
    /// end. Once counting has started, returns `usize::MAX`.
    fn until_counted(&self) -> usize {
        let left = self.stream.counted.first().saturating_sub(self.played);
        if left == 0 { usize::MAX } else { left }
    }

    /// Sends the sets for misses of the previous batch, and then the gets of this batch.
    fn play(&mut self, batch: &[Request]) -> io::Result<()> {
        let keys: Vec<_> = batch.iter().map(|request| self.stream.key(request.key)).collect();
        let missed = std::mem::take(&mut self.missed);
        let named: Vec<_> = missed.iter().map(|request| self.stream.key(request.key)).collect();
        let items = missed.iter().zip(&named).map(|(request, key)| Item {
            key,
            value: self.values.value(request.key, request.size as usize),
            ttl_secs: request.ttl_secs.map_or(0, NonZeroU32::get),
        });
        let counted = self.played >= self.stream.counted.first();
        let stores = self.stream.counted.stores(self.played);
        let connection = self.batches_played % self.connections.len();
        let stored = self.connections[connection].set_and_get(items, &keys, |index, found| {
            let request = &batch[index];
            let wrong = found.is_some_and(|found| !self.values.is_right(request.key, found));
            self.replayed.wrong += u64::from(wrong);
            if counted {
                self.replayed.stats.count(found.is_some(), request.size);
            }
            self.missed.extend((stores && found.is_none()).then_some(request));
        })?;
        self.batches_played += 1;
        self.played += batch.len();
        self.replayed.refused += (missed.len() - stored) as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(now_ms: u64, key: u32) -> Request {
        Request { now_ms, key, size: 1, ttl_secs: None }
    }

    #[test]
    fn a_batch_has_no_key_twice_and_nothing_early() {
        let requests = [ask(0, 1), ask(0, 2), ask(5, 3), ask(5, 2), ask(6, 4)];
        assert_eq!(batch_len(&requests, u64::MAX, 10), 3);
        assert_eq!(batch_len(&requests, u64::MAX, 2), 2);
        assert_eq!(batch_len(&requests, 4, 10), 2);
        assert_eq!(batch_len(&requests[2..], 0, 10), 1);
    }

    #[test]
    fn bytes_and_objects_are_counted_apart() {
        let mut stats = HitStats::default();
        stats.count(true, 900);
        stats.count(false, 100);
        assert_eq!((stats.miss_ratio(), stats.byte_miss_ratio()), (0.5, 0.1));
    }
}
