//! Invalidation messages for clients that keep copies of items (RESP's `CLIENT TRACKING`).
//!
//! ```text
//!  a session reads a key ─▶ Tracker::track ─▶ KeyTable      the keys that each connection has read
//!  the engine reports a change ─▶ Tracker::note_change ─▶ Inbox      the messages for one connection
//!  the inbox wakes the connection ─▶ its session writes the messages between two replies
//! ```
//!
//! A session calls [`Tracker::track`] before it looks the key up. Even if the lookup returns the
//! item as it was before a concurrent change, the key is then in the table when the engine reports
//! this change. All memory is bounded. A full table removes some of its keys, and the tracker sends
//! messages about these keys. A full inbox replaces its messages with one message about all items.

mod inbox;
mod key_table;
mod subscription;
mod wakes;

pub use inbox::{Inbox, Invalidation};
pub use subscription::{Subscription, SubscriptionOptions};
pub use wakes::DeferredWakes;

use inbox::InboxBudget;
use key_table::KeyTable;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use subscription::Target;

thread_local! {
    /// The number of the connection whose requests this thread answers; 0 if there is none.
    static AUTHOR: Cell<u64> = const { Cell::new(0) };
}

/// Calls `work`, and attributes its changes to the connection with this number: see
/// [`SubscriptionOptions::no_loop`].
pub fn with_author<R>(connection: u64, work: impl FnOnce() -> R) -> R {
    let before = AUTHOR.replace(connection);
    let result = work();
    AUTHOR.set(before);
    result
}

/// Totals of the subscriptions of all clients, for statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrackingTotals {
    /// The number of connections that have requested messages.
    pub connections: u64,
    /// The number of keys that these connections and other nodes have read.
    pub keys: u64,
    /// The number of prefixes that these connections have requested.
    pub prefixes: u64,
    /// The number of keys that the full table has evicted. The readers of these keys received
    /// messages about them.
    pub evicted_keys: u64,
}

/// All subscriptions, grouped by whether they have prefixes.
#[derive(Debug, Default)]
struct Subscriptions {
    to_keys: Vec<Arc<Subscription>>,
    to_prefixes: Vec<Arc<Subscription>>,
}

impl Subscriptions {
    fn list_of(&mut self, subscription: &Subscription) -> &mut Vec<Arc<Subscription>> {
        if subscription.prefixes().is_empty() { &mut self.to_keys } else { &mut self.to_prefixes }
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Subscription>> {
        self.to_keys.iter().chain(&self.to_prefixes)
    }
}

/// The subscriptions of all connections.
#[derive(Debug)]
pub struct Tracker {
    keys: KeyTable,
    subscriptions: RwLock<Subscriptions>,
    /// The numbers of subscriptions without and with prefixes. Changes of items are frequent, so
    /// [`Tracker::note_change`] takes no lock while both numbers are 0.
    counts: [AtomicUsize; 2],
    /// The inboxes. The key is the number of the connection that receives the messages.
    inboxes: Mutex<BTreeMap<u64, Arc<Inbox>>>,
    /// The memory budget that all inboxes share.
    inbox_budget: Arc<InboxBudget>,
    evicted_keys: AtomicU64,
}

impl Tracker {
    /// Creates a tracker that uses at most `len_max` bytes: three quarters for the keys that
    /// connections have read, and one quarter for messages that they have not received.
    #[must_use]
    pub fn new(len_max: usize) -> Self {
        Self {
            keys: KeyTable::new(len_max / 4 * 3),
            inbox_budget: Arc::new(InboxBudget::new(len_max / 4)),
            subscriptions: RwLock::default(),
            counts: Default::default(),
            inboxes: Mutex::default(),
            evicted_keys: AtomicU64::new(0),
        }
    }

    /// Returns the inbox of the connection with this number. Creates the inbox if there is none.
    #[must_use]
    pub fn inbox(&self, connection: u64) -> Arc<Inbox> {
        let mut inboxes = self.lock_inboxes();
        let inbox = inboxes
            .entry(connection)
            .or_insert_with(|| Arc::new(Inbox::new(Arc::clone(&self.inbox_budget))));
        Arc::clone(inbox)
    }

