//! A simulated S3-FIFO cache with segments. The cache uses the engine's eviction code
//! ([`larder_store::eviction`]), and simulates only the memory.
//!
//! Constants of the memory and of cleaning are copies of the engine's constants. When the engine
//! changes, the copy must change, too. The comment of each copy names the engine's file below
//! `crates/larder-store/src/segment/`.

use super::ghost_table::GhostTable;
use super::policy::Policy;
use super::request::{NEVER, Request};
use larder_store::eviction::{
    KeepLimit, Kind, Placement, Queue, Queues, SIZE_EXPONENT, Sealed, SizeClass, Verdict,
    chained_max, choose_segment, open_budget,
};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Parameters of the cache. The default corresponds to `larderd` with one thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Weight of the item size in the choice of the size class to evict from: the class whose
    /// oldest segment has the largest age × (mean item size)^exponent.
    pub size_exponent: f64,
    /// Number of engine handles. The handles write round-robin, and each has its own open segments.
    pub threads: usize,
    /// Size of a segment in bytes; `None` for the engine's default for the capacity.
    pub segment_len: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { size_exponent: SIZE_EXPONENT, threads: 1, segment_len: None }
    }
}

/// Maximum of an item's hit counter: `FREQ_MAX` of `index/word.rs`.
const FREQ_MAX: u8 = 3;
/// Minimum share of dead bytes, in percent, for a segment to be cleaned: `CLEAN_LEVEL` of
/// `reclaim/evacuation.rs`.
const CLEAN_PERCENT: u64 = 17;
/// Number of lifetime classes: the engine's maximum, `LIFETIMES_MAX` of `memory/open_segment.rs`.
/// The engine uses fewer classes if few segments may be open.
const LIFETIMES_MAX: u32 = 8;

/// Returns the engine's default segment length in bytes for a capacity: `SEGMENT_LEN_MIN`,
/// `SEGMENTS_AIM` and the constants around them in `memory/layout.rs`.
fn segment_len(capacity: u64) -> u64 {
    let short = (capacity / 256).clamp(16 << 10, 64 << 10);
    let ideal = (capacity / 1024).clamp(short, 1 << 20);
    1 << ideal.ilog2()
}

/// An item. `segment` is `None` if the cache does not hold it.
#[derive(Clone, Copy, Debug)]
struct Item {
    segment: Option<u32>,
    freq: u8,
    /// Total size in bytes.
    size: u64,
    /// Number of bytes in the item's segment.
    inline: u64,
    /// Number of whole segments that hold the other bytes (the chain of the item).
    chained: u32,
    expires_ms: u64,
}

const NO_ITEM: Item =
    Item { segment: None, freq: 0, size: 0, inline: 0, chained: 0, expires_ms: NEVER };

#[derive(Clone, Debug)]
struct Segment {
    queue: Queue,
    /// Keys of the items written to this segment, in write order. Includes dead items: those that
    /// were removed or moved to another segment.
    keys: Vec<u32>,
    /// Bytes of the items written to this segment, including dead items but not their chains.
    inline: u64,
    /// Bytes of the items written to this segment, including their chains.
    bytes: u64,
    chained: u64,
    /// Bytes of dead items in this segment, without their chains.
    dead: u64,
    hit_bytes: u64,
}

const NO_SEGMENT: Segment = Segment {
    queue: Queue::Small,
    keys: Vec::new(),
    inline: 0,
    bytes: 0,
    chained: 0,
    dead: 0,
    hit_bytes: 0,
};

/// The reason for emptying a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    Clean,
    Evict,
}

#[derive(Debug)]
struct Handle {
    open: Vec<(Kind, u32)>,
    limit: KeepLimit,
}

