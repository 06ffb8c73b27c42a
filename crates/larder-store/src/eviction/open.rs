//! Chooses the open segment that receives an item. The number of open segments is limited, so not
//! every kind of item can have a segment of its own.

use super::SizeClass;
use super::queue_kind::Queue;

/// The kind of an item. Items of a kind share segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// The queue that the segment of the item joins after it is sealed.
    pub queue: Queue,
    /// The lifetime class. Items of one class expire at about the same time. Items of class 0 never
    /// expire, unless the cache is so small that it has no other class.
    pub lifetime: u8,
    /// The size class of the item.
    pub size: SizeClass,
}

/// The share of all segments that may be open, in percent. In a simulation, four threads that share
/// 25 MiB have too few open segments to separate large and small items. With log-normal sizes, a
/// share of 3 % misses 1.3 % more items than a share of 4 %. A share of 8 % misses 1.9 % fewer, and
/// 16 % gains nothing more.
const OPEN_PERCENT: usize = 4;

/// Returns the number of segments that each of `threads` handles may have open: together 4 % of all
/// `segments`, but at least one for each queue.
#[must_use]
pub fn open_budget(segments: usize, threads: usize) -> usize {
    (segments * OPEN_PERCENT / 100 / threads.max(1)).max(Queue::ALL.len())
}

/// Limits the total number of segments in the chains that belong to one open segment. The maximum
/// is the number of all segments, divided by this number and by the number of threads.
const CHAINED_SHARE: usize = 64;

/// Returns the maximum total number of segments in the chains that belong to one open segment. A
/// handle that reaches it seals the segment, because other handles can't evict items of an open
/// segment. The maximum is divided by the number of `threads`. Without this division, a simulation
/// of four threads with log-normal sizes (median 1 KiB, sigma 2) had 3 % more misses.
#[must_use]
pub fn chained_max(segments: usize, threads: usize) -> usize {
    (segments / CHAINED_SHARE / threads.max(1)).max(1)
}

/// The segment that receives an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The open segment at this position in the argument `open` of [`choose_segment`].
    Open(usize),
    /// A new segment of the wanted kind.
    New,
}

/// Chooses the segment for an item among the `open` segments of a handle. Takes the first of these
/// choices that is possible:
///
/// 1. the segment of the item's own kind,
/// 2. a new segment, if fewer than `budget` are open,
/// 3. the nearest size class of the item's queue and lifetime class,
/// 4. the nearest lifetime class of the item's queue.
///
/// The small queue has at most half of the budget, because the main queue gains more by separating
/// sizes. A queue without an open segment always gets one, and the other queue leaves room for it
/// in the budget.
///
/// If the segment has no room for the item, the caller seals it and opens a segment of the wanted
/// kind.
pub fn choose_segment(
    wanted: Kind,
    open: impl Iterator<Item = Kind> + Clone,
    budget: usize,
) -> Placement {
    let of_queue = |queue| open.clone().filter(move |kind: &Kind| kind.queue == queue).count();
    let [own, other] = [wanted.queue, wanted.queue.other()].map(of_queue);
    let own_max = if wanted.queue == Queue::Small { budget / 2 } else { budget };
    let may_open = own == 0 || own < own_max && own + other.max(1) < budget;
    let distance =
        |kind: &Kind| (kind.lifetime.abs_diff(wanted.lifetime), kind.size.distance(wanted.size));
    let nearest = open
        .enumerate()
        .filter(|(_, kind)| kind.queue == wanted.queue)
        .min_by_key(|(_, kind)| distance(kind));
    match nearest {
        Some((i, kind)) if kind == wanted || !may_open => Placement::Open(i),
        _ => Placement::New,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind((queue, lifetime, size): (Queue, u8, u8)) -> Kind {
        Kind { queue, lifetime, size: SizeClass::from_index(size) }
    }

    #[test]
    fn items_go_to_the_nearest_open_segment_once_the_budget_is_used_up() {
        use Placement::{New, Open};
        use Queue::{Main, Small};
        let some = &[(Small, 0, 2), (Small, 3, 5), (Main, 0, 2)][..];
        let main = &[(Main, 0, 2), (Main, 0, 5)][..];
        let cases = [
            // Each case contains the wanted kind, the open segments, the budget and the placement.
            ((Small, 0, 2), some, 9, Open(0)),
            ((Small, 0, 3), some, 9, New),
            ((Small, 0, 3), some, 6, New),
            ((Small, 0, 3), some, 5, Open(0)),
            ((Main, 0, 3), some, 4, New),
            ((Small, 0, 3), some, 3, Open(0)),
            ((Small, 0, 6), some, 3, Open(0)),
            ((Small, 3, 0), some, 3, Open(1)),
            ((Small, 5, 2), some, 3, Open(1)),
            ((Small, 1, 5), some, 3, Open(0)),
            ((Main, 7, 9), some, 3, Open(2)),
            ((Main, 7, 9), &some[..2], 2, New),
            // The last open segment is reserved for the small queue.
            ((Main, 0, 3), main, 3, Open(0)),
            ((Main, 0, 3), main, 4, New),
            ((Small, 0, 3), main, 3, New),
            ((Small, 0, 3), &[], 2, New),
            ((Small, 0, 3), &[], 0, New),
        ];
        for (i, (wanted, open, budget, placement)) in cases.into_iter().enumerate() {
            let open = open.iter().copied().map(kind);
            assert_eq!(choose_segment(kind(wanted), open, budget), placement, "case {i}");
        }
    }

    #[test]
    fn all_handles_together_have_4_percent_open() {
        let cases = [((1024, 1), 40), ((1024, 4), 10), ((64, 4), 2), ((0, 0), 2)];
        for ((segments, threads), budget) in cases {
            assert_eq!(open_budget(segments, threads), budget, "{segments}, {threads}");
        }
    }
}
