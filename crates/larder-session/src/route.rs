//! The interface through which sessions forward requests to the nodes that own their keys.

use std::collections::BTreeMap;
use std::task::Waker;

/// The node that answers requests about items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This server.
    Local,
    /// Another node answers the requests, or currently no node does.
    Remote,
    /// Another node, but this server is a replica whose items are recent enough to answer lookups.
    RemoteWithLocalReads,
}

/// The index of a group. The servers in a group replicate the same items. Each server numbers the
/// groups independently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupIndex(pub u16);

impl GroupIndex {
    /// The group of this server.
    pub const OWN: Self = Self(0);
}

/// Identifies the requests that one call to [`Route::pass`] has sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForwardId(pub u64);

/// The protocol of forwarded requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conversation {
    /// memcached's protocols, text or binary.
    Memcached,
    /// memcached's text protocol as the gateway uses it: see [`crate::Settings::for_gateway`].
    Gateway,
    /// RESP2.
    Resp2,
    /// RESP3.
    Resp3,
    /// RESP2, from a client with a near cache. The owner sends messages about changes of the items
    /// that the client has read.
    TrackedResp2,
    /// RESP3, from a client with a near cache.
    TrackedResp3,
}

impl Conversation {
    /// Returns the conversation to use with `group` for the same client. This server receives all
    /// changes of its own group, so the leader of that group does not have to track the client's
    /// lookups.
    pub(crate) fn with(self, group: GroupIndex) -> Self {
        match self {
            Self::TrackedResp2 if group == GroupIndex::OWN => Self::Resp2,
            Self::TrackedResp3 if group == GroupIndex::OWN => Self::Resp3,
            conversation => conversation,
        }
    }

    /// Returns whether the client has a near cache.
    #[must_use]
    pub fn is_tracked(self) -> bool {
        matches!(self, Self::TrackedResp2 | Self::TrackedResp3)
    }
}

/// The part of forwarded requests that the owner answered before it lost ownership of their keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnsweredPart {
    /// The length of the answered requests, in bytes.
    pub len: usize,
    /// The number of already answered keys of the next request, if it is a RESP command on several
    /// keys.
    pub keys: usize,
    /// The number of items found under these answered keys.
    pub found: u64,
}

/// The state of forwarded requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardOutcome {
    /// No new reply has arrived.
    Pending,
    /// A part of the replies has arrived. The owner pauses, and sends the rest after
    /// [`Route::resume`].
    More,
    /// All replies have arrived.
    Done,
    /// All replies have arrived, and the session must close the client's connection.
    Close,
    /// The owner executed none of the requests, so the session can send them again.
    Retry,
    /// The owner executed only a part of the requests, and the replies to this part have arrived.
    /// The session can send the other requests again.
    RetryRest(AnsweredPart),
    /// The connection to the owner failed. The owner may have executed some of the requests. No
    /// further reply arrives.
    ConnectionLost,
    /// No leader can answer: the group has no leader, or this server already has too many unsent
    /// bytes for the leader.
    NoLeader,
}

/// The route from one session to the owner of a group's keys. Dropping the route ends the
/// conversation at the owner.
///
/// The owner executes requests in the order in which [`Route::pass`] was called, even if the
/// session takes their replies in another order. If requests fail with [`ForwardOutcome::Retry`],
/// [`ForwardOutcome::ConnectionLost`] or [`ForwardOutcome::NoLeader`], all later requests have the
/// same outcome. After [`ForwardOutcome::RetryRest`] or [`ForwardOutcome::Close`], all later
/// requests have the outcome [`ForwardOutcome::Retry`].
pub trait Route: Send {
    /// Sends requests. With `more`, the last request is incomplete, and later calls to
    /// [`Route::pass_rest`] send its rest. The route calls `waker` when the outcome of the requests
    /// changes.
    fn pass(&mut self, bytes: &[u8], more: bool, waker: &Waker) -> ForwardId;

    /// Sends more bytes of the last request to the same node. If the request has failed, drops the
    /// bytes.
    fn pass_rest(&mut self, bytes: &[u8], more: bool, waker: &Waker);

    /// Returns false if the session must wait before it passes more bytes. The route then calls
    /// `waker` when it has room again. Returns true if the route has room, or if it will drop the
    /// bytes because the request has failed.
    fn has_room(&mut self, waker: &Waker) -> bool;

    /// Appends the arrived bytes of the replies to `into`, and returns the outcome of the requests.
    fn take(&mut self, of: ForwardId, into: &mut Vec<u8>) -> ForwardOutcome;

    /// Requests the rest of the replies after [`ForwardOutcome::More`].
    fn resume(&mut self);

    /// Drops all passed requests and their replies.
    fn forget(&mut self);
}

/// A route for hosts without a cluster. Every request has the outcome [`ForwardOutcome::NoLeader`].
pub(crate) struct NoRoute;

impl Route for NoRoute {
    fn pass(&mut self, _: &[u8], _: bool, waker: &Waker) -> ForwardId {
        waker.wake_by_ref();
        ForwardId::default()
    }

    fn pass_rest(&mut self, _: &[u8], _: bool, waker: &Waker) {
        waker.wake_by_ref();
    }

    fn has_room(&mut self, _: &Waker) -> bool {
        true
    }

    fn take(&mut self, _: ForwardId, _: &mut Vec<u8>) -> ForwardOutcome {
        ForwardOutcome::NoLeader
    }

    fn resume(&mut self) {}

    fn forget(&mut self) {}
}

/// The routes of one session: one per group to which the session has forwarded requests.
#[derive(Default)]
pub(crate) struct Routes(BTreeMap<GroupIndex, Box<dyn Route>>);

impl Routes {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the open route to a group, or `None` if there is none.
    pub(crate) fn get(&mut self, group: GroupIndex) -> Option<&mut Box<dyn Route>> {
        self.0.get_mut(&group)
    }

    /// Returns the route to a group. If there is none, opens one with `open`.
    pub(crate) fn get_or(
        &mut self,
        group: GroupIndex,
        open: impl FnOnce() -> Box<dyn Route>,
    ) -> &mut Box<dyn Route> {
        self.0.entry(group).or_insert_with(open)
    }
}