/// The simulated cache. Keys should be small numbers: they are indices into a table of items.
#[derive(Debug)]
pub struct S3Fifo {
    segment_len: u64,
    budget: usize,
    chained_max: u64,
    /// Number of segments to keep free as destinations for moved items: `reserve_of` of
    /// `cache/memory_limit.rs`.
    reserve: u64,
    segments: Vec<Segment>,
    /// Segments that are free or belong to chains. `chained` is the number of segments in chains.
    empty: Vec<u32>,
    chained: u64,
    queues: Queues,
    ghosts: GhostTable,
    handles: Vec<Handle>,
    /// Index of the handle that writes next.
    next_handle: usize,
    items: Vec<Item>,
    live: u64,
    used: u64,
    deadlines: BinaryHeap<Reverse<(u64, u32)>>,
    /// Segments with enough dead bytes for cleaning. Can contain a segment more than once. Can also
    /// contain open or empty segments, which `make_room` skips.
    cleanable: Vec<u32>,
}

impl S3Fifo {
    /// Returns an empty cache of `capacity` bytes.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "segments are counted in 32 bits")]
    pub fn new(capacity: u64, settings: Settings) -> Self {
        let segment_len = settings.segment_len.unwrap_or_else(|| segment_len(capacity)).max(1);
        let count = (capacity / segment_len).min(u64::from(u32::MAX)) as u32;
        let segments = count as usize;
        let threads = settings.threads.max(1);
        let handle = || Handle { open: Vec::new(), limit: KeepLimit::new(segment_len as usize) };
        // The same as `index_segments_first` in `memory/layout.rs`.
        let index_segments = 1 << (segments / 128).clamp(1, 8).ilog2();
        Self {
            segment_len,
            budget: open_budget(segments, threads),
            chained_max: chained_max(segments, threads) as u64,
            reserve: (2 + 2 * threads as u64).min(u64::from(count) / 8),
            segments: vec![NO_SEGMENT; segments],
            empty: (0..count).rev().collect(),
            chained: 0,
            queues: Queues::new(segments, settings.size_exponent),
            ghosts: GhostTable::new(index_segments * segment_len as usize / 64),
            handles: (0..threads).map(|_| handle()).collect(),
            next_handle: 0,
            items: Vec::new(),
            live: 0,
            used: 0,
            deadlines: BinaryHeap::new(),
            cleanable: Vec::new(),
        }
    }

    fn free(&self) -> u64 {
        (self.empty.len() as u64).saturating_sub(self.chained)
    }

    fn insert(&mut self, request: &Request) {
        let size = u64::from(request.size);
        let (inline, chained) = self.split(size);
        let segments = self.segments.len() as u64;
        if inline > self.segment_len || u64::from(chained) > segments / 2 {
            return;
        }
        let queue = if self.ghosts.take(request.key) { Queue::Main } else { Queue::Small };
        if !self.make_room(u64::from(chained)) {
            return;
        }
        let expires_ms = request.expires_ms();
        let item = Item { segment: None, freq: 0, size, inline, chained, expires_ms };
        if self.write(queue, request.key, item, request.now_ms) {
            self.chained += u64::from(chained);
            self.live += 1;
            self.used += size;
            self.ghosts.grow_for(self.live);
            if expires_ms != NEVER {
                self.deadlines.push(Reverse((expires_ms, request.key)));
            }
        }
        self.next_handle = (self.next_handle + 1) % self.handles.len();
    }

    /// Divides an item of `size` bytes into the bytes in its segment and a number of whole
    /// segments. A remainder above three quarters of a segment takes a whole segment. The engine's
    /// limit, `inline_max` of `memory/layout.rs`, is lower by the maximum length of an item's head
    /// and key.
    fn split(&self, size: u64) -> (u64, u32) {
        let rest = size % self.segment_len;
        let whole = u32::try_from(size / self.segment_len).unwrap_or(u32::MAX);
        if rest * 4 > self.segment_len * 3 { (0, whole.saturating_add(1)) } else { (rest, whole) }
    }

