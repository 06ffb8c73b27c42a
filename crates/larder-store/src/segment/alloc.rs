//! Which segment is free, which waits in which queue, and which goes next. Taken under one lock,
//! once a segment: never on the path of a request that finds room in its open segment.
#![expect(clippy::cast_possible_truncation, reason = "fields are cut out of a word")]

use std::collections::VecDeque;

/// The two queues of S3-FIFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// New items: what is not asked for again leaves from here.
    Small = 0,
    /// Items that were asked for again.
    Main = 1,
}

/// A queue and a lifetime class, as kept in the segment table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) queue: Queue,
    pub(super) class: u8,
}

impl Kind {
    pub(super) fn to_word(self) -> u32 {
        (self.queue as u32) << 8 | u32::from(self.class)
    }

    pub(super) fn from_word(word: u32) -> Self {
        let queue = if word >> 8 & 1 == 0 { Queue::Small } else { Queue::Main };
        Self { queue, class: word as u8 }
    }
}

/// The share of all segments that the small queue may have before it is drained first: a tenth.
const SMALL_SHARE: usize = 10;

/// Free segments and queues.
#[derive(Debug)]
pub(super) struct Alloc {
    /// The last one goes first. Those that were never in use come last.
    free: Vec<u32>,
    /// Segments from this number on were never in use: their memory was never touched.
    untouched: u32,
    /// How many untouched segments are taken before the queues are looked through again for what
    /// could be cleaned instead.
    unsought: usize,
    queues: [VecDeque<u32>; 2],
    /// Segments in chains of items of each queue.
    chained: [usize; 2],
    /// Segments that wait for the epoch to pass.
    pub(super) limbo: usize,
    /// Segments held by uploads.
    pub(super) uploading: usize,
    /// Segments that the index and the ghosts have.
    pub(super) indexing: usize,
    /// Segments without memory: what the limit may yet grow by.
    absent: Vec<u32>,
    /// Segments that there may be.
    limit: usize,
    /// Segments that there are. More than the limit after it was lowered.
    present: usize,
}

impl Alloc {
    /// `limit` free segments, of up to `segments` that there may be later.
    pub(super) fn new(limit: u32, segments: u32) -> Self {
        Self {
            free: (0..limit).rev().collect(),
            untouched: 0,
            unsought: 0,
            absent: (limit..segments).rev().collect(),
            queues: [VecDeque::new(), VecDeque::new()],
            chained: [0; 2],
            limbo: 0,
            uploading: 0,
            indexing: 0,
            limit: limit as usize,
            present: limit as usize,
        }
    }

    /// Takes a free segment if more than `reserve` are.
    pub(super) fn take(&mut self, reserve: usize) -> Option<u32> {
        let segment = if self.free.len() > reserve { self.free.pop()? } else { return None };
        self.untouched = self.untouched.max(segment + 1);
        Some(segment)
    }

    /// If fewer than two of the free segments, now or soon, have been in use before: takes one out of
    /// the queues that is worth being emptied. A look that finds none is not repeated before the
    /// queues have grown by an eighth, so that filling a large cache stays cheap.
    pub(super) fn take_before_untouched(
        &mut self,
        worth: impl Fn(u32) -> Option<u32>,
    ) -> Option<u32> {
        let is_touched = |segment: &&u32| **segment < self.untouched;
        let touched = self.free.iter().rev().take(2).filter(is_touched).count();
        if touched + self.limbo >= 2 || self.free.first().is_none_or(|s| is_touched(&s)) {
            return None;
        }
        if self.unsought > 0 {
            self.unsought -= 1;
            return None;
        }
        let best = self.take_best(worth);
        if best.is_none() {
            self.unsought = self.queues.iter().map(VecDeque::len).sum::<usize>() / 8;
        }
        best
    }

    pub(super) fn give_back(&mut self, segment: u32) {
        debug_assert!(!self.free.contains(&segment), "freed twice");
        self.free.push(segment);
    }

    /// Free segments, and those that will be.
    pub(super) fn in_sight(&self) -> usize {
        self.free.len() + self.limbo
    }

    /// Segments that were ever in use.
    #[cfg(test)]
    pub(super) fn touched(&self) -> usize {
        self.untouched as usize
    }

    pub(super) fn used(&self) -> usize {
        self.present - self.free.len()
    }

    /// Changes how many segments there may be. New ones are free at once; for a lower limit see
    /// [`Alloc::excess`].
    pub(super) fn set_limit(&mut self, segments: usize) {
        self.limit = segments;
        let more = self.limit.saturating_sub(self.present).min(self.absent.len());
        let new = self.absent.split_off(self.absent.len() - more);
        self.free.splice(0..0, new);
        self.present += more;
    }

    /// Segments above the limit.
    pub(super) fn excess(&self) -> usize {
        self.present.saturating_sub(self.limit)
    }

    /// Takes in a segment that was free and has given its memory back. The limit may have been
    /// raised in the meantime.
    pub(super) fn park(&mut self, segment: u32) {
        if self.excess() == 0 {
            return self.free.push(segment);
        }
        self.absent.push(segment);
        self.present -= 1;
    }

    pub(super) fn enqueue(&mut self, kind: Kind, segment: u32) {
        self.queues[kind.queue as usize].push_back(segment);
    }

