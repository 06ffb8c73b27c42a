//! The queue of invalidation messages for one connection.

use super::wakes::wake;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// The maximum number of keys in an inbox.
const KEYS_MAX: usize = 4096;
/// The maximum memory of an inbox, in bytes.
const LEN_MAX: usize = 256 << 10;
/// The memory in bytes that a key needs in addition to its own bytes: its entry, and the overhead
/// of its allocation.
const KEY_OVERHEAD: usize = 48;

/// A memory budget that all inboxes share.
#[derive(Debug)]
pub(super) struct InboxBudget {
    used: AtomicUsize,
    max: usize,
}

impl InboxBudget {
    /// Returns a budget of `max` bytes.
    pub(super) fn new(max: usize) -> Self {
        Self { used: AtomicUsize::new(0), max }
    }

    /// Returns the number of bytes in use.
    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn take(&self, len: usize) -> bool {
        let fits = self.used.fetch_add(len, Ordering::Relaxed) + len <= self.max;
        if !fits {
            self.give(len);
        }
        fits
    }

    fn give(&self, len: usize) {
        self.used.fetch_sub(len, Ordering::Relaxed);
    }
}

/// An invalidation message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invalidation {
    /// The items under these keys may have changed; there is at least one key.
    Keys(Vec<Box<[u8]>>),
    /// Any item may have changed.
    All,
    /// The connection that receives this connection's redirected messages has closed.
    Broken,
}

/// A bounded queue of messages. If the queue is full, or if all inboxes together would exceed their
/// memory budget, one message about all items replaces its messages.
#[derive(Debug)]
pub struct Inbox {
    state: Mutex<State>,
    budget: Arc<InboxBudget>,
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.lock().clear(&self.budget);
    }
}

#[derive(Debug, Default)]
struct State {
    /// Changed keys that are not sent with a prefix. Each key has a message of its own.
    keys: VecDeque<Box<[u8]>>,
    /// Changed keys, grouped by prefix. All keys of a prefix share a message.
    batches: BTreeMap<Box<[u8]>, BTreeSet<Box<[u8]>>>,
    /// The number of keys and prefixes.
    count: usize,
    /// The memory of the keys and prefixes, in bytes.
    len: usize,
    /// Whether the next message is about all items.
    is_all: bool,
    is_broken: bool,
    is_closed: bool,
    /// The waker to call at the next message.
    waker: Option<Waker>,
}

impl Inbox {
    /// Returns an empty inbox.
    pub(super) fn new(budget: Arc<InboxBudget>) -> Self {
        Self { state: Mutex::default(), budget }
    }

    /// Returns the next message, or `None` if the inbox is empty. An empty inbox stores a waker,
    /// and calls it when a message arrives. The inbox calls `waker` to create a waker only if it
    /// does not already store one.
    pub fn next(&self, waker: impl FnOnce() -> Waker) -> Option<Invalidation> {
        let mut state = self.lock();
        let message = state.next(&self.budget);
        if message.is_none() && state.waker.is_none() {
            state.waker = Some(waker());
        }
        message
    }