    /// Appends an item to an open segment of the handle that writes next. Returns false if the item
    /// needs a new segment and no segment is empty.
    fn write(&mut self, queue: Queue, key: u32, item: Item, now_ms: u64) -> bool {
        let kind = Kind {
            queue,
            lifetime: lifetime_class(item.expires_ms, now_ms),
            size: SizeClass::of(item.size),
        };
        let Some(segment) = self.open_segment(kind, item.inline) else { return false };
        let into = &mut self.segments[segment as usize];
        into.keys.push(key);
        into.inline += item.inline;
        into.bytes += item.inline + u64::from(item.chained) * self.segment_len;
        into.chained += u64::from(item.chained);
        let is_full = into.chained >= self.chained_max;
        if item.chained > 0 {
            self.queues.add_chain(segment, queue, item.chained);
        }
        let index = key as usize;
        if self.items.len() <= index {
            self.items.resize(index + 1, NO_ITEM);
        }
        self.items[index] = Item { segment: Some(segment), ..item };
        if is_full {
            self.seal_if(|open| open == segment);
        }
        true
    }

    /// Returns an open segment for this kind of item with at least `inline` free bytes, and opens
    /// one if necessary. Returns `None` if no segment is empty.
    fn open_segment(&mut self, kind: Kind, inline: u64) -> Option<u32> {
        let open = &mut self.handles[self.next_handle].open;
        let kinds = open.iter().map(|(kind, _)| *kind);
        if let Placement::Open(i) = choose_segment(kind, kinds, self.budget) {
            let (_, segment) = open[i];
            if self.segments[segment as usize].inline + inline <= self.segment_len {
                return Some(segment);
            }
            self.seal_if(|open| open == segment);
        }
        let segment = self.empty.pop()?;
        // Discards the dead bytes that evictions added to the segment while it was emptied.
        self.segments[segment as usize] = Segment { queue: kind.queue, ..NO_SEGMENT };
        self.handles[self.next_handle].open.push((kind, segment));
        Some(segment)
    }

    fn seal_if(&mut self, wanted: impl Fn(u32) -> bool) {
        for handle in &mut self.handles {
            for (kind, segment) in handle.open.extract_if(.., |(_, segment)| wanted(*segment)) {
                let Segment { keys, bytes, .. } = &self.segments[segment as usize];
                let items = u32::try_from(keys.len()).unwrap_or(u32::MAX);
                let queue = kind.queue;
                self.queues.push(segment, Sealed { queue, bytes: *bytes, items });
                if self.segments[segment as usize].dead * 100 >= self.segment_len * CLEAN_PERCENT {
                    self.cleanable.push(segment);
                }
            }
        }
    }

    /// Cleans or evicts segments until more than `wanted` segments are free in addition to the
    /// reserve, and returns true. If no further segment can be emptied, returns whether more than
    /// `wanted` segments are free including the reserve.
    fn make_room(&mut self, wanted: u64) -> bool {
        while self.free() <= self.reserve + wanted {
            let cleanable = std::iter::from_fn(|| self.cleanable.pop());
            let cleaned = cleanable.into_iter().find(|segment| self.queues.remove(*segment));
            if let Some(segment) = cleaned {
                self.empty_segment(segment, Reason::Clean);
                continue;
            }
            let hit_bytes = |segment| self.segments[segment as usize].hit_bytes;
            if let Some(victim) = self.queues.victim(hit_bytes) {
                self.queues.remove(victim.segment);
                self.empty_segment(victim.segment, Reason::Evict);
            } else if self.handles.iter().any(|handle| !handle.open.is_empty()) {
                self.seal_if(|_| true);
            } else {
                return self.free() > wanted;
            }
        }
        true
    }

    /// Moves or evicts the items of a segment. The caller has removed the segment from its queue.
    fn empty_segment(&mut self, segment: u32, reason: Reason) {
        let emptied = std::mem::replace(&mut self.segments[segment as usize], NO_SEGMENT);
        let mut evictions = 0;
        for key in emptied.keys {
            let item = self.items[key as usize];
            if item.segment != Some(segment) {
                continue;
            }
            evictions += u64::from(!self.keep(key, item, emptied.queue, reason));
        }
        self.empty.push(segment);
        self.ghosts.count_evictions(evictions, self.live);
    }

