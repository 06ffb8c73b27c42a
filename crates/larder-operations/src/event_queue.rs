//! A bounded queue of events for one watcher. Adding an event never waits for the watcher: a full
//! queue counts further events as lost.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::SystemTime;

/// The maximum number of events in a queue.
const EVENTS_MAX: usize = 4096;
/// The maximum total length, in bytes, of the keys in a queue.
const KEYS_LEN_MAX: usize = 128 << 10;

/// The maximum memory of a queue, in bytes.
pub const EVENT_QUEUE_LEN_MAX: usize = KEYS_LEN_MAX + EVENTS_MAX * size_of::<OwnedEvent>();

/// The kind of an event. An [`EventFilter`] selects some of the kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EventKind {
    /// A key was looked up, and there was an item.
    Hit,
    /// A key was looked up, and there was no item.
    Miss,
    /// An item was stored.
    Stored,
    /// An item was removed by a client.
    Removed,
    /// An item was evicted.
    Evicted,
}

/// A set of event kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventKinds(u8);

impl EventKinds {
    /// All kinds.
    pub const ALL: Self = Self(0b1_1111);

    /// Returns the set with `kind` added.
    #[must_use]
    pub fn with(self, kind: EventKind) -> Self {
        Self(self.0 | 1 << kind as u8)
    }

    /// Returns whether the set contains `kind`.
    #[must_use]
    pub fn has(self, kind: EventKind) -> bool {
        self.0 & 1 << kind as u8 != 0
    }
}

/// The conditions that select a watcher's events.
#[derive(Clone, Debug)]
pub struct EventFilter {
    /// The kinds of the selected events.
    pub kinds: EventKinds,
    /// The prefix of the keys. The empty prefix matches every key.
    pub prefix: Vec<u8>,
    /// The filter selects one in this many events, at random. 0 and 1 select every event.
    pub one_in: u32,
}

/// A lookup, store, removal or eviction of one item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemEvent<K> {
    /// Lookup hit, lookup miss, store, removal or eviction.
    pub kind: EventKind,
    /// The key of the item.
    pub key: K,
    /// The length of the item's value in bytes; 0 for a miss.
    pub value_len: usize,
    /// The seconds until a stored or evicted item expires; `None` if the item never expires, and
    /// for other kinds of events.
    pub ttl: Option<u32>,
    /// The time of the event.
    pub time: SystemTime,
}

/// An event that owns its key.
pub type OwnedEvent = ItemEvent<Box<[u8]>>;

/// An entry that a watcher reads from its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEntry {
    /// An event that the watcher's filter selects.
    Event(OwnedEvent),
    /// The number of events that are missing at this position, because the queue was full.
    Lost(u64),
}

/// The queue of events for one watcher.
#[derive(Debug)]
pub struct EventQueue {
    filter: EventFilter,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    events: VecDeque<OwnedEvent>,
    /// The total length, in bytes, of the keys in `events`.
    keys_len: usize,
    /// The number of events lost since the last queued event.
    lost: u64,
    /// The number of events to skip before the next queued event.
    gap: u64,
    /// The state of the random generator, never 0.
    random: u64,
    waker: Option<Waker>,
}

impl EventQueue {
    /// Returns an empty queue. `seed` seeds the random choice of sampled events.
    #[must_use]
    pub fn new(filter: EventFilter, seed: u64) -> Self {
        let random = seed | 1;
        let (events, waker) = Default::default();
        let mut state = State { events, keys_len: 0, lost: 0, gap: 0, random, waker };
        state.draw_gap(filter.one_in);
        Self { filter, state: Mutex::new(state) }
    }

    /// Returns the kinds of events that the filter accepts.
    #[must_use]
    pub fn kinds(&self) -> EventKinds {
        self.filter.kinds
    }