    /// Starts a subscription. With `prefixes`, the subscription covers all keys that start with one
    /// of the prefixes. Without prefixes, it covers the keys passed to [`Self::track`].
    #[must_use]
    pub fn subscribe(
        &self,
        options: SubscriptionOptions,
        prefixes: Vec<Box<[u8]>>,
    ) -> Arc<Subscription> {
        let own = self.inbox(options.connection);
        let subscription = Arc::new(Subscription::new(self.target(options), prefixes, own));
        self.change(|subscriptions| {
            subscriptions.list_of(&subscription).push(Arc::clone(&subscription));
        });
        subscription
    }

    /// Changes the options of a subscription, which keeps its keys.
    pub fn set_options(&self, subscription: &Subscription, options: SubscriptionOptions) {
        subscription.set_target(self.target(options));
    }

    fn target(&self, options: SubscriptionOptions) -> Target {
        Target { options, receiver: self.inbox(options.receiver) }
    }

    /// Ends a subscription. Its keys stay in the table until their items change, but cause no
    /// messages.
    pub fn unsubscribe(&self, subscription: &Arc<Subscription>) {
        subscription.end();
        self.change(|subscriptions| {
            let list = subscriptions.list_of(subscription);
            list.retain(|other| !Arc::ptr_eq(other, subscription));
            if subscriptions.to_keys.is_empty() {
                self.keys.clear();
            }
        });
    }

    /// Removes the inbox of a connection that closes.
    pub fn close(&self, connection: u64) {
        if let Some(inbox) = self.lock_inboxes().remove(&connection) {
            inbox.close();
        }
    }

    /// Records that the connection of `subscription` is about to read the item under `key`.
    pub fn track(&self, key: &[u8], subscription: &Arc<Subscription>) {
        for (evicted_key, readers) in self.keys.add(key, subscription) {
            self.evicted_keys.fetch_add(1, Ordering::Relaxed);
            readers.iter().for_each(|reader| reader.send(&evicted_key, None, 0));
        }
    }

    /// Sends messages about the item under `key`, which a request of this thread has changed.
    pub fn note_change(&self, key: &[u8]) {
        self.invalidate(key, AUTHOR.get());
    }

    /// Sends messages about the item under `key`, which was removed because it had expired.
    pub fn note_expiry(&self, key: &[u8]) {
        self.invalidate(key, 0);
    }

    /// Sends messages about the item under `key`, which was removed to make room.
    pub fn note_eviction(&self, key: &[u8]) {
        // This function omits the fence, because a full cache evicts at each store and most servers
        // have no subscription. A connection that has just subscribed may not receive the message,
        // but its copy of the evicted item is valid.
        if self.counts.iter().any(|count| count.load(Ordering::Relaxed) > 0) {
            self.invalidate(key, 0);
        }
    }

    /// Sends messages about all items.
    pub fn note_flush(&self) {
        self.keys.clear();
        self.read().all().for_each(|subscription| subscription.send_all());
    }

    /// Sends messages to clients about the item under `key`, which another group has changed.
    pub fn note_remote_change(&self, key: &[u8]) {
        self.keys.take_some(key, is_client).iter().for_each(|reader| reader.send(key, None, 0));
        send_to_prefixes(self.read().to_prefixes.iter().filter(|of| is_client(of)), key, 0);
    }

    /// Sends messages about all items to clients, because any item of another group may have
    /// changed.
    pub fn note_remote_flush(&self) {
        self.keys.clear_some(is_client);
        self.read()
            .all()
            .filter(|of| is_client(of))
            .for_each(|subscription| subscription.send_all());
    }

    /// Returns whether a client has requested messages about prefixes.
    #[must_use]
    pub fn has_prefixes(&self) -> bool {
        self.read().to_prefixes.iter().any(|subscription| is_client(subscription))
    }