    /// Moves or evicts an item. Returns whether the cache still holds it. If no segment has enough
    /// free bytes for an item that should move, evicts the item.
    fn keep(&mut self, key: u32, item: Item, queue: Queue, reason: Reason) -> bool {
        let limit = &mut self.handles[self.next_handle].limit;
        let kept = match reason {
            Reason::Clean => Some((queue, item.freq)),
            Reason::Evict => match limit.verdict(queue, item.freq, item.inline) {
                Verdict::MoveToMain => Some((Queue::Main, 0)),
                Verdict::Reinsert(freq) => Some((Queue::Main, freq)),
                Verdict::Evict => None,
            },
        };
        if let (Some(from), Some((queue, freq))) = (item.segment, kept) {
            self.queues.remove_chain(from, item.chained);
            // The engine derives the lifetime class from the remaining TTL. Here, the simulation
            // has no current time, so it derives the class from the time between the start of the
            // stream and the expiry.
            if self.write(queue, key, Item { freq, ..item }, 0) {
                return true;
            }
        }
        self.ghosts.remember(key);
        self.remove(key);
        false
    }

    fn remove(&mut self, key: u32) {
        let item = std::mem::replace(&mut self.items[key as usize], NO_ITEM);
        let Some(segment) = item.segment else { return };
        self.queues.remove_chain(segment, item.chained);
        self.chained -= u64::from(item.chained);
        self.live -= 1;
        self.used -= item.size;
        let from = &mut self.segments[segment as usize];
        from.dead += item.inline;
        if from.dead * 100 >= self.segment_len * CLEAN_PERCENT {
            self.cleanable.push(segment);
        }
    }

    fn remove_expired(&mut self, now_ms: u64) {
        while let Some(Reverse((at, key))) = self.deadlines.peek().filter(|due| due.0.0 <= now_ms) {
            let (at, key) = (*at, *key);
            self.deadlines.pop();
            if self.items[key as usize].expires_ms == at {
                self.remove(key);
            }
        }
    }
}

/// Returns the lifetime class of an item. Items that expire at about the same time share segments.
/// The same function is in `memory/open_segment.rs`.
#[expect(clippy::cast_possible_truncation, reason = "less than 8")]
fn lifetime_class(expires_ms: u64, now_ms: u64) -> u8 {
    const SPAN_BITS: u32 = 22;
    if expires_ms == NEVER {
        return 0;
    }
    let mortal = LIFETIMES_MAX - 1;
    let left_secs = expires_ms.saturating_sub(now_ms) / 1000;
    1 + ((left_secs | 1).ilog2() * mortal / SPAN_BITS).min(mortal - 1) as u8
}

impl Policy for S3Fifo {
    fn look_up(&mut self, request: &Request) -> bool {
        self.remove_expired(request.now_ms);
        let item = self.items.get_mut(request.key as usize);
        let stored = item.and_then(|item| Some((item.segment?, item)));
        let Some((segment, item)) = stored else { return false };
        if item.freq == 0 {
            self.segments[segment as usize].hit_bytes += item.size;
        }
        item.freq = (item.freq + 1).min(FREQ_MAX);
        true
    }

    fn store(&mut self, request: &Request) {
        self.insert(request);
    }

    fn used(&self) -> u64 {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_bytes_are_those_of_items_in_the_segment() {
        let mut cache = S3Fifo::new(4 << 20, Settings::default());
        let check = |key| {
            cache.request(&Request { now_ms: 0, key, size: 200, ttl_secs: None });
            let of = |segment: &Segment| (segment.dead, segment.inline);
            cache
                .segments
                .iter()
                .filter(|segment| segment.inline > 0)
                .map(of)
                .all(|(dead, all)| dead <= all)
        };
        assert!((0..100_000).all(check));
    }
}
