//! The choice of the next segment to evict.

use super::SizeClass;
use super::lists::Lists;
use super::queue_kind::Queue;

/// The default exponent of item size: see [`Queues::new`]. In simulations, an exponent of 1 misses
/// fewer items than memcached, but up to 11 % more bytes.
pub const SIZE_EXPONENT: f64 = 0.7;

/// If the small queue has more than this percentage of all segments, it is evicted first, unless
/// the main queue yields.
const SMALL_SHARE_TARGET_PERCENT: u64 = 10;
/// If the small queue has more than this percentage of all segments, it is evicted first, even if
/// the main queue yields.
const SMALL_SHARE_FORCED_PERCENT: u64 = 90;
/// The main queue yields if less than this share of its next victim's bytes was hit: it is then
/// evicted first, unless the small queue exceeds [`SMALL_SHARE_FORCED_PERCENT`].
const YIELD_SHARE_MIN: f64 = 0.01;
/// The main queue also yields if the share of hit bytes in its next victim is less than this
/// fraction of the share in the small queue's next victim.
const YIELD_RATIO: f64 = 0.8;

const LISTS: usize = Queue::ALL.len() * SizeClass::COUNT;

/// The properties of a segment when it is sealed.
#[derive(Clone, Copy, Debug)]
pub struct Sealed {
    /// The queue that the segment is appended to.
    pub queue: Queue,
    /// The total length in bytes of the items that were written to the segment: records and chains.
    pub bytes: u64,
    /// The number of items that were written to the segment.
    pub items: u32,
}

/// The next segment to evict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// The queue that the segment is in.
    pub queue: Queue,
    /// The number of the segment.
    pub segment: u32,
}

/// The properties of a segment.
#[derive(Clone, Copy, Debug)]
struct Entry {
    queue: Queue,
    size: SizeClass,
    is_queued: bool,
    /// The total number of segments in the chains that belong to this segment's large values.
    chained: u32,
    /// The mean item size, raised to the exponent.
    factor: f64,
    /// The total length in bytes of the items that were written: see [`Sealed::bytes`].
    bytes: u64,
    /// The value of its queue's clock ([`Totals::pushed`]) when the segment was pushed or put back.
    pushed_at: u64,
}

const NEW: Entry = Entry {
    queue: Queue::Small,
    size: SizeClass::SMALLEST,
    is_queued: false,
    chained: 0,
    factor: 1.0,
    bytes: 0,
    pushed_at: 0,
};

/// A queue's totals.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    /// The number of segments in the queue's lists.
    queued: u64,
    /// The total number of segments in the chains that belong to this queue's items.
    chained: u64,
    /// The total length in bytes of the items in all segments pushed so far. This is the queue's
    /// clock.
    pushed: u64,
}

/// The small and the main queue. Each consists of one segment FIFO per size class.
#[derive(Debug)]
pub struct Queues {
    lists: Lists<LISTS>,
    entries: Vec<Entry>,
    totals: [Totals; 2],
    size_exponent: f64,
}

impl Queues {
    /// Returns empty queues for the segments 0 to `segments` − 1. Of two size classes, the class
    /// whose oldest segment has the larger `age × mean item size ^ size_exponent` is evicted first.
    /// The age of a segment is the number of bytes that were pushed to the queue since the segment
    /// itself was pushed. With an exponent of 0, item size has no effect. With 1, the fewest items
    /// are evicted for the memory gained.
    #[must_use]
    pub fn new(segments: usize, size_exponent: f64) -> Self {
        Self {
            lists: Lists::new(segments),
            entries: vec![NEW; segments],
            totals: [Totals::default(); 2],
            size_exponent,
        }
    }

    /// Raises the number of segments to `segments` if it is lower.
    pub fn extend(&mut self, segments: usize) {
        self.lists.extend(segments);
        self.entries.resize(segments.max(self.entries.len()), NEW);
    }

    /// Appends a newly sealed segment to its queue. Its mean item size selects the list. The class
    /// of this size may differ from the size class that the segment was opened for. The caller has
    /// already counted the segment's chains.
    pub fn push(&mut self, segment: u32, sealed: Sealed) {
        let mean = sealed.bytes / u64::from(sealed.items.max(1));
        let factor = (mean.max(1) as f64).powf(self.size_exponent);
        let Some(entry) = self.entries.get_mut(segment as usize) else { return };
        entry.size = SizeClass::of(mean);
        entry.factor = factor;
        entry.bytes = sealed.bytes;
        strict_assert!(entry.chained == 0 || entry.queue == sealed.queue);
        entry.queue = sealed.queue;
        self.totals[sealed.queue as usize].pushed += sealed.bytes;
        self.put_back(segment);
    }

