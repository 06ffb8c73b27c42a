//! The state of a connection that uses `CLIENT TRACKING`.

use larder_operations::{Inbox, Subscription, Tracker};
use std::sync::Arc;

/// The state of a connection that tracks items, or that receives the messages of other connections
/// that track items.
#[derive(Debug, Default)]
pub(crate) struct TrackingState {
    /// The messages for this connection.
    pub(crate) inbox: Option<Arc<Inbox>>,
    /// The connection's subscription to changes: the keys or prefixes that it tracks. `None` if
    /// tracking is off.
    pub(crate) subscription: Option<Arc<Subscription>>,
    pub(crate) choice: Choice,
    /// Whether a `CLIENT CACHING` command has reversed `choice` for the next request.
    pub(crate) is_reversed: bool,
    /// Whether the connection subscribes to the channel of invalidation messages.
    pub(crate) is_subscribed: bool,
}

/// The requests whose keys are tracked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Choice {
    #[default]
    All,
    /// The requests after `CLIENT CACHING YES`.
    OptIn,
    /// All requests except those after `CLIENT CACHING NO`.
    OptOut,
}

impl TrackingState {
    /// Returns the state of a session that tracks keys for another node, which receives the
    /// messages.
    pub(crate) fn shared(reader: Arc<Subscription>) -> Self {
        Self { subscription: Some(reader), ..Self::default() }
    }

    /// Returns whether there are messages to write.
    pub(crate) fn has_messages(&self) -> bool {
        self.inbox.as_ref().is_some_and(|inbox| !inbox.is_empty())
    }

    /// Returns whether the connection tracks items.
    pub(crate) fn is_on(&self) -> bool {
        self.subscription.is_some()
    }

    /// Returns the subscription if it must track the keys of the next request.
    pub(crate) fn tracks(&self) -> Option<&Arc<Subscription>> {
        let is_tracked = (self.choice == Choice::OptIn) == self.is_reversed;
        self.subscription.as_ref().filter(|of| is_tracked && of.prefixes().is_empty())
    }

    /// Ends the effect of `CLIENT CACHING` after a request.
    pub(crate) fn end_request(&mut self) {
        self.is_reversed = false;
    }

    /// Returns the memory of the tracked prefixes, in bytes.
    pub(crate) fn used(&self) -> usize {
        self.subscription.as_ref().map_or(0, |of| prefixes_memory(of.prefixes()))
    }

    /// Stops tracking. Messages of other connections still arrive.
    pub(crate) fn stop(&mut self, tracker: Option<&Tracker>) {
        if let (Some(subscription), Some(tracker)) = (self.subscription.take(), tracker) {
            tracker.unsubscribe(&subscription);
        }
        (self.choice, self.is_reversed) = (Choice::All, false);
    }
}

/// Returns the memory that these prefixes occupy, in bytes.
pub(crate) fn prefixes_memory(prefixes: &[Box<[u8]>]) -> usize {
    prefixes.iter().map(|prefix| prefix.len() + size_of::<Box<[u8]>>()).sum()
}
