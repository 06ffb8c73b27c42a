//! Stores, overwrites and reads keys in order, for the memory tests.

use std::io;

use crate::options::Options;
use crate::wire::{Peer, Random, extend_pattern, mix};

/// The maximum number of requests that are sent before their replies are read.
const DEPTH_MAX: u64 = 64;
/// When the values of unanswered sets exceed this total number of bytes, `set` reads the replies
/// before it sends more.
const BATCH_BYTES: u64 = 256 << 10;

/// The result of a command: the numbers of values stored and found.
#[derive(Default)]
pub(crate) struct Found {
    sets: u64,
    /// The number of refused sets.
    failed: u64,
    /// The reply to the first refused set. Empty if no set was refused.
    refusal: String,
    hits: u64,
    /// The number of found values that differ from the stored values. A wrong value may consist of
    /// parts of two values, belong to another key, or have a wrong length.
    wrong: u64,
    /// The total length of the found values in bytes.
    bytes: u64,
}

impl Found {
    fn add(mut self, other: &Self) -> Self {
        self.sets += other.sets;
        self.failed += other.failed;
        if self.refusal.is_empty() {
            self.refusal.clone_from(&other.refusal);
        }
        self
    }

    fn note_reply(&mut self, reply: &str) {
        self.sets += 1;
        if reply != "STORED" {
            self.failed += 1;
            if self.refusal.is_empty() {
                self.refusal = reply.to_owned();
            }
        }
    }

    /// Returns the report, one line of JSON.
    pub(crate) fn json(&self) -> String {
        let Self { sets, failed, refusal, hits, wrong, bytes } = self;
        format!(
            r#"{{"sets": {sets}, "failed": {failed}, "refusal": {refusal:?}, "hits": {hits}, "wrong": {wrong}, "bytes": {bytes}}}"#
        )
    }
}

/// Runs `set`: stores the keys `from..to`, spread over `threads` connections.
pub(crate) fn set_in_threads(address: &str, options: &Options) -> io::Result<Found> {
    let (from, to) = (options.need("from")?, options.need("to")?);
    let threads = options.get("threads").unwrap_or(1);
    let size = options.need("size")?;
    let shift = Shift { from, to, size, size_end: options.get("size_end").unwrap_or(size) };
    let work = |thread: u64| {
        let keys = (from + thread..to).step_by(usize::try_from(threads).unwrap_or(1));
        set(&mut Peer::connect(address)?, keys, |key| shift.at(key))
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|n| scope.spawn(move || work(n))).collect();
        running.into_iter().try_fold(Found::default(), |sum, thread| {
            Ok(sum.add(&thread.join().map_err(|_| io::Error::other("a thread panicked"))??))
        })
    })
}

/// The sizes of values in bytes. They change linearly with the key, from `size` at key `from` to
/// `size_end` at key `to`.
#[derive(Clone, Copy)]
struct Shift {
    from: u64,
    to: u64,
    size: u64,
    size_end: u64,
}

impl Shift {
    fn at(self, key: u64) -> u64 {
        let span = (self.to - self.from).max(1);
        (self.size * (self.to - key) + self.size_end * (key - self.from)) / span
    }
}

/// Stores `keys` in order. A pipeline has at most [`DEPTH_MAX`] requests, and its values have at
/// most about [`BATCH_BYTES`] in total.
fn set(
    peer: &mut Peer,
    keys: impl Iterator<Item = u64>,
    size_of: impl Fn(u64) -> u64,
) -> io::Result<Found> {
    let mut found = Found::default();
    let mut value = Vec::new();
    let (mut waiting, mut bytes) = (0, 0);
    for key in keys {
        let size = size_of(key);
        fill(&mut value, key, size);
        peer.queue(format_args!("set key{key:010} 0 0 {size}"));
        peer.queue_block(&value);
        (waiting, bytes) = (waiting + 1, bytes + size);
        if waiting == DEPTH_MAX || bytes > BATCH_BYTES {
            settle(peer, waiting, &mut found)?;
            (waiting, bytes) = (0, 0);
        }
    }
    settle(peer, waiting, &mut found)?;
    Ok(found)
}

fn settle(peer: &mut Peer, waiting: u64, found: &mut Found) -> io::Result<()> {
    peer.send()?;
    for _ in 0..waiting {
        found.note_reply(peer.line()?);
    }
    Ok(())
}

/// Runs `churn`: stores the new keys `from..to` in order, mixed with overwrites. `share` percent of
/// all sets overwrite one of the last `window` keys.
pub(crate) fn churn(address: &str, options: &Options) -> io::Result<Found> {
    let (from, to) = (options.need("from")?, options.need("to")?);
    let (window, share) = (options.need("window")?, options.need("share")?);
    let size = options.need("size")?;
    let mut random = Random(from);
    let mut next = from;
    let keys = std::iter::from_fn(|| {
        if next > window && random.below(100) < share {
            return Some(next - 1 - random.below(window));
        }
        next += 1;
        (next <= to).then_some(next - 1)
    });
    set(&mut Peer::connect(address)?, keys, |_| size)
}

/// Runs `probe`: reads every key of `from..to` and checks the values.
pub(crate) fn probe(address: &str, options: &Options) -> io::Result<Found> {
    let (from, to) = (options.need("from")?, options.need("to")?);
    let size = options.get("size");
    let peer = &mut Peer::connect(address)?;
    let mut found = Found::default();
    let (mut value, mut expected) = (Vec::new(), Vec::new());
    let mut next = from;
    while next < to {
        let batch = next..to.min(next + DEPTH_MAX);
        let names: Vec<_> = batch.clone().map(|key| format!("key{key:010}")).collect();
        peer.queue(format_args!("get {}", names.join(" ")));
        peer.send()?;
        while let Some(hit) = peer.hit(&mut value)? {
            let key = hit.key.trim_start_matches("key").parse().map_err(io::Error::other)?;
            let len = value.len() as u64;
            fill(&mut expected, key, size.unwrap_or(len));
            found.hits += 1;
            found.bytes += len;
            found.wrong += u64::from(value != expected || !batch.contains(&key));
        }
        next = batch.end;
    }
    Ok(found)
}

fn fill(value: &mut Vec<u8>, key: u64, size: u64) {
    value.clear();
    extend_pattern(value, mix(key), usize::try_from(size).unwrap_or(0));
}
