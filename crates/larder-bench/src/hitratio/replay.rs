//! Plays a stream to a server, as an application with a look-aside cache would.
//!
//! A batch of gets goes out, then the sets of what was missed, together with the next gets. No batch
//! has a key twice: the stream is cut before a key that is in the batch already, so that nobody asks
//! for a key while it is on its way. All that differs from one request at a time is that a batch's
//! gets come before its sets.

use super::stream::Stream;
use crate::blocking::{Connection, Item};
use crate::simulate::Request;
use crate::values::Values;
use rapidhash::RapidHashSet;
use serde::Serialize;
use std::io;
use std::num::NonZeroU32;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Hits and misses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HitStats {
    /// Gets.
    pub requests: u64,
    /// Those that found nothing.
    pub misses: u64,
    /// Bytes of the values that were wanted.
    pub bytes: u64,
    /// Those of the misses.
    pub missed_bytes: u64,
}

impl HitStats {
    /// Counts a request for a value of so many bytes.
    pub fn count(&mut self, hit: bool, bytes: u32) {
        let miss = u64::from(!hit);
        self.requests += 1;
        self.misses += miss;
        self.bytes += u64::from(bytes);
        self.missed_bytes += miss * u64::from(bytes);
    }

    /// Gets that found something.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.requests - self.misses
    }

    /// Misses by requests.
    #[must_use]
    pub fn miss_ratio(&self) -> f64 {
        self.misses as f64 / self.requests.max(1) as f64
    }

    /// Missed bytes by wanted bytes.
    #[must_use]
    pub fn byte_miss_ratio(&self) -> f64 {
        self.missed_bytes as f64 / self.bytes.max(1) as f64
    }
}

/// How a replay went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Replayed {
    /// Hits and misses.
    #[serde(rename = "tally")]
    pub stats: HitStats,
    /// Sets that the server refused.
    pub refused: u64,
    /// Hits that brought another value than had been set.
    pub wrong: u64,
    /// How long it took.
    pub seconds: f64,
    /// How late the latest request was, in seconds, if they had their times.
    pub behind_seconds: f64,
}

/// Plays a stream, with at most `pipeline` requests under way. Batches go to the connections in turn,
/// one after the other. If the stream has TTLs, each request waits for its time; else they follow as
/// fast as the server answers.
///
/// # Errors
/// The server hung up, or answered a get with an error.
///
/// # Panics
/// There are no connections.
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
    /// Sleeps until this time of the stream; returns what time it is.
    fn wait_for(&mut self, due_ms: u64) -> u64 {
        let due = Duration::from_millis(due_ms);
        let now = self.start.elapsed();
        sleep(due.saturating_sub(now));
        self.behind = self.behind.max(now.saturating_sub(due));
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// The first request, and those after it that are due and for other keys.
fn batch_len(requests: &[Request], due_ms: u64, most: usize) -> usize {
    let mut keys = RapidHashSet::default();
    let fits = |request: &&Request| request.now_ms <= due_ms && keys.insert(request.key);
    requests.iter().take(most).take_while(fits).count().max(1)
}

struct Replay<'r> {
    connections: &'r mut [Connection],
    /// Batches played.
    batches_played: usize,
    stream: &'r Stream,
    /// Requests played.
    played: usize,
    values: Values,
    replayed: Replayed,
    /// What is still to be set.
    missed: Vec<Request>,
}

impl Replay<'_> {
    /// Requests until the first that is counted: a batch ends before it.
    fn until_counted(&self) -> usize {
        let left = self.stream.counted.first().saturating_sub(self.played);
        if left == 0 { usize::MAX } else { left }
    }

    /// Sets what was missed before, and gets a batch.
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
