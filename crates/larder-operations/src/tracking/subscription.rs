//! A connection's subscription to invalidation messages.

use super::inbox::Inbox;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

/// The options of a subscription.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubscriptionOptions {
    /// The number of the connection that reads items.
    pub connection: u64,
    /// The number of the connection that receives the messages. This number equals `connection` if
    /// the messages are not redirected.
    pub receiver: u64,
    /// Whether to omit messages about the connection's own changes.
    pub no_loop: bool,
    /// Whether the connection belongs to another node rather than a client. A node receives no
    /// messages about other groups' items, because it receives these messages from the groups
    /// themselves.
    pub is_node: bool,
}

/// The options, and the inbox of the connection that receives the messages.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) options: SubscriptionOptions,
    pub(super) receiver: Arc<Inbox>,
}

/// A connection's subscription to invalidation messages.
#[derive(Debug)]
pub struct Subscription {
    target: RwLock<Target>,
    /// The prefixes of the keys. If empty, the subscription covers the keys that the connection has
    /// read.
    prefixes: Vec<Box<[u8]>>,
    own: Arc<Inbox>,
    has_ended: AtomicBool,
}

impl Subscription {
    pub(super) fn new(target: Target, prefixes: Vec<Box<[u8]>>, own: Arc<Inbox>) -> Self {
        Self { target: RwLock::new(target), prefixes, own, has_ended: AtomicBool::new(false) }
    }

    /// Sets the options and the inbox that receives further messages. The keys stay the same.
    pub(super) fn set_target(&self, target: Target) {
        *self.target.write().unwrap_or_else(PoisonError::into_inner) = target;
    }

    fn target(&self) -> RwLockReadGuard<'_, Target> {
        self.target.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops all messages of this subscription.
    pub(super) fn end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    /// Returns the options.
    #[must_use]
    pub fn options(&self) -> SubscriptionOptions {
        self.target().options
    }

    /// Returns the prefixes of the keys. The slice is empty if the subscription covers the keys
    /// that the connection has read.
    #[must_use]
    pub fn prefixes(&self) -> &[Box<[u8]>] {
        &self.prefixes
    }

    /// Returns whether the connection that receives the messages has closed.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.target().receiver.is_closed()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Sends a message about a key. With a prefix, adds the key to the message that all keys with
    /// this prefix share.
    pub(super) fn send(&self, key: &[u8], prefix: Option<&[u8]>, author: u64) {
        let target = self.target();
        let is_own = target.options.no_loop && target.options.connection == author;
        if is_own || self.has_ended() {
            return;
        }
        let is_sent = match prefix {
            None => target.receiver.push_key(key),
            Some(prefix) => target.receiver.push_in_batch(prefix, key),
        };
        if !is_sent {
            self.own.push_broken();
        }
    }

    /// Sends a message about all items.
    pub(super) fn send_all(&self) {
        if !self.target().receiver.push_all() {
            self.own.push_broken();
        }
    }
}