    /// Returns totals of the subscriptions of all clients.
    #[must_use]
    pub fn totals(&self) -> TrackingTotals {
        let subscriptions = self.read();
        let clients = || subscriptions.all().filter(|of| is_client(of));
        let prefixes: usize = clients().map(|of| of.prefixes().len()).sum();
        TrackingTotals {
            connections: clients().count() as u64,
            keys: self.keys.count() as u64,
            prefixes: prefixes as u64,
            evicted_keys: self.evicted_keys.load(Ordering::Relaxed),
        }
    }

    /// Sets the count of evicted keys to 0.
    pub fn reset(&self) {
        self.evicted_keys.store(0, Ordering::Relaxed);
    }

    /// Returns the memory that the key table and the inboxes use, in bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.keys.len() + self.inbox_budget.used()
    }

    fn invalidate(&self, key: &[u8], author: u64) {
        // This fence pairs with the fence in `change`: either this thread reads the count of a new
        // subscription, or the new subscriber's lookup returns the changed item.
        fence(Ordering::SeqCst);
        let [to_keys, to_prefixes] =
            self.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        if to_keys > 0 {
            self.keys.take(key).iter().for_each(|reader| reader.send(key, None, author));
        }
        if to_prefixes > 0 {
            send_to_prefixes(self.read().to_prefixes.iter(), key, author);
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Subscriptions> {
        self.subscriptions.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Subscriptions)) {
        let mut subscriptions = self.subscriptions.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut subscriptions);
        let lists = [&subscriptions.to_keys, &subscriptions.to_prefixes];
        for (count, list) in self.counts.iter().zip(lists) {
            count.store(list.len(), Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    fn lock_inboxes(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Arc<Inbox>>> {
        self.inboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_client(subscription: &Subscription) -> bool {
    !subscription.options().is_node
}

/// Sends messages about a key to the subscriptions with a prefix that matches the key.
fn send_to_prefixes<'s>(
    subscriptions: impl Iterator<Item = &'s Arc<Subscription>>,
    key: &[u8],
    author: u64,
) {
    for subscription in subscriptions {
        for prefix in subscription.prefixes().iter().filter(|prefix| key.starts_with(prefix)) {
            subscription.send(key, Some(prefix), author);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_wakes::Wakes;
    use std::task::Waker;

    fn options(connection: u64) -> SubscriptionOptions {
        SubscriptionOptions { connection, receiver: connection, ..SubscriptionOptions::default() }
    }

    #[test]
    fn nodes_get_no_changes_of_other_groups() {
        let tracker = Tracker::new(1 << 20);
        let node = SubscriptionOptions { is_node: true, ..options(2) };
        let (client, node) =
            (tracker.subscribe(options(1), Vec::new()), tracker.subscribe(node, Vec::new()));
        let track = || {
            for key in [&b"j"[..], b"k"] {
                [&client, &node].iter().for_each(|reader| tracker.track(key, reader));
            }
            tracker.track(b"own", &client);
        };
        track();
        tracker.note_remote_change(b"k");
        tracker.note_remote_change(b"own");
        assert_eq!(messages(&tracker, 1), ["k", "own"]);
        track();
        tracker.note_remote_flush();
        assert_eq!((messages(&tracker, 1), messages(&tracker, 2).len()), (vec!["*".to_owned()], 0));
        ["j", "k", "own"].iter().for_each(|key| tracker.note_change(key.as_bytes()));
        assert_eq!(
            (messages(&tracker, 1).len(), messages(&tracker, 2)),
            (0, vec!["j".to_owned(), "k".to_owned()])
        );
        assert_eq!(tracker.memory(), 0);
        let all = SubscriptionOptions { is_node: true, ..options(3) };
        let _all = tracker.subscribe(all, vec![Box::default()]);
        tracker.note_remote_change(b"k");
        assert!(messages(&tracker, 3).is_empty() && !tracker.has_prefixes());
        tracker.note_change(b"k");
        assert_eq!(messages(&tracker, 3), ["k"]);
        let totals = tracker.totals();
        assert_eq!((totals.connections, totals.prefixes), (1, 0));
        let _prefix = tracker.subscribe(options(4), vec![Box::from(&b"k"[..])]);
        tracker.note_remote_change(b"k");
        assert_eq!((messages(&tracker, 4), tracker.has_prefixes()), (vec!["k".to_owned()], true));
    }

    /// Returns the keys of the messages for a connection, `*` for a message about all items.
    fn messages(tracker: &Tracker, connection: u64) -> Vec<String> {
        let inbox = tracker.inbox(connection);
        let next = || inbox.next(|| Waker::noop().clone());
        let shown = std::iter::from_fn(next).flat_map(|message| match message {
            Invalidation::Keys(keys) => {
                keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect()
            }
            Invalidation::All => vec!["*".to_owned()],
            Invalidation::Broken => vec!["broken".to_owned()],
        });
        shown.collect()
    }

    #[test]
    fn each_reader_of_a_key_gets_one_message() {
        let tracker = Tracker::new(1 << 20);
        let subscriptions = [1, 2, 3].map(|number| tracker.subscribe(options(number), Vec::new()));
        for subscription in &subscriptions[..2] {
            (0..3).for_each(|_| tracker.track(b"k", subscription));
        }
        tracker.track(b"other", &subscriptions[2]);
        assert_eq!(tracker.totals().keys, 2);
        (0..2).for_each(|_| tracker.note_change(b"k"));
        assert_eq!([1, 2, 3].map(|number| messages(&tracker, number).len()), [1, 1, 0]);
        tracker.note_expiry(b"other");
        assert_eq!(messages(&tracker, 3), ["other"]);
        assert_eq!((tracker.totals().keys, tracker.memory()), (0, 0));
    }

    #[test]
    fn own_changes_cause_no_message_with_noloop() {
        let tracker = Tracker::new(1 << 20);
        let own = SubscriptionOptions { no_loop: true, ..options(1) };
        let (own, other) =
            (tracker.subscribe(own, Vec::new()), tracker.subscribe(options(2), Vec::new()));
        let track = || [&own, &other].map(|subscription| tracker.track(b"k", subscription));
        track();
        with_author(1, || tracker.note_change(b"k"));
        assert_eq!((messages(&tracker, 1).len(), messages(&tracker, 2).len()), (0, 1));
        track();
        // An eviction is not the client's own change, whichever thread evicts.
        with_author(1, || tracker.note_eviction(b"k"));
        track();
        with_author(2, || tracker.note_change(b"k"));
        assert_eq!(messages(&tracker, 1), ["k", "k"]);
    }

    #[test]
    fn a_subscription_keeps_its_keys_when_its_receiver_changes() {
        let tracker = Tracker::new(1 << 20);
        let subscription = tracker.subscribe(options(1), Vec::new());
        ["j", "k"].iter().for_each(|key| tracker.track(key.as_bytes(), &subscription));
        tracker.note_change(b"j");
        let redirected = SubscriptionOptions { receiver: 2, no_loop: true, ..options(1) };
        tracker.set_options(&subscription, redirected);
        tracker.note_change(b"k");
        assert_eq!(
            (messages(&tracker, 1), messages(&tracker, 2)),
            (vec!["j".to_owned()], vec!["k".to_owned()])
        );
        tracker.track(b"k", &subscription);
        with_author(1, || tracker.note_change(b"k"));
        assert!(messages(&tracker, 2).is_empty());
    }

    #[test]
    fn receivers_wake_once_after_a_batch_of_requests() {
        let (tracker, wakes) = (Tracker::new(1 << 20), Arc::new(Wakes::default()));
        let _every = tracker.subscribe(options(1), vec![Box::default()]);
        let inbox = tracker.inbox(1);
        let count = || wakes.0.load(Ordering::Relaxed);
        let next = || inbox.next(|| Waker::from(Arc::clone(&wakes)));
        assert!(next().is_none());
        let deferred = DeferredWakes::begin();
        ["a", "b"].iter().for_each(|key| tracker.note_change(key.as_bytes()));
        assert_eq!(count(), 0);
        drop(deferred);
        assert_eq!(count(), 1);
        assert!(matches!(next(), Some(Invalidation::Keys(keys)) if keys.len() == 2));
        assert!(next().is_none());
        tracker.note_change(b"a");
        assert_eq!(count(), 2);
    }

    #[test]
    fn prefixes_select_changes_of_all_clients() {
        let tracker = Tracker::new(1 << 20);
        let prefixes = ["a:", "b:"].map(|prefix| prefix.as_bytes().into()).to_vec();
        let broadcast = tracker.subscribe(options(1), prefixes);
        let every = tracker.subscribe(options(2), vec![Box::default()]);
        ["a:1", "c", "b:2", "a:1"].iter().for_each(|key| tracker.note_change(key.as_bytes()));
        assert_eq!(messages(&tracker, 1), ["a:1", "b:2"]);
        assert_eq!(messages(&tracker, 2), ["a:1", "b:2", "c"]);
        assert_eq!((tracker.totals().prefixes, tracker.memory()), (3, 0));
        [broadcast, every].iter().for_each(|subscription| tracker.unsubscribe(subscription));
        tracker.note_change(b"a:1");
        assert!(messages(&tracker, 1).is_empty() && messages(&tracker, 2).is_empty());
    }

    #[test]
    fn a_flush_and_a_full_inbox_cause_one_message_about_all_items() {
        let tracker = Tracker::new(64 << 20);
        let subscription = tracker.subscribe(options(1), Vec::new());
        tracker.track(b"k", &subscription);
        tracker.note_flush();
        tracker.note_change(b"k");
        assert_eq!(messages(&tracker, 1), ["*"]);
        for number in 0..100_000_u32 {
            tracker.track(&number.to_le_bytes(), &subscription);
            tracker.note_change(&number.to_le_bytes());
        }
        assert_eq!(messages(&tracker, 1), ["*"]);
    }

    #[test]
    fn a_full_table_forgets_keys_and_sends_messages_about_them() {
        let tracker = Tracker::new(512 << 10);
        let subscription = tracker.subscribe(options(1), Vec::new());
        let mut messages_count = 0;
        for number in 0..10_000_u32 {
            tracker.track(format!("key {number}").as_bytes(), &subscription);
            messages_count += messages(&tracker, 1).len();
            assert!(tracker.memory() <= 400 << 10, "{} bytes", tracker.memory());
        }
        let totals = tracker.totals();
        assert!(totals.keys > 500, "{totals:?}");
        assert_eq!(totals.keys + totals.evicted_keys, 10_000);
        assert_eq!(totals.evicted_keys, messages_count as u64);
        tracker.unsubscribe(&subscription);
        assert_eq!((tracker.totals().keys, tracker.memory()), (0, 0));
    }

    #[test]
    fn subscriptions_that_have_ended_leave_no_memory_at_a_key() {
        let tracker = Tracker::new(1 << 20);
        let staying = tracker.subscribe(options(1), Vec::new());
        tracker.track(b"k", &staying);
        for _ in 0..10_000 {
            let subscription = tracker.subscribe(options(2), Vec::new());
            tracker.track(b"k", &subscription);
            tracker.unsubscribe(&subscription);
            assert!(tracker.memory() < 1000);
        }
        tracker.note_change(b"k");
        assert_eq!((messages(&tracker, 1), tracker.memory()), (vec!["k".to_owned()], 0));
    }

    #[test]
    fn a_client_learns_that_the_receiver_of_its_messages_has_closed() {
        let tracker = Tracker::new(1 << 20);
        let redirected = SubscriptionOptions { receiver: 2, ..options(1) };
        let subscription = tracker.subscribe(redirected, Vec::new());
        tracker.track(b"k", &subscription);
        tracker.note_change(b"k");
        assert_eq!((messages(&tracker, 1).len(), messages(&tracker, 2)), (0, vec!["k".to_owned()]));
        tracker.close(2);
        assert!(subscription.is_broken());
        tracker.track(b"k", &subscription);
        tracker.note_change(b"k");
        assert_eq!(messages(&tracker, 1), ["broken"]);
    }
}