    /// Counts a chain in or out of its item's queue.
    pub(super) fn count_chain(&mut self, queue: Queue, segments: usize, arrives: bool) {
        let chained = &mut self.chained[queue as usize];
        *chained = if arrives { *chained + segments } else { chained.saturating_sub(segments) };
    }

    /// Takes the segment out of the queues whose `worth` is the highest, if any is worth something.
    pub(super) fn take_best(&mut self, worth: impl Fn(u32) -> Option<u32>) -> Option<u32> {
        let all = self.queues.iter().enumerate();
        let places =
            all.flat_map(|(q, queue)| queue.iter().enumerate().map(move |(i, s)| (q, i, *s)));
        let rated = places.filter_map(|(q, i, segment)| worth(segment).map(|worth| (worth, q, i)));
        let (_, queue, i) = rated.max_by_key(|(worth, ..)| *worth)?;
        self.queues[queue].remove(i)
    }

    /// Takes the segment that eviction looks at next.
    pub(super) fn take_oldest(&mut self) -> Option<(Queue, u32)> {
        let [small, main] = [Queue::Small, Queue::Main].map(|q| self.weight(q));
        let small_first = small * SMALL_SHARE > small + main;
        let order = [Queue::Small, Queue::Main];
        let order = if small_first { order } else { [order[1], order[0]] };
        order.into_iter().find_map(|q| Some((q, self.queues[q as usize].pop_front()?)))
    }

    fn weight(&self, queue: Queue) -> usize {
        self.queues[queue as usize].len() + self.chained[queue as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Kind = Kind { queue: Queue::Small, class: 0 };
    const MAIN: Kind = Kind { queue: Queue::Main, class: 3 };

    #[test]
    fn a_kind_survives_the_table() {
        assert_eq!(Kind::from_word(MAIN.to_word()), MAIN);
        assert_eq!(Kind::from_word(SMALL.to_word()), SMALL);
    }

    #[test]
    fn the_small_queue_goes_first_only_above_its_share() {
        let mut alloc = Alloc::new(32, 40);
        (0..10).for_each(|segment| alloc.enqueue(MAIN, segment));
        alloc.enqueue(SMALL, 20);
        assert_eq!(alloc.take_oldest(), Some((Queue::Main, 0)));
        alloc.enqueue(SMALL, 21);
        assert_eq!(alloc.take_oldest(), Some((Queue::Small, 20)));
        alloc.count_chain(Queue::Small, 5, true);
        assert_eq!(alloc.take_oldest(), Some((Queue::Small, 21)));
        assert_eq!(alloc.take_oldest(), Some((Queue::Main, 1)), "the only one left");
    }

    #[test]
    fn the_best_is_taken_from_the_middle() {
        let mut alloc = Alloc::new(32, 40);
        (0..4).for_each(|segment| alloc.enqueue(MAIN, segment));
        assert_eq!(alloc.take_best(|segment| (segment < 3).then_some(segment)), Some(2));
        assert_eq!(alloc.take_best(|_| None), None);
    }

    #[test]
    fn a_reserve_is_left() {
        let mut alloc = Alloc::new(32, 40);
        assert_eq!((0..40).filter_map(|_| alloc.take(5)).count(), 27);
        assert_eq!(alloc.used(), 27);
    }

    #[test]
    fn the_untouched_are_taken_last_and_what_could_be_cleaned_is_looked_for_now_and_then() {
        let mut alloc = Alloc::new(32, 40);
        let taken: Vec<u32> = (0..16).filter_map(|_| alloc.take(0)).collect();
        taken.iter().for_each(|&segment| alloc.enqueue(MAIN, segment));
        let looks = std::cell::Cell::new(0);
        let worth = |segment| {
            looks.set(looks.get() + 1);
            (segment == 7).then_some(1)
        };
        assert_eq!(alloc.take_before_untouched(worth), Some(7));
        assert_eq!(looks.replace(0), 16);
        assert_eq!(alloc.take_before_untouched(worth), None);
        assert_eq!(alloc.take_before_untouched(worth), None);
        assert_eq!(looks.replace(0), 15, "the second time it did not look");
        assert_eq!(alloc.take_before_untouched(worth), None);
        assert_eq!(looks.replace(0), 15);
        (7..9).for_each(|segment| alloc.give_back(segment));
        alloc.set_limit(40);
        assert_eq!(alloc.take_before_untouched(|_| panic!("two were used before")), None);
        assert_eq!([0; 3].map(|reserve| alloc.take(reserve)), [Some(8), Some(7), Some(16)]);
    }

    #[test]
    fn the_limit_grows_at_once_and_shrinks_as_segments_are_parked() {
        let mut alloc = Alloc::new(32, 40);
        alloc.set_limit(100);
        assert_eq!((alloc.in_sight(), alloc.excess()), (40, 0));
        alloc.set_limit(30);
        assert_eq!((alloc.in_sight(), alloc.excess()), (40, 10));
        while alloc.excess() > 0 {
            let segment = alloc.take(0).unwrap();
            alloc.park(segment);
        }
        assert_eq!((alloc.in_sight(), alloc.used()), (30, 0));
        alloc.set_limit(31);
        assert_eq!(alloc.in_sight(), 31);
    }
}
