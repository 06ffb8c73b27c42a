//! The way of requests to another node, as sessions see it.

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

/// In which protocol requests are forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conversation {
    /// memcached's, in text or binary.
    Memcached,
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
pub trait Route: Send {
    /// Sends requests. `more`: the last one is not complete, and the rest of it follows. `waker` is called when
    /// something has become of them.
    fn pass(&mut self, bytes: &[u8], more: bool, waker: &Waker);

    /// Sends the next bytes of a request to whoever has its beginning; to nobody, if something has become of that
    /// already.
    fn pass_rest(&mut self, bytes: &[u8], more: bool, waker: &Waker);

    /// Whether more of a request may be sent. If not, `waker` is called when it may.
    fn has_room(&mut self, waker: &Waker) -> bool;

    /// Appends what has come of the answers, and says what has become of the requests.
    fn take(&mut self, into: &mut Vec<u8>) -> Routed;

    /// Asks for the rest of the answers.
    fn go_on(&mut self);
}

/// The way to nobody.
pub(crate) struct NoRoute;

impl Route for NoRoute {
    fn pass(&mut self, _: &[u8], _: bool, waker: &Waker) {
        waker.wake_by_ref();
    }

    fn pass_rest(&mut self, _: &[u8], _: bool, waker: &Waker) {
        waker.wake_by_ref();
    }

    fn has_room(&mut self, _: &Waker) -> bool {
        true
    }

    fn take(&mut self, _: &mut Vec<u8>) -> Routed {
        Routed::Nobody
    }

    fn go_on(&mut self) {}
}
