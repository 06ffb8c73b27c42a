//! The way of requests to another node, as sessions see it.

use std::collections::BTreeMap;
use std::task::Waker;

/// Who answers requests about items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This server.
    Here,
    /// Another one, or nobody at the moment.
    Elsewhere,
    /// Another one; this server has a copy of the items that is good enough for look-ups.
    ElsewhereButReads,
}

/// A group of servers that have the same items, as this server numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Group(pub u16);

impl Group {
    /// The group of this server.
    pub const OWN: Self = Self(0);
}

/// Tells the requests of one [`Route::pass`] from those of others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed(pub u64);

/// In which protocol requests are forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conversation {
    /// memcached's, in text or binary.
    Memcached,
    /// memcached's, in which the gateway asks: see [`crate::Settings::for_gateway`].
    Gateway,
    /// RESP2.
    Resp2,
    /// RESP3.
    Resp3,
}

/// What has become of requests that were forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routed {
    /// They are not answered yet.
    Waiting,
    /// This is a part of the answers; the rest has to be asked for with [`Route::go_on`].
    More,
    /// All are answered.
    Done,
    /// All are answered, and the client's connection is to be closed.
    Close,
    /// None of them was answered or carried out: they can be sent again.
    Again,
    /// Some of them may have been carried out, and no answer will come.
    Lost,
    /// There is nobody who could answer them.
    Nobody,
}

/// The way of one connection's requests to whoever answers them. Dropping it ends the conversation there.
///
/// Requests that were passed one after the other are carried out in that order, also if the answers are taken in
/// another one. What becomes of some and is no answer ([`Routed::Again`], [`Routed::Lost`], [`Routed::Nobody`]) becomes
/// of those, too, that were passed after them.
pub trait Route: Send {
    /// Sends requests. `more`: the last one is not complete, and the rest of it follows. `waker` is called when
    /// something has become of them.
    fn pass(&mut self, bytes: &[u8], more: bool, waker: &Waker) -> Passed;

    /// Sends the next bytes of the request that was passed last to whoever has its beginning; to nobody, if something
    /// has become of that already.
    fn pass_rest(&mut self, bytes: &[u8], more: bool, waker: &Waker);

    /// Whether more of a request may be sent. If not, `waker` is called when it may.
    fn has_room(&mut self, waker: &Waker) -> bool;

    /// Appends what has come of the answers to these requests, and says what has become of them.
    fn take(&mut self, of: Passed, into: &mut Vec<u8>) -> Routed;

    /// Asks for the rest of the answers, of which [`Routed::More`] was said.
    fn go_on(&mut self);

    /// Forgets the requests that were passed: nothing more of their answers is taken.
    fn forget(&mut self);
}

/// The way to nobody.
pub(crate) struct NoRoute;

impl Route for NoRoute {
    fn pass(&mut self, _: &[u8], _: bool, waker: &Waker) -> Passed {
        waker.wake_by_ref();
        Passed::default()
    }

    fn pass_rest(&mut self, _: &[u8], _: bool, waker: &Waker) {
        waker.wake_by_ref();
    }

    fn has_room(&mut self, _: &Waker) -> bool {
        true
    }

    fn take(&mut self, _: Passed, _: &mut Vec<u8>) -> Routed {
        Routed::Nobody
    }

    fn go_on(&mut self) {}

    fn forget(&mut self) {}
}

/// The ways of one connection's requests, one for each group that has had some.
#[derive(Default)]
pub(crate) struct Routes(BTreeMap<Group, Box<dyn Route>>);

impl Routes {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The way to a group, if there is one.
    pub(crate) fn get(&mut self, group: Group) -> Option<&mut Box<dyn Route>> {
        self.0.get_mut(&group)
    }

    /// The way to a group, which `open` opens if there is none.
    pub(crate) fn get_or(
        &mut self,
        group: Group,
        open: impl FnOnce() -> Box<dyn Route>,
    ) -> &mut Box<dyn Route> {
        self.0.entry(group).or_insert_with(open)
    }
}