    /// Adds an event if the filter selects it. Counts it as lost if the queue is full, or if the
    /// watcher has not yet read the count of earlier lost events.
    pub fn push(&self, event: &ItemEvent<&[u8]>) {
        let ItemEvent { kind, key, value_len, ttl, time } = *event;
        if !self.filter.kinds.has(kind) || !key.starts_with(&self.filter.prefix) {
            return;
        }
        let mut state = self.lock();
        if state.gap > 0 {
            state.gap -= 1;
            return;
        }
        state.draw_gap(self.filter.one_in);
        let is_full = state.events.len() >= EVENTS_MAX || state.keys_len + key.len() > KEYS_LEN_MAX;
        // After a loss, drop all further events until the watcher has read the number of lost
        // events. This way, one number covers many lost events.
        if is_full || state.lost > 0 {
            state.lost += 1;
            return;
        }
        state.keys_len += key.len();
        state.events.push_back(OwnedEvent { kind, key: key.into(), value_len, ttl, time });
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Polls the next entry. If the queue is empty, stores the task's waker, which the next event
    /// wakes.
    pub fn poll_next(&self, cx: &mut Context<'_>) -> Poll<WatchEntry> {
        let mut state = self.lock();
        if let Some(event) = state.events.pop_front() {
            state.keys_len -= event.key.len();
            return Poll::Ready(WatchEntry::Event(event));
        }
        if state.lost > 0 {
            return Poll::Ready(WatchEntry::Lost(std::mem::take(&mut state.lost)));
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change leaves the state consistent, so a poisoned lock is safe to use.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Draws the number of events to skip: `one_in - 1` on average.
    fn draw_gap(&mut self, one_in: u32) {
        if one_in <= 1 {
            return;
        }
        // Xorshift (Marsaglia 2003).
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.gap = self.random % (2 * u64::from(one_in) - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_wakes::Wakes;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    fn queue(kinds: EventKinds, prefix: &[u8], one_in: u32) -> EventQueue {
        EventQueue::new(EventFilter { kinds, prefix: prefix.to_vec(), one_in }, 42)
    }

    fn push(queue: &EventQueue, kind: EventKind, key: &[u8], value_len: usize, ttl: Option<u32>) {
        queue.push(&ItemEvent { kind, key, value_len, ttl, time: SystemTime::UNIX_EPOCH });
    }

    fn read(queue: &EventQueue) -> Vec<WatchEntry> {
        let mut cx = Context::from_waker(Waker::noop());
        std::iter::from_fn(|| match queue.poll_next(&mut cx) {
            Poll::Ready(watched) => Some(watched),
            Poll::Pending => None,
        })
        .collect()
    }

    #[test]
    fn a_queue_keeps_only_events_that_match_its_filter() {
        let kinds = EventKinds::default().with(EventKind::Miss).with(EventKind::Removed);
        let queue = queue(kinds, b"user:", 1);
        push(&queue, EventKind::Miss, b"user:1", 0, None);
        push(&queue, EventKind::Hit, b"user:1", 7, None);
        push(&queue, EventKind::Miss, b"page:1", 0, None);
        push(&queue, EventKind::Removed, b"user:2", 3, Some(4));
        let seen: Vec<(EventKind, String, usize, Option<u32>)> = read(&queue)
            .into_iter()
            .map(|watched| match watched {
                WatchEntry::Event(OwnedEvent { kind, key, value_len, ttl, .. }) => {
                    (kind, String::from_utf8_lossy(&key).into_owned(), value_len, ttl)
                }
                WatchEntry::Lost(lost) => panic!("{lost} events are lost"),
            })
            .collect();
        let expected = [
            (EventKind::Miss, "user:1".to_owned(), 0, None),
            (EventKind::Removed, "user:2".to_owned(), 3, Some(4)),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_slow_watcher_reads_the_number_of_lost_events() {
        for (key, pushed) in [(&[b'k'; 1024][..], 1000), (b"k", 10_000)] {
            let queue = queue(EventKinds::ALL, b"", 0);
            (0..pushed).for_each(|_| push(&queue, EventKind::Stored, key, 1, None));
            let seen = read(&queue);
            let (last, events) = seen.split_last().unwrap();
            assert!(events.iter().all(|watched| matches!(watched, WatchEntry::Event(_))));
            assert!((100..pushed).contains(&events.len()));
            assert_eq!(*last, WatchEntry::Lost((pushed - events.len()) as u64));
            push(&queue, EventKind::Stored, key, 1, None);
            assert!(matches!(read(&queue)[..], [WatchEntry::Event(_)]));
        }
    }

    #[test]
    fn sampling_keeps_about_one_event_in_a_hundred() {
        let queue = queue(EventKinds::ALL, b"", 100);
        let mut seen = 0;
        for _ in 0..1000 {
            (0..100).for_each(|_| push(&queue, EventKind::Hit, b"k", 1, None));
            seen += read(&queue).len();
        }
        assert!((900..1100).contains(&seen), "{seen}");
    }

    #[test]
    fn a_waiting_watcher_is_woken_once() {
        let (queue, wakes) = (queue(EventKinds::ALL, b"", 0), Arc::new(Wakes::default()));
        let waker = Waker::from(Arc::clone(&wakes));
        assert!(queue.poll_next(&mut Context::from_waker(&waker)).is_pending());
        (0..10).for_each(|_| push(&queue, EventKind::Hit, b"k", 1, None));
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        assert_eq!(read(&queue).len(), 10);
    }
}
