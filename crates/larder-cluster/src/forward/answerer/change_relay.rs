//! Sends the keys of changed items to a node whose clients have cached them.

use super::session_host::SessionHost;
use larder_operations::{Inbox, Invalidation, Subscription, SubscriptionOptions, Tracker};
use larder_replica::{Frame, Invalidated};
use std::sync::Arc;
use std::task::Waker;

/// Relays item changes to one peer. By default, these are changes of items that the peer's
/// conversations with tracking have read. If the peer has requested all changes, relays all of
/// them.
pub(super) struct ChangeRelay {
    tracker: Arc<Tracker>,
    host: Arc<dyn SessionHost>,
    /// The tracker's number for the peer. It differs from the numbers of the server's own clients.
    number: u64,
    inbox: Option<Arc<Inbox>>,
    /// The subscription to the items that conversations have read; `None` before the first
    /// conversation with tracking.
    reads: Option<Arc<Subscription>>,
    /// The subscription to all changes, if the peer has requested them.
    all: Option<Arc<Subscription>>,
}

impl ChangeRelay {
    /// Creates the relay for the connection with this number. Connections are numbered from 0.
    pub(super) fn new(
        tracker: &Arc<Tracker>,
        host: &Arc<dyn SessionHost>,
        connection: usize,
    ) -> Self {
        let (tracker, host) = (Arc::clone(tracker), Arc::clone(host));
        // Client numbers count up from 1, so numbers from the top of the range are free.
        let number = u64::MAX - connection as u64;
        Self { tracker, host, number, inbox: None, reads: None, all: None }
    }

    /// Returns the subscription for a conversation with tracking.
    pub(super) fn reader(&mut self) -> Arc<Subscription> {
        let reads = self.reads.take().unwrap_or_else(|| self.subscribe(Vec::new()));
        self.reads = Some(Arc::clone(&reads));
        reads
    }

    /// Starts or stops sending all changes.
    pub(super) fn track_all(&mut self, all: bool, out: &mut Vec<u8>) {
        if let Some(before) = self.all.take() {
            self.tracker.unsubscribe(&before);
        }
        if all {
            // The empty prefix matches all keys.
            self.all = Some(self.subscribe(vec![Box::default()]));
            // The peer has missed the changes before this point, so report a change of all items.
            Frame::Invalidated(Invalidated::ALL).write(out);
        }
    }

    fn subscribe(&mut self, prefixes: Vec<Box<[u8]>>) -> Arc<Subscription> {
        self.host.start_tracking();
        let number = self.number;
        self.inbox.get_or_insert_with(|| self.tracker.inbox(number));
        let options = SubscriptionOptions {
            connection: number,
            receiver: number,
            no_loop: false,
            is_node: true,
        };
        self.tracker.subscribe(options, prefixes)
    }

    /// Appends frames with changes to `out` until it has `len_max` bytes. Returns false if more
    /// changes remain. Otherwise returns true, and the next change calls `waker`.
    pub(super) fn write(
        &self,
        waker: impl Fn() -> Waker,
        len_max: usize,
        out: &mut Vec<u8>,
    ) -> bool {
        let Some(inbox) = &self.inbox else { return true };
        while out.len() < len_max {
            match inbox.next(&waker) {
                Some(Invalidation::Keys(keys)) => {
                    Invalidated::write_keys(keys.iter().map(|key| &**key), out);
                }
                Some(Invalidation::All) => Frame::Invalidated(Invalidated::ALL).write(out),
                // A client can redirect its messages to another connection, and this message
                // reports that the other connection has closed. Peers do not redirect messages.
                Some(Invalidation::Broken) => (),
                None => return true,
            }
        }
        false
    }
}

impl Drop for ChangeRelay {
    fn drop(&mut self) {
        for subscription in self.reads.iter().chain(&self.all) {
            self.tracker.unsubscribe(subscription);
        }
        self.tracker.close(self.number);
    }
}
