//! The messages for one connection.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// The maximum number of keys in an inbox.
const KEYS_MAX: usize = 4096;
/// The maximum total length of the keys in an inbox, in bytes.
const KEYS_LEN_MAX: usize = 128 << 10;

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invalidation {
    /// The items under these keys may have changed; at least one key.
    Keys(Vec<Box<[u8]>>),
    /// Any item may have changed.
    All,
    /// The connection that receives the messages has closed.
    Broken,
}

/// A bounded queue of messages. A full inbox holds one message about all items instead.
#[derive(Debug, Default)]
pub struct Inbox {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The keys with a message each.
    keys: VecDeque<Box<[u8]>>,
    /// The keys that share a message.
    batch: BTreeSet<Box<[u8]>>,
    /// The total length of both, in bytes.
    keys_len: usize,
    /// The next message is about all items.
    is_all: bool,
    is_broken: bool,
    is_closed: bool,
    /// Wakes the connection at the next message.
    waker: Option<Waker>,
}

impl Inbox {
    /// Returns the next message, or `None` if there is none. An empty inbox keeps a waker, and calls it at the next
    /// message; `waker` makes one.
    pub fn next(&self, waker: impl FnOnce() -> Waker) -> Option<Invalidation> {
        let mut state = self.lock();
        let message = state.next();
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

    /// Refuses messages from now on.
    pub(super) fn close(&self) {
        *self.lock() = State { is_closed: true, ..State::default() };
    }

    /// Adds a message about a key. Returns false if the inbox is closed.
    pub(super) fn push_key(&self, key: &[u8]) -> bool {
        self.push(|state| {
            if state.has_room(key) {
                state.keys.push_back(key.into());
            }
        })
    }

    /// Adds a key to the message that many keys share. Returns false if the inbox is closed.
    pub(super) fn push_in_batch(&self, key: &[u8]) -> bool {
        self.push(|state| {
            if !state.batch.contains(key) && state.has_room(key) {
                state.batch.insert(key.into());
            }
        })
    }

    /// Adds a message about all items. Returns false if the inbox is closed.
    pub(super) fn push_all(&self) -> bool {
        self.push(State::set_all)
    }

    /// Adds a message that another connection has closed.
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
            waker.wake();
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.batch.is_empty() && !self.is_all && !self.is_broken
    }

    /// Takes the next message.
    fn next(&mut self) -> Option<Invalidation> {
        if std::mem::take(&mut self.is_broken) {
            return Some(Invalidation::Broken);
        }
        if std::mem::take(&mut self.is_all) {
            return Some(Invalidation::All);
        }
        let keys = match self.keys.pop_front() {
            Some(key) => vec![key],
            None => std::mem::take(&mut self.batch).into_iter().collect(),
        };
        self.keys_len -= keys.iter().map(|key| key.len()).sum::<usize>();
        (!keys.is_empty()).then_some(Invalidation::Keys(keys))
    }

    /// Counts a key that the caller adds. Returns false if a message about all items includes the key.
    fn has_room(&mut self, key: &[u8]) -> bool {
        if self.is_all {
            return false;
        }
        let is_full = self.keys.len() + self.batch.len() >= KEYS_MAX;
        if is_full || self.keys_len + key.len() > KEYS_LEN_MAX {
            self.set_all();
            return false;
        }
        self.keys_len += key.len();
        true
    }

    fn set_all(&mut self) {
        self.keys = VecDeque::new();
        self.batch = BTreeSet::new();
        (self.keys_len, self.is_all) = (0, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    fn all(inbox: &Inbox) -> Vec<Invalidation> {
        std::iter::from_fn(|| inbox.next(|| Waker::noop().clone())).collect()
    }

    fn keys(keys: &[&str]) -> Invalidation {
        Invalidation::Keys(keys.iter().map(|key| key.as_bytes().into()).collect())
    }

    #[test]
    fn keys_have_a_message_each_or_share_one() {
        let inbox = Inbox::default();
        for key in ["b", "a"] {
            assert!(inbox.push_key(key.as_bytes()));
        }
        for key in ["d", "c", "d"] {
            assert!(inbox.push_in_batch(key.as_bytes()));
        }
        assert_eq!(all(&inbox), [keys(&["b"]), keys(&["a"]), keys(&["c", "d"])]);
        assert!(inbox.is_empty());
    }

    #[test]
    fn a_full_inbox_holds_one_message_about_all_items() {
        for (key_len, count) in [(1000, KEYS_LEN_MAX / 1000), (8, KEYS_MAX)] {
            let inbox = Inbox::default();
            let key = |number: usize| format!("{number:0key_len$}");
            (0..count).for_each(|number| assert!(inbox.push_key(key(number).as_bytes())));
            assert_eq!(all(&inbox).len(), count);
            (0..=count).for_each(|number| assert!(inbox.push_in_batch(key(number).as_bytes())));
            assert_eq!(all(&inbox), [Invalidation::All]);
            inbox.push_key(b"k");
            assert_eq!(all(&inbox), [keys(&["k"])]);
        }
    }

    #[test]
    fn a_message_about_all_items_includes_earlier_and_later_keys() {
        let inbox = Inbox::default();
        inbox.push_key(b"a");
        inbox.push_all();
        inbox.push_key(b"b");
        assert_eq!(all(&inbox), [Invalidation::All]);
    }

    #[test]
    fn a_closed_inbox_refuses_messages() {
        let inbox = Inbox::default();
        inbox.push_key(b"a");
        inbox.close();
        assert!(!inbox.push_key(b"b") && !inbox.push_all() && !inbox.push_in_batch(b"c"));
        assert!(inbox.is_closed() && inbox.is_empty());
    }

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn an_empty_inbox_wakes_its_connection_at_the_next_message() {
        let (inbox, wakes) = (Inbox::default(), Arc::new(Wakes::default()));
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