    /// Puts back a segment that was removed from its queue but could not be emptied. The segment
    /// becomes the youngest of its list. Has no effect on a segment that is in a queue.
    pub fn put_back(&mut self, segment: u32) {
        let Some(entry) = self.entries.get_mut(segment as usize) else { return };
        if entry.is_queued {
            return;
        }
        let totals = &mut self.totals[entry.queue as usize];
        entry.is_queued = true;
        entry.pushed_at = totals.pushed;
        totals.queued += 1;
        self.lists.push_back(list(entry.queue, entry.size), segment);
    }

    /// Removes a segment from its queue, before it is cleaned or evicted. Returns false if the
    /// segment is in no queue.
    pub fn remove(&mut self, segment: u32) -> bool {
        let Some(entry) = self.entries.get_mut(segment as usize) else { return false };
        if !std::mem::take(&mut entry.is_queued) {
            return false;
        }
        self.totals[entry.queue as usize].queued -= 1;
        self.lists.remove(list(entry.queue, entry.size), segment);
        true
    }

    /// Counts the `chained` segments of a large value. Its item was written to `segment`, which
    /// belongs to `queue` and may still be open.
    pub fn add_chain(&mut self, segment: u32, queue: Queue, chained: u32) {
        let Some(entry) = self.entries.get_mut(segment as usize) else { return };
        strict_assert!(entry.chained == 0 || entry.queue == queue);
        entry.queue = queue;
        entry.chained += chained;
        self.totals[queue as usize].chained += u64::from(chained);
    }

    /// Subtracts the `chained` segments of an item that is dropped or moves to another segment.
    pub fn remove_chain(&mut self, segment: u32, chained: u32) {
        let Some(entry) = self.entries.get_mut(segment as usize) else { return };
        let removed = chained.min(entry.chained);
        entry.chained -= removed;
        self.totals[entry.queue as usize].chained -= u64::from(removed);
    }

    /// Returns the total number of segments in chains.
    #[must_use]
    pub fn chained(&self) -> u64 {
        self.totals.iter().map(|totals| totals.chained).sum()
    }

    /// Returns the next segment to evict, or `None` if no segment is queued. `hit_bytes` returns
    /// the number of bytes of a segment's items (records and chains) that were hit since the
    /// segment was written. It is called for at most one segment of each queue.
    pub fn victim(&self, hit_bytes: impl Fn(u32) -> u64) -> Option<Victim> {
        let (small, main) = match (self.oldest(Queue::Small), self.oldest(Queue::Main)) {
            (Some(small), Some(main)) => (small, main),
            (small, main) => return small.or(main),
        };
        let [small_weight, main_weight] = Queue::ALL.map(|queue| self.weight(queue));
        let is_above = |percent| small_weight * 100 > (small_weight + main_weight) * percent;
        let main_yields = || {
            let hit_share = |victim: Victim| {
                let bytes = self.entries[victim.segment as usize].bytes.max(1);
                // The hit bytes may exceed `bytes`, because items that have overwritten other items
                // count as hit, too. So they are limited to `bytes`.
                hit_bytes(victim.segment).min(bytes) as f64 / bytes as f64
            };
            hit_share(main) < (YIELD_RATIO * hit_share(small)).max(YIELD_SHARE_MIN)
        };
        let evicts_small = is_above(SMALL_SHARE_TARGET_PERCENT)
            && (is_above(SMALL_SHARE_FORCED_PERCENT) || !main_yields());
        Some(if evicts_small { small } else { main })
    }

    /// Returns the number of segments in the queue, plus those in the chains of its items.
    #[must_use]
    pub fn weight(&self, queue: Queue) -> u64 {
        let totals = &self.totals[queue as usize];
        totals.queued + totals.chained
    }

    /// Returns the number of segments in both queues, without chains.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.totals.iter().map(|totals| totals.queued).sum()
    }

    /// Returns whether no segment is queued.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the oldest segment of each nonempty list. Each queue has a list for each size class.
    pub fn fronts(&self) -> impl Iterator<Item = u32> {
        (0..LISTS).filter_map(|list| self.lists.front(list))
    }

    /// Returns the next victim of a queue, or `None` if the queue is empty.
    fn oldest(&self, queue: Queue) -> Option<Victim> {
        let now = self.totals[queue as usize].pushed;
        let lists = (0..SizeClass::COUNT).map(|class| queue as usize * SizeClass::COUNT + class);
        let fronts = lists.filter_map(|list| self.lists.front(list));
        let urgency = |segment: &u32| {
            let entry = &self.entries[*segment as usize];
            (now - entry.pushed_at + 1) as f64 * entry.factor
        };
        let segment = fronts.max_by(|a, b| urgency(a).total_cmp(&urgency(b)))?;
        Some(Victim { queue, segment })
    }
}

fn list(queue: Queue, size: SizeClass) -> usize {
    queue as usize * SizeClass::COUNT + usize::from(size.index())
}

#[cfg(test)]
mod tests {
    use super::*;
    use Queue::{Main, Small};

