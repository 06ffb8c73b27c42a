//! The state of a RESP connection between requests.

use crate::Host;
use crate::route::Conversation;
use crate::session::tracking_state::TrackingState;
use arrayvec::ArrayVec;
use larder_operations::{Guard, Watched};
use larder_protocol::reply::resp::Version;

/// The maximum number of concurrent reads from slower storage per RESP connection.
pub(crate) const FETCHES_MAX: usize = 32;

/// The memory, in bytes, that a watched key occupies in addition to its own bytes.
pub(crate) const WATCHED_LEN: usize = size_of::<Watched>();

/// The state of a RESP connection between requests.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) version: Version,
    /// The name of the connection (`CLIENT SETNAME`).
    pub(crate) name: Vec<u8>,
    /// Whether the server requires a login.
    pub(crate) login_required: bool,
    pub(crate) is_logged_in: bool,
    /// The requests queued since `MULTI`; `None` outside of a transaction.
    pub(crate) transaction: Option<Transaction>,
    /// The items that `WATCH` watches.
    pub(crate) watched: Vec<Watched>,
    /// Requests that the session answers before further input: the transaction of an `EXEC`, or an
    /// inline request.
    pub(crate) queue: RequestQueue,
    /// The progress of the next request, if it has several keys.
    pub(crate) key_progress: KeyProgress,
    /// The hashes of the keys whose items the next request has to read from slower storage.
    pub(crate) waiting: ArrayVec<u64, FETCHES_MAX>,
    /// The state of `CLIENT TRACKING` and `SUBSCRIBE`; `None` for a connection that used neither.
    pub(crate) tracking: Option<Box<TrackingState>>,
    /// The number of bytes reserved at the host.
    reserved: usize,
}

/// Requests queued for `EXEC`.
#[derive(Debug, Default)]
pub(crate) struct Transaction {
    pub(crate) requests: Vec<u8>,
    pub(crate) count: usize,
    /// Whether a request was refused. `EXEC` then fails.
    pub(crate) has_failed: bool,
}

/// Requests to answer before further input. The requests before the offset `at` are already
/// answered.
#[derive(Debug, Default)]
pub(crate) struct RequestQueue {
    pub(crate) requests: Vec<u8>,
    pub(crate) at: usize,
    /// Whether the requests belong to a transaction, in which each request must see the changes of
    /// the earlier requests.
    pub(crate) is_transaction: bool,
    /// The guard of a transaction with watched items; `None` without watched items.
    pub(crate) guard: Option<Box<Guard>>,
    /// Whether the start of the reply to `EXEC` is still undecided. The outcome of the first
    /// request determines whether the transaction is executed.
    pub(crate) is_headless: bool,
}

/// The progress of a multi-key request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyProgress {
    /// The number of processed keys. For `MSETNX`, the number of keys looked up plus the number of
    /// items added. For `RENAME` and `COPY`, 1 once the new item is stored.
    pub(crate) keys: usize,
    /// The number of items found under these keys. For `MSETNX`, a code for the reason why the
    /// command removes its items again, or 0.
    pub(crate) found: i64,
}

impl State {
    pub(crate) fn new(login_required: bool) -> Self {
        Self { login_required, ..Self::default() }
    }

    /// Resets the state that the client has set, for `RESET`. The server's login requirement stays.
    pub(crate) fn reset(&mut self, host: &impl Host) {
        if let Some(tracking) = &mut self.tracking {
            tracking.is_subscribed = false;
            tracking.stop(host.tracker());
        }
        (self.version, self.is_logged_in) = (Version::default(), false);
        (self.name, self.transaction) = (Vec::new(), None);
        self.watched = Vec::new();
    }

    /// Returns whether the client must log in before other requests.
    pub(crate) fn needs_login(&self) -> bool {
        self.login_required && !self.is_logged_in
    }

    /// Returns the protocol in which the session forwards the connection's requests.
    pub(crate) fn conversation(&self) -> Conversation {
        match (self.version, self.tracks_reads()) {
            (Version::Resp2, false) => Conversation::Resp2,
            (Version::Resp3, false) => Conversation::Resp3,
            (Version::Resp2, true) => Conversation::TrackedResp2,
            (Version::Resp3, true) => Conversation::TrackedResp3,
        }
    }

    /// Returns whether the client receives messages about the items that it has read.
    fn tracks_reads(&self) -> bool {
        let subscription = self.tracking.as_ref().and_then(|of| of.subscription.as_ref());
        subscription.is_some_and(|of| of.prefixes().is_empty())
    }

    /// Sets the RESP version of a conversation.
    pub(crate) fn set_conversation(&mut self, conversation: Conversation) {
        self.version = match conversation {
            Conversation::Resp3 | Conversation::TrackedResp3 => Version::Resp3,
            _ => Version::Resp2,
        };
    }

    /// Marks the requests in the next `len` bytes of the queue as answered. After the last request,
    /// frees the queue.
    pub(crate) fn advance_queue(&mut self, len: usize, host: &impl Host) {
        self.queue.at += len;
        if self.queue.at >= self.queue.requests.len() {
            self.queue = RequestQueue::default();
            self.release(host);
        }
    }

    /// Returns whether the queue holds requests to answer before further input.
    pub(crate) fn has_queued(&self) -> bool {
        !self.queue.requests.is_empty()
    }

    /// Reserves memory for `more` bytes of state. Returns false if the host refuses.
    pub(crate) fn reserve(&mut self, host: &impl Host, more: usize) -> bool {
        let used = self.used() + more;
        let fits = used <= self.reserved || host.reserve(used - self.reserved);
        if fits {
            self.reserved = self.reserved.max(used);
        }
        fits
    }

    /// Releases reserved memory that the state no longer uses.
    pub(crate) fn release(&mut self, host: &impl Host) {
        let used = self.used();
        if used < self.reserved {
            host.release(self.reserved - used);
            self.reserved = used;
        }
    }

    /// Returns whether the connection subscribes to the channel of invalidation messages.
    pub(crate) fn is_subscribed(&self) -> bool {
        self.tracking.as_ref().is_some_and(|tracking| tracking.is_subscribed)
    }

    /// Returns whether the session must refuse requests that read or change items. RESP2
    /// subscribers cannot distinguish replies from messages.
    pub(crate) fn is_muted(&self) -> bool {
        self.version == Version::Resp2 && self.is_subscribed()
    }

    /// Ends the effect of `CLIENT CACHING` after a request, unless the request belongs to a
    /// transaction.
    pub(crate) fn end_tracked_request(&mut self) {
        let is_in_transaction = self.transaction.is_some() || self.has_queued();
        if let Some(tracking) = self.tracking.as_mut().filter(|_| !is_in_transaction) {
            tracking.end_request();
        }
    }

    /// Returns whether the replies to all requests so far are complete.
    pub(crate) fn is_between_replies(&self) -> bool {
        !self.has_queued() && self.key_progress.keys == 0
    }

    /// Stops tracking and releases all reserved memory. The session calls this function when the
    /// connection closes.
    pub(crate) fn close(&mut self, host: &impl Host) {
        if let Some(tracking) = &mut self.tracking {
            tracking.stop(host.tracker());
        }
        host.release(std::mem::take(&mut self.reserved));
    }

    fn used(&self) -> usize {
        let kept = self.transaction.as_ref().map_or(0, |kept| kept.requests.len());
        let watched: usize =
            self.watched.iter().map(|watched| watched.key.len() + WATCHED_LEN).sum();
        let tracking = self.tracking.as_ref().map_or(0, |tracking| tracking.used());
        self.name.len() + self.queue.requests.len() + kept + watched + tracking
    }
}