    /// Returns whether there is no message.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Drops all messages, and refuses further ones.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.clear(&self.budget);
        *state = State { is_closed: true, ..State::default() };
    }

    /// Adds a message about a key. Returns false if the inbox is closed.
    pub(super) fn push_key(&self, key: &[u8]) -> bool {
        self.push(|state| {
            if state.has_room(key, &self.budget) {
                state.keys.push_back(key.into());
            }
        })
    }

    /// Adds a key to the message about keys with this prefix. Returns false if the inbox is closed.
    pub(super) fn push_in_batch(&self, prefix: &[u8], key: &[u8]) -> bool {
        self.push(|state| {
            let batch = state.batches.get(prefix);
            if batch.is_some_and(|batch| batch.contains(key))
                || batch.is_none() && !state.has_room(prefix, &self.budget)
            {
                return;
            }
            if state.has_room(key, &self.budget) {
                state.batches.entry(prefix.into()).or_default().insert(key.into());
            }
        })
    }

    /// Adds a message about all items. Returns false if the inbox is closed.
    pub(super) fn push_all(&self) -> bool {
        self.push(|state| state.set_all(&self.budget))
    }

    /// Adds the message [`Invalidation::Broken`].
    pub(super) fn push_broken(&self) {
        self.push(|state| state.is_broken = true);
    }

    fn push(&self, add: impl FnOnce(&mut State)) -> bool {
        let mut state = self.lock();
        if state.is_closed {
            return false;
        }
        add(&mut state);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            wake(waker);
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.batches.is_empty() && !self.is_all && !self.is_broken
    }

    /// Removes and returns the next message.
    fn next(&mut self, budget: &InboxBudget) -> Option<Invalidation> {
        if std::mem::take(&mut self.is_broken) {
            return Some(Invalidation::Broken);
        }
        if std::mem::take(&mut self.is_all) {
            return Some(Invalidation::All);
        }
        let memory = |key: &[u8]| KEY_OVERHEAD + key.len();
        let (prefix, keys) = match self.keys.pop_front() {
            Some(key) => (None, vec![key]),
            None => {
                let (prefix, keys) = self.batches.pop_first()?;
                (Some(prefix), keys.into_iter().collect())
            }
        };
        self.count -= keys.len() + prefix.iter().len();
        let len = keys.iter().chain(&prefix).map(|key| memory(key)).sum();
        self.len -= len;
        budget.give(len);
        Some(Invalidation::Keys(keys))
    }

    /// Counts a key that the caller is about to add. Returns false if the caller must not add it,
    /// because a message about all items already includes it.
    fn has_room(&mut self, key: &[u8], budget: &InboxBudget) -> bool {
        if self.is_all {
            return false;
        }
        let len = KEY_OVERHEAD + key.len();
        let is_full = self.count >= KEYS_MAX || self.len + len > LEN_MAX;
        if is_full || !budget.take(len) {
            self.set_all(budget);
            return false;
        }
        self.len += len;
        self.count += 1;
        true
    }

    fn set_all(&mut self, budget: &InboxBudget) {
        self.clear(budget);
        self.is_all = true;
    }

    fn clear(&mut self, budget: &InboxBudget) {
        self.keys = VecDeque::new();
        self.batches = BTreeMap::new();
        self.count = 0;
        budget.give(std::mem::take(&mut self.len));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_wakes::Wakes;

    fn inbox() -> Inbox {
        Inbox::new(Arc::new(InboxBudget::new(1 << 20)))
    }

    fn all(inbox: &Inbox) -> Vec<Invalidation> {
        std::iter::from_fn(|| inbox.next(|| Waker::noop().clone())).collect()
    }

    fn keys(keys: &[&str]) -> Invalidation {
        Invalidation::Keys(keys.iter().map(|key| key.as_bytes().into()).collect())
    }

    #[test]
    fn keys_have_a_message_each_or_share_one() {
        let inbox = inbox();
        for key in ["b", "a"] {
            assert!(inbox.push_key(key.as_bytes()));
        }
        for (prefix, key) in [("d", "d2"), ("c", "c"), ("d", "d1"), ("d", "d2"), ("", "c")] {
            assert!(inbox.push_in_batch(prefix.as_bytes(), key.as_bytes()));
        }
        let batches = [keys(&["c"]), keys(&["c"]), keys(&["d1", "d2"])];
        assert_eq!(all(&inbox), [&[keys(&["b"]), keys(&["a"])][..], &batches].concat());
        assert!(inbox.is_empty());
        assert_eq!(inbox.budget.used(), 0);
    }

    #[test]
    fn a_full_inbox_holds_one_message_about_all_items() {
        for (key_len, count) in [(1000, LEN_MAX / (1000 + KEY_OVERHEAD)), (8, KEYS_MAX)] {
            let inbox = inbox();
            let key = |number: usize| format!("{number:0key_len$}");
            (0..count).for_each(|number| assert!(inbox.push_key(key(number).as_bytes())));
            assert_eq!(all(&inbox).len(), count);
            (0..=count)
                .for_each(|number| assert!(inbox.push_in_batch(b"", key(number).as_bytes())));
            assert_eq!(all(&inbox), [Invalidation::All]);
            inbox.push_key(b"k");
            assert_eq!(all(&inbox), [keys(&["k"])]);
        }
    }

    #[test]
    fn inboxes_share_their_memory() {
        let budget = Arc::new(InboxBudget::new(100 << 10));
        let inboxes: Vec<_> = (0..10).map(|_| Inbox::new(Arc::clone(&budget))).collect();
        for number in 0..1000 {
            inboxes
                .iter()
                .for_each(|inbox| assert!(inbox.push_key(format!("{number:020}").as_bytes())));
            assert!(budget.used() <= 100 << 10);
        }
        assert!(inboxes.iter().all(|inbox| !inbox.is_empty()));
        assert_eq!(all(&inboxes[0]), [Invalidation::All]);
        inboxes[1].close();
        drop(inboxes);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_message_about_all_items_includes_earlier_and_later_keys() {
        let inbox = inbox();
        inbox.push_key(b"a");
        inbox.push_all();
        inbox.push_key(b"b");
        assert_eq!(all(&inbox), [Invalidation::All]);
    }

    #[test]
    fn a_closed_inbox_refuses_messages() {
        let inbox = inbox();
        inbox.push_key(b"a");
        inbox.close();
        assert!(!inbox.push_key(b"b") && !inbox.push_all() && !inbox.push_in_batch(b"", b"c"));
        assert!(inbox.is_closed() && inbox.is_empty());
    }

    #[test]
    fn an_empty_inbox_wakes_its_connection_at_the_next_message() {
        let (inbox, wakes) = (inbox(), Arc::new(Wakes::default()));
        let waker = || Waker::from(Arc::clone(&wakes));
        for round in 1..=3 {
            assert!(inbox.next(waker).is_none());
            inbox.push_key(b"a");
            inbox.push_key(b"b");
            assert_eq!(wakes.0.load(Ordering::Relaxed), round);
            assert_eq!(
                [inbox.next(waker), inbox.next(waker)],
                [Some(keys(&["a"])), Some(keys(&["b"]))]
            );
        }
    }
}