    const SEGMENT_LEN: u64 = 1000;

    fn push(queues: &mut Queues, queue: Queue, segment: u32, items: u32) {
        queues.push(segment, Sealed { queue, bytes: SEGMENT_LEN, items });
    }

    /// Returns queues of 40 segments. Each push contains a queue, its segments, and the number of
    /// items in each segment.
    fn queues(pushes: &[(Queue, std::ops::Range<u32>, u32)]) -> Queues {
        let mut queues = Queues::new(40, SIZE_EXPONENT);
        for (queue, segments, items) in pushes {
            segments.clone().for_each(|segment| push(&mut queues, *queue, segment, *items));
        }
        queues
    }

    fn evict(queues: &mut Queues) -> Option<(Queue, u32)> {
        let victim = queues.victim(|_| SEGMENT_LEN)?;
        assert!(queues.remove(victim.segment));
        Some((victim.queue, victim.segment))
    }

    #[test]
    fn the_small_queue_is_evicted_first_above_its_share() {
        let mut queues = queues(&[(Main, 0..10, 10), (Small, 20..21, 10)]);
        assert_eq!(evict(&mut queues), Some((Main, 0)), "1 of 11");
        assert_eq!(evict(&mut queues), Some((Main, 1)), "1 of 10");
        assert_eq!(evict(&mut queues), Some((Small, 20)), "1 of 9");
        assert_eq!(evict(&mut queues), Some((Main, 2)), "nothing else is left");
        queues.add_chain(2, Main, 20);
        push(&mut queues, Small, 21, 10);
        queues.add_chain(21, Small, 3);
        assert_eq!(evict(&mut queues), Some((Small, 21)), "chains count, too");
        assert_eq!([Small, Main].map(|queue| queues.weight(queue)), [3, 27]);
        queues.remove_chain(21, 3);
        assert_eq!(queues.weight(Small), 0);
    }

    #[test]
    fn with_one_size_each_queue_is_a_fifo() {
        let mut queues = queues(&[(Main, 3..9, 10)]);
        assert!(queues.remove(5) && !queues.remove(5));
        let order: Vec<u32> = std::iter::from_fn(|| evict(&mut queues)).map(|v| v.1).collect();
        assert_eq!(order, [3, 4, 6, 7, 8]);
        assert!(queues.is_empty());
    }

    /// The main queue contains 10 segments of ten items each, followed by 3 segments of `items`
    /// items each.
    #[test]
    fn larger_items_are_evicted_earlier_and_smaller_ones_later() {
        let cases = [
            // The later items are ten times as large. 10^0.7 is 5.01, so the ages 12, 11 and 10 are
            // compared with 2 × 5.01.
            (1, [0, 1, 10]),
            // The later items are a tenth as large.
            (100, [0, 1, 2]),
        ];
        for (items, expected) in cases {
            let mut queues = queues(&[(Main, 0..10, 10), (Main, 10..13, items)]);
            let order = [0; 3].map(|_| evict(&mut queues).map_or(99, |victim| victim.1));
            assert_eq!(order, expected, "{items} items in a segment");
        }
    }

    #[test]
    fn main_yields_where_it_is_hit_less() {
        // Each case contains the number of small segments, the number of main segments, the hit
        // bytes (of 1000) of the oldest small and of the oldest main segment, and the queue that is
        // evicted.
        let cases = [
            (5, 5, 100, 70, Main),
            (5, 5, 100, 90, Small),
            (5, 5, 0, 5, Main),
            (5, 5, 0, 20, Small),
            (1, 19, 0, 1000, Main),
            (19, 1, 1000, 0, Small),
        ];
        for (small, main, small_hits, main_hits, queue) in cases {
            let queues = queues(&[(Small, 0..small, 10), (Main, 20..20 + main, 10)]);
            let hits = |segment| if segment < 20 { small_hits } else { main_hits };
            let victim = queues.victim(hits).map(|victim| victim.queue);
            assert_eq!(victim, Some(queue), "{small}:{main}, {small_hits}:{main_hits}");
        }
    }

    #[test]
    fn a_segment_that_is_put_back_is_the_youngest() {
        let mut queues = queues(&[(Main, 0..3, 10)]);
        assert!(queues.remove(0));
        queues.put_back(0);
        queues.put_back(0);
        assert_eq!(queues.fronts().next(), Some(1));
        assert_eq!(queues.len(), 3);
    }

    #[test]
    fn numbers_beyond_the_last_segment_are_ignored() {
        let mut queues = queues(&[]);
        push(&mut queues, Main, 40, 1);
        queues.add_chain(40, Main, 1);
        queues.remove_chain(40, 1);
        queues.put_back(40);
        assert!(!queues.remove(40) && queues.is_empty());
        assert_eq!(queues.victim(|_| 0), None);
    }
}
